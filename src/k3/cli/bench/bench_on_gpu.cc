#include "k3/cli/bench/bench_on_gpu.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "k3/base/progress.h"
#include "k3/cli/bench/bench_model.h"
#include "k3/cli/bench/bench_report.h"
#include "k3/cli/bench/layer_times.h"
#include "k3/cli/bench/route_counter.h"
#include "k3/model/gpu/pinned_feeder.h"
#include "k3/ops/cuda/roofline_gpu.h"

namespace k3::cli {
namespace {

// Everything that the tests of one run share.
class GpuBench {
 public:
  GpuBench(const BenchOptions& options, const LoadedModel& loaded, const GpuCeilings& ceilings)
      : options_(options), model_(*loaded.model), pool_(*loaded.pool), ceilings_(ceilings), load_seconds_(loaded.load_seconds) {}

  Status run(const std::vector<BenchCase>& cases);

 private:
  struct Timed {
    Samples steps;  // seconds by the GPU
    double wall = 0;
  };
  Status prepare(const BenchCase& test);
  Result<Timed> repetition(const BenchCase& test);
  Result<BenchResult> run_case(const BenchCase& test);
  Result<double> touched(const BenchCase& test);
  BenchHeading heading() const;
  int64_t slice_of(const BenchCase& test) const {
    return test.phase == Phase::decode ? 1 : std::max<int64_t>(1, runner_->options().chunk_tokens / test.batch);
  }
  template <class Each>
  Status feed(const BenchCase& test, int64_t most_steps, const Each& each);

