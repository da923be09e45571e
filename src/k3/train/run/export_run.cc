#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"
#include "k3/train/run/trainer.h"

namespace k3::train {
namespace {

// The first must be there; the others are of one kind of folder or the other.
constexpr const char* kTokenizerFiles[] = {"tiktoken.model", "tokenizer_config.json", "generation_config.json", "chat_format.json", "encoding_k3.py"};

}  // namespace

Status export_run(const std::string& run_folder, const std::string& out_folder, int64_t step, bool best, int64_t shards) {
  const Checkpoints checkpoints(run_folder + "/checkpoints");
  K3_TRY_ASSIGN(const std::optional<int64_t> newest, checkpoints.newest());
  if (!newest) return fail(Code::not_found, "{}: there is no checkpoint to export; `k3 train` writes them", run_folder);
  if (step < 0) step = *newest;
  if (best) {
    K3_TRY_ASSIGN(const RunState state, checkpoints.read_state(*newest));
    if (state.best_step < 0) return fail(Code::not_found, "{}: nothing was evaluated, so there is no best checkpoint", run_folder);
    step = state.best_step;
  }
  K3_TRY_ASSIGN(const std::string json, read_file(run_folder + "/train.json", int64_t{16} << 20));
  K3_TRY_ASSIGN(const std::string origin, read_file(run_folder + "/config_path", 1 << 16));
  K3_TRY_ASSIGN(const TrainConfig config, parse_train_config(json, origin));
  if (!path_exists(join_path(config.tokenizer, kTokenizerFiles[0]))) {
    return fail(Code::not_found, "{}: the tokenizer of this run is not there any more ({}/config_path and train.json say where it was)", config.tokenizer, run_folder);
  }
  K3_TRY_ASSIGN(TrainWeights weights, make_train_weights(config.model, DType::f32));
  K3_TRY(checkpoints.load_weights(step, weights));
  K3_TRY_ASSIGN(const RunState trained, checkpoints.read_state(step));
  if (!trained.model_hash.empty() && trained.model_hash != sha256_hex(config.model_json)) {
    return fail(Code::invalid_argument, "{}: the model's config is another one than when this run was begun; export it with that one", run_folder);
  }
  std::error_code error;
  std::filesystem::create_directories(out_folder, error);
  if (error) return fail(Code::unavailable, "{}: {}", out_folder, error.message());
  K3_TRY(write_train_weights(weights, out_folder, shards));
  for (const char* const name : kTokenizerFiles) {
    const std::string from = config.tokenizer + "/" + name;
    if (!path_exists(from)) continue;
    K3_TRY_ASSIGN(const std::string text, read_file(from));
    K3_TRY(write_file(out_folder + "/" + name, text));
  }
  // Last: a folder without it is unfinished.
  return write_file(out_folder + "/config.json", config.model_json);
}

}  // namespace k3::train
