// train-tokenizer, prepare.
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/base/units.h"
#include "k3/cli/common.h"
#include "k3/cli/data/data_options.h"
#include "k3/train/data/prepare/prepare.h"
#include "k3/train/tokenizer/learn_tokenizer.h"

namespace k3::cli {
namespace {

// A bar that opens with its first step and makes way for the next one.
class Bars {
 public:
  void show(const char* label, int64_t done, int64_t total, const char* unit) {
    if (label != label_) {
      bar_.emplace(label, total, unit);
      label_ = label;
    }
    bar_->update(done);
  }
  void finish() { bar_.reset(); }

 private:
  const char* label_ = nullptr;
  std::optional<Progress> bar_;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// "FILE=4"; a file that has such a name itself is meant as it stands.
Result<train::WeightedFile> weighted_file(const std::string& text) {
  const size_t sign = text.rfind('=');
  if (sign == std::string::npos || path_exists(text)) return train::WeightedFile{text, 1};
  double weight = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + sign + 1, end, weight);
  if (error != std::errc() || stop != end || !std::isfinite(weight)) {
    return fail(Code::invalid_argument, "{}: neither a file nor FILE=WEIGHT with a number", text);
  }
  return train::WeightedFile{text.substr(0, sign), weight};
}

void print_tokenizer(const TrainTokenizerOptions& options, const train::LearnReport& report, double seconds) {
  const auto ranks = static_cast<int64_t>(report.ranks.tokens.size());
  if (options.json) {
    JsonWriter w;
    w.begin_object().field("out", options.out).field("vocab", ranks + train::kSpecialTokens).field("ranks", ranks);
    w.field("documents", report.documents).field("words", report.words).field("bytes_per_token", report.bytes_per_token);
    w.field("seconds", seconds).end_object();
    print_out(w.text() + "\n");
    return;
  }
  note(fmt::format("{} documents, {} different words; {} ranks and {} special tokens, {:.2f} bytes a token, in {}",
                   format_grouped(report.documents), format_grouped(report.words), format_grouped(ranks), train::kSpecialTokens,
                   report.bytes_per_token, format_seconds(seconds)));
  note(fmt::format("wrote {}; next: k3 prepare --tokenizer {} --out DATA FILES", options.out, options.out));
}

void print_manifest(const PrepareCliOptions& options, const train::DataManifest& manifest, double seconds) {
  if (options.json) {
    print_out(train::manifest_json(manifest));
    return;
  }
  Table table({"source", "split", "kind", "documents", "bytes", "tokens", "learned", "bytes/token", "duplicates"});
  int64_t tokens = 0;
  for (const train::SourceInfo& s : manifest.sources) {
    tokens += s.tokens;
    // Of a conversation the bytes of the assistant alone are counted, which its learned tokens stand for.
    const double per_token = s.loss_tokens > 0 ? static_cast<double>(s.text_bytes) / static_cast<double>(s.loss_tokens) : 0;
    table.row({s.name, std::string(split_name(s.split)), std::string(kind_name(s.kind)), format_grouped(s.documents),
               format_grouped(s.text_bytes), format_grouped(s.tokens), format_grouped(s.loss_tokens), fmt::format("{:.2f}", per_token),
               format_grouped(s.duplicates)});
  }
  print_out(table.text());
  note(fmt::format("wrote {}: {} tokens in {}", options.out, format_grouped(tokens), format_seconds(seconds)));
}

}  // namespace

Status train_tokenizer_command(const TrainTokenizerOptions& options) {
  if (path_exists(join_path(options.out, "tiktoken.model")) && !options.force) {
    return fail(Code::invalid_argument, "{} holds a tokenizer; --force replaces it, or choose another folder", options.out);
  }
  train::LearnOptions learn;
  learn.vocab = options.vocab;
  learn.least_count = options.least_count;
  for (const std::string& file : options.files) {
    K3_TRY_ASSIGN(train::WeightedFile weighted, weighted_file(file));
    learn.files.push_back(std::move(weighted));
  }
  ThreadPool pool(options.threads > 0 ? options.threads : available_threads());
  Bars bars;
  const Stopwatch watch;
  const train::LearnProgress progress{[&](int64_t done, int64_t total) { bars.show("reading", done, total, "B"); },
                                      [&](int64_t done, int64_t total) { bars.show("joining", done, total, "ranks"); }};
  K3_TRY_ASSIGN(const train::LearnReport report, train::learn_tokenizer(learn, pool, progress));
  bars.finish();
  K3_TRY(train::write_tokenizer(options.out, report.ranks.tokens));
  print_tokenizer(options, report, watch.seconds());
  return {};
}

Status prepare_command(const PrepareCliOptions& options) {
  train::PrepareOptions prepare;
  prepare.tokenizer = options.tokenizer;
  prepare.out = options.out;
  prepare.train = options.files;
  prepare.valid = options.valid;
  prepare.holdout = options.holdout;
  prepare.shard_tokens = options.shard_tokens;
  prepare.force = options.force;
  ThreadPool pool(options.threads > 0 ? options.threads : available_threads());
  Bars bars;
  const Stopwatch watch;
  K3_TRY_ASSIGN(const train::DataManifest manifest, train::prepare_data(prepare, pool, [&](int64_t done, int64_t total) {
                  bars.show("preparing", done, total, "B");
                }));
  bars.finish();
  print_manifest(options, manifest, watch.seconds());
  return {};
}

}  // namespace k3::cli
