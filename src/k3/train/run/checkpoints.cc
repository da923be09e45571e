#include "k3/train/run/checkpoints.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/format/checkpoint.h"
#include "k3/train/json_number.h"

namespace k3::train {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr const char* kArrays[] = {"weights", "first", "second"};

std::span<std::byte> bytes_of(const Tensor& t) {
  return {static_cast<std::byte*>(t.data), static_cast<size_t>(t.size() * dtype_bytes(t.dtype))};
}

Status sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  const bool ok = fd >= 0 && ::fsync(fd) == 0;
  if (fd >= 0) ::close(fd);
  if (!ok) return fail(Code::unavailable, "{}: cannot be written to the disk", folder);
  return {};
}

}  // namespace

std::string state_json(const RunState& state) {
  JsonWriter out(2);
  out.begin_object();
  out.field("step", state.step).field("best_bits_per_byte", state.best_bits_per_byte).field("best_step", state.best_step);
  out.field("seconds", state.seconds).field("config_hash", state.config_hash);
  out.field("model_hash", state.model_hash).field("data_hash", state.data_hash);
  out.end_object();
  return out.text() + "\n";
}

Result<RunState> parse_state(std::string_view json, const std::string& source) {
  const Result<JsonNode> root = parse_json(json);
  if (!root.ok()) return fail(Code::corrupt, "{}: {}", source, root.error().message);
  const std::optional<int64_t> step = json_whole(root->find_set("step")), best_step = json_whole(root->find_set("best_step"));
  const std::optional<double> best = json_real(root->find_set("best_bits_per_byte")), seconds = json_real(root->find_set("seconds"));
  if (!step || *step < 0) return fail(Code::corrupt, "{}: 'step' is missing or no whole number from 0", source);
  if (!best_step || *best_step < -1 || *best_step > *step) return fail(Code::corrupt, "{}: 'best_step' is missing or no step from -1 to {}", source, *step);
  if (!best || *best < 0) return fail(Code::corrupt, "{}: 'best_bits_per_byte' is missing or no number from 0", source);
  if (!seconds || *seconds < 0) return fail(Code::corrupt, "{}: 'seconds' is missing or no number from 0", source);
  RunState state{*step, *best, *best_step, *seconds, {}};
  for (const auto& [key, to] : {std::pair("config_hash", &state.config_hash), std::pair("model_hash", &state.model_hash), std::pair("data_hash", &state.data_hash)}) {
    if (const JsonNode* const hash = root->find_set(key)) *to = hash->text;
  }
  return state;
}

std::string Checkpoints::path(int64_t step) const { return folder_ + "/" + std::string(kPrefix) + std::to_string(step); }

Result<std::vector<int64_t>> Checkpoints::all() const {
  std::vector<int64_t> steps;
  std::error_code error;
  if (!std::filesystem::exists(folder_, error)) return steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t step = 0;
    const char* const end = name.data() + name.size();
    if (std::from_chars(name.data() + kPrefix.size(), end, step).ptr == end && step >= 0) steps.push_back(step);
  }
  if (error) return fail(Code::unavailable, "{}: {}", folder_, error.message());
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<std::optional<int64_t>> Checkpoints::newest() const {
  K3_TRY_ASSIGN(const std::vector<int64_t> steps, all());
  if (steps.empty()) return std::optional<int64_t>();
  return std::optional<int64_t>(steps.back());
}

Result<RunState> Checkpoints::read_state(int64_t step) const {
  const std::string file = path(step) + "/state.json";
  K3_TRY_ASSIGN(const std::string text, read_file(file));
  K3_TRY_ASSIGN(RunState state, parse_state(text, file));
  if (state.step != step) return fail(Code::corrupt, "{}: says step {} in a folder of step {}", file, state.step, step);
  return state;
}

namespace {

Status read_array(const Checkpoint& checkpoint, const char* name, const Tensor& to) {
  K3_TRY_ASSIGN(const TensorInfo info, checkpoint.find(name));
  if (info.dtype != to.dtype || info.dims != std::vector<int64_t>{to.size()}) {
    return fail(Code::corrupt, "{}/{}: '{}' has {} values, this config has {}: a checkpoint of another config", checkpoint.folder(),
                checkpoint.shard_file(info.shard), name, info.count(), to.size());
  }
  return checkpoint.read(name, info, bytes_of(to));
}

}  // namespace

Status Checkpoints::load_weights(int64_t step, TrainWeights& weights) const {
  K3_TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path(step)));
  return read_array(checkpoint, kArrays[0], weights.all());
}

Result<RunState> Checkpoints::load(int64_t step, TrainWeights& weights, const Tensor& first, const Tensor& second) const {
  K3_TRY_ASSIGN(RunState state, read_state(step));
  K3_TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path(step)));
  K3_TRY(read_array(checkpoint, kArrays[0], weights.all()));
  K3_TRY(read_array(checkpoint, kArrays[1], first));
  K3_TRY(read_array(checkpoint, kArrays[2], second));
  return state;
}

Status Checkpoints::write(const std::string& unfinished, const RunState& state, const TrainWeights& weights, const Tensor& first, const Tensor& second) const {
  const Tensor arrays[] = {weights.all(), first, second};
  std::vector<std::vector<TensorSpec>> shards;
  for (int i = 0; i < 3; ++i) shards.push_back({{kArrays[i], weights.dtype, {weights.elements}}});
  K3_TRY_ASSIGN(CheckpointWriter writer, CheckpointWriter::create(unfinished, std::move(shards)));
  for (int i = 0; i < 3; ++i) K3_TRY(writer.append(kArrays[i], bytes_of(arrays[i])));
  K3_TRY(writer.finish());
  K3_TRY(write_file(unfinished + "/state.json", state_json(state)));
  return sync_folder(unfinished);
}

Status Checkpoints::save(const RunState& state, const TrainWeights& weights, const Tensor& first, const Tensor& second) const {
  const std::string unfinished = folder_ + "/.unfinished", target = path(state.step);
  std::error_code error;
  std::filesystem::remove_all(unfinished, error);
  K3_TRY(make_directories(unfinished));
  if (Status written = write(unfinished, state, weights, first, second); !written.ok()) {
    // A disk that is full gets its room back: the older checkpoints are what the run goes on from.
    std::filesystem::remove_all(unfinished, error);
    K3_TRY_ASSIGN(const std::optional<int64_t> before, newest());
    const std::string begin = before ? "goes on from that of step " + std::to_string(*before) : "begins anew, as there is none before it";
    return std::move(written).with_context("the checkpoint of step " + std::to_string(state.step) + " was not written; once there is room, the same command " + begin);
  }
  std::filesystem::remove_all(target, error);
  std::filesystem::rename(unfinished, target, error);
  if (error) return fail(Code::unavailable, "{}: {}", target, error.message());
  K3_TRY(sync_folder(folder_));
  K3_TRY_ASSIGN(const std::vector<int64_t> steps, all());
  for (const int64_t step : steps) {
    if (step < state.step && step != state.best_step) std::filesystem::remove_all(path(step), error);
  }
  return {};
}

}  // namespace k3::train
