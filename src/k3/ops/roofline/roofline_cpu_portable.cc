#include "k3/ops/roofline/roofline_kernel.h"

namespace k3::ops {
namespace {

// Vectors of the compiler (GCC and Clang): SSE on x86-64, whatever there is elsewhere.
using Floats = float __attribute__((vector_size(16)));
using Words = uint64_t __attribute__((vector_size(16)));

}  // namespace

float spin_fp32_portable(int64_t rounds) {
  Floats sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = Floats{} + static_cast<float>(i);
  const Floats half = Floats{} + 0.5F;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) sums[i] = sums[i] * half + half;
  }
  Floats sum = sums[0];
  for (int i = 1; i < kAccumulators; ++i) sum += sums[i];
  return sum[0];
}

uint64_t read_portable(const std::byte* data, int64_t bytes) {
  Words mix[8] = {};
  for (const std::byte* const end = data + bytes; data != end; data += 128) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) mix[i] ^= reinterpret_cast<const Words*>(data)[i];
  }
  for (int i = 1; i < 8; ++i) mix[0] ^= mix[i];
  return mix[0][0] ^ mix[0][1];
}

}  // namespace k3::ops
