// train, export.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iterator>

#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/base/threads.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/cli/common.h"
#include "k3/cli/range.h"
#include "k3/cli/train/train_options.h"
#include "k3/train/run/trainer.h"
#include "k3/train/run/write_batches.h"

namespace k3::cli {
namespace {

// Limits are given as ranges: the messages of CLI11's PositiveNumber print the largest double.
constexpr int64_t kMostSteps = int64_t{1} << 60;

constexpr int kEnds[] = {SIGINT, SIGTERM, SIGHUP};
std::atomic<bool> g_stop{false};
bool g_say = false;
struct sigaction g_former[std::size(kEnds)];

// Ctrl-C and the system's polite end: the step is finished and a checkpoint written; a second one ends at once.
void on_stop(int) {
  g_stop = true;
  for (size_t i = 0; i < std::size(kEnds); ++i) sigaction(kEnds[i], &g_former[i], nullptr);
  constexpr std::string_view kText = "\nk3: stopping after this step, with a checkpoint; once more ends at once\n";
  if (g_say && ::write(STDERR_FILENO, kText.data(), kText.size()) < 0) g_say = false;
}

void catch_stop(bool say) {
  g_say = say;
  struct sigaction action = {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kEnds); ++i) {
    sigaction(kEnds[i], nullptr, &g_former[i]);
    // nohup, background jobs of a script: what they ignore stays ignored.
    if (g_former[i].sa_handler != SIG_IGN) sigaction(kEnds[i], &action, nullptr);
  }
}

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02} min", s / 60, s % 60);
  return fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

// What an untrained model writes, on one line and without a terminal's commands.
std::string on_one_line(const std::string& text) {
  std::string out;
  for (const char c : utf8_repair(text)) {
    if (c == '\n') {
      out += "\\n";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
    }
  }
  return out;
}

// A line every few seconds, a bar between them on a terminal.
class Screen {
 public:
  explicit Screen(const TrainOptions& options) : options_(options) {}

  void step(const train::StepRecord& r, int64_t total) {
    if (options_.quiet) return;
    seconds_ = seconds_ == 0 ? r.seconds : 0.9 * seconds_ + 0.1 * r.seconds;
    tokens_ += r.tokens;
    elapsed_ += r.seconds;
    if (!bar_) bar_.emplace("training", total, "steps");
    bar_->update(r.step);
    since_ += r.seconds;
    if (since_ < kLineSeconds && r.step != total && r.step > 1) return;
    since_ = 0;
    if (!header_) line(fmt::format("{:>8} {:>9} {:>8} {:>9} {:>9} {:>9} {:>10}  {}", "step", "loss", "rate", "gradient", "imbalance", "tokens/s", "left", "phase"));
    header_ = true;
    line(fmt::format("{:>8} {:>9.4f} {:>8.3f} {:>9.3f} {:>9.3f} {:>9.0f} {:>10}  {}", r.step, r.loss, r.learning_rate, r.gradient_norm,
                     r.load_violation, static_cast<double>(tokens_) / elapsed_, duration(seconds_ * static_cast<double>(total - r.step)), r.phase));
  }
  void evaluation(const train::EvaluationRecord& r) {
    if (!options_.quiet) line(fmt::format("{:>8} {}: {:.4f} bits per byte, {:.4f} nats a token", r.step, r.source, r.bits_per_byte, r.nats_per_token));
  }
  void sample(const train::SampleRecord& r) {
    if (!options_.quiet) line(fmt::format("{:>8} {} -> {}", r.step, on_one_line(r.prompt), r.text.empty() ? "(nothing)" : on_one_line(r.text)));
  }
  void finish() { bar_.reset(); }

 private:
  static constexpr double kLineSeconds = 10;
  void line(const std::string& text) {
    if (bar_) bar_->pause();
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  const TrainOptions& options_;
  std::optional<Progress> bar_;
  bool header_ = false;
  double seconds_ = 0, since_ = 0, elapsed_ = 0;
  int64_t tokens_ = 0;
};

void print_summary(const TrainOptions& options, const train::RunSummary& summary) {
  if (options.json) {
    JsonWriter out;
    out.begin_object().field("steps", summary.steps).field("finished", summary.finished).field("seconds", summary.seconds);
    out.field("last_loss", summary.last_loss).field("folder", options.out).end_object();
    print_out(out.text() + "\n");
    return;
  }
  if (summary.finished) {
    print_out(fmt::format("done: {} steps in {}. Report: {}/report.html\nexport: k3 export {} MODEL\n", summary.steps, duration(summary.seconds), options.out,
                          options.out));
  } else {
    print_out(fmt::format("stopped after {} steps; the same command goes on from there\n", summary.steps));
  }
}

}  // namespace

