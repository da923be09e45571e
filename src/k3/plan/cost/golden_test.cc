// Every leaf of tests/data/cost-model-golden.json against the formulas: what no check here consumes fails the test.
// Tolerances of the specification: 1e-9 for counts, bytes and FLOPs (the file holds ten digits), 1e-6 for times.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "k3/plan/cost/comm.h"
#include "k3/plan/cost/deployment_test.h"
#include "k3/plan/cost/flops.h"
#include "k3/plan/cost/mechanisms.h"
#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/prefix.h"
#include "k3/plan/cost/routing.h"
#include "k3/plan/cost/scan.h"
#include "k3/plan/cost/service.h"
#include "k3/plan/cost/validate.h"

namespace k3::plan {
namespace {

using nlohmann::json;

constexpr double kCount = 1e-9, kTime = 1e-6;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// A group of the file; remembers which of its leaves were compared.
class Group {
 public:
  Group(const json& value, std::string path, std::set<std::string>& consumed)
      : value_(value), path_(std::move(path)), consumed_(consumed) {}

  Group operator[](const std::string& key) const {
    EXPECT_TRUE(value_.contains(key)) << path_ << "/" << key << " is not in the file";
    static const json kNone = json::object();
    return {value_.contains(key) ? value_.at(key) : kNone, path_ + "/" + key, consumed_};
  }

  void is(double computed, double tolerance = kCount) const {
    consumed_.insert(path_);
    ASSERT_TRUE(value_.is_number()) << path_;
    const double golden = value_.get<double>();
    EXPECT_NEAR(computed, golden, std::abs(golden) * tolerance + (golden == 0 ? 1e-12 : 0)) << path_;
  }
  void is_time(double computed) const { is(computed, kTime); }
  void is_flag(bool computed) const {
    consumed_.insert(path_);
    EXPECT_EQ(value_.get<bool>(), computed) << path_;
  }
  template <class T>
  T input(const std::string& key) const {
    consumed_.insert(path_ + "/" + key);
    return value_.at(key).get<T>();
  }
  bool has(const std::string& key) const { return value_.contains(key); }

  template <class Visit>
  void each(Visit visit) const {
    for (const auto& item : value_.items()) visit(item.key(), (*this)[item.key()]);
  }
  const std::string& path() const { return path_; }

