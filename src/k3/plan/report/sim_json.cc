#include <algorithm>

#include "k3/base/json_writer.h"
#include "k3/format/json/json_tree.h"
#include "k3/format/trace/trace_fields.h"
#include "k3/plan/report/sim_report.h"

namespace k3::plan {
namespace {

constexpr int kQuantiles = 101;
constexpr size_t kMostLoads = 64;

std::vector<double> quantiles_of(std::vector<double> values) {
  std::vector<double> out;
  if (values.empty()) return out;
  std::ranges::sort(values);
  for (int i = 0; i < kQuantiles; ++i) out.push_back(quantile_of_sorted(values, i / 100.0));
  return out;
}

void write_spread(JsonWriter& w, std::string_view name, const Spread& s) {
  w.key(name).begin_object().field("count", s.count).field("mean", s.mean).field("min", s.min).field("p50", s.p50);
  w.field("p90", s.p90).field("p95", s.p95).field("p99", s.p99).field("max", s.max).end_object();
}

void write_summary(JsonWriter& w, const SimSummary& s) {
  w.begin_object().field("requests", s.requests).field("done", s.done).field("cut", s.cut).field("refused", s.refused);
  w.field("not_sent", s.not_sent).field("lost", s.lost).field("seconds", s.seconds).field("busy_seconds", s.busy_seconds).field("steps", s.steps);
  w.field("input_tokens", s.input_tokens).field("prompt_tokens", s.prompt_tokens).field("cached_tokens", s.cached_tokens);
  w.field("matched_tokens", s.matched_tokens).field("hit_ratio", s.hit_ratio()).field("matched_ratio", s.matched_ratio());
  w.field("computed_tokens", s.computed_tokens)
      .field("generated_tokens", s.generated_tokens)
      .field("lost_tokens", s.lost_tokens);
  w.field("preemptions", s.preemptions).field("restarts", s.restarts).field("fetched_bytes", s.fetched_bytes);
  w.field("within_slo", s.within_slo).field("goodput_per_second", s.goodput_per_second());
  w.field("evicted_pages", s.cache.evicted_pages).field("evicted_checkpoints", s.cache.evicted_checkpoints);
  w.field("checkpoints", s.cache.checkpoints)
      .field("most_checkpoints", s.most_checkpoints)
      .field("checkpoint_bytes", s.checkpoint_bytes);
  w.field("cached_blocks", s.cached_blocks);
  w.key("cut_by").begin_object();
  for (int i = 0; i < 6; ++i) {
    w.field(i == 5 ? std::string_view("idle") : cache::hit_limit_name(static_cast<cache::HitLimit>(i)), s.by_reason[i]);
  }
  w.end_object();
  write_spread(w, "ttft_s", s.ttft);
  write_spread(w, "tpot_s", s.tpot);
  write_spread(w, "queue_s", s.queue);
  write_spread(w, "e2e_s", s.e2e);
  w.end_object();
}

void write_list(JsonWriter& w, std::string_view name, const std::vector<double>& values) {
  w.key(name).begin_array();
  for (const double value : values) w.value(value);
  w.end_array();
}

void write_series(JsonWriter& w, const SimSeries& series) {
  w.key("series").begin_object().field("step_s", series.step_seconds());
  const auto list = [&](std::string_view name, int64_t SimSample::*member) {
    w.key(name).begin_array();
    for (const SimSample& sample : series.samples()) w.value(sample.*member);
    w.end_array();
  };
  list("queued", &SimSample::queued);
  list("running", &SimSample::running);
  list("pages", &SimSample::pages);
  list("pages_free", &SimSample::free);
  list("pages_running_mla", &SimSample::running_mla);
  list("pages_running_kda", &SimSample::running_kda);
  list("pages_cached_mla", &SimSample::cached_mla);
  list("pages_cached_kda", &SimSample::cached_kda);
  list("checkpoints", &SimSample::checkpoints);
  list("prompt_tokens", &SimSample::prompt_tokens);
  list("hit_tokens", &SimSample::hit_tokens);
  list("evicted_pages", &SimSample::evicted_pages);
  list("evicted_checkpoints", &SimSample::evicted_checkpoints);
  w.end_object();
}

void write_request(JsonWriter& w, const SimReport& report, size_t i) {
  const SimRequest& q = report.workload.requests[i];
  const SimRecord& r = report.result.records[i];
  w.begin_object().field("index", static_cast<int64_t>(i));
  if (q.session >= 0) w.field("session", q.session).field("turn", static_cast<int64_t>(q.turn));
  w.field("outcome", sim_outcome_name(r.outcome)).field("replica", static_cast<int64_t>(r.replica));
  w.field("arrival_s", r.arrival)
      .field("admitted_s", r.admitted)
      .field("first_token_s", r.first_token)
      .field("end_s", r.end);
  w.field("input_tokens", static_cast<int64_t>(q.input_tokens)).field("output_tokens", static_cast<int64_t>(r.generated));
  w.field("cached_tokens", static_cast<int64_t>(r.cached)).field("matched_tokens", static_cast<int64_t>(r.matched));
  w.field("cut_by", cut_reason(r)).field("computed_tokens", static_cast<int64_t>(r.computed));
  w.field("preemptions", static_cast<int64_t>(r.preemptions))
      .field("restarts", static_cast<int64_t>(r.restarts))
      .end_object();
}

}  // namespace

SimDigest digest_of(const SimReport& report) {
  SimDigest d;
  const SimResult& result = report.result;
  const SimSummary& s = result.summary;
  d.name = result.name;
  d.hit_ratio = s.hit_ratio(), d.seconds = s.seconds, d.goodput_per_second = s.goodput_per_second();
  d.output_per_second = s.output_per_second();
  d.requests = s.requests, d.done = s.done, d.preemptions = s.preemptions;
  std::vector<double> ttft, tpot;
  for (const SimRecord& r : result.records) {
    if (r.outcome != SimOutcome::done && r.outcome != SimOutcome::cut) continue;
    if (r.first_token >= 0) ttft.push_back(r.ttft());
    if (r.tpot() >= 0) tpot.push_back(r.tpot());
  }
  d.ttft = quantiles_of(std::move(ttft));
  d.tpot = quantiles_of(std::move(tpot));
  d.series_step = result.series.step_seconds();
  for (const SimSample& sample : result.series.samples()) {
    d.queued.push_back(static_cast<double>(sample.queued));
    d.running.push_back(static_cast<double>(sample.running));
  }
  const double ttft_slo = report.scenario.slo_ttft_seconds, tpot_slo = report.scenario.slo_tpot_seconds;
  for (const LoadPoint& point : report.loads) {
    const SimSummary& p = point.summary;
    LoadDigest& load = d.loads.emplace_back();
    load.load = point.load;
    load.user_tokens_per_second = p.tpot.count > 0 && p.tpot.p50 > 0 ? 1 / p.tpot.p50 : 0;
    load.output_per_second = p.output_per_second() / static_cast<double>(std::max<int64_t>(1, report.gpus));
    load.ttft_p95 = p.ttft.p95;
    load.meets = (ttft_slo <= 0 || p.ttft.p95 <= ttft_slo) && (tpot_slo <= 0 || p.tpot.p95 <= tpot_slo);
  }
  return d;
}

namespace {

void write_other(JsonWriter& w, const SimDigest& d) {
  w.key("against").begin_object().field("name", d.name).field("requests", d.requests).field("done", d.done);
  w.field("seconds", d.seconds).field("hit_ratio", d.hit_ratio).field("preemptions", d.preemptions);
  w.field("output_per_second", d.output_per_second).field("goodput_per_second", d.goodput_per_second);
  const auto at = [&](std::string_view name, const std::vector<double>& quantiles, size_t percent) {
    if (percent < quantiles.size()) w.field(name, quantiles[percent]);
  };
  at("ttft_p50_s", d.ttft, 50), at("ttft_p95_s", d.ttft, 95);
  at("tpot_p50_s", d.tpot, 50), at("tpot_p95_s", d.tpot, 95);
  w.end_object();
}

}  // namespace

std::string sim_json(const SimReport& report) {
  JsonWriter w;
  const SimDigest digest = digest_of(report);
  w.begin_object().field("name", report.result.name).key("settings").begin_object();
  for (const auto& [name, value] : report.settings) w.field(name, value);
  w.end_object().key("summary");
  write_summary(w, report.result.summary);
  write_list(w, "ttft_quantiles_s", digest.ttft);
  write_list(w, "tpot_quantiles_s", digest.tpot);
  write_series(w, report.result.series);
  if (!report.policies.empty()) {
    w.key("policies").begin_array();
    for (const PolicyPoint& point : report.policies) {
      w.begin_object().field("policy", point.policy).key("summary");
      write_summary(w, point.summary);
      w.end_object();
    }
    w.end_array();
  }
  if (!report.loads.empty()) {
    w.key("loads").begin_array();
    for (size_t i = 0; i < report.loads.size(); ++i) {
      const LoadDigest& load = digest.loads[i];
      w.begin_object().field("load", load.load).field("user_tokens_per_second", load.user_tokens_per_second);
      w.field("output_per_second_gpu", load.output_per_second)
          .field("ttft_p95_s", load.ttft_p95)
          .field("meets", load.meets)
          .key("summary");
      write_summary(w, report.loads[i].summary);
      w.end_object();
    }
    w.end_array();
  }
  if (report.against) write_other(w, *report.against);
  if (report.result.records.size() <= kMostJsonRequests) {
    w.key("requests").begin_array();
    for (size_t i = 0; i < report.result.records.size(); ++i) write_request(w, report, i);
    w.end_array();
  }
  w.end_object();
  return w.text();
}

std::string sim_csv(const SimReport& report) {
  std::string out =
      "index,session,turn,outcome,replica,arrival_s,queue_s,ttft_s,tpot_s,end_s,input_tokens,output_tokens,cached_tokens,"
      "matched_tokens,cut_by,"
      "computed_tokens,fetched_bytes,preemptions,restarts,lost_tokens\n";
  const auto time = [](double value, bool there) { return there ? fmt::format("{}", value) : std::string(); };
  for (size_t i = 0; i < report.result.records.size(); ++i) {
    const SimRequest& q = report.workload.requests[i];
    const SimRecord& r = report.result.records[i];
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", i, q.session, q.turn,
                       sim_outcome_name(r.outcome), r.replica, time(r.arrival, r.arrival >= 0),
                       time(r.queue_seconds(), r.admitted >= 0), time(r.ttft(), r.first_token >= 0),
                       time(r.tpot(), r.tpot() >= 0), time(r.end, r.end >= 0), q.input_tokens, r.generated, r.cached,
                       r.matched, r.admitted >= 0 ? cut_reason(r) : "", r.computed, r.fetched_bytes, r.preemptions,
                       r.restarts, r.lost_tokens);
  }
  return out;
}