  const BenchOptions& options_;
  const Model& model_;
  ThreadPool& pool_;
  GpuCeilings ceilings_;
  double load_seconds_;
  ModelSummary summary_;
  CostModel cost_;
  std::optional<Runner> runner_;
};

BenchHeading GpuBench::heading() const {
  BenchHeading h;
  h.model = bench_model_name(options_);
  h.isa = fmt::format("{}, {} multiprocessors", device_name(model_.device()), ops::cuda::device_info().sm_count);
  h.parameters = summary_.total.params;
  h.active_bytes = summary_.active_bytes;
  const StepCost step = decode_cost(cost_, 1, 0, 1);
  h.step_bytes = step.bytes();
  h.step_flops = step.flops();
  h.gpu = ceilings_;
  h.gpu->weight_bytes = model_.weights().size_bytes;
  h.gpu->load_seconds = load_seconds_;
  return h;
}

// Histories of decode tests and of deep prompts are made up: their lengths count, not what is in them.
Status GpuBench::prepare(const BenchCase& test) {
  for (int64_t s = 0; s < runner_->options().sequences; ++s) runner_->reset(static_cast<int32_t>(s));
  return test.depth > 0 ? runner_->pretend_history(test.depth, options_.seed + 1) : Status();
}

// The steps of a repetition, `each` after every one.
template <class Each>
Status GpuBench::feed(const BenchCase& test, int64_t most_steps, const Each& each) {
  const auto ids = random_ids(test.batch, test.tokens, model_.config().vocab_size, 3);
  const int64_t slice = slice_of(test);
  std::vector<StepInput> inputs(ids.size());
  for (int64_t begin = 0; begin < test.tokens && most_steps > 0; begin += slice, --most_steps) {
    const int64_t now = std::min(slice, test.tokens - begin);
    for (size_t s = 0; s < ids.size(); ++s) {
      inputs[s] = {static_cast<int32_t>(s), std::span(ids[s]).subspan(static_cast<size_t>(begin), static_cast<size_t>(now)),
                   slice == 1 || begin + now == test.tokens ? StepInput::Logits::last : StepInput::Logits::none};
    }
    K3_TRY_ASSIGN([[maybe_unused]] const Tensor logits, runner_->step(inputs));
    K3_TRY(each());
  }
  return {};
}

Result<GpuBench::Timed> GpuBench::repetition(const BenchCase& test) {
  K3_TRY(prepare(test));
  Timed timed;
  const auto start = std::chrono::steady_clock::now();
  K3_TRY(feed(test, test.tokens, [&]() -> Status {
    K3_TRY_ASSIGN(const double seconds, runner_->stepper().last_seconds());
    timed.steps.add(seconds);
    return {};
  }));
  timed.wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return timed;
}

// Experts that the tokens of a step chose, in the mean over layers and steps; in steps of their own, which are not timed.
Result<double> GpuBench::touched(const BenchCase& test) {
  constexpr int64_t kCountedSteps = 4;
  if (summary_.moe_layers == 0) return 0.0;
  K3_TRY(prepare(test));
  RouteCounter counter(runner_->ctx(), model_.config());
  K3_TRY(feed(test, kCountedSteps, [&] { return counter.end_step(); }));
  return counter.mean();
}

Result<BenchResult> GpuBench::run_case(const BenchCase& test) {
  BenchResult result;
  result.test = test;
  result.settings = test.policy;
  result.unit = "products";
  GpuFigures gpu;
  gpu.local_experts = summary_.moe_layers > 0 ? model_.config().local_expert_count() : 0;
  K3_TRY(repetition(test));  // warms up, captures
  for (int64_t r = 0; r < options_.repeats; ++r) {
    K3_TRY_ASSIGN(const Timed timed, repetition(test));
    gpu.steps.add(timed.steps);
    gpu.wall.add(timed.wall);
    // Steps of decoding are alike: the median stands for each. The parts of a prompt are not.
    double sum = 0;
    for (const double s : timed.steps.values()) sum += s;
    result.seconds.add(test.phase == Phase::decode ? timed.steps.median() * static_cast<double>(test.tokens) : sum);
  }
  K3_TRY_ASSIGN(gpu.experts, touched(test));
  std::optional<double> of_all;
  if (gpu.local_experts > 0) {
    of_all = gpu.experts * static_cast<double>(model_.config().num_experts) / static_cast<double>(gpu.local_experts);
  }
  result.cost = test.phase == Phase::decode
                    ? decode_cost(cost_, test.batch, test.depth, test.tokens, of_all)
                    : prefill_cost(cost_, test.batch, test.depth, test.tokens, runner_->options().chunk_tokens, of_all);
  const Floor floor = floor_of(result.cost, ceilings_.copy_bytes_per_second, ceilings_.gemm_flops_per_second);
  gpu.floor_seconds = floor.seconds;
  result.read_bound = floor.by_reading;
  result.gpu = std::move(gpu);
  if (options_.layers) {
    BenchCase one_step = test;
    if (test.phase == Phase::prefill) one_step.tokens = std::min(test.tokens, slice_of(test));
    K3_TRY(prepare(test));
    K3_TRY_ASSIGN(result.layers, layer_times(*runner_, summary_, one_step, ceilings_, 4 * options_.repeats));
  }
  return result;
}

Status GpuBench::run(const std::vector<BenchCase>& cases) {
  K3_TRY_ASSIGN(summary_, bench_summary(options_, model_));
  cost_ = cost_model(model_.config(), summary_, 2);
  ComputeOptions compute = options_.compute;
  compute.policy = cases.front().policy;
  K3_TRY_ASSIGN(RunnerOptions run, runner_options(compute, model_.config()));
  if (options_.compute.ctx_tokens == 0) run.ctx_tokens = needed_ctx(cases);
  for (const BenchCase& c : cases) run.sequences = std::max(run.sequences, c.batch);
  run.chunk_tokens = std::max(run.chunk_tokens, run.sequences);
  auto runner = Runner::create(model_, pool_, run);
  if (!runner.ok()) return std::move(runner).take_error();
  runner_.emplace(*std::move(runner));
  K3_TRY(runner_->stepper().time_steps());
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  BenchReport report(options_, heading(), cases, terminal ? terminal_columns() : 0);
  report.begin();
  Progress bar("bench", static_cast<int64_t>(cases.size()), "tests");
  int64_t done = 0;
  for (const BenchCase& test : cases) {
    K3_TRY_ASSIGN(BenchResult result, run_case(test));
    bar.update(++done);
    bar.pause();
    report.add(std::move(result));
  }
  bar.finish();
  report.finish(nullptr);
  return {};
}

Result<GpuCeilings> measure(Device device) {
  K3_TRY(set_current_device(device));
  K3_TRY_ASSIGN(const StreamHandle stream, make_stream());
  const ops::cuda::Ceilings c = ops::cuda::measure_ceilings(stream.get());
  if (!(c.copy_gbps > 0) || !(c.gemm_tflops > 0)) {
    return fail(Code::unavailable, "{}: the rates of a copy and of a BF16 product could not be measured (is cuBLASLt there, and 5 GiB of memory free?)",
                device_name(device));
  }
  return GpuCeilings{c.copy_gbps * 1e9, c.gemm_tflops * 1e12, 0, 0, 0};
}

Result<double> pinned_rate(Device device) {
  K3_TRY_ASSIGN(const StreamHandle stream, make_stream());
  return PinnedFeeder::measure_copy(device, stream.get());
}

}  // namespace

Status gpu_bench(const BenchOptions& options, Device device, const ComputeOptions& compute, const RunNeeds& needs,
                 const std::vector<BenchCase>& cases) {
  if (options.quality) return fail(Code::unsupported, "--quality works with --device cpu alone; k3 perplexity works with --device {}", compute.device);
  if (!options.threads.empty()) return fail(Code::invalid_argument, "-t: threads are tests of --device cpu");
  if (options.policies != std::vector<std::string>{"bf16"}) return fail(Code::unsupported, "a GPU has policy bf16 alone");
  K3_TRY_ASSIGN(GpuCeilings ceilings, measure(device));
  K3_TRY_ASSIGN(const LoadedModel loaded, bench_model(options, device, compute, needs));
  if (options.layers && loaded.model->weights().experts != nullptr) {
    return fail(Code::unsupported, "--layers times layers whose weights are on the GPU; this model keeps experts in host memory (--vram)");
  }
  if (options.random.empty()) {
    K3_TRY_ASSIGN(ceilings.pinned_bytes_per_second, pinned_rate(device));
  }
  return GpuBench(options, loaded, ceilings).run(cases);
}

}  // namespace k3::cli