 private:
  const json& value_;
  std::string path_;
  std::set<std::string>& consumed_;
};

double number(const std::string& text) { return std::stod(text); }

Precision bf16_state() {
  Precision p;
  p.state = kBf16Bytes;
  return p;
}
Precision fp8_cache() {
  Precision p;
  p.cache = kFp8Bytes;
  return p;
}

Layout read_layout(const Group& g) {
  Layout l;
  l.tp = g.input<int64_t>("tp");
  l.dp = g.input<int64_t>("dp");
  l.pp = g.input<int64_t>("pp");
  l.dcp = g.input<int64_t>("dcp");
  l.moe = g.input<std::string>("moe") == "ep" ? MoeSharding::ep : MoeSharding::tp;
  l.sp = g.input<bool>("sp");
  l.up_sharded = g.input<bool>("up_sharded");
  return l;
}

Deployment b300_tp8() { return k3_on("B300-SXM", {.tp = 8}); }

void check_params(const Group& g, const std::string& config_name) {
  const Config config = test_config(config_name);
  const Counts c = idealised_counts(config).value();
  const ModuleCounts& m = c.modules;
  const std::map<std::string, double> sums = {{"kda", m.kda.params},
                                              {"mla", m.mla.params},
                                              {"routed", m.routed.params},
                                              {"shared", m.shared.params},
                                              {"latent", m.latent.params},
                                              {"router", m.router.params},
                                              {"dense", m.dense.params},
                                              {"embed", m.embedding.params},
                                              {"head", m.head.params},
                                              {"norms", m.norms.params},
                                              {"attnres", m.attn_res.params},
                                              {"total", m.total_params()},
                                              {"total_text", m.total_params() - m.vision.params},
                                              {"active_per_token", c.active_params()}};
  for (const auto& [key, value] : sums) g[key].is(value);
  const double moe = static_cast<double>(c.moe_layers);
  const std::map<std::string, double> layers = {{"kda", m.kda.params / static_cast<double>(c.kda_layers)},
                                                {"mla", m.mla.params / static_cast<double>(c.mla_layers)},
                                                {"expert", c.expert_params()},
                                                {"shared", m.shared.params / moe},
                                                {"router", m.router.params / moe},
                                                {"latent", m.latent.params / moe},
                                                {"dense", m.dense.params / static_cast<double>(c.dense_layers)}};
  for (const auto& [key, value] : layers) g["per_layer"][key].is(value);
}

void check_weight_bytes(const Group& g) {
  const Counts c = k3_counts();
  const ModuleCounts& m = c.modules;
  const std::map<std::string, double> values = {{"kda", m.kda.bytes},          {"mla", m.mla.bytes},
                                                {"routed", m.routed.bytes},    {"shared", m.shared.bytes},
                                                {"latent", m.latent.bytes},    {"router", m.router.bytes},
                                                {"dense", m.dense.bytes},      {"embed", m.embedding.bytes},
                                                {"head", m.head.bytes},        {"norms", m.norms.bytes},
                                                {"attnres", m.attn_res.bytes}, {"vision", m.vision.bytes},
                                                {"total", m.total_bytes()},    {"one_expert", c.expert_bytes()}};
  for (const auto& [key, value] : values) g[key].is(value);
}

void check_state(const Group& g, const Precision& p) {
  g["recurrent"].is(recurrent_bytes(k3_counts(), p));
  g["conv"].is(conv_bytes(k3_counts(), p));
  g["total"].is(fixed_bytes(k3_counts(), p));
}

void check_capacity(const Group& g, const Deployment& d, double context) {
  const Capacity c = capacity(d, context);
  g["fits"].is_flag(c.fits);
  g["free"].is(c.free_bytes);
  g["per_request"].is(c.per_request_bytes);
  g["requests"].is(static_cast<double>(c.requests));
  g["tokens_if_one"].is(c.tokens_if_one);
  g["weights"].is(c.weights_bytes);
}

double prefill_seconds(const Deployment& d, int64_t sequences, int64_t tokens) {
  const std::vector<PrefillSequence> batch(static_cast<size_t>(sequences), {tokens, 0});
  return prefill_time(d, {batch, 1}).seconds;
}

void check_case(const Group& g) {
  const Deployment d = k3_on(g.input<std::string>("hw"), read_layout(g["layout"]));
  ASSERT_TRUE(validate(d).ok()) << g.path() << ": " << validate(d).error().message;
  g["weights_per_gpu"].is(resident_weights(d.counts, d.layout).total());
  check_capacity(g["capacity_8k"], d, 9216);
  check_capacity(g["capacity_128k"], d, 131072);
  if (g.has("decode")) {
    g["decode"].each([&](const std::string& key, const Group& value) {
      const auto parts = split(key, '_');
      DecodeBatch batch;
      batch.requests = std::stoll(parts[0].substr(1));
      batch.context_tokens = number(parts[1].substr(1));
      value.is_time(decode_step(d, batch).seconds);
    });
  }
  if (g.has("prefill_128k")) g["prefill_128k"].is_time(prefill_seconds(d, 1, 131072));
  if (g.has("prefill_8k_x2")) g["prefill_8k_x2"].is_time(prefill_seconds(d, 2, 8192));
}

void check_decode_breakdown(const Group& g) {
  const DecodeStep s = decode_step(b300_tp8(), {.requests = 16, .context_tokens = 8704});
  const std::map<std::string, double> times = {{"attnres", s.attn_res.seconds},
                                               {"comm", s.communication.seconds},
                                               {"dense_ffn", s.dense_ffn.seconds},
                                               {"draft", s.draft_seconds},
                                               {"fixed", s.kernels.seconds},
                                               {"head", s.head.seconds},
                                               {"hop", s.hop_seconds},
                                               {"host", s.host_seconds},
                                               {"kda_proj", s.kda_proj.seconds},
                                               {"kda_state", s.kda_state.seconds},
                                               {"mla_core", s.mla_core.seconds},
                                               {"mla_proj", s.mla_proj.seconds},
                                               {"moe_dense", s.moe_dense.seconds},
                                               {"routed", s.routed.seconds},
                                               {"stage", s.stage_seconds},
                                               {"step", s.seconds}};
  for (const auto& [key, value] : times) g[key].is_time(value);
  g["distinct"].is(s.distinct_experts);
  g["kv_bytes"].is(s.mla_core.bytes);
  g["routed_bytes"].is(s.routed.bytes);
  g["state_bytes"].is(s.state_bytes);
  g["rows"].is(static_cast<double>(s.rows));
}

void check_prefill_breakdown(const Group& g) {
  const Deployment d = k3_on("GB300-NVL72", {.tp = 8, .moe = MoeSharding::ep});
  const std::vector<PrefillSequence> batch(16, {8192, 0});
  const PrefillTime t = prefill_time(d, {batch, 1});
  const std::map<std::string, double> times = {{"attnres", t.attn_res.seconds},
                                               {"comm", t.communication.seconds},
                                               {"elementwise", t.elementwise.seconds},
                                               {"fixed", t.kernels.seconds},
                                               {"gemm", t.gemm.seconds},
                                               {"hop", t.hop.seconds},
                                               {"kda_scan", t.kda_scan.seconds},
                                               {"latency", t.latency_seconds},
                                               {"mla_core", t.mla_core.seconds},
                                               {"routed", t.routed.seconds},
                                               {"time", t.seconds},
                                               {"ms_per_1k", t.seconds_per_1k_tokens() * 1e3},
                                               {"tok_s_gpu", t.tokens_per_second() / 8}};
  for (const auto& [key, value] : times) g[key].is_time(value);
}

void check_lockstep(const Group& g) {
  g.each([](const std::string& key, const Group& row) {
    ClosedLoad load;
    load.concurrency = std::stoll(key);
    const ClosedLoop loop = closed_loop(b300_tp8(), load);
    row["step"].is_time(loop.step_seconds);
    row["ttft"].is_time(loop.ttft_seconds);
    row["tpot"].is_time(loop.tpot_seconds);
    row["out_tok_s"].is_time(loop.output_tokens_per_second);
    row["tok_s_gpu"].is_time(loop.tokens_per_second_per_gpu);
    row["user_tok_s"].is_time(loop.user_tokens_per_second);
  });
}

void check_prefix_benefit(const Group& g) {
  g.each([](const std::string& key, const Group& row) {
    const auto parts = split(key, '_');
    const PrefixPlace place = parts[0] == "gpu"    ? PrefixPlace::hbm
                              : parts[0] == "host" ? PrefixPlace::host
                                                   : PrefixPlace::network;
    const PrefixBenefit b = prefix_benefit(b300_tp8(), place, std::stoll(parts[1].substr(1)), 1024);
    row["cold"].is_time(b.cold_seconds);
    row["warm"].is_time(b.warm_seconds);
    row["restore"].is_time(b.restore_seconds);
    row["saved"].is_time(b.saved_seconds);
    row["break_even_tokens"].is_time(b.break_even_tokens);
  });
}

void check_mechanism(const Group& g) {
  const Counts c = k3_counts();
  size_t checked = 0;
  for (const Mechanism m : kMechanisms) {
    for (const double tokens : {8192.0, 131072.0, 1048576.0}) {
      const Group row = g[std::string(mechanism_name(m)) + "_" + std::to_string(static_cast<int64_t>(tokens))];
      const MechanismCost cost = mechanism_cost(c, bf16_state(), m, tokens);
      row["cache"].is(cost.cache_bytes);
      row["dec_bytes"].is(cost.decode_bytes);
      row["dec_flops"].is(cost.decode_flops);
      row["pre_flops"].is(cost.prefill_flops);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 15U);
}

void check_linear(const Group& g) {
  const LinearFlops f = linear_flops(k3_counts());
  const std::map<std::string, double> values = {{"kda", f.kda},       {"mla", f.mla},       {"routed", f.routed},
                                                {"shared", f.shared}, {"latent", f.latent}, {"router", f.router},
                                                {"dense", f.dense},   {"head", f.head}};
  for (const auto& [key, value] : values) g[key].is(value);
}

void check_step_flops(const Group& row, const StepFlops& f, bool prefill) {
  row["linear"].is(f.linear);
  row["kda_core"].is(f.kda_core);
  row["mla_core"].is(f.mla_core);
  row["attnres"].is(f.attn_res);
  row["total"].is(f.total());
  if (prefill) row["head"].is(f.head);
}

void check_expert_traffic(const Group& g, double width) {
  g.each([&](const std::string& key, const Group& row) {
    const ExpertTraffic t = expert_traffic(k3_counts(), {}, std::stoll(key), width);
    row["copies"].is(t.copies);
    row["dispatch"].is(t.dispatch_bytes);
    row["combine"].is(t.combine_bytes);
  });
}

void check_hand_over(const Group& g) {
  g.each([](const std::string& key, const Group& row) {
    const bool bf16 = key.starts_with("bf16");
    const HandOver h = pd_hand_over(k3_counts(), bf16 ? bf16_state() : fp8_cache(), number(split(key, '_').back()));
    row["state"].is(h.state_bytes);
    row["kv"].is(h.cache_bytes);
    row["total"].is(h.bytes());
    row["state_share"].is(h.state_share());
  });
}

void check_scan(const Group& g) {
  const Hardware hw = spec_hardware("GB200-NVL72");
  g.each([&](const std::string& key, const Group& value) {
    const auto parts = split(key, '_');
    std::vector<double> tokens;
    for (const std::string& t : split(parts[1], 'x')) tokens.push_back(number(t));
    value.is_time(kda_scan_seconds(hw, {}, number(parts[0]), tokens) * 1e3);
  });
}

void check_state_traffic(const Group& g) {
  const std::map<std::string, SpeculationScheme> schemes = {{"none", SpeculationScheme::none},
                                                            {"snapshot", SpeculationScheme::snapshot},
                                                            {"replay", SpeculationScheme::replay},
                                                            {"fused", SpeculationScheme::fused}};
  for (const auto& [key, scheme] : schemes) {
    const StateTraffic t = speculation_state_traffic(k3_counts(), {}, scheme, 7);
    g[key]["traffic"].is(t.traffic_bytes);
    g[key]["scratch"].is(t.scratch_bytes);
  }
}

void check_unified_pages(const Group& g) {
  g.each([](const std::string& key, const Group& value) {
    Precision p = key.starts_with("bf16state") ? bf16_state() : Precision{};
    if (key.find("fp8kv") != std::string::npos) p.cache = kFp8Bytes;
    value.is(static_cast<double>(unified_page_tokens(k3_counts(), p, std::stoll(key.substr(key.find("_tp") + 3)))));
  });
}

// Keys are tokens, experts, ranks, layers: one number for each.
void check_function(const Group& g, const std::function<double(double)>& formula) {
  g.each([&](const std::string& key, const Group& value) { value.is(formula(number(key))); });
}

using Check = std::function<void(const Group&)>;

Check function(std::function<double(double)> formula) {
  return [formula = std::move(formula)](const Group& g) { check_function(g, formula); };
}
Check value(double computed) {
  return [computed](const Group& g) { g.is(computed); };
}

std::map<std::string, Check> checks() {
  const Counts c = k3_counts();
  const auto whole = [](double v) { return static_cast<int64_t>(v); };
  return {
      {"attnres_bytes_token", value(attn_res_bytes(c, {}))},
      {"attnres_sources", value(static_cast<double>(attn_res_sources(c)))},
      {"best_checkpoint_interval", value(best_checkpoint_interval_tokens(fixed_bytes(c, bf16_state()), 1e-8, 0.5, 1e-5))},
      {"busiest_rank_experts_B64",
       function([=](double r) { return busiest_rank_experts(896, distinct_experts(896, 16, 64), whole(r)); })},
      {"decode_breakdown_8xB300_tp8_B16_S8704", check_decode_breakdown},
      {"decode_flops",
       [=](const Group& g) {
         g.each(
             [&](const std::string& key, const Group& row) { check_step_flops(row, decode_flops(c, number(key)), false); });
       }},
      {"distinct_experts", function([](double b) { return distinct_experts(896, 16, b); })},
      {"distinct_experts_zipf1", function([](double b) { return distinct_experts_zipf(896, 16, b, 1); })},
      {"distinct_ranks", function([=](double r) { return distinct_ranks(896, 16, whole(r)); })},
      {"dual_pool_ratio_tp8_len11264_slots5_draft0", value(dual_pool_ratio(c, {}, {.tp = 8}, 11264, kSlotsDoubleBuffered))},
      {"ep_bytes_token_layer", [](const Group& g) { check_expert_traffic(g, 3584); }},
      {"ep_bytes_token_layer_full_width", [](const Group& g) { check_expert_traffic(g, 7168); }},
      {"equal_cost_tokens",
       [=](const Group& g) {
         g["bf16"].is(equal_cost_tokens(c, bf16_state()));
         g["fp32"].is(equal_cost_tokens(c, {}));
         g["fp32_fp8kv"].is(equal_cost_tokens(c, fp8_cache()));
       }},
      {"fit_alpha_7_3.78", value(fit_alpha(7, 3.78))},
      {"history_bytes_bf16state_bf16kv", function([=](double s) { return history_bytes(c, bf16_state(), s); })},
      {"kcp_bytes",
       [=](const Group& g) {
         const KcpTraffic t = kcp_traffic(c, {}, 1);
         g["fragment"].is(t.fragment_bytes);
         g["halo"].is(t.halo_bytes);
         g["total"].is(t.bytes());
       }},
      {"kda_flops_decode", value(kda_decode_flops(c))},
      {"kda_flops_prefill_token_C16", value(kda_prefill_flops_per_token(c, 16))},
      {"kda_scan_ms_gb200", check_scan},
      {"kv_bytes_per_token_bf16", value(cache_bytes_per_token(c, {}))},
      {"kv_bytes_per_token_fp8", value(cache_bytes_per_token(c, fp8_cache()))},
      {"linear_flops_per_token", check_linear},
      {"lockstep_8xB300_tp8_8k1k", check_lockstep},
      {"mechanism", check_mechanism},
      {"params_k3", [](const Group& g) { check_params(g, "k3"); }},
      {"params_kimi_linear", [](const Group& g) { check_params(g, "kimi-linear-48b"); }},
      {"pd_transfer", check_hand_over},
      {"pp_payload_token", function([=](double j) { return pp_payload_bytes(c, {}, whole(j)); })},
      {"prefill_breakdown_8xGB300_tep8_16x8192", check_prefill_breakdown},
      {"prefill_flops",
       [=](const Group& g) {
         g.each(
             [&](const std::string& key, const Group& row) { check_step_flops(row, prefill_flops(c, number(key)), true); });
       }},
      {"prefix_benefit_8xB300_tp8", check_prefix_benefit},
      {"softmax_cp_bytes_1M_cp8",
       [=](const Group& g) {
         g["latent"].is(softmax_cp_bytes(c, {}, 1048576, 8, false));
         g["expanded"].is(softmax_cp_bytes(c, {}, 1048576, 8, true));
       }},
      {"spec_state_traffic_g7", check_state_traffic},
      {"spec_tokens_alpha",
       [](const Group& g) {
         g.each([](const std::string& key, const Group& v) {
           v.is(tokens_per_step(number(split(key, '_')[1]), std::stoll(key)));
         });
       }},
      {"state_bytes_bf16", [](const Group& g) { check_state(g, bf16_state()); }},
      {"state_bytes_fp32", [](const Group& g) { check_state(g, {}); }},
      {"unified_page_tokens", check_unified_pages},
      {"weight_bytes_k3", check_weight_bytes},
  };
}

void collect_leaves(const json& value, const std::string& path, std::set<std::string>& leaves) {
  if (!value.is_object()) {
    leaves.insert(path);
    return;
  }
  for (const auto& item : value.items()) collect_leaves(item.value(), path + "/" + item.key(), leaves);
}

TEST(CostGolden, EveryKeyWithinItsTolerance) {
  std::ifstream file(std::string(K3_SOURCE_DIR) + "/tests/data/cost-model-golden.json");
  const json golden = json::parse(file);
  std::set<std::string> consumed, leaves;
  collect_leaves(golden, "", leaves);
  ASSERT_EQ(leaves.size(), 659U);
  std::map<std::string, Check> table = checks();
  for (const auto& item : golden.items()) {
    const Group group(item.value(), "/" + item.key(), consumed);
    if (item.key().starts_with("case_")) {
      check_case(group);
      continue;
    }
    const auto check = table.find(item.key());
    ASSERT_NE(check, table.end()) << item.key() << ": no check for this group";
    check->second(group);
    table.erase(check);
  }
  for (const auto& entry : table) ADD_FAILURE() << entry.first << ": a check without a group";
  for (const std::string& leaf : leaves) EXPECT_TRUE(consumed.contains(leaf)) << leaf << " was compared with nothing";
}

}  // namespace
}  // namespace k3::plan
