// wgmma m64nNk16, BF16 to FP32, operands in shared memory with the swizzle of 128 bytes or A in registers.
#include <fmt/format.h>

#include <cstring>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/tensor/dtype.h"
#include "tests/emulator/machine.h"

namespace k3::emulator {
namespace {

constexpr int kM = 64, kK = 16, kMostWidth = 256;

float from_bf16(uint32_t bits) { return bf16_to_float(static_cast<uint16_t>(bits)); }

// Rows of 16 numbers of an operand to `out` [16][rows], in pieces of 16 bytes, which stay together. With the swizzle lines
// of 128 bytes in groups of eight: a line a row, or (`trans`) one for each of the 16, 64 rows wide. Without it groups of
// eight lines of 16 bytes.
void read_operand(uint32_t block, uint64_t descriptor, bool trans, int rows, float* out) {
  const auto field = [descriptor](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3FFF) << 4; };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const auto kind = static_cast<ops::cuda::Swizzle>(descriptor >> 62);
  const bool swizzled = kind == ops::cuda::Swizzle::bytes_128;
  if (!swizzled && (kind != ops::cuda::Swizzle::none || trans)) fail_thread("an operand that the machine does not know");
  const auto lines = static_cast<uint32_t>(trans ? kK : rows), pieces = static_cast<uint32_t>(trans ? rows : kK) / 8;
  for (uint32_t line = 0; line < lines; ++line) {
    for (uint32_t piece = 0; piece < pieces; ++piece) {
      const uint32_t group = start + line / 8 * stride;
      const uint32_t at = address_of(block, swizzled ? group + line % 8 * 128 + piece / 8 * leading + piece % 8 * 16
                                                     : group + line % 8 * 16 + piece * leading);
      const char* const from = shared_memory_at(swizzled ? ops::cuda::swizzled(at) : at, 16);
      for (uint32_t i = 0; i < 8; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, from + 2 * i, 2);
        const uint32_t along = 8 * piece + i;
        out[trans ? line * static_cast<uint32_t>(rows) + along : along * static_cast<uint32_t>(rows) + line] =
            from_bf16(bits);
      }
    }
  }
}

// A in registers: rows of a warp's 16 as mma.m16n8k16 has them.
void read_registers(const Product& p, float* out) {
  for (size_t k = 0; k < kK; ++k) {
    for (size_t row = 0; row < kM; ++row) {
      const size_t in_warp = row % 16, lane = in_warp % 8 * 4 + k % 8 / 2, index = in_warp / 8 + 2 * (k / 8);
      out[k * kM + row] = from_bf16(p.registers[row / 16 * 32 + lane][index] >> (16 * (k % 2)) & 0xFFFF);
    }
  }
}

void compute(uint32_t block, const Product& p) {
  float a[kK * kM], b[kK * kMostWidth], sums[kM][kMostWidth];
  const auto width = static_cast<size_t>(p.width);
  if (p.a_in_registers) {
    read_registers(p, a);
  } else {
    read_operand(block, p.a, p.trans_a, kM, a);
  }
  read_operand(block, p.b, p.trans_b, p.width, b);
  const auto each = [&](const auto& take) {
    for (size_t thread = 0; thread < 128; ++thread) {
      for (size_t e = 0; e < width / 2; ++e) {
        const size_t row = thread / 32 * 16 + thread % 32 / 4 + e / 2 % 2 * 8, column = e / 4 * 8 + thread % 4 * 2 + e % 2;
        take(sums[row][column], p.accumulators[thread][e]);
      }
    }
  };
  each([&](float& sum, const float& d) { sum = p.accumulate ? d : 0; });
  for (size_t row = 0; row < kM; ++row) {
    for (size_t k = 0; k < kK; ++k) {
      const float x = a[k * kM + row];
      for (size_t column = 0; column < width; ++column) sums[row][column] += x * b[k * width + column];
    }
  }
  each([](const float& sum, float& d) { d = sum; });
}

Warpgroup& own_warpgroup() {
  const Fiber& self = *machine().self;
  return self.block->warpgroups[self.place.thread.x / 128];
}

void compute_until(uint32_t block, Warpgroup& group, int64_t count) {
  while (group.computed < count) {
    compute(block, group.products[static_cast<size_t>(group.computed - group.first)]);
    ++group.computed;
  }
  while (group.first < group.computed) {
    group.products.pop_front();
    ++group.first;
  }
}

}  // namespace
}  // namespace k3::emulator

namespace k3::ops::cuda {
using namespace k3::emulator;  // NOLINT: the words are the machine's

void ask_for_product(int width, float* d, const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate, bool trans_a,
                     bool trans_b) {
  Fiber& self = *machine().self;
  Warpgroup& group = own_warpgroup();
  const int64_t number = self.products++;
  if (number - group.first == static_cast<int64_t>(group.products.size())) {
    group.products.push_back({.width = width,
                              .trans_a = trans_a,
                              .trans_b = trans_b,
                              .accumulate = accumulate,
                              .a_in_registers = a_registers != nullptr,
                              .a = a,
                              .b = b});
  }
  Product& p = group.products[static_cast<size_t>(number - group.first)];
  if (p.width != width || p.a != a || p.b != b || p.accumulate != accumulate ||
      p.a_in_registers != (a_registers != nullptr)) {
    fail_thread("threads of a warpgroup ask for different products");
  }
  const unsigned thread = self.place.thread.x % 128;
  p.accumulators[thread] = d;
  if (a_registers != nullptr) std::memcpy(p.registers[thread].data(), a_registers, 16);
  if (++p.threads < 128) return;
  Machine& m = machine();
  m.moved = true;
  // One after another: what is slow holds up what comes after it.
  if (m.options.late_products) group.last = std::max(group.last, m.rounds + rounds_of_delay());
  at_round(m.options.late_products ? group.last : m.rounds,
           [&group, block = self.block->number, number] { compute_until(block, group, number + 1); });
}

void wgmma_fence() {}
void wgmma_commit() { machine().self->groups.push_back(machine().self->products); }
void wait_for_products(int groups_left) {
  Fiber& self = *machine().self;
  Warpgroup& group = own_warpgroup();
  while (static_cast<int>(self.groups.size()) > groups_left) {
    const int64_t count = self.groups.front();
    self.groups.pop_front();
    wait_until("products of its warpgroup", 0, [&] { return group.computed >= count; });
  }
}

}  // namespace k3::ops::cuda
