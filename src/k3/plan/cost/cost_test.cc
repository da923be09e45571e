// Properties of routing, communication and times: limits, monotony, sums; and the specification's facts that no golden value
// holds.
#include <gtest/gtest.h>

#include <cmath>

#include "k3/plan/cost/comm.h"
#include "k3/plan/cost/deployment_test.h"
#include "k3/plan/cost/mechanisms.h"
#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/prefix.h"
#include "k3/plan/cost/routing.h"
#include "k3/plan/cost/scan.h"
#include "k3/plan/cost/service.h"
#include "k3/plan/cost/validate.h"

namespace k3::plan {
namespace {

double step_seconds(const Deployment& d, int64_t requests, double context, int64_t draft = 0) {
  return decode_step(d, {.requests = requests, .context_tokens = context, .draft_tokens = draft}).seconds;
}

PrefillTime prefill(const Deployment& d, const std::vector<PrefillSequence>& sequences, int64_t chunks = 1) {
  return prefill_time(d, {sequences, chunks});
}

TEST(Prefill, ACountIsSoManySequences) {
  for (const Layout& layout : {Layout{}, Layout{.tp = 4, .dp = 2, .moe = MoeSharding::ep}, Layout{.tp = 2, .dp = 4, .kcp = 2}}) {
    const Deployment d = k3_on("H200-SXM", layout);
    const PrefillTime counted = prefill(d, {{300, 40, 3}, {8000, 0, 2}, {5, 7, 1}}, 2);
    const PrefillTime listed = prefill(d, {{300, 40}, {8000, 0}, {300, 40}, {5, 7}, {8000, 0}, {300, 40}}, 2);
    EXPECT_EQ(counted.tokens, listed.tokens);
    EXPECT_DOUBLE_EQ(counted.seconds, listed.seconds);
    EXPECT_DOUBLE_EQ(counted.latency_seconds, listed.latency_seconds);
    EXPECT_DOUBLE_EQ(counted.kda_scan.seconds, listed.kda_scan.seconds);
    EXPECT_DOUBLE_EQ(counted.communication.bytes, listed.communication.bytes);
  }
}

TEST(Routing, LimitsAndOrder) {
  EXPECT_EQ(distinct_experts(0, 0, 5), 0);
  EXPECT_EQ(distinct_experts(8, 8, 1), 8);
  double last = 0;
  for (double tokens = 1; tokens < 1e5; tokens *= 2) {
    const double even = distinct_experts(896, 16, tokens), skewed = distinct_experts_zipf(896, 16, tokens, 1);
    EXPECT_TRUE(even > last || even > 896 - 1e-6) << tokens;
    EXPECT_LE(even, 896 + 1e-9);
    EXPECT_LE(skewed, even * (1 + 1e-9)) << tokens;
    EXPECT_NEAR(distinct_experts_zipf(896, 16, tokens, 0), even, 1e-6) << tokens;
    last = even;
  }
  EXPECT_NEAR(distinct_experts_zipf(16, 16, 1, 1), 16, 1e-9);  // all are always chosen
}

TEST(Routing, BusiestRankIsBetweenMeanAndAll) {
  for (const int64_t ranks : {1, 2, 8, 64, 896}) {
    for (const double tokens : {1.0, 16.0, 1e6}) {
      const double distinct = distinct_experts(896, 16, tokens), busiest = busiest_rank_experts(896, distinct, ranks);
      EXPECT_GE(busiest, distinct / static_cast<double>(ranks) * (1 - 1e-12));
      EXPECT_LE(busiest, 896.0 / static_cast<double>(ranks) * (1 + 1e-12));
    }
  }
  EXPECT_EQ(busiest_rank_experts(896, 896, 8), 112);
}

TEST(Routing, RanksOfATokenAreAtMostItsExperts) {
  double last = 0;
  for (const int64_t ranks : {1, 2, 4, 8, 16, 32, 64, 128, 448, 896}) {
    const double touched = distinct_ranks(896, 16, ranks);
    EXPECT_GT(touched, last);
    EXPECT_LE(touched, 16 + 1e-9);
    last = touched;
  }
  EXPECT_NEAR(last, 16, 1e-9);  // a rank for each expert
}

TEST(Comm, OneRankTalksToNobody) {
  const Deployment d = k3_on("H200-SXM", {});
  EXPECT_EQ(all_reduce(d.hardware, d.efficiency, 1, 1e9).seconds(), 0);
  EXPECT_EQ(expert_exchange(d, 100).seconds(), 0);
  EXPECT_EQ(pp_hop(d, 100).seconds(), 0);
  const DecodeStep step = decode_step(d, {.requests = 4, .context_tokens = 8192});
  EXPECT_EQ(step.communication.seconds, 0);
  EXPECT_EQ(step.hop_seconds, 0);
}

TEST(Comm, LeavingTheDomainCostsMore) {
  const Hardware h200 = spec_hardware("H200-SXM"), gb300 = spec_hardware("GB300-NVL72");
  const Efficiency e;
  EXPECT_GT(all_reduce(h200, e, 16, 1e8).seconds(), all_reduce(h200, e, 8, 1e8).seconds());
  EXPECT_EQ(collective_floor_seconds(h200, e, 16), e.network_seconds);
  EXPECT_NEAR(collective_floor_seconds(gb300, e, 16), 14e-6, 1e-12);
  // 16 ranks of two domains: 7/4 of the volume inside, an eighth of it outside.
  const Collective two = all_reduce(h200, e, 16, 8e6);
  EXPECT_NEAR(two.bytes, 14e6 + 1e6, 1e-3);
  EXPECT_NEAR(two.volume_seconds, 14e6 / (450e9 * 0.75) + 1e6 / (50e9 * 0.75), 1e-12);
}

TEST(Comm, FactsOfTheSpecification) {
  const Counts c = k3_counts();
  EXPECT_NEAR(expert_traffic(c, {}, 16).bytes() * 92 / 1e6, 9.7, 0.05);
  EXPECT_NEAR(softmax_cp_bytes(c, {}, 1048576, 8, false) / (7 * kcp_traffic(c, {}, 1).bytes()), 11.8, 0.1);
  EXPECT_EQ(pp_payload_bytes(table_counts(test_config("kimi-linear-48b")).value(), {}, 13), 2304 * 2.0);
}

// The public FlashKDA table: 8192 tokens, eight of 1024, and a ragged batch, at 64 and 96 heads.
TEST(Scan, WithinThreePercentOfThePublicTable) {
  const Hardware hw = spec_hardware("GB200-NVL72");
  const std::vector<std::vector<double>> batches = {{8192}, std::vector<double>(8, 1024), {1300, 547, 2048, 963, 271, 3063}};
  const double measured_ms[2][3] = {{0.9247, 0.4811, 0.6553}, {1.0087, 0.7064, 0.8597}};
  for (size_t h = 0; h < 2; ++h) {
    for (size_t b = 0; b < 3; ++b) {
      EXPECT_NEAR(kda_scan_seconds(hw, {}, h == 0 ? 64 : 96, batches[b]) * 1e3 / measured_ms[h][b], 1, 0.03)
          << h << " " << b;
    }
  }
  EXPECT_EQ(kda_scan_seconds(hw, {}, 96, {}), 0);
}

TEST(Scan, OneLongSequenceIsSerialForTpAndNotForKcp) {
  const auto scan_ms = [](const Layout& l, int64_t tokens) {
    return prefill(k3_on("GB200-NVL72", l), {{tokens, 0}}).kda_scan.seconds * 1e3;
  };
  EXPECT_NEAR(scan_ms({.tp = 1}, 8192), 69.6, 0.1);
  EXPECT_NEAR(scan_ms({.tp = 8}, 8192), 54.5, 0.1);
  EXPECT_NEAR(scan_ms({.tp = 16}, 8192), 53.4, 0.1);
  EXPECT_NEAR(scan_ms({.tp = 1}, 131072), 1114, 1);
  EXPECT_NEAR(scan_ms({.tp = 1, .dp = 8, .kcp = 8, .moe = MoeSharding::ep}, 131072), 139, 1);
}

class Layouts : public testing::TestWithParam<Layout> {};

TEST_P(Layouts, DecodeStepsAddUpAndGrow) {
  const Deployment d = k3_on("GB300-NVL72", GetParam());
  ASSERT_TRUE(validate(d).ok()) << validate(d).error().message;
  double last = 0;
  for (const int64_t requests : {1, 2, 8, 16, 64, 256, 1024}) {
    const DecodeStep step = decode_step(d, {.requests = requests, .context_tokens = 8192});
    EXPECT_GE(step.seconds, last);
    EXPECT_LT(step.seconds, step_seconds(d, requests, 65536));
    EXPECT_LT(step.seconds, step_seconds(d, requests, 8192, 3));
    double sum = 0;
    for (const NamedPart& part : step.parts()) {
      EXPECT_GE(part.part.seconds, 0) << part.name;
      sum += part.part.seconds;
    }
    EXPECT_NEAR(sum, step.stage_seconds, 1e-12);
    last = step.seconds;
  }
  const Deployment narrow = [&] {
    Deployment half = d;
    half.hardware.hbm_bytes_per_second /= 2;
    return half;
  }();
  EXPECT_GT(step_seconds(narrow, 16, 8192), step_seconds(d, 16, 8192));
}

TEST_P(Layouts, PrefillsAddUpAndGrow) {
  const Deployment d = k3_on("GB300-NVL72", GetParam());
  double last = 0;
  for (const int64_t tokens : {1, 100, 1024, 8192, 131072}) {
    const PrefillTime t = prefill(d, {{tokens, 0}});
    EXPECT_GT(t.seconds, last);
    EXPECT_GE(t.latency_seconds, t.seconds * (1 - 1e-12));
    EXPECT_GT(prefill(d, {{tokens, 8192}}).seconds, t.seconds);
    double sum = 0;
    for (const NamedPart& part : t.parts()) sum += part.part.seconds;
    EXPECT_NEAR(sum, t.seconds, 1e-12);
    EXPECT_LE(prefill(d, {{tokens, 0}}, 8).latency_seconds, t.latency_seconds * (1 + 1e-12));
    last = t.seconds;
  }
  EXPECT_EQ(prefill(d, {}).seconds, 0);
  // The order of a batch does not matter.
  EXPECT_EQ(prefill(d, {{512, 0}, {4096, 1024}, {64, 9}}).seconds, prefill(d, {{64, 9}, {4096, 1024}, {512, 0}}).seconds);
}

INSTANTIATE_TEST_SUITE_P(Some, Layouts,
                         testing::Values(Layout{}, Layout{.tp = 8}, Layout{.tp = 8, .moe = MoeSharding::ep, .sp = true},
                                         Layout{.tp = 4, .dp = 4, .moe = MoeSharding::ep},
                                         Layout{.tp = 4, .dp = 4, .kcp = 2, .moe = MoeSharding::ep},
                                         Layout{.tp = 2, .pp = 4}, Layout{.tp = 8, .dcp = 4},
                                         Layout{.tp = 8, .dp = 16, .pp = 2, .moe = MoeSharding::ep}));

TEST(Prefill, PipelineFillsAndDrains) {
  const Deployment d = k3_on("GB300-NVL72", {.tp = 2, .pp = 4});
  EXPECT_NEAR(prefill(d, {{8192, 0}}).latency_seconds / prefill(d, {{8192, 0}}).seconds, 4, 1e-9);
  EXPECT_NEAR(prefill(d, {{8192, 0}}, 3).latency_seconds / prefill(d, {{8192, 0}}).seconds, 2, 1e-9);
}

// One prompt on four groups: three idle, so it takes longer than the mean group would say.
TEST(Prefill, LatencyIsThatOfTheFullestGroup) {
  const Deployment d = k3_on("GB300-NVL72", {.tp = 4, .dp = 4, .moe = MoeSharding::ep});
  const PrefillTime one = prefill(d, {{8192, 0}}), four = prefill(d, {{8192, 0}, {8192, 0}, {8192, 0}, {8192, 0}});
  EXPECT_GT(one.latency_seconds, 1.2 * one.seconds);
  EXPECT_NEAR(four.latency_seconds, four.seconds, 1e-12);
}

TEST(Prefill, SequenceShardingDividesTheResidualStream) {
  const PrefillTime whole = prefill(k3_on("B300-SXM", {.tp = 8}), {{8192, 0}});
  const PrefillTime sharded = prefill(k3_on("B300-SXM", {.tp = 8, .sp = true}), {{8192, 0}});
  EXPECT_NEAR(sharded.attn_res.seconds, whole.attn_res.seconds / 8, 1e-12);
  EXPECT_NEAR(sharded.elementwise.seconds, whole.elementwise.seconds * 3 / 10, 1e-12);  // (1 + 2) of (8 + 2) passes
  EXPECT_EQ(sharded.communication.seconds, whole.communication.seconds);
}

// tp 1, two groups: all that kcp adds are fragments and a halo a KDA layer, half of the latents a MLA layer, two floors.
TEST(Prefill, ContextParallelCommunicationByHand) {
  const Layout apart{.dp = 2, .moe = MoeSharding::ep}, together{.dp = 2, .kcp = 2, .moe = MoeSharding::ep};
  const Deployment a = k3_on("GB300-NVL72", apart), b = k3_on("GB300-NVL72", together);
  const PrefillTime one = prefill(a, {{32768, 0}, {32768, 0}}), both = prefill(b, {{32768, 0}, {32768, 0}});
  const double bytes = 69 * 2 * (12582912.0 + 221184.0) + 24 * 65536 / 2.0 * 576 * 2;
  EXPECT_NEAR(both.communication.bytes - one.communication.bytes, bytes, 1);
  EXPECT_NEAR(both.communication.seconds - one.communication.seconds, 0.6 * (93 * 8e-6 + bytes / (900e9 * 0.75)), 1e-9);
  EXPECT_NEAR(both.gemm.seconds, one.gemm.seconds, 1e-12);
  EXPECT_NEAR(both.mla_core.seconds, one.mla_core.seconds, 1e-12);
}

// 13a: a token is never split, and idle groups do not shorten a step.
TEST(Decode, TheBusiestGroupDecides) {
  const Deployment d = k3_on("GB300-NVL72", {.tp = 4, .dp = 4, .moe = MoeSharding::ep});
  EXPECT_EQ(decode_step(d, {.requests = 1, .context_tokens = 100}).group_requests, 1);
  EXPECT_EQ(decode_step(d, {.requests = 4, .context_tokens = 100}).group_requests, 1);
  EXPECT_EQ(decode_step(d, {.requests = 5, .context_tokens = 100}).group_requests, 2);
  const Deployment pp = k3_on("GB300-NVL72", {.tp = 1, .pp = 8});
  EXPECT_EQ(decode_step(pp, {.requests = 9, .context_tokens = 100, .draft_tokens = 3}).rows, 8);
}

// 9.3: draft of 7, 3.78 tokens a step on B300 TP8; 12: DSpark at 4.73 tokens a step on GB300.
TEST(Decode, SpeculationOfTheSpecification) {
  const Deployment b300 = k3_on("B300-SXM", {.tp = 8});
  const struct {
    int64_t requests;
    double gain;
  } rows[] = {{1, 2.45}, {8, 1.56}, {32, 1.97}, {64, 2.28}};
  for (const auto& row : rows) {
    const double gain = 3.78 * step_seconds(b300, row.requests, 8192) / step_seconds(b300, row.requests, 8192, 7);
    EXPECT_NEAR(gain, row.gain, 0.01) << row.requests;
  }
  EXPECT_NEAR(4.73 / step_seconds(k3_on("GB300-NVL72", {.tp = 8}), 1, 1024, 7), 360, 1);
  EXPECT_NEAR(4.73 / step_seconds(k3_on("GB300-NVL72", {.tp = 16}), 1, 1024, 7), 418, 1);
}

TEST(Decode, OverlapAndSkewTouchFewerExperts) {
  const Deployment d = k3_on("B300-SXM", {.tp = 8});
  const DecodeBatch even{.requests = 8, .context_tokens = 8192, .draft_tokens = 7};
  DecodeBatch overlap = even, skewed = even;
  overlap.row_overlap = 1;
  skewed.zipf_exponent = 1;
  EXPECT_NEAR(decode_step(d, overlap).distinct_experts, distinct_experts(896, 16, 8), 1e-9);
  EXPECT_LT(decode_step(d, skewed).distinct_experts, decode_step(d, even).distinct_experts);
}

TEST(Decode, SchemesOrderByTraffic) {
  const Deployment d = k3_on("B300-SXM", {.tp = 8});
  const auto seconds = [&](SpeculationScheme scheme) {
    return decode_step(d, {.requests = 64, .context_tokens = 8192, .draft_tokens = 7, .scheme = scheme}).kda_state.seconds;
  };
  EXPECT_LT(seconds(SpeculationScheme::fused), seconds(SpeculationScheme::replay));
  EXPECT_LT(seconds(SpeculationScheme::replay), seconds(SpeculationScheme::snapshot));
}

// The published rows of 8k/1k on GB200 TP16, with an FP8 cache: 12's model column.
TEST(Service, PublishedModelColumn) {
  Deployment d = k3_on("GB200-NVL72", {.tp = 16});
  d.precision.cache = kFp8Bytes;
  const struct {
    int64_t concurrency;
    double tokens;
  } rows[] = {{1, 116}, {2, 220}, {4, 397}, {8, 667}, {16, 1022}, {32, 1434}, {64, 1892}, {128, 2417}};
  for (const auto& row : rows) {
    EXPECT_NEAR(closed_loop(d, {.concurrency = row.concurrency}).output_tokens_per_second, row.tokens, 0.6)
        << row.concurrency;
  }
  const ClosedLoop mi =
      closed_loop(k3_on("MI355X", {.tp = 8}), {.concurrency = 16, .input_tokens = 1024, .output_tokens = 128});
  EXPECT_NEAR(mi.output_tokens_per_second, 776, 0.6);
}

TEST(Service, PipelinePrefillOfTheSpecification) {
  const std::vector<PrefillSequence> batch(16, {8192, 0});
  EXPECT_NEAR(prefill(k3_on("GB300-NVL72", {.pp = 8}), batch).tokens_per_second() / 8, 6102, 1);
}

TEST(Service, OneOutputTokenHasNoGaps) {
  const Deployment d = k3_on("B300-SXM", {.tp = 8});
  const ClosedLoop loop = closed_loop(d, {.concurrency = 3, .input_tokens = 8192, .output_tokens = 1});
  EXPECT_EQ(loop.prefill_batches, 2);
  EXPECT_EQ(loop.tpot_seconds, 0);
  EXPECT_NEAR(loop.total_seconds, 2 * loop.prefill_batch_seconds + 25e-3, 1e-12);
  EXPECT_NEAR(loop.ttft_seconds, 1.5 * loop.prefill_batch_seconds + 25e-3, 1e-12);
}

TEST(Service, BalanceByHand) { EXPECT_EQ(prefill_replicas_per_decode_replica(1000, 500, 8000, 4000), 4); }

TEST(Speculation, AcceptanceLimitsAndInverse) {
  EXPECT_EQ(tokens_per_step(0, 7), 1);
  EXPECT_EQ(tokens_per_step(1, 7), 8);
  for (const double alpha : {0.05, 0.5, 0.767, 0.99}) {
    EXPECT_NEAR(tokens_per_step(alpha, 7), (1 - std::pow(alpha, 8)) / (1 - alpha), 1e-12);
    EXPECT_NEAR(fit_alpha(7, tokens_per_step(alpha, 7)), alpha, 1e-12);
  }
  EXPECT_EQ(fit_alpha(7, 0.5), 0);
  EXPECT_EQ(fit_alpha(7, 9), 1);
}

TEST(Speculation, BreakEvenByHand) {
  EXPECT_EQ(break_even(1, 1, 3).alpha.value(), 0);
  const BreakEven twice = break_even(1, 1.75, 2);  // 1 + a + a^2 = 1.75 at 0.5
  EXPECT_NEAR(twice.alpha.value(), 0.5, 1e-12);
  EXPECT_FALSE(break_even(1, 3.1, 2).alpha.has_value());
}

TEST(Speculation, CurvesGrowAndDecayWithContext) {
  for (const AcceptanceCurve& curve : published_acceptance()) {
    for (int64_t g = 1; g < 8; ++g) EXPECT_GT(curve.at(g + 1), curve.at(g)) << curve.name << " " << g;
    EXPECT_EQ(curve.at(0), 1);
    EXPECT_EQ(curve.at(50), curve.at(8));
  }
  AcceptanceCurve curve = published_acceptance().front();
  curve.decay = {131072, 524288, 0.25};
  EXPECT_EQ(curve.at(7, 131072), 3.78);
  EXPECT_NEAR(curve.at(7, 262144), 1 + 2.78 * 0.625, 1e-12);  // half of the way in the logarithm
  EXPECT_NEAR(curve.at(7, 1e6), 1 + 2.78 * 0.25, 1e-12);
}

TEST(Prefix, SumsAndOrder) {
  const Deployment d = k3_on("B300-SXM", {.tp = 8});
  double last = 0;
  for (const PrefixPlace place : {PrefixPlace::hbm, PrefixPlace::host, PrefixPlace::network}) {
    const PrefixBenefit b = prefix_benefit(d, place, 32768, 1024), gap = prefix_benefit(d, place, 32768, 1024, 4096);
    EXPECT_NEAR(b.cold_seconds, b.saved_seconds + b.warm_seconds + b.restore_seconds, 1e-12);
    EXPECT_GT(b.restore_seconds, last);
    EXPECT_LT(gap.saved_seconds, b.saved_seconds);
    // What lies behind the checkpoint is computed again, after a shorter past.
    EXPECT_EQ(gap.warm_seconds, prefill(d, {{1024 + 4096, 32768 - 4096}}).seconds);
    if (place == PrefixPlace::host) {
      EXPECT_NEAR(b.restore_seconds - gap.restore_seconds, 4096 * 27648 / (110e9 * 0.75), 1e-12);
    }
    last = b.restore_seconds;
  }
  Precision bf16;
  bf16.state = kBf16Bytes;
  EXPECT_NEAR(checkpoints_bytes(d.counts, bf16, 9633) / 1e12, 2.24, 0.005);
  EXPECT_NEAR(checkpoints_bytes(d.counts, bf16, 170899) / 1e12, 39.7, 0.05);
  EXPECT_NEAR(blocks_bytes(d.counts, bf16, 170899) / 1e12, 2.42, 0.005);
}

// Storage a token pays for its share of a checkpoint, and half an interval computed again where it is used.
TEST(Prefix, BestIntervalIsALeastCost) {
  const double bytes = 2e8, price = 1e-8, reuse = 0.3, seconds = 2e-5;
  const auto cost = [&](double interval) { return bytes * price / interval + reuse * seconds * interval / 2; };
  const double best = best_checkpoint_interval_tokens(bytes, price, reuse, seconds);
  EXPECT_LT(cost(best), cost(best * 0.95));
  EXPECT_LT(cost(best), cost(best * 1.05));
}

TEST(Mechanisms, HybridLiesBetweenItsParts) {
  Precision p;
  p.state = kBf16Bytes;
  const Counts c = k3_counts();
  for (const double tokens : {1e3, 1e4, 1e5, 1e6}) {
    const double hybrid = mechanism_cost(c, p, Mechanism::hybrid, tokens).cache_bytes;
    const double kda = mechanism_cost(c, p, Mechanism::kda, tokens).cache_bytes,
                 mla = mechanism_cost(c, p, Mechanism::mla, tokens).cache_bytes;
    EXPECT_GT(hybrid, std::min(kda, mla));
    EXPECT_LT(hybrid, std::max(kda, mla));
  }
  EXPECT_NEAR(hybrid_beats_mla_tokens(c, p), 5.8e3, 50);
  const double at = hybrid_beats_mla_tokens(c, p);
  EXPECT_NEAR(
      mechanism_cost(c, p, Mechanism::hybrid, at).decode_bytes / mechanism_cost(c, p, Mechanism::mla, at).decode_bytes, 1,
      1e-9);
  // DSA selects everything while the prefix is short.
  EXPECT_EQ(
      mechanism_cost(c, p, Mechanism::dsa, 1000).decode_flops - mechanism_cost(c, p, Mechanism::mla, 1000).decode_flops,
      2.0 * 93 * 64 * 128 * 1000);
}

}  // namespace
}  // namespace k3::plan
