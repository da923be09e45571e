// Purpose:  the ceilings of this machine, measured: how fast the threads of a pool read memory, and how fast they multiply.
// Shapes:   none.
// Units:    bytes per second and FLOPs per second, over all threads of the pool; a multiply-add is two FLOPs.
// Memory:   the read buffer belongs to the caller and is only read.
// Threads:  as the pool: one caller at a time. Each worker takes the next piece when it is free, so that a ceiling is what
//           the machine gives and not what a partition makes of it.
// Errors:   make_read_buffer: exhausted. A unit that the level does not have is a CHECK: ask has_unit first.
// Source:   loops of independent products on registers (no loads), and one pass after the other over a buffer that no cache
//           holds. What a level has: ops/cpu/isa.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "k3/base/threads.h"
#include "k3/ops/cpu/isa.h"
#include "k3/tensor/tensor.h"

namespace k3::ops {

enum class Unit { fp32_fma, bf16_dot, bf16_tile };  // slowest first

bool has_unit(Unit unit, Isa isa);
std::string_view unit_name(Unit unit);  // "fp32", "bf16 dot", "amx"
Unit best_unit(Isa isa);                // the fastest that the level has

// Both run for about this long; a sample of 20 ms or more repeats well on a quiet machine.
double measure_flops(ThreadPool& pool, Unit unit, Isa isa, double seconds);
double measure_read(ThreadPool& pool, std::span<const std::byte> buffer, Isa isa, double seconds);

// How large a buffer measures memory and not a cache: eight times the last level, 512 MiB to 2 GiB, but at most a quarter of
// the memory that is free.
int64_t read_buffer_bytes(int64_t cache_bytes, int64_t available_bytes);
// On huge pages where the system gives them, written by the workers of the pool.
Result<Storage> make_read_buffer(ThreadPool& pool, int64_t bytes);

}  // namespace k3::ops