// ---- the other one ----

namespace {

class Fields {
 public:
  explicit Fields(const JsonNode& root) : root_(root) {}

  double number(std::string_view path) {
    const JsonNode* node = find(path);
    if (node == nullptr || node->is_null()) return 0;
    if (!node->is_number()) return note(path, *node), 0;
    const auto value = trace_number(node->raw);
    if (!value.ok()) return note(path, *node), 0;
    return *value;
  }
  std::vector<double> list(std::string_view path, size_t most) {
    std::vector<double> out;
    const JsonNode* node = find(path);
    if (node == nullptr) return out;
    if (!node->is_array() || node->items.size() > most) return note(path, *node), out;
    for (const JsonNode& item : node->items) {
      const auto value = item.is_number() ? trace_number(item.raw) : Result<double>(0.0);
      if (!item.is_number() || !value.ok()) return note(path, item), out;
      out.push_back(*value);
    }
    return out;
  }
  const JsonNode* find(std::string_view path) {
    const JsonNode* node = &root_;
    for (size_t at = 0; at <= path.size() && node != nullptr;) {
      const size_t dot = std::min(path.find('.', at), path.size());
      node = node->is_object() ? node->find(path.substr(at, dot - at)) : nullptr;
      at = dot + 1;
    }
    if (node == nullptr && status.ok())
      status = fail(Code::invalid_argument, "{}: missing; is this the JSON of k3 sim?", path);
    return node;
  }

