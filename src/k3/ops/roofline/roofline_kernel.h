// Internal to ops/roofline. The loops of one thread. A round of products is kAccumulators independent instructions, enough
// to hide the latency of each; the functions return something that depends on every one, so that none is left out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace k3::ops {

inline constexpr int kAccumulators = 12;
inline constexpr int64_t kTileProducts = 4;  // tile products of a round: two by two, as a kernel would block them

float spin_fp32_portable(int64_t rounds);  // SSE, multiply and add apart
float spin_fp32_avx2(int64_t rounds);
float spin_fp32_avx512(int64_t rounds);
float spin_bf16_dot(int64_t rounds);
float spin_bf16_tile(int64_t rounds);

// bytes: a multiple of 512; data aligned to 64.
uint64_t read_portable(const std::byte* data, int64_t bytes);
uint64_t read_avx2(const std::byte* data, int64_t bytes);
uint64_t read_avx512(const std::byte* data, int64_t bytes);

}  // namespace k3::ops
