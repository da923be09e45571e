#include "k3/train/run/train_config.h"

#include <algorithm>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/format/config_edit.h"
#include "k3/format/json/json_tree.h"
#include "k3/model/init.h"
#include "k3/train/json_number.h"

namespace k3::train {
namespace {

// Fields of the top level that a file may lack and --set may add.
constexpr std::string_view kAddable[] = {"start",           "start_sha256",     "seed",         "recompute",        "evaluate_every",
                                         "evaluate_tokens", "evaluate_sources", "sample_every", "checkpoint_every"};

// Reads the fields of one object and remembers which, so that a misspelt one is found.
class Fields {
 public:
  Fields(const JsonNode& node, std::string path) : node_(node), path_(std::move(path)) {}

  const JsonNode* get(std::string_view key) {
    known_.emplace_back(key);
    return node_.find_set(key);
  }
  std::string where(std::string_view key) const { return path_.empty() ? std::string(key) : path_ + "." + std::string(key); }

  Status read(std::string_view key, double low, double high, double* out) {
    const JsonNode* const field = get(key);
    if (field == nullptr) return {};
    // A number that no double holds (1e999) is none.
    const std::optional<double> value = json_real(field);
    if (!value || !(*value >= low && *value <= high)) {
      return fail(Code::invalid_argument, "{} is {}; a number from {} to {} is wanted", where(key), field->raw, low, high);
    }
    *out = *value;
    return {};
  }
  Status read(std::string_view key, int64_t low, int64_t high, int64_t* out) {
    double value = static_cast<double>(*out);
    K3_TRY(read(key, static_cast<double>(low), static_cast<double>(high), &value));
    if (value != static_cast<double>(static_cast<int64_t>(value))) return fail(Code::invalid_argument, "{} is {}; a whole number is wanted", where(key), value);
    *out = static_cast<int64_t>(value);
    return {};
  }
  Status read(std::string_view key, bool* out) {
    const JsonNode* const field = get(key);
    if (field == nullptr) return {};
    if (!field->is_boolean()) return fail(Code::invalid_argument, "{} is {}; true or false is wanted", where(key), field->raw);
    *out = field->flag;
    return {};
  }
  Status read(std::string_view key, std::string* out) {
    const JsonNode* const field = get(key);
    if (field == nullptr) return {};
    if (!field->is_string()) return fail(Code::invalid_argument, "{} is {}; a string is wanted", where(key), json_kind_name(field->kind));
    *out = field->text;
    return {};
  }
  template <class E>
  Status read(std::string_view key, std::initializer_list<std::pair<std::string_view, E>> choices, E* out) {
    std::string text, list;
    K3_TRY(read(key, &text));
    if (text.empty()) return {};
    for (const auto& [name, value] : choices) {
      if (text == name) {
        *out = value;
        return {};
      }
      list += (list.empty() ? "" : ", ") + std::string(name);
    }
    return fail(Code::invalid_argument, "{} is '{}'; one of {} is wanted", where(key), text, list);
  }
  // Every field was asked for.
  Status finish() const {
    for (const std::string& key : node_.keys) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      std::string list;
      for (const std::string& name : known_) list += (list.empty() ? "" : ", ") + name;
      return fail(Code::invalid_argument, "{} is not a field; there are {}", where(key), list);
    }
    return {};
  }

