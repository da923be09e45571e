#include "k3/train/data/permutation.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace k3::train {
namespace {

TEST(PermutationTest, EveryNumberOnce) {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 1000, 4096, 65537}) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      const Permutation permutation(size, key);
      std::vector<bool> seen(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        const int64_t to = permutation(i);
        ASSERT_TRUE(to >= 0 && to < size);
        ASSERT_FALSE(seen[static_cast<size_t>(to)]);
        seen[static_cast<size_t>(to)] = true;
      }
    }
  }
}

// A shuffle of n keeps about one element in its place, and about one neighbour beside its neighbour; hundreds would be a pattern.
TEST(PermutationTest, LooksShuffled) {
  for (uint64_t key = 0; key < 20; ++key) {
    const Permutation permutation(10'000, key);
    int fixed = 0, neighbours = 0;
    for (int64_t i = 0; i + 1 < 10'000; ++i) {
      fixed += permutation(i) == i;
      neighbours += permutation(i + 1) == permutation(i) + 1;
    }
    EXPECT_LT(fixed, 12);
    EXPECT_LT(neighbours, 12);
  }
}

TEST(PermutationTest, KeysDiffer) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t key = 0; key < 100; ++key) {
    const Permutation permutation(8, mix_key({key, 3}));
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 8; ++i) order.push_back(permutation(i));
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 90U);
  EXPECT_NE(mix_key({1, 2}), mix_key({2, 1}));
}

}  // namespace
}  // namespace k3::train
