#include "k3/format/config_edit.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace k3 {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;  // as of a config that is read; what writes one goes down the levels by recursion

// Discarded: no JSON, or nested too deeply.
Json parse_shallow(std::string_view text) {
  bool deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) { return !(deep |= depth > kMaxDepth); };
  Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  return deep ? Json(Json::value_t::discarded) : json;
}

Result<Json> parse(std::string_view text) {
  Json json = parse_shallow(text);
  if (json.is_discarded() || !json.is_object()) return fail(Code::corrupt, "the config is not a JSON object of at most {} levels", kMaxDepth);
  return json;
}

std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json& text_config(Json& root) {
  return root.contains("text_config") && root["text_config"].is_object() ? root["text_config"] : root;
}

// Fields that a config may leave out, so that a bare name can add them. Others need a path: a mistyped name would
// otherwise become a field that nothing reads.
// clang-format off
constexpr std::string_view kOptional[] = {
    "activation_situ_beta", "activation_situ_linear_beta", "attn_res_block_size", "bos_token_id", "eos_token_id",
    "first_k_dense_replace", "gate_lower_bound", "initializer_range", "intermediate_size", "latent_moe_use_norm",
    "max_position_embeddings", "media_placeholder_token_id", "mla_use_output_gate", "moe_intermediate_size",
    "moe_layer_freq", "moe_renormalize", "num_experts", "num_experts_per_token", "num_key_value_heads",
    "num_nextn_predict_layers", "num_shared_experts", "pad_token_id", "q_lora_rank", "quantization_config",
    "routed_expert_hidden_size", "routed_scaling_factor", "short_conv_kernel_size", "tie_word_embeddings",
    "use_full_rank_gate"};
// clang-format on

// The objects to change for `name`: the text model or the top level; both where they agree (the released config states
// bos_token_id, dtype, ... twice); else the first of the inner objects that has it.
std::vector<Json*> owners_of(Json& root, const std::string& name) {
  Json& text = text_config(root);
  std::vector<Json*> owners;
  if (text.contains(name)) owners.push_back(&text);
  const bool again = &text != &root && root.contains(name);
  if (again && (owners.empty() || root[name] == text[name])) owners.push_back(&root);
  if (!owners.empty()) return owners;
  for (const char* inner : {"linear_attn_config", "vision_config"}) {
    for (Json* outer : {&text, &root}) {
      if (outer->contains(inner) && (*outer)[inner].is_object() && (*outer)[inner].contains(name)) return {&(*outer)[inner]};
    }
  }
  return {};
}

Status set_by_name(Json& root, const std::string& name, const Json& value, std::span<const std::string_view> addable) {
  std::vector<Json*> owners = owners_of(root, name);
  if (owners.empty() && std::find(addable.begin(), addable.end(), name) != addable.end()) owners.push_back(&root);
  if (owners.empty()) {
    if (std::find(std::begin(kOptional), std::end(kOptional), name) == std::end(kOptional)) {
      return fail(Code::invalid_argument, "no field '{}' in this config; check the spelling, or name a new one by its path",
                  name);
    }
    const bool linear = name == "gate_lower_bound" || name == "short_conv_kernel_size" || name == "use_full_rank_gate";
    Json& text = text_config(root);
    owners.push_back(linear ? &text["linear_attn_config"] : &text);
    if (!owners.front()->is_object()) return fail(Code::invalid_argument, "'{}' needs a linear_attn_config", name);
  }
  for (Json* owner : owners) (*owner)[name] = value;
  return {};
}

// Item of a list that is named by its number.
Json* item_of(Json& list, const std::string& number) {
  size_t at = 0;
  const char* const end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, at);
  return read.ec == std::errc() && read.ptr == end && at < list.size() ? &list[at] : nullptr;
}

Result<Json*> resolve_path(Json& root, std::string_view whole) {
  std::string_view path = whole;
  if (std::count(path.begin(), path.end(), '.') >= kMaxDepth) {
    return fail(Code::invalid_argument, "a path of more than {} levels is none to a field of the config", kMaxDepth);
  }
  Json* at = &root;
  // "linear_attn_config.num_heads" may leave out the leading "text_config.".
  const std::string first(path.substr(0, path.find('.')));
  if (!root.contains(first) && text_config(root).contains(first)) at = &text_config(root);
  while (true) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    Json* const item = at->is_array() ? item_of(*at, key) : nullptr;
    if (item == nullptr && (key.empty() || !at->is_object())) {
      if (at->is_array())
        return fail(Code::invalid_argument, "'{}': '{}' is none of the {} items, which begin at 0", whole, key, at->size());
      return fail(Code::invalid_argument, "'{}' is not a path to a field of the config", whole);
    }
    at = item != nullptr ? item : &(*at)[key];
    if (dot == std::string_view::npos) return at;
    if (at->is_null()) *at = Json::object();
    path.remove_prefix(dot + 1);
  }
}