  Status status;

 private:
  void note(std::string_view path, const JsonNode& node) {
    if (status.ok())
      status = fail(Code::invalid_argument, "{}: {} that is not what k3 sim writes", path, json_kind_name(node.kind));
  }
  const JsonNode& root_;
};

}  // namespace

Result<SimDigest> parse_other(std::string_view json) {
  K3_TRY_ASSIGN(const JsonNode root, parse_json(json));
  if (!root.is_object()) return fail(Code::invalid_argument, "{} where an object belongs", json_kind_name(root.kind));
  Fields f(root);
  SimDigest d;
  if (const JsonNode* name = f.find("name"); name != nullptr && name->is_string()) d.name = trace_excerpt(name->text);
  d.hit_ratio = f.number("summary.hit_ratio"), d.seconds = f.number("summary.seconds");
  d.goodput_per_second = f.number("summary.goodput_per_second");
  d.output_per_second = d.seconds > 0 ? f.number("summary.generated_tokens") / d.seconds : 0;
  d.requests = static_cast<int64_t>(std::min(f.number("summary.requests"), 1e15));
  d.done = static_cast<int64_t>(std::min(f.number("summary.done"), 1e15));
  d.preemptions = static_cast<int64_t>(std::min(f.number("summary.preemptions"), 1e15));
  d.ttft = f.list("ttft_quantiles_s", kQuantiles);
  d.tpot = f.list("tpot_quantiles_s", kQuantiles);
  d.series_step = f.number("series.step_s");
  d.queued = f.list("series.queued", SimSeries::kMostSamples);
  d.running = f.list("series.running", SimSeries::kMostSamples);
  if (!f.status.ok()) return Error(f.status.error());
  const JsonNode* loads = root.find("loads");
  if (loads == nullptr) return d;
  if (!loads->is_array() || loads->items.size() > kMostLoads)
    return fail(Code::invalid_argument, "loads: {} that is not what k3 sim writes", json_kind_name(loads->kind));
  for (const JsonNode& node : loads->items) {
    Fields one(node);
    LoadDigest& load = d.loads.emplace_back();
    if (const JsonNode* name = one.find("load"); name != nullptr && name->is_string()) load.load = name->text;
    load.user_tokens_per_second = one.number("user_tokens_per_second");
    load.output_per_second = one.number("output_per_second_gpu");
    load.ttft_p95 = one.number("ttft_p95_s");
    const JsonNode* meets = one.find("meets");
    load.meets = meets == nullptr || !meets->is_boolean() || meets->flag;
    if (!one.status.ok()) return Error(one.status.error()).with_context("loads");
  }
  return d;
}

}  // namespace k3::plan
