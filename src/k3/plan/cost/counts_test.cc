// The table's totals to the byte, and how far the idealised count is from them.
#include "k3/plan/cost/counts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/cache/shape.h"
#include "k3/model/summary.h"
#include "k3/plan/cost/deployment_test.h"
#include "k3/plan/cost/flops.h"
#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/validate.h"

namespace k3::plan {
namespace {

TEST(Counts, TableGivesTheReleasedTotals) {
  const Counts k3 = table_counts(test_config("k3")).value();
  EXPECT_EQ(k3.modules.total_params(), 2779931837184.0);
  EXPECT_EQ(k3.modules.total_bytes(), 1560860324864.0);
  EXPECT_EQ(k3.expert_bytes(), 17547264.0);
  EXPECT_EQ(k3.modules.kda.params, 69 * 443740416.0);  // A_log is stored with 128 values for 96 heads
  EXPECT_EQ(k3.modules.mla.params, 24 * 232196096.0);
  EXPECT_NEAR(k3.active_params() / 1e9, 104.19, 0.005);
  const Counts kimi = table_counts(test_config("kimi-linear-48b")).value();
  EXPECT_EQ(kimi.modules.total_params(), 49122681728.0);
  EXPECT_EQ(kimi.modules.total_bytes(), 98245528576.0);
  EXPECT_NEAR(kimi.active_params() / 1e9, 3.11, 0.005);
}

// Section 3's count leaves out a projector and FP32 vectors: 0.01 % of bytes, and non-matrices in FLOPs: 0.1 %.
TEST(Counts, IdealisedIsCloseToTheTable) {
  for (const char* name : {"k3", "kimi-linear-48b"}) {
    const Config config = test_config(name);
    Precision precision;
    if (!config.experts_mxfp4) precision.routed_weight = kBf16Bytes;
    const Counts table = table_counts(config).value(), ideal = idealised_counts(config, precision).value();
    EXPECT_NEAR(ideal.modules.total_params() / table.modules.total_params(), 1, 1e-4) << name;
    EXPECT_NEAR(ideal.modules.total_bytes() / table.modules.total_bytes(), 1, 1e-4) << name;
    EXPECT_NEAR(linear_flops(ideal).total() / linear_flops(table).total(), 1, 1e-3) << name;
    EXPECT_LE(linear_flops(table).total(), linear_flops(ideal).total()) << name;
    const Layout layout{.tp = 8};
    EXPECT_NEAR(resident_weights(ideal, layout).total() / resident_weights(table, layout).total(), 1, 2e-3) << name;
    EXPECT_NEAR(ideal.query_up_bytes / table.query_up_bytes, 1, 1e-12) << name;
    EXPECT_NEAR(ideal.head_read_bytes / table.head_read_bytes, 1, 1e-12) << name;
    EXPECT_NEAR(ideal.replicated.latent_down, table.replicated.latent_down, 1) << name;
  }
}

TEST(Counts, SmallModelsOfTheFamilyCount) {
  for (const char* folder : {"/models/k3-mini", "/tests/data/oracle-models/k3-a", "/tests/data/oracle-models/kl-a"}) {
    const Config config = load_config(std::string(K3_SOURCE_DIR) + folder).value();
    const Counts c = table_counts(config).value();
    EXPECT_EQ(c.kda_layers + c.mla_layers, config.num_hidden_layers) << folder;
    EXPECT_EQ(c.modules.total_params(), static_cast<double>(summarise(config).total.params)) << folder;
    EXPECT_EQ(c.modules.total_bytes(), static_cast<double>(summarise(config).total.size_bytes)) << folder;
    EXPECT_TRUE(validate(c).ok()) << folder << ": " << validate(c).error().message;
  }
}

TEST(Counts, TiedHeadIsReadButNotStoredTwice) {
  Config config = test_config("kimi-linear-48b");
  const Counts untied = table_counts(config).value();
  config.tie_word_embeddings = true;
  for (const Counts& tied : {table_counts(config).value(), idealised_counts(config).value()}) {
    EXPECT_EQ(tied.modules.head.bytes, 0);
    EXPECT_EQ(tied.head_read_bytes, untied.modules.head.bytes);
    EXPECT_EQ(linear_flops(tied).head, linear_flops(untied).head);
    EXPECT_NEAR(tied.active_params() / untied.active_params(), 1, 1e-3);
  }
}

TEST(Counts, RefusesAModelBeyondCounting) {
  Config config = test_config("k3");
  config.num_experts = int64_t{1} << 40;
  EXPECT_FALSE(table_counts(config).ok());
  EXPECT_FALSE(idealised_counts(config).ok());
}

TEST(Memory, OneAcceleratorHoldsEverything) {
  const Counts c = k3_counts();
  const double all = c.modules.total_bytes() - c.modules.norms.bytes - c.modules.attn_res.bytes;
  EXPECT_NEAR(resident_weights(c, {}).total() / all, 1, 1e-12);
  const Counts table = table_counts(test_config("k3")).value();
  EXPECT_NEAR(resident_weights(table, {}).total() / table.modules.total_bytes(), 1, 1e-12);
}

TEST(Memory, SplittingCostsCopiesOfWhatIsWhole) {
  const Counts c = k3_counts();
  for (const Layout& l : {Layout{.tp = 8}, Layout{.tp = 2, .dp = 4, .moe = MoeSharding::ep}, Layout{.tp = 1, .pp = 8}}) {
    const double held = resident_weights(c, l).total() * static_cast<double>(l.gpus());
    const double vision = resident_weights(c, l).vision * static_cast<double>(l.gpus());
    const double all = c.modules.total_bytes() - c.modules.norms.bytes - c.modules.attn_res.bytes - c.modules.vision.bytes;
    EXPECT_GE(held - vision, all * (1 - 1e-12));
    EXPECT_LT(held - vision, all * 1.5);
  }
  const Layout whole_up{.tp = 8, .up_sharded = false}, split_up{.tp = 8};
  EXPECT_GT(resident_weights(c, whole_up).latent, resident_weights(c, split_up).latent);
}

// TP divides states and not latents; DCP divides latents and not states.
TEST(Memory, TheTwoCachesSplitDifferently) {
  const auto ledger = [](const Layout& l) { return capacity(k3_on("GB300-NVL72", l), 131072); };
  const Capacity tp8 = ledger({.tp = 8}), tp16 = ledger({.tp = 16}), dcp8 = ledger({.tp = 8, .dcp = 8}),
                 pp = ledger({.tp = 8, .pp = 2});
  EXPECT_NEAR(tp16.state_bytes, tp8.state_bytes / 2, 1);
  EXPECT_EQ(tp16.cache_bytes, tp8.cache_bytes);
  EXPECT_EQ(dcp8.state_bytes, tp8.state_bytes);
  EXPECT_NEAR(dcp8.cache_bytes, tp8.cache_bytes / 8, 1);
  EXPECT_NEAR(pp.per_request_bytes, tp8.per_request_bytes / 2, 1);
  EXPECT_NEAR(tp8.memory_bytes, tp8.reserved_bytes + tp8.extra_bytes + tp8.weights_bytes + tp8.free_bytes, 1);
  const Capacity slots5 = capacity(k3_on("GB300-NVL72", {.tp = 8}), 131072, kSlotsDoubleBuffered);
  EXPECT_NEAR(slots5.state_bytes, 5 * tp8.state_bytes, 1);
  EXPECT_LE(slots5.requests, tp8.requests);
}

TEST(Memory, WhatDoesNotFitHasNoRequests) {
  const Capacity c = capacity(k3_on("H100-SXM", {.tp = 8}), 8192);
  EXPECT_FALSE(c.fits);
  EXPECT_LT(c.free_bytes, 0);
  EXPECT_EQ(c.requests, 0);
  EXPECT_EQ(c.tokens_if_one, 0);
}

// The pages of the real cache, which rounds states up to 64 bytes.
TEST(Memory, UnifiedPageIsTheCachesPage) {
  for (const char* name : {"k3", "kimi-linear-48b"}) {
    const Counts c = table_counts(test_config(name)).value();
    for (const int64_t tp : {1, 2, 4, 8, 16}) {
      for (const DType state : {DType::f32, DType::bf16}) {
        for (const DType latent : {DType::f32, DType::bf16, DType::f8_e4m3}) {
          const cache::LayerCounts layers{c.mla_layers, c.kda_layers, c.state_values() / tp, c.conv_values() / tp,
                                          c.cached_values()};
          const auto shape = cache::make_shape(layers, {state, DType::bf16, latent}, 512).value();
          Precision p;
          p.state = state == DType::f32 ? 4 : 2;
          p.cache = latent == DType::f32 ? 4 : latent == DType::bf16 ? 2 : 1;
          EXPECT_EQ(unified_page_tokens(c, p, tp), shape.page_tokens) << name << " tp " << tp;
        }
      }
    }
  }
}

TEST(Memory, CheckpointsAddWholeStates) {
  const Counts c = k3_counts();
  EXPECT_EQ(history_bytes(c, {}, 1000, 2, 77), 3 * 449372160.0 + 1000 * 27648.0 + 77);
}

// f_a and beta of 69 KDA layers and o_norm in FP32; q_a and kv_a of 24 MLA layers with their norms.
TEST(Memory, WhatEveryRankHoldsWhole) {
  const Counts c = table_counts(test_config("k3")).value();
  EXPECT_EQ(c.replicated.kda, 69 * (7168.0 * (128 + 96) * 2 + 128 * 4));
  EXPECT_EQ(c.replicated.mla, 24 * (7168.0 * (1536 + 576) + 1536 + 512) * 2);
  EXPECT_EQ(c.replicated.latent_down, 92 * 7168.0 * 3584 * 2);
  EXPECT_EQ(c.replicated.vectors, (2 * 7168.0 * 93 + 7168 + 2 * 7168.0 * 187) * 2);
}

TEST(Memory, AttnResHoldsNineRows) { EXPECT_EQ(attn_res_in_flight_bytes(k3_counts(), {}), 9 * 7168 * 2.0); }

TEST(Flops, FactsOfTheSpecification) {
  const Counts c = k3_counts();
  EXPECT_NEAR(attention_equals_linear_tokens(c), 279e3, 1e3);
  EXPECT_NEAR(linear_flops(c).without_head() / 1e9, 206.0, 0.05);
  EXPECT_NEAR(kda_prefill_flops_per_token(c) / linear_flops(c).without_head(), 0.004, 5e-5);
  const StepFlops whole = prefill_flops(c, 1048576);
  EXPECT_NEAR(whole.mla_core / whole.total(), 0.79, 0.005);
}

// A prompt in two pieces has the pairs of the whole, and expands its first piece once more.
TEST(Flops, PiecesOfAPromptAddUp) {
  const Counts c = k3_counts();
  const double whole = mla_prefill_flops(c, 3000, 0);
  const double pieces = mla_prefill_flops(c, 1000, 0) + mla_prefill_flops(c, 2000, 1000, false);
  EXPECT_NEAR(pieces / whole, 1, 1e-12);
  EXPECT_GT(mla_prefill_flops(c, 2000, 1000), mla_prefill_flops(c, 2000, 1000, false));
}

TEST(Flops, SourcesOfAttnResAreThoseOfEachLayer) {
  Counts c = k3_counts();
  for (c.attn_res_block = 1; c.attn_res_block <= 13; ++c.attn_res_block) {
    for (c.layers = 1; c.layers <= 40; ++c.layers) {
      int64_t sources = 1 + (c.layers + c.attn_res_block - 1) / c.attn_res_block;
      for (int64_t l = 0; l < c.layers; ++l) sources += 2 * (1 + l / c.attn_res_block) + 1 + (l % c.attn_res_block != 0 ? 1 : 0);
      EXPECT_EQ(attn_res_sources(c), sources) << c.layers << " layers in blocks of " << c.attn_res_block;
    }
  }
}

TEST(Flops, WithoutAttnResThereIsNoneOfIt) {
  const Counts c = table_counts(test_config("kimi-linear-48b")).value();
  EXPECT_EQ(attn_res_sources(c), 0);
  EXPECT_EQ(attn_res_bytes(c, {}), 0);
  EXPECT_EQ(attn_res_in_flight_bytes(c, {}), 2304 * 2.0);
}

}  // namespace
}  // namespace k3::plan
