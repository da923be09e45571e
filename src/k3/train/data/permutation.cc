#include "k3/train/data/permutation.h"

#include "k3/base/check.h"

namespace k3::train {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t mix_key(std::initializer_list<uint64_t> parts) {
  uint64_t key = 0;
  for (const uint64_t part : parts) key = mix(key ^ part);
  return key;
}

Permutation::Permutation(int64_t size, uint64_t key) : size_(static_cast<uint64_t>(size)), key_(key), half_bits_(1) {
  K3_CHECK(size > 0 && size <= int64_t{1} << 60, "a permutation of {}", size);
  while (uint64_t{1} << (2 * half_bits_) < size_) ++half_bits_;
}

uint64_t Permutation::network(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (mix(mix(key_ + static_cast<uint64_t>(round)) ^ right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t i) const {
  auto value = static_cast<uint64_t>(i);
  K3_DCHECK(value < size_);
  do value = network(value);
  while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace k3::train
