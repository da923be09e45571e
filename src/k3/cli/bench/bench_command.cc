// `k3 bench`: loads a model once, runs every test of the cross product, and holds each repetition against the ceilings
// that the machine had just before and just after it.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "k3/base/progress.h"
#include "k3/cli/bench/bench_model.h"
#include "k3/cli/bench/bench_report.h"
#include "k3/cli/bench/bench_on_gpu.h"
#include "k3/cli/bench/quality_text.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/model/summary.h"

namespace k3::cli {
namespace {

constexpr int64_t kQualityWindow = 1024;

// Feeds every sequence its ids, `slice` tokens of each in a forward.
Status feed_all(Runner& runner, const std::vector<std::vector<int32_t>>& ids, int64_t slice) {
  const auto count = static_cast<int64_t>(ids.front().size());
  std::vector<StepInput> inputs(ids.size());
  for (int64_t begin = 0; begin < count; begin += slice) {
    const int64_t now = std::min(slice, count - begin);
    for (size_t s = 0; s < ids.size(); ++s) {
      inputs[s] = {static_cast<int32_t>(s), std::span(ids[s]).subspan(static_cast<size_t>(begin), static_cast<size_t>(now)),
                   slice == 1 || begin + now == count ? StepInput::Logits::last : StepInput::Logits::none};
    }
    K3_TRY_ASSIGN([[maybe_unused]] const Tensor logits, runner.step(inputs));
  }
  return {};
}

// Settings that change results beyond the rounding of a policy.
std::string lossy_label(const ComputeOptions& compute, const Config& config) {
  std::string label = config.trunk_int8 ? "int8 trunk" : "";
  if (compute.act == "int8") label += label.empty() ? "int8 act" : ", int8 act";
  return label;
}

// "bf16", "exact deterministic", "bf16, int8 trunk, int8 act".
std::string settings_label(const BenchCase& test, const ComputeOptions& compute, const Config& config) {
  const std::string lossy = lossy_label(compute, config);
  return test.policy + (compute.deterministic ? " deterministic" : "") + (lossy.empty() ? "" : ", " + lossy);
}

// Everything that the tests of one run share.
class Bench {
 public:
  Bench(const BenchOptions& options, const LoadedModel& loaded, const ModelSummary& summary,
        const std::optional<PerplexityText>& quality_text)
      : options_(options), loaded_(loaded), summary_(summary), quality_text_(quality_text) {}

  Status run(const std::vector<BenchCase>& cases);

 private:
  struct Group {  // tests of one thread count and policy share a pool and a runner
    ThreadPool* pool = nullptr;
    Runner* runner = nullptr;
    ops::Unit unit = ops::Unit::fp32_fma;
    CostModel cost;
    std::optional<PerplexityResult> quality;
  };
  Result<RunnerOptions> group_options(const BenchCase& first, const std::vector<BenchCase>& cases) const;
  Status run_group(std::span<const BenchCase> cases, ThreadPool& pool, const RunnerOptions& run, BenchReport& report);
  Result<BenchResult> run_case(const BenchCase& test, const Group& group);
  struct Timed {
    double seconds = 0;
    StreamCounters read;  // within those seconds: what fills the context before them reads from disk, too
  };
  Result<Timed> repetition(const BenchCase& test, const Group& group) const;
  Result<std::optional<PerplexityResult>> quality_of(const BenchCase& test, ThreadPool& pool, const RunnerOptions& run);
  BenchHeading heading(ops::Isa isa) const;

