// A shuffle of 0 .. size - 1 of which any element is found by itself: a Feistel network over the next power of four, walked on
// while it leads out of the range (at most 4 steps on average). Another key is another shuffle.
// Source: Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002); the round function is a 64-bit mixer, which
// shuffles well and keeps no secrets.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace k3::train {

// One well mixed number of several: seeds of streams.
uint64_t mix_key(std::initializer_list<uint64_t> parts);

class Permutation {
 public:
  Permutation(int64_t size, uint64_t key);
  int64_t operator()(int64_t i) const;  // i in [0, size)

 private:
  static constexpr int kRounds = 6;
  uint64_t network(uint64_t value) const;
  uint64_t size_, key_;
  int half_bits_;
};

}  // namespace k3::train