Status train_command(const TrainOptions& options) {
  K3_TRY_ASSIGN(const train::TrainConfig config, train::load_train_config(options.config, options.set));
  if (options.batches) return train::write_batches(config, options.out);
  ThreadPool pool(options.threads > 0 ? options.threads : available_threads());
  Screen screen(options);
  train::RunOptions run;
  run.folder = options.out;
  K3_TRY_ASSIGN(run.device, parse_device(options.device));
  run.stop_after_seconds = options.stop_after;
  run.stop = &g_stop;
  run.on_step = [&](const train::StepRecord& r, int64_t total) { screen.step(r, total); };
  run.on_evaluation = [&](const train::EvaluationRecord& r) { screen.evaluation(r); };
  run.on_sample = [&](const train::SampleRecord& r) { screen.sample(r); };
  K3_TRY_ASSIGN(const std::unique_ptr<train::Trainer> trainer, train::Trainer::create(config, run, pool));
  if (!options.quiet && !options.json) {
    std::string from = config.start.empty() ? "" : fmt::format("; begins from {}", config.start);
    if (trainer->resumed_step() > 0) from = fmt::format("; resumed after step {}", trainer->resumed_step());
    std::fprintf(stderr, "%.2f M parameters, %lld steps, %s, %d threads%s\n", static_cast<double>(trainer->parameters()) / 1e6,
                 static_cast<long long>(config.total_steps()), device_name(run.device).c_str(), pool.size(), from.c_str());
  }
  catch_stop(!options.quiet && ::isatty(STDERR_FILENO) == 1);
  K3_TRY_ASSIGN(const train::RunSummary summary, trainer->run());
  screen.finish();
  print_summary(options, summary);
  return {};
}

Status export_command(const ExportOptions& options) {
  K3_TRY(prepare_output_folder(options.out, options.force));
  K3_TRY(train::export_run(options.run, options.out, options.step, options.best, options.shards));
  std::fprintf(stderr, "k3 run %s -p '...' asks it\n", options.out.c_str());
  return {};
}

void add_train_commands(CLI::App& app, TrainOptions& train, ExportOptions& exporting, Status& status) {
  CLI::App* const teach = app.add_subcommand("train", "Train a model from prepared text")->group("Make a model");
  teach->footer(
      "CONFIG is a JSON file: model, tokenizer, data, phases, recipe (docs/training.md describes the fields; configs/ has examples).\n"
      "The same command resumes a run that was stopped or killed. Ctrl-C finishes the step and writes a checkpoint.\n\n"
      "Examples:\n"
      "  k3 train-tokenizer stories.txt --vocab 2048 -o tokenizer\n"
      "  k3 prepare stories.txt --tokenizer tokenizer -o data\n"
      "  k3 train configs/k3-nano.json -o run\n"
      "  k3 train configs/k3-nano.json -o run --stop-after 600    # ten minutes of it; again for the next ten\n"
      "  k3 train configs/k3-nano.json -o run2 --set seed=1 --set recipe.matrices=adamw\n"
      "  k3 export run model && k3 chat model");
  teach->add_option("CONFIG", train.config, "The run's config")->required();
  teach->add_option("-o,--out", train.out, "The run's folder: checkpoints, log.jsonl, TensorBoard events, report.html")->required();
  teach->add_option("--set", train.set, "Replace a field: recipe.matrix_rate=0.01 (may be given several times)");
  teach->add_option("--stop-after", train.stop_after, "Stop after so many seconds, with a checkpoint; the same command goes on")
      ->check(real_range(1e-9, 1e9));
  teach->add_option("--device", train.device, "Where to compute: cpu (default), cuda, or cuda:1 for the second GPU");
  teach->add_option("-t,--threads", train.threads, "Threads (default: all that the process may use)")->check(CLI::Range(1, 1024));
  teach->add_flag("--batches", train.batches, "Do not train: write the tokens, targets and borders of every step to OUT, a .npy file");
  teach->add_flag("--json", train.json, "A JSON object at the end");
  teach->add_flag("-q,--quiet", train.quiet, "No lines while it runs");
  teach->callback([&status, &train] { status = train_command(train); });

  CLI::App* const write = app.add_subcommand("export", "Write a run's weights as a model")->group("Make a model");
  write->footer(
      "The released layout: config.json, safetensors, tokenizer. Experts are packed in MXFP4 when the model's config says so; after\n"
      "quantisation-aware training they are exactly what was trained.\n\n"
      "Examples:\n"
      "  k3 export run model\n"
      "  k3 export run model --best     # the checkpoint with the lowest held-out loss");
  write->add_option("RUN", exporting.run, "The folder of k3 train")->required();
  write->add_option("OUT", exporting.out, "The model's folder")->required();
  auto* const step = write->add_option("--step", exporting.step, "This checkpoint (default: the newest)")->check(range(int64_t{0}, kMostSteps));
  write->add_flag("--best", exporting.best, "The checkpoint with the lowest held-out loss")->excludes(step);
  write->add_option("--shards", exporting.shards, "Files to write")->check(CLI::Range(int64_t{1}, kMostShards));
  write->add_flag("--force", exporting.force, "Replace a model that is there");
  write->callback([&status, &exporting] { status = export_command(exporting); });
}

}  // namespace k3::cli