 private:
  const JsonNode& node_;
  std::string path_;
  std::vector<std::string> known_;
};

Status read_sources(const JsonNode& list, const std::string& path, std::vector<SourceShare>* out) {
  if (!list.is_array() || list.items.empty()) return fail(Code::invalid_argument, "{} is a list of sources, each {{\"name\": ..., \"weight\": ...}}", path);
  for (size_t i = 0; i < list.items.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    if (!list.items[i].is_object()) return fail(Code::invalid_argument, "{} is {}; an object is wanted", at, json_kind_name(list.items[i].kind));
    Fields fields(list.items[i], at);
    SourceShare source;
    double share = -1;
    K3_TRY(fields.read("name", &source.name));
    K3_TRY(fields.read("weight", 0.0, 1e6, &source.weight));
    K3_TRY(fields.read("share", 0.0, 1.0, &share));
    K3_TRY(fields.read("learn_all", &source.learn_all));
    K3_TRY(fields.finish());
    if (source.name.empty()) return fail(Code::invalid_argument, "{}.name is missing", at);
    if (share >= 0) source.share = share;
    out->push_back(std::move(source));
  }
  return {};
}

Status read_phase(const JsonNode& node, const std::string& path, Phase* phase) {
  if (!node.is_object()) return fail(Code::invalid_argument, "{} is {}; an object is wanted", path, json_kind_name(node.kind));
  Fields fields(node, path);
  K3_TRY(fields.read("name", &phase->name));
  K3_TRY(fields.read("steps", int64_t{0}, int64_t{1} << 40, &phase->steps));
  K3_TRY(fields.read("sequence_tokens", int64_t{2}, int64_t{1} << 24, &phase->sequence_tokens));
  K3_TRY(fields.read("tokens_per_step", int64_t{2}, int64_t{1} << 34, &phase->tokens_per_step));
  K3_TRY(fields.read("micro_batches", int64_t{1}, int64_t{1} << 20, &phase->micro_batches));
  K3_TRY(fields.read("mxfp4_experts", &phase->mxfp4_experts));
  K3_TRY(fields.read("mxfp8_activations", &phase->mxfp8_activations));
  K3_TRY(fields.read("new_schedule", &phase->new_schedule));
  K3_TRY(fields.read("learning_rate", 0.0, 1e3, &phase->learning_rate));
  const JsonNode* const sources = fields.get("sources");
  K3_TRY(fields.finish());
  if (phase->sequence_tokens == 0 || phase->tokens_per_step == 0) {
    return fail(Code::invalid_argument, "{} wants sequence_tokens and tokens_per_step", path);
  }
  if (phase->tokens_per_step % (phase->sequence_tokens * phase->micro_batches) != 0) {
    return fail(Code::invalid_argument, "{}: {} tokens a step are not a multiple of {} micro-batches of sequences of {} tokens", path,
                phase->tokens_per_step, phase->micro_batches, phase->sequence_tokens);
  }
  if (sources == nullptr) return fail(Code::invalid_argument, "{}.sources is missing", path);
  return read_sources(*sources, path + ".sources", &phase->sources);
}

Status read_recipe(const JsonNode& node, Recipe* recipe) {
  if (!node.is_object()) return fail(Code::invalid_argument, "recipe is {}; an object is wanted", json_kind_name(node.kind));
  Fields fields(node, "recipe");
  K3_TRY(fields.read<MatrixOptimizer>("matrices",
                                      {{"muon_per_head", MatrixOptimizer::muon_per_head}, {"muon", MatrixOptimizer::muon}, {"adamw", MatrixOptimizer::adamw}},
                                      &recipe->matrices));
  K3_TRY(fields.read<Balancing>("balancing", {{"quantile", Balancing::quantile}, {"sign", Balancing::sign}, {"none", Balancing::none}},
                                &recipe->balancing));
  K3_TRY(fields.read("matrix_rate", 0.0, 10.0, &recipe->matrix_rate));
  K3_TRY(fields.read("vector_rate", 0.0, 10.0, &recipe->vector_rate));
  K3_TRY(fields.read("embedding_rate", 0.0, 10.0, &recipe->embedding_rate));
  K3_TRY(fields.read("minimum_rate", 0.0, 1.0, &recipe->minimum_rate));
  K3_TRY(fields.read("warmup", 0.0, 1.0, &recipe->warmup));
  K3_TRY(fields.read("weight_decay", 0.0, 10.0, &recipe->weight_decay));
  double embedding_decay = -1;  // not in the file
  K3_TRY(fields.read("embedding_decay", 0.0, 10.0, &embedding_decay));
  if (embedding_decay >= 0) recipe->embedding_decay = embedding_decay;
  K3_TRY(fields.read("clip", 1e-6, 1e9, &recipe->clip));
  K3_TRY(fields.read("qk_clip", 1e-3, 1e9, &recipe->qk_clip));
  K3_TRY(fields.read("balancing_rate", 0.0, 1.0, &recipe->balancing_rate));
  return fields.finish();
}

std::string beside(const std::string& file, const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  return folder.empty() ? path : (folder / path).lexically_normal().string();
}

// "model": a path, or the config itself.
Status read_model(const JsonNode& node, TrainConfig* out) {
  std::string source = out->path + ": model";
  if (node.is_string()) {
    source = beside(out->path, node.text);
    K3_TRY_ASSIGN(out->model_json, read_file(source, int64_t{16} << 20));
  } else if (node.is_object()) {
    out->model_json = std::string(node.raw);
  } else {
    return fail(Code::invalid_argument, "model is {}; a path or a config is wanted", json_kind_name(node.kind));
  }
  K3_TRY_ASSIGN(out->model, parse_config(out->model_json, source));
  settle_random(out->model);
  return {};
}

Status read_rest(Fields& fields, TrainConfig* out) {
  int64_t seed = 0;
  K3_TRY(fields.read("tokenizer", &out->tokenizer));
  K3_TRY(fields.read("data", &out->data));
  K3_TRY(fields.read("start", &out->start));
  K3_TRY(fields.read("start_sha256", &out->start_sha256));
  K3_TRY(fields.read("seed", int64_t{0}, int64_t{1} << 52, &seed));
  out->seed = static_cast<uint64_t>(seed);
  K3_TRY(fields.read("recompute", &out->recompute));
  K3_TRY(fields.read("evaluate_every", int64_t{0}, int64_t{1} << 40, &out->evaluate_every));
  K3_TRY(fields.read("evaluate_tokens", int64_t{0}, int64_t{1} << 40, &out->evaluate_tokens));
  K3_TRY(fields.read("sample_every", int64_t{0}, int64_t{1} << 40, &out->sample_every));
  K3_TRY(fields.read("checkpoint_every", int64_t{0}, int64_t{1} << 40, &out->checkpoint_every));
  if (const JsonNode* const list = fields.get("evaluate_sources")) {
    if (!list->is_array()) return fail(Code::invalid_argument, "evaluate_sources is a list of names");
    for (const JsonNode& item : list->items) {
      if (!item.is_string()) return fail(Code::invalid_argument, "evaluate_sources holds {}; names are wanted", item.raw);
      out->evaluate_sources.push_back(item.text);
    }
  }
  if (const JsonNode* const node = fields.get("sample")) {
    if (!node->is_object()) return fail(Code::invalid_argument, "sample is {}; an object is wanted", json_kind_name(node->kind));
    Fields sample(*node, "sample");
    K3_TRY(sample.read("text", &out->sample.text));
    K3_TRY(sample.read("chat", &out->sample.chat));
    K3_TRY(sample.read("tokens", int64_t{1}, int64_t{1} << 20, &out->sample.tokens));
    K3_TRY(sample.finish());
  }
  out->tokenizer = beside(out->path, out->tokenizer);
  out->data = beside(out->path, out->data);
  out->start = beside(out->path, out->start);
  if (out->start.empty() && !out->start_sha256.empty()) {
    return fail(Code::invalid_argument, "start_sha256 says which model the run begins from, but start names none");
  }
  if (out->tokenizer.empty()) return fail(Code::invalid_argument, "tokenizer is missing: the folder that `k3 train-tokenizer` wrote");
  if (out->data.empty()) return fail(Code::invalid_argument, "data is missing: the folder that `k3 prepare` wrote");
  return {};
}

Status read_all(const JsonNode& root, TrainConfig* out) {
  if (!root.is_object()) return fail(Code::invalid_argument, "an object is wanted, this is {}", json_kind_name(root.kind));
  Fields fields(root, "");
  const JsonNode* const model = fields.get("model");
  const JsonNode* const phases = fields.get("phases");
  const JsonNode* const recipe = fields.get("recipe");
  K3_TRY(read_rest(fields, out));
  K3_TRY(fields.finish());
  if (model == nullptr) return fail(Code::invalid_argument, "model is missing: a path of a config.json, or its content");
  if (phases == nullptr || !phases->is_array() || phases->items.empty()) return fail(Code::invalid_argument, "phases is missing: a list of phases");
  K3_TRY(read_model(*model, out));
  if (recipe != nullptr) K3_TRY(read_recipe(*recipe, &out->recipe));
  for (size_t i = 0; i < phases->items.size(); ++i) {
    Phase phase;
    K3_TRY(read_phase(phases->items[i], "phases[" + std::to_string(i) + "]", &phase));
    if (phase.mxfp4_experts && !out->model.experts_mxfp4) {
      return fail(Code::invalid_argument, "phases[{}].mxfp4_experts: the model's config does not store experts in MXFP4 (quantization_config)", i);
    }
    out->phases.push_back(std::move(phase));
  }
  out->phases.front().new_schedule = true;
  return {};
}

}  // namespace

int64_t TrainConfig::total_steps() const {
  int64_t steps = 0;
  for (const Phase& phase : phases) steps += phase.steps;
  return steps;
}

TrainConfig::Place TrainConfig::place(int64_t step) const {
  Place out;
  for (; out.phase + 1 < phases.size() && step >= out.first_step + phases[out.phase].steps; ++out.phase) out.first_step += phases[out.phase].steps;
  return out;
}

Result<TrainConfig> parse_train_config(std::string_view json, const std::string& path) {
  TrainConfig out;
  out.path = path;
  out.json = std::string(json);
  K3_TRY_ASSIGN(const JsonNode root, parse_json(out.json).with_context(path));
  K3_TRY(read_all(root, &out).with_context(path));
  return out;
}

Result<TrainConfig> load_train_config(const std::string& path, const std::vector<std::string>& set) {
  K3_TRY_ASSIGN(std::string json, read_file(path, int64_t{16} << 20));
  if (!set.empty()) {
    K3_TRY_ASSIGN(json, edit_config(json, set, kAddable).with_context(path));
  }
  return parse_train_config(json, path);
}

}  // namespace k3::train
