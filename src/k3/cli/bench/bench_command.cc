#include <algorithm>
#include <chrono>

#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/base/rng.h"
#include "k3/base/units.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/model/summary.h"

namespace k3::cli {
namespace {

struct Measurement {
  std::string test;
  int64_t tokens = 0;
  std::vector<double> seconds;

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    const size_t n = sorted.size();
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
  }
  double speed(double time) const { return static_cast<double>(tokens) / time; }
};

// Ids spread over the vocabulary, so that experts are chosen as widely as text chooses them.
std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint64_t stream) {
  const Rng rng(1, stream);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(rng.bits(i) % static_cast<uint64_t>(vocab));
  return ids;
}

template <class Body>
Result<double> timed(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  K3_TRY(body());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Status bench_command(const BenchOptions& options) {
  K3_TRY_ASSIGN(const LoadedModel loaded, load_model(options.model, options.compute));
  const Config& config = loaded.model->config();
  K3_TRY_ASSIGN(RunnerOptions run, runner_options(options.compute, config));
  const int64_t longest = *std::max_element(options.prefill.begin(), options.prefill.end());
  run.ctx_tokens = std::max({run.ctx_tokens, longest, options.depth + options.decode + 1});
  K3_TRY_ASSIGN(Runner runner, Runner::create(*loaded.model, *loaded.pool, run));

  std::vector<Measurement> results;
  const int64_t tests = static_cast<int64_t>(options.prefill.size()) + 1;
  Progress bar("bench", tests * (options.repeats + 1), "runs");
  int64_t done = 0;
  const auto measure = [&](Measurement m, const auto& prepare, const auto& body) -> Status {
    for (int64_t r = 0; r <= options.repeats; ++r) {
      K3_TRY(prepare());
      K3_TRY_ASSIGN(const double seconds, timed(body));
      if (r > 0) m.seconds.push_back(seconds);  // the first run warms up
      bar.update(++done);
    }
    results.push_back(std::move(m));
    return {};
  };
  for (const int64_t length : options.prefill) {
    const std::vector<int32_t> ids = random_ids(length, config.vocab_size, 1);
    K3_TRY(measure(
        {"prefill", length, {}},
        [&] {
          runner.reset(0);
          return Status();
        },
        [&]() -> Status {
          K3_TRY_ASSIGN([[maybe_unused]] const auto logits, runner.feed(0, ids));
          return {};
        }));
  }
  const std::vector<int32_t> context = random_ids(std::max<int64_t>(options.depth, 1), config.vocab_size, 2);
  const std::vector<int32_t> steps = random_ids(options.decode, config.vocab_size, 3);
  K3_TRY(measure(
      {options.depth > 0 ? fmt::format("decode @{}", options.depth) : "decode", options.decode, {}},
      [&]() -> Status {
        runner.reset(0);
        K3_TRY_ASSIGN([[maybe_unused]] const auto logits, runner.feed(0, context));
        return {};
      },
      [&]() -> Status {
        for (const int32_t id : steps) {
          K3_TRY_ASSIGN([[maybe_unused]] const auto logits, runner.feed(0, std::span(&id, 1)));
        }
        return {};
      }));
  bar.finish();

  const ModelSummary summary = summarise(config);
  if (options.json) {
    JsonWriter w;
    w.begin_object()
        .field("model", options.model)
        .field("parameters", summary.total.params)
        .field("active_bytes", summary.active_bytes);
    w.field("threads", loaded.pool->size())
        .field("policy", options.compute.policy)
        .field("isa", std::string(ops::isa_name(run.isa)));
    w.field("deterministic", run.deterministic).key("results").begin_array();
    for (const Measurement& m : results) {
      w.begin_object().field("test", m.test).field("tokens", m.tokens).field("tokens_per_second", m.speed(m.median()));
      w.key("seconds").begin_array();
      for (const double s : m.seconds) w.value(s);
      w.end_array().end_object();
    }
    w.end_array().end_object();
    print_out(w.text() + "\n");
    return {};
  }
  print_out(fmt::format("{}: {} parameters, {} read a token; policy {}{}, {}, {} threads\n", options.model,
                        format_count(static_cast<double>(summary.total.params)), format_bytes(summary.active_bytes),
                        options.compute.policy, run.deterministic ? " deterministic" : "", ops::isa_name(run.isa),
                        loaded.pool->size()));
  Table table({"test", "tokens", "tokens/s", "worst", "best", "GFLOP/s", "GB/s"});
  for (const Measurement& m : results) {
    const auto [low, high] = std::minmax_element(m.seconds.begin(), m.seconds.end());
    const double speed = m.speed(m.median());
    const bool decode = m.test.starts_with("decode");
    table.row({m.test, format_grouped(m.tokens), fmt::format("{:.1f}", speed), fmt::format("{:.1f}", m.speed(*high)),
               fmt::format("{:.1f}", m.speed(*low)), fmt::format("{:.1f}", speed * summary.matrix_flops_per_token / 1e9),
               decode ? fmt::format("{:.2f}", speed * static_cast<double>(summary.active_bytes) / 1e9) : ""});
  }
  print_out(table.text());
  return {};
}

}  // namespace k3::cli
