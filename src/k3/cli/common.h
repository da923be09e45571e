// What several commands share: loading with a progress bar, runner options, inputs, id lists, tables.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/threads.h"
#include "k3/cli/options.h"
#include "k3/format/generation_config.h"
#include "k3/format/tokenizer.h"
#include "k3/model/model.h"
#include "k3/ops/sampling/sampling.h"

namespace k3::cli {

struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Model> model;
  double load_seconds = 0;

  LoadedModel() = default;
  LoadedModel(LoadedModel&&) noexcept = default;
  LoadedModel& operator=(LoadedModel&&) noexcept = default;
  ~LoadedModel();  // writes --expert-stats
};

// Sizes of the runner that a command is going to make: a memory plan (--ram) has to know them before loading.
struct RunNeeds {
  int64_t ctx_tokens = 0;    // at least; 0: as runner_options() says
  int64_t chunk_tokens = 0;  // 0: as the options say
  int64_t logit_rows = 1;    // of one step; 0: of every token
  int64_t sequences = 1;
  int64_t cache_bytes = 0;  // of a serving engine on a CPU: pool and host tier; 0: by sequences and context
  GpuPoolRequest pool = {};  // of one on a GPU
  int64_t prompt_keys = 0;   // PlanRequest
};

// A pool whose workers run where the plan of this machine (numa_plan.h) puts them.
std::unique_ptr<ThreadPool> make_pool(int threads);

Result<LoadedModel> load_model(const std::string& path, const ComputeOptions& options, const RunNeeds& needs = {});
DType cache_dtype(const std::string& name);  // f32, bf16 or f8_e4m3, as CLI11 has checked
Result<RunnerOptions> runner_options(const ComputeOptions& options, const Config& config);

// The config of `path` after --set: what is wrong there and was right before is a fault of the options (invalid_argument), not of the file.
Result<Config> edited_config(std::string_view before, std::string_view after, const std::string& path, const std::vector<std::string>& set);

// The tokenizer of a model folder (or of the folder of its config.json).
Result<Tokenizer> load_tokenizer(const std::string& model);

// Explicit options win over the checkpoint's generation_config.json, which wins over temperature 1, top-p 0.95.
ops::SamplingParams sampling_params(const SamplingOptions& options, const GenerationConfig& defaults);

// Refuses (corrupt, naming the file) defaults of the checkpoint that cannot be sampled with.
Status check_sampling_defaults(const std::string& folder, const GenerationConfig& defaults, int64_t vocab);

// Every id that ends an answer: generation_config, config, and the named special when the tokenizer has it.
std::vector<int32_t> stop_ids(const Config& config, const GenerationConfig& generation, const Tokenizer& tokenizer,
                              std::string_view end_token);

// The given text, else the file ("-" is stdin), else stdin. Asks for nothing when stdin is a terminal: an error that
// names the options instead.
Result<std::string> read_input(const std::optional<std::string>& text, const std::optional<std::string>& file,
                               std::string_view what, std::string_view options_hint);
Result<std::string> read_stdin();

// "1,2 3", a JSON array, or @file with either.
Result<std::vector<int32_t>> parse_ids(const std::string& text);

// A table with aligned columns: the first left, the others right. For people; programs use --json.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text(const std::vector<size_t>& left = {0}) const;  // `left`: the columns set left

 private:
  std::vector<std::vector<std::string>> rows_;
};

// A note for people on stderr (dim on a terminal).
void note(const std::string& text);

// All that goes to stdout goes through these. The first failure is kept: cli_main makes it the program's, and who
// prints for long asks for it to stop early.
void print_out(std::string_view text);
bool flush_out();  // false when something could not be written, now or before
Status output_status();

// Creates OUT; refuses a folder that already holds a checkpoint unless forced.
Status prepare_output_folder(const std::string& folder, bool force);

}  // namespace k3::cli
