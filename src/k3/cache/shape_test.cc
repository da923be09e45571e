#include "k3/cache/shape.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "k3/cache/block_index.h"
#include "k3/cache/block_key.h"
#include "k3/cache/evict_heap.h"

namespace k3::cache {
namespace {

// K3 on one rank of `ranks`: 69 KDA layers of 96 heads of 128x128, 24 MLA layers of 576 values; conv state in bf16.
CacheShape k3_shape(int64_t ranks, DType state, DType latent) {
  return *make_shape({.mla_layers = 24, .kda_layers = 69, .state_elements = 96 * 128 * 128 / ranks,
                      .conv_elements = 3 * 3 * 96 * 128 / ranks, .latent_width = 576},
                     {.state = state, .conv = DType::bf16, .latent = latent}, 512);
}

TEST(CacheShape, PagesOfK3) {
  const struct { int64_t ranks, f32_bf16, bf16_f8, f32_f8, bf16_bf16; } table[] = {
      {1, 6144, 6144, 11776, 3072}, {2, 3072, 3072, 6144, 1536}, {4, 1536, 1536, 3072, 1024}, {8, 1024, 1024, 1536, 512}};
  for (const auto& row : table) {
    EXPECT_EQ(k3_shape(row.ranks, DType::f32, DType::bf16).page_tokens, row.f32_bf16) << row.ranks;
    EXPECT_EQ(k3_shape(row.ranks, DType::bf16, DType::f8_e4m3).page_tokens, row.bf16_f8) << row.ranks;
    EXPECT_EQ(k3_shape(row.ranks, DType::f32, DType::f8_e4m3).page_tokens, row.f32_f8) << row.ranks;
    EXPECT_EQ(k3_shape(row.ranks, DType::bf16, DType::bf16).page_tokens, row.bf16_bf16) << row.ranks;
  }
  const CacheShape shape = k3_shape(1, DType::f32, DType::bf16);
  EXPECT_EQ(shape.group_layers, (std::vector<int64_t>{23, 23, 23}));
  EXPECT_EQ(shape.page_bytes, 24 * 6144 * 1152);
  EXPECT_EQ(shape.blocks_per_page(), 12);
}

TEST(CacheShape, EverythingFitsItsPage) {
  for (const int64_t mla : {0, 1, 2, 5}) {
    for (const int64_t kda : {0, 1, 3, 16}) {
      if (mla + kda == 0) continue;
      for (const DType latent : {DType::f32, DType::bf16, DType::f8_e4m3}) {
        const auto made = make_shape({mla, kda, 77, 5, 9}, {DType::bf16, DType::f32, latent}, 48);
        ASSERT_TRUE(made.ok());
        const CacheShape& shape = *made;
        EXPECT_EQ(shape.page_tokens % 48, 0);
        EXPECT_EQ(shape.page_bytes % 64, 0);
        EXPECT_GE(shape.page_bytes, mla * shape.latent_layer_bytes());
        int64_t layers = 0;
        for (const int64_t group : shape.group_layers) {
          layers += group;
          EXPECT_GE(shape.page_bytes, group * shape.layer_stride);
          EXPECT_LE(group, std::max<int64_t>(1, mla));
        }
        EXPECT_EQ(layers, kda);
        EXPECT_GE(shape.layer_stride - shape.conv_offset, kda == 0 ? 0 : 5 * 4);
      }
    }
  }
}

TEST(CacheShape, RefusesWhatCannotBe) {
  const LayerCounts counts{1, 3, 64, 8, 4};
  for (const int64_t block : {0, -16, 8, 24, 17}) EXPECT_EQ(make_shape(counts, {}, block).error().code, Code::invalid_argument);
  EXPECT_FALSE(make_shape({}, {}, 16).ok());
  EXPECT_FALSE(make_shape({1, 1, 0, 0, 4}, {}, 16).ok());
  EXPECT_FALSE(make_shape({1, 1, 4, 0, 0}, {}, 16).ok());
  EXPECT_FALSE(make_shape({-1, 3, 4, 0, 4}, {}, 16).ok());
  EXPECT_FALSE(make_shape(counts, {.state = DType::f16}, 16).ok());
  EXPECT_FALSE(make_shape(counts, {.latent = DType::i8}, 16).ok());
}

TEST(KeyChain, KeysCertifyThePrefixAndDoNotDependOnTheCuts) {
  std::vector<int32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i);
  KeyChain whole(16, 5, "model");
  whole.append(tokens);
  ASSERT_EQ(whole.keys().size(), 6u);
  for (const size_t cut : {1u, 7u, 16u, 33u}) {
    KeyChain chain(16, 5, "model");
    for (size_t at = 0; at < tokens.size(); at += cut) chain.append(std::span(tokens).subspan(at, std::min(cut, tokens.size() - at)));
    EXPECT_TRUE(std::ranges::equal(chain.keys(), whole.keys())) << cut;
    EXPECT_EQ(chain.tokens(), 100);
  }
  const auto keys_with = [&](int32_t first, uint64_t seed, std::string_view extra) {
    std::vector<int32_t> changed = tokens;
    changed[0] = first;
    KeyChain chain(16, seed, extra);
    chain.append(changed);
    return std::vector<BlockKey>(chain.keys().begin(), chain.keys().end());
  };
  for (const auto& other : {keys_with(1, 5, "model"), keys_with(0, 6, "model"), keys_with(0, 5, "other"), keys_with(0, 5, "")}) {
    for (size_t i = 0; i < other.size(); ++i) EXPECT_FALSE(other[i] == whole.keys()[i]);
  }
}

TEST(BlockIndex, AgainstAMap) {
  BlockIndex index(1000, 3);
  std::vector<std::pair<int32_t, uint64_t>> held;  // record, key
  uint64_t random = 9;
  const auto draw = [&] { return (random = random * 6364136223846793005ULL + 1442695040888963407ULL) >> 33; };
  for (int round = 0; round < 20000; ++round) {
    const auto record = static_cast<int32_t>(draw() % 3000);
    const auto found = std::ranges::find(held, record, &std::pair<int32_t, uint64_t>::first);
    if (found == held.end()) {
      const uint64_t key = draw() % 700;
      index.insert(record, {key, key});
      held.emplace_back(record, key);
    } else if (draw() % 3 == 0) {
      index.promote(record);
      EXPECT_EQ(index.find({found->second, found->second}), record);
    } else {
      index.erase(record);
      held.erase(found);
    }
    if (round % 500 != 0) continue;
    ASSERT_STREQ(index.check(), "");
    for (uint64_t key = 0; key < 700; ++key) {
      int64_t copies = 0;
      for (int32_t r = index.find({key, key}); r != BlockIndex::kNone; r = index.next(r)) ++copies;
      ASSERT_EQ(copies, std::ranges::count(held, key, &std::pair<int32_t, uint64_t>::second));
    }
  }
}

TEST(EvictHeap, LeavesInOrder) {
  EvictHeap heap(100);
  for (int32_t i = 0; i < 100; ++i) heap.insert(i, (i * 37) % 10);
  for (int32_t i = 0; i < 100; i += 3) heap.erase(i);
  std::pair<double, int32_t> last{-1, -1};
  int64_t left = heap.size();
  for (; !heap.empty(); --left) {
    const std::pair<double, int32_t> now{heap.top_value(), heap.top()};
    EXPECT_LT(last, now);  // of equal value: the order of insertion, here the number
    EXPECT_NE(now.second % 3, 0);
    last = now;
    heap.erase(now.second);
  }
  EXPECT_EQ(left, 0);
}

}  // namespace
}  // namespace k3::cache