void trim_layers(Json& root) {
  Json& text = text_config(root);
  if (!text.contains("num_hidden_layers") || !text["num_hidden_layers"].is_number_integer()) return;
  const auto layers = text["num_hidden_layers"].get<int64_t>();
  if (!text.contains("linear_attn_config") || !text["linear_attn_config"].is_object()) return;
  for (const char* name : {"full_attn_layers", "kda_layers"}) {
    Json& lists = text["linear_attn_config"];
    if (!lists.contains(name) || !lists[name].is_array()) continue;
    Json kept = Json::array();
    for (const Json& layer : lists[name]) {
      if (!layer.is_number_integer() || layer.get<int64_t>() <= layers) kept.push_back(layer);
    }
    lists[name] = kept;
  }
}

}  // namespace

Result<std::string> edit_config(std::string_view json, std::span<const std::string> assignments,
                                std::span<const std::string_view> addable) {
  K3_TRY_ASSIGN(Json root, parse(json));
  bool layers_changed = false;
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
      return fail(Code::invalid_argument, "'{}' is not of the form field=value", assignment);
    }
    const std::string name = assignment.substr(0, equals);
    const std::string text = assignment.substr(equals + 1);
    Json value = parse_shallow(text);
    if (value.is_discarded()) value = text;
    if (name.find('.') != std::string::npos) {
      K3_TRY_ASSIGN(Json* const target, resolve_path(root, name));
      *target = value;
    } else {
      K3_TRY(set_by_name(root, name, value, addable));
    }
    layers_changed |= name == "num_hidden_layers" || name.ends_with(".num_hidden_layers");
  }
  if (layers_changed) trim_layers(root);
  return dump(root);
}

Result<std::string> remove_vision(std::string_view json) {
  K3_TRY_ASSIGN(Json root, parse(json));
  for (const char* name : {"vision_config", "image_placeholder"}) {
    root.erase(name);
    text_config(root).erase(name);
  }
  return dump(root);
}

Result<std::string> set_expert_packing(std::string_view json, bool mxfp4) {
  K3_TRY_ASSIGN(Json root, parse(json));
  root.erase("quantization_config");
  Json& text = text_config(root);
  text.erase("quantization_config");
  if (mxfp4) {
    const Json weights = {{"num_bits", 4},       {"type", "float"},  {"symmetric", true},
                          {"strategy", "group"}, {"group_size", 32}, {"scale_dtype", "torch.uint8"},
                          {"dynamic", false}};
    const Json group = {
        {"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}, {"output_activations", nullptr}};
    const Json ignore = {"re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                         "re:.*lm_head.*",   "re:.*vision_tower.*",   "re:.*mm_projector.*"};
    text["quantization_config"] = {{"quant_method", "compressed-tensors"},  {"format", "mxfp4-pack-quantized"},
                                   {"quantization_status", "compressed"},   {"kv_cache_scheme", nullptr},
                                   {"config_groups", {{"group_0", group}}}, {"ignore", ignore}};
  }
  return dump(root);
}

Result<std::string> set_dtype(std::string_view json, std::string_view dtype) {
  K3_TRY_ASSIGN(Json root, parse(json));
  bool stated = false;
  for (const char* name : {"dtype", "torch_dtype"}) {
    for (Json* owner : owners_of(root, name)) {
      (*owner)[name] = dtype;
      stated = true;
    }
  }
  if (!stated) text_config(root)["dtype"] = dtype;
  return dump(root);
}

Result<std::string> set_trunk_packing(std::string_view json, bool int8) {
  K3_TRY_ASSIGN(Json root, parse(json));
  root.erase("trunk_quantization");
  if (int8) root["trunk_quantization"] = {{"format", "mxint8"}, {"group_size", 32}};
  return dump(root);
}

}  // namespace k3
