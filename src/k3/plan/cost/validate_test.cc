// Whatever a file, a person or a sweep may ask for is refused by name, and what passes gives finite answers.
#include "k3/plan/cost/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "k3/plan/cost/deployment_test.h"
#include "k3/plan/cost/memory.h"

namespace k3::plan {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

void expect_refused(const Status& status, const std::string& word) {
  ASSERT_FALSE(status.ok()) << word;
  EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
}

TEST(Validate, EverySpecRowPasses) {
  for (const Hardware& h : kSpecHardware) EXPECT_TRUE(validate(h).ok()) << h.name;
  EXPECT_TRUE(validate(Efficiency{}).ok());
  EXPECT_TRUE(validate(Precision{}).ok());
}

TEST(Validate, EachHardwareCellIsNamed) {
  const struct {
    const char* name;
    double Hardware::*cell;
  } cells[] = {{"memory_bytes", &Hardware::memory_bytes},
               {"hbm_bytes_per_second", &Hardware::hbm_bytes_per_second},
               {"bf16_flops_per_second", &Hardware::bf16_flops_per_second},
               {"fp8_flops_per_second", &Hardware::fp8_flops_per_second},
               {"scale_up_bytes_per_second", &Hardware::scale_up_bytes_per_second},
               {"network_bytes_per_second", &Hardware::network_bytes_per_second},
               {"host_bytes_per_second", &Hardware::host_bytes_per_second},
               {"scan_lanes", &Hardware::scan_lanes},
               {"scan_chunk_seconds", &Hardware::scan_chunk_seconds},
               {"scan_head_token_seconds", &Hardware::scan_head_token_seconds}};
  for (const auto& c : cells) {
    for (const double bad : {-1.0, kNaN, kInf, -kInf, 1e30}) {
      Hardware h = spec_hardware("H200-SXM");
      h.*c.cell = bad;
      expect_refused(validate(h), c.name);
      expect_refused(validate(h), "H200-SXM");
    }
  }
  Hardware h = spec_hardware("H200-SXM");
  h.hbm_bytes_per_second = 0;
  expect_refused(validate(h), "hbm_bytes_per_second");
  h = spec_hardware("H200-SXM");
  h.domain_gpus = 0;
  expect_refused(validate(h), "domain_gpus");
}

TEST(Validate, EfficiencyAndPrecisionAreNamed) {
  Efficiency e;
  e.routed_flops = 0;
  expect_refused(validate(e), "routed_flops");
  e = {};
  e.memory_reserve = 1;
  expect_refused(validate(e), "memory_reserve");
  e = {};
  e.collective_overlap = kNaN;
  expect_refused(validate(e), "collective_overlap");
  e = {};
  e.residual_passes = e.elementwise_passes + 1;
  expect_refused(validate(e), "residual_passes");
  Precision p;
  p.cache = 0;
  expect_refused(validate(p), "cache");
}

TEST(Validate, LayoutsThatCannotBe) {
  const Counts c = k3_counts();
  const struct {
    Layout layout;
    const char* word;
  } rows[] = {
      {{.tp = 0}, "tp is 0"},
      {{.dp = -3}, "dp is -3"},
      {{.tp = 7}, "tp 7 does not divide 96 KDA heads"},
      {{.tp = 8, .dcp = 3}, "dcp 3"},
      {{.tp = 8, .dp = 4, .kcp = 3, .moe = MoeSharding::ep}, "kcp 3"},
      {{.pp = 94}, "pp 94"},
      {{.tp = 32, .dp = 64, .moe = MoeSharding::ep}, "2048 ranks for 896 experts"},
      {{.tp = 1, .dp = 3, .moe = MoeSharding::ep}, "does not divide 896 experts"},
      {{.tp = 8, .dp = 2, .moe = MoeSharding::tp}, "not modelled"},
      {{.tp = 1 << 20, .dp = 1 << 20, .pp = 2}, "accelerators"},
      {{.tp = int64_t{1} << 62}, "tp is"},
  };
  for (const auto& row : rows) expect_refused(validate(row.layout, c), row.word);
}

TEST(Validate, ModelsOfOneKindOfLayerAreRefused) {
  Counts c = k3_counts();
  c.kda_layers = 0;
  expect_refused(validate(c), "0 KDA");
  c = k3_counts();
  c.mla_layers = 0;
  expect_refused(validate(c), "0 MLA");
  c = k3_counts();
  c.topk = 0;
  expect_refused(validate(c), "num_experts_per_token");
  c = k3_counts();
  c.moe_layers -= 1;
  expect_refused(validate(c), "dense");
  expect_refused(validate(Counts{}), "KDA");
}

TEST(Validate, Batches) {
  expect_refused(validate(DecodeBatch{.requests = 0}), "requests");
  expect_refused(validate(DecodeBatch{.requests = 1, .context_tokens = kNaN}), "context_tokens");
  expect_refused(validate(DecodeBatch{.requests = 1, .draft_tokens = -1}), "draft_tokens");
  expect_refused(validate(DecodeBatch{.requests = 1, .row_overlap = 1.5}), "row_overlap");
  expect_refused(validate(PrefillBatch{}), "new tokens");
  const PrefillSequence negative{-5, 0}, huge{100, int64_t{1} << 60};
  expect_refused(validate(PrefillBatch{{&negative, 1}, 1}), "new_tokens is -5");
  expect_refused(validate(PrefillBatch{{&huge, 1}, 1}), "past_tokens");
  const PrefillSequence none{5, 0, 0};
  expect_refused(validate(PrefillBatch{{&none, 1}, 1}), "count is 0");
  expect_refused(validate(ClosedLoad{.input_tokens = 0}), "input_tokens");
  expect_refused(validate(ClosedLoad{.tokens_per_step = 2}), "tokens_per_step");
  EXPECT_TRUE(validate(ClosedLoad{.draft_tokens = 7, .tokens_per_step = 3.78}).ok());
}

// Every hardware and many layouts, of all models at hand: finite and positive once validated.
TEST(Validate, WhatPassesIsFinite) {
  int passed = 0;
  for (const char* path : {"/tests/data/configs/k3.json", "/tests/data/configs/kimi-linear-48b.json", "/models/k3-mini"}) {
    Deployment d;
    d.counts = table_counts(load_config(std::string(K3_SOURCE_DIR) + path).value()).value();
    for (const Hardware& h : kSpecHardware) {
      d.hardware = h;
      for (const int64_t tp : {1, 2, 8, 16}) {
        for (const int64_t dp : {1, 4, 64}) {
          for (const int64_t pp : {1, 3}) {
            for (const int64_t dcp : {int64_t{1}, tp}) {
              d.layout = {
                  .tp = tp, .dp = dp, .pp = pp, .dcp = dcp, .kcp = dp > 1 ? 2 : 1, .moe = MoeSharding::ep, .sp = tp > 2};
              if (!validate(d).ok()) continue;
              ++passed;
              const PrefillSequence sequence{777, 55};
              const double values[] = {decode_step(d, {.requests = 7, .context_tokens = 1e5, .draft_tokens = 3}).seconds,
                                       prefill_time(d, {{&sequence, 1}, 2}).latency_seconds,
                                       closed_loop(d, {.concurrency = 5}).total_seconds,
                                       resident_weights(d.counts, d.layout).total()};
              for (const double v : values)
                EXPECT_TRUE(std::isfinite(v) && v > 0) << path << " " << h.name << " tp " << tp << " dp " << dp;
              EXPECT_TRUE(std::isfinite(capacity(d, 0).tokens_if_one));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(passed, 200);
}

}  // namespace
}  // namespace k3::plan