  const BenchOptions& options_;
  const LoadedModel& loaded_;
  const ModelSummary& summary_;
  const std::optional<PerplexityText>& quality_text_;
  std::optional<CeilingMeter> meter_;
  std::optional<Progress> bar_;
  int64_t runs_done_ = 0;
  double direct_rate_ = 0;                           // of the disk, for a model that is read from it
  std::map<std::string, PerplexityResult> quality_;  // by settings: threads do not change it
};

CostModel cost_of(const Config& config, const ModelSummary& summary, const std::string& policy) {
  return cost_model(config, summary, policy == "exact" ? 4 : 2);
}

// FP32 products are done by FP32 units; inputs rounded to BF16 can use the others.
ops::Unit unit_of(const std::string& policy, ops::Isa isa) {
  return policy == "exact" ? ops::Unit::fp32_fma : ops::best_unit(isa);
}

BenchHeading Bench::heading(ops::Isa isa) const {
  const StepCost step = decode_cost(cost_of(loaded_.model->config(), summary_, options_.policies.front()), 1, 0, 1);
  return {bench_model_name(options_),
          std::string(ops::isa_name(isa)),
          summary_.total.params,
          summary_.active_bytes,
          step.bytes(),
          step.flops(),
          options_.compute.deterministic,
          lossy_label(options_.compute, loaded_.model->config()),
          {}};
}

Result<RunnerOptions> Bench::group_options(const BenchCase& first, const std::vector<BenchCase>& cases) const {
  ComputeOptions compute = options_.compute;
  compute.policy = first.policy;
  K3_TRY_ASSIGN(RunnerOptions run, runner_options(compute, loaded_.model->config()));
  const int64_t needed = needed_ctx(cases);
  if (compute.ctx_tokens == 0) run.ctx_tokens = needed;
  for (const BenchCase& c : cases) run.sequences = std::max(run.sequences, c.batch);
  return run;
}

Result<Bench::Timed> Bench::repetition(const BenchCase& test, const Group& group) const {
  Runner& runner = *group.runner;
  const int64_t vocab = loaded_.model->config().vocab_size;
  for (int64_t s = 0; s < test.batch; ++s) runner.reset(static_cast<int32_t>(s));
  const int64_t slice = std::max<int64_t>(1, runner.options().chunk_tokens / test.batch);
  if (test.depth > 0) K3_TRY(feed_all(runner, random_ids(test.batch, test.depth, vocab, 2), slice));
  const auto ids = random_ids(test.batch, test.tokens, vocab, 3);
  const StreamCounters before = stream_counters(*loaded_.model).value_or(StreamCounters());
  const auto start = std::chrono::steady_clock::now();
  K3_TRY(feed_all(runner, ids, test.phase == Phase::decode ? 1 : slice));
  Timed timed;
  timed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const StreamCounters after = stream_counters(*loaded_.model).value_or(StreamCounters());
  timed.read = {after.read_bytes - before.read_bytes, after.hits - before.hits, after.misses - before.misses};
  return timed;
}

Result<BenchResult> Bench::run_case(const BenchCase& test, const Group& group) {
  BenchResult result;
  result.test = test;
  result.settings = settings_label(test, options_.compute, loaded_.model->config());
  result.unit = ops::unit_name(group.unit);
  result.quality = group.quality;
  result.cost = test.phase == Phase::decode
                    ? decode_cost(group.cost, test.batch, test.depth, test.tokens)
                    : prefill_cost(group.cost, test.batch, test.depth, test.tokens, group.runner->options().chunk_tokens);
  K3_TRY(repetition(test, group));  // warms up
  bar_->update(++runs_done_);
  StreamCounters disk;
  CeilingMoment before = meter_ ? meter_->moment(*group.pool, group.unit) : CeilingMoment{};
  for (int64_t r = 0; r < options_.repeats; ++r) {
    K3_TRY_ASSIGN(const Timed timed, repetition(test, group));
    const double seconds = timed.seconds;
    result.seconds.add(seconds);
    disk.read_bytes += timed.read.read_bytes;
    disk.hits += timed.read.hits;
    disk.misses += timed.read.misses;
    if (meter_) {
      const CeilingMoment after = meter_->moment(*group.pool, group.unit);
      const double read = (before.read_bytes_per_second + after.read_bytes_per_second) / 2;
      const double flops = (before.flops_per_second + after.flops_per_second) / 2;
      result.read_ceiling.add(read);
      result.flops_ceiling.add(flops);
      result.share.add(floor_of(result.cost, read, flops).seconds / seconds);
      before = after;
    }
    bar_->update(++runs_done_);
  }
  if (stream_counters(*loaded_.model)) {
    const auto repeats = static_cast<double>(options_.repeats);
    result.streaming =
        stream_figures({}, disk, options_.repeats * test.total_tokens(), repeats * result.seconds.median(), direct_rate_);
  }
  if (meter_) {
    result.read_bound = floor_of(result.cost, result.read_ceiling.median(), result.flops_ceiling.median()).by_reading;
  }
  return result;
}

Result<std::optional<PerplexityResult>> Bench::quality_of(const BenchCase& test, ThreadPool& pool,
                                                          const RunnerOptions& run) {
  if (!quality_text_) return std::optional<PerplexityResult>();
  const std::string key = settings_label(test, options_.compute, loaded_.model->config());
  const auto known = quality_.find(key);
  if (known != quality_.end()) return std::optional(known->second);
  K3_TRY_ASSIGN(const PerplexityResult result,
                measure_perplexity(*loaded_.model, pool, run, *quality_text_, kQualityWindow, {}));
  quality_[key] = result;
  return std::optional(result);
}

Status Bench::run_group(std::span<const BenchCase> cases, ThreadPool& pool, const RunnerOptions& run, BenchReport& report) {
  Group group;
  group.pool = &pool;
  group.unit = unit_of(cases.front().policy, run.isa);
  group.cost = cost_of(loaded_.model->config(), summary_, cases.front().policy);
  K3_TRY_ASSIGN(group.quality, quality_of(cases.front(), pool, run));
  K3_TRY_ASSIGN(Runner runner, Runner::create(*loaded_.model, pool, run));
  group.runner = &runner;
  for (const BenchCase& test : cases) {
    K3_TRY_ASSIGN(BenchResult result, run_case(test, group));
    bar_->pause();
    report.add(std::move(result));
  }
  return {};
}

Status Bench::run(const std::vector<BenchCase>& cases) {
  K3_TRY_ASSIGN(const RunnerOptions first, group_options(cases.front(), cases));
  // Refused here, before minutes of tests: what does not fit.
  // The buffer of the meter is in no memory plan.
  if (options_.ceilings && options_.compute.ram.empty()) {
    auto meter = CeilingMeter::create(*loaded_.pool, first.isa);
    if (!meter.ok())
      return fail(meter.error().code, "{} to measure the ceilings in; see --no-ceilings", meter.error().message);
    meter_.emplace(*std::move(meter));
  }
  if (stream_counters(*loaded_.model)) direct_rate_ = direct_read_rate(*loaded_.model);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  BenchReport report(options_, heading(first.isa), cases, terminal ? terminal_columns() : 0);
  report.begin();
  bar_.emplace("bench", static_cast<int64_t>(cases.size()) * (options_.repeats + 1), "runs");
  for (size_t begin = 0, end = 0; begin < cases.size(); begin = end) {
    while (end < cases.size() && cases[end].threads == cases[begin].threads && cases[end].policy == cases[begin].policy)
      ++end;
    std::unique_ptr<ThreadPool> own;
    if (cases[begin].threads != loaded_.pool->size()) own = make_pool(cases[begin].threads);
    K3_TRY_ASSIGN(const RunnerOptions run, group_options(cases[begin], cases));
    K3_TRY(run_group(std::span(cases).subspan(begin, end - begin), own ? *own : *loaded_.pool, run, report));
  }
  bar_->finish();
  report.finish(meter_ ? &*meter_ : nullptr);
  return {};
}

Result<std::optional<PerplexityText>> quality_text(const BenchOptions& options) {
  if (!options.quality) return std::optional<PerplexityText>();
  K3_TRY_ASSIGN(const Tokenizer tokenizer, load_tokenizer(options.model));
  std::string text(kQualityText);
  if (!options.quality->empty()) {
    K3_TRY_ASSIGN(text, read_input({}, options.quality, "text", ""));
  }
  K3_TRY_ASSIGN(PerplexityText out, perplexity_text(tokenizer, text, kQualityWindow));
  return std::optional(std::move(out));
}

}  // namespace

Status bench_command(const BenchOptions& options) {
  const bool ceiling_only = options.ceiling_only || options.model == "ceiling";
  if (ceiling_only) {
    if (!options.random.empty()) return fail(Code::invalid_argument, "a ceiling is the machine's alone: leave --random out");
    K3_TRY_ASSIGN(const Device machine, parse_device(options.compute.device));
    if (machine.is_cuda()) {
      return fail(Code::unsupported, "the ceilings alone are those of the processor; those of a GPU head the table of a bench on it");
    }
    return ceiling_command(options);
  }
  K3_TRY(check_bench_model(options));
  K3_TRY_ASSIGN(const Device device, parse_device(options.compute.device));
  const std::vector<BenchCase> cases = bench_cases(options, available_threads());
  if (cases.empty()) return fail(Code::invalid_argument, "nothing to measure: every length of -p and -n is 0");
  if (options.compute.ctx_tokens > 0 && options.compute.ctx_tokens < needed_ctx(cases)) {
    return fail(Code::invalid_argument, "--ctx {} holds less than the {} tokens of the longest test (-d with -p or -n)",
                options.compute.ctx_tokens, needed_ctx(cases));
  }
  K3_TRY_ASSIGN(const auto text, quality_text(options));  // before minutes of loading
  ComputeOptions compute = options.compute;
  for (const BenchCase& c : cases) compute.threads = std::max(compute.threads, c.threads);
  RunNeeds needs;  // of all runners, should there be a memory plan
  needs.ctx_tokens = std::max(compute.ctx_tokens, needed_ctx(cases));
  if (text) needs.ctx_tokens = std::max(needs.ctx_tokens, kQualityWindow + 1);  // [BOS] and a window
  for (const BenchCase& c : cases) needs.sequences = std::max(needs.sequences, c.batch);
  needs.logit_rows = text ? 0 : needs.sequences;
  if (options.layers && !device.is_cuda()) return fail(Code::invalid_argument, "--layers works with --device cuda alone");
  if (device.is_cuda()) return gpu_bench(options, device, compute, needs, cases);
  K3_TRY_ASSIGN(const LoadedModel loaded, bench_model(options, device, compute, needs));
  K3_TRY_ASSIGN(const ModelSummary summary, bench_summary(options, *loaded.model));
  return Bench(options, loaded, summary, text).run(cases);
}

}  // namespace k3::cli
