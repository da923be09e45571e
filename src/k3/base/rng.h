// Counter-based random numbers (Philox 4x32-10): a value depends only on (seed, stream, counter), never on how
// many were drawn before, so results do not depend on threads or order.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace k3 {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

uint64_t random_seed();  // of the system: another one every time

class Rng {
 public:
  Rng(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  uint32_t bits(uint64_t counter) const;
  double uniform(uint64_t counter) const;  // [0, 1), 53 bits
  double normal(uint64_t counter) const;   // mean 0, variance 1 (Box-Muller; counters 2i and 2i + 1 share a block)
  // out[i] = normal(first + i) * scale, at half the cost of single calls.
  void fill_normal(uint64_t first, double scale, std::span<float> out) const;

 private:
  std::array<uint32_t, 4> block(uint64_t counter) const;
  std::array<double, 2> normal_pair(uint64_t block_counter) const;
  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace k3
