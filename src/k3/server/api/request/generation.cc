#include "k3/server/api/request/generation.h"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <set>

#include "k3/base/rng.h"
#include "k3/base/utf8.h"

namespace k3::server {
namespace {

constexpr size_t kMostStops = 4, kMostKimiStops = 5, kMostKimiStopBytes = 32, kMostStopSequences = 64;
constexpr int64_t kMostLogprobs = 20, kMostChoices = 128;
constexpr float kKimiTopP = 0.95F;

// Strings of one of two fields: "stop", or "stop_sequences" of Anthropic's messages, of which there may be more.
Status parse_stop_texts(const JsonNode& root, const std::string& name, size_t most, size_t most_bytes, std::vector<std::string>& out) {
  const JsonNode* node = root.find_set(name);
  if (node == nullptr) return {};
  if (node->is_string()) {
    out.push_back(node->text);
  } else if (node->is_array()) {
    for (size_t i = 0; i < node->items.size(); ++i) {
      if (!node->items[i].is_string()) return fail(Code::invalid_argument, "{}[{}]: must be a string", name, i);
      out.push_back(node->items[i].text);
    }
  } else {
    return fail(Code::invalid_argument, "{}: must be a string or an array of strings", name);
  }
  if (out.size() > most) return fail(Code::invalid_argument, "{}: {} strings; at most {}", name, out.size(), most);
  for (const std::string& stop : out) {
    if (stop.empty()) return fail(Code::invalid_argument, "{}: an empty string stops nothing", name);
    if (stop.size() > most_bytes) return fail(Code::invalid_argument, "{}: a string of {} bytes; at most {}", name, stop.size(), most_bytes);
  }
  return {};
}

Status parse_stop_ids(const JsonNode& root, int64_t vocab, std::vector<int32_t>& out) {
  const JsonNode* node = root.find_set("stop_token_ids");
  if (node == nullptr) return {};
  if (!node->is_array()) return fail(Code::invalid_argument, "stop_token_ids: must be an array of token ids");
  K3_TRY_ASSIGN(out, token_ids(*node, vocab, "stop_token_ids"));
  return {};
}

Status parse_bias(const JsonNode& root, int64_t vocab, ops::SamplingParams& sampling) {
  const JsonNode* node = root.find_set("logit_bias");
  if (node == nullptr) return {};
  if (!node->is_object()) return fail(Code::invalid_argument, "logit_bias: must be an object of token ids and numbers");
  for (size_t i = 0; i < node->items.size(); ++i) {
    const std::string& key = node->keys[i];
    int64_t id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab) {
      return fail(Code::invalid_argument, "logit_bias: '{}' is no token id of 0..{}", key.substr(0, 40), vocab - 1);
    }
    const auto value = json_number(node->items[i]);
    if (!value || *value < -100 || *value > 100) {
      return fail(Code::invalid_argument, "logit_bias: the bias of {} is not a number between -100 and 100", id);
    }
    sampling.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(*value));
  }
  return {};
}

Status parse_logprobs(const JsonNode& root, Route route, int32_t& out) {
  const Fields fields(root);
  int64_t top = 0;
  if (route == Route::text) {
    int64_t wanted = -1;
    K3_TRY(fields.integer("logprobs", wanted, 0, kMostLogprobs));
    out = static_cast<int32_t>(wanted);
    return {};
  }
  bool wanted = false;
  K3_TRY(fields.flag("logprobs", wanted));
  K3_TRY(fields.integer("top_logprobs", top, 0, kMostLogprobs));
  if (fields.find("top_logprobs") != nullptr && !wanted) {
    return fail(Code::invalid_argument, "top_logprobs: needs logprobs: true");
  }
  out = wanted ? static_cast<int32_t>(top) : -1;
  return {};
}

Status parse_stream(const JsonNode& root, Generation& out) {
  K3_TRY(Fields(root).flag("stream", out.stream));
  const JsonNode* options = root.find_set("stream_options");
  if (options == nullptr) return {};
  if (!out.stream) return fail(Code::invalid_argument, "stream_options: only legal with stream: true");
  if (!options->is_object()) return fail(Code::invalid_argument, "stream_options: must be an object");
  const Fields fields(*options);
  const auto flag = [&](std::string_view name, bool& value) {
    return fields.flag(name, value).with_context("stream_options");
  };
  K3_TRY(flag("include_usage", out.include_usage));
  K3_TRY(flag("continuous_usage_stats", out.continuous_usage));
  K3_TRY(flag("include_internal_content", out.internal_content));
  return {};
}

Status parse_sampling(const JsonNode& root, int64_t vocab, ops::SamplingParams& s) {
  const Fields fields(root);
  constexpr double kTiny = 1e-6;  // top_p 0 keeps nothing
  K3_TRY(fields.number("temperature", s.temperature, 0, 2));
  K3_TRY(fields.number("top_p", s.top_p, kTiny, 1));
  K3_TRY(fields.number("min_p", s.min_p, 0, 1));
  K3_TRY(fields.number("repetition_penalty", s.repetition_penalty, 0.001, 1000));
  K3_TRY(fields.number("presence_penalty", s.presence_penalty, -2, 2));
  K3_TRY(fields.number("frequency_penalty", s.frequency_penalty, -2, 2));
  int64_t top_k = s.top_k;
  K3_TRY(fields.integer("top_k", top_k, -1, INT32_MAX));
  s.top_k = std::max<int64_t>(top_k, 0);  // -1 is another way to say all
  int64_t seed = 0;
  K3_TRY(fields.integer("seed", seed, INT64_MIN));
  s.seed = fields.find("seed") != nullptr ? static_cast<uint64_t>(seed) : random_seed();
  K3_TRY(parse_bias(root, vocab, s));
  return s.validate(vocab);
}

// Moonshot's own service fixes these; its verifier sends wrong values and expects 400.
Status apply_kimi_policy(const JsonNode& root, Generation& out) {
  const auto fixed = [](std::string_view name, std::string_view value) {
    return fail(Code::invalid_argument, "{}: only {} is accepted here", name, value);
  };
  ops::SamplingParams& s = out.sampling;
  if (root.find_set("top_p") != nullptr && s.top_p != kKimiTopP && s.top_p != 1) return fixed("top_p", "0.95");
  s.top_p = kKimiTopP;
  if (s.presence_penalty != 0) return fixed("presence_penalty", "0");
  if (s.frequency_penalty != 0) return fixed("frequency_penalty", "0");
  if (out.choices != 1) return fixed("n", "1");
  if (s.temperature > 1) return fixed("temperature", "a value between 0 and 1");
  return {};
}

Status parse_limits(const JsonNode& root, Route route, Generation& out) {
  const Fields fields(root);
  if (route == Route::text) out.max_tokens = 16;
  K3_TRY(fields.integer("max_tokens", out.max_tokens, 1));
  K3_TRY(fields.integer("max_completion_tokens", out.max_tokens, 1));
  K3_TRY(fields.integer("min_tokens", out.min_tokens, 0));
  if (out.max_tokens > 0 && out.min_tokens > out.max_tokens) {
    return fail(Code::invalid_argument, "min_tokens: {} is more than max_tokens {}", out.min_tokens, out.max_tokens);
  }
  K3_TRY(fields.integer("n", out.choices, 1, kMostChoices));
  K3_TRY(fields.flag("ignore_eos", out.ignore_eos));
  K3_TRY(fields.flag("skip_special_tokens", out.skip_special_tokens));
  K3_TRY(fields.flag("cache_prompt", out.use_cache));
  K3_TRY(fields.text("cache_salt", out.cache_salt));
  K3_TRY(fields.integer("id_slot", out.slot, -1, INT32_MAX));
  K3_TRY(fields.integer("priority", out.priority, INT32_MIN, INT32_MAX));
  return {};
}

}  // namespace

Result<Generation> parse_generation(const JsonNode& root, Route route, const Context& context) {
  const bool kimi = context.options.param_policy == ParamPolicy::kimi;
  const int64_t vocab = context.card.vocab;
  Generation out;
  out.sampling = context.defaults;
  const Fields fields(root);
  if (fields.find("model") == nullptr) return fail(Code::invalid_argument, "model: is missing");
  K3_TRY(fields.text("model", out.model));
  K3_TRY(parse_stream(root, out));
  K3_TRY(parse_sampling(root, vocab, out.sampling));
  K3_TRY(parse_limits(root, route, out));
  const size_t most_bytes = kimi ? kMostKimiStopBytes : SIZE_MAX;
  if (root.find_set("stop_sequences") != nullptr) {
    K3_TRY(parse_stop_texts(root, "stop_sequences", kMostStopSequences, most_bytes, out.stops));
  } else {
    K3_TRY(parse_stop_texts(root, "stop", kimi ? kMostKimiStops : kMostStops, most_bytes, out.stops));
  }
  K3_TRY(parse_stop_ids(root, vocab, out.stop_token_ids));
  K3_TRY(parse_logprobs(root, route, out.logprobs));
  if (kimi) K3_TRY(apply_kimi_policy(root, out));
  return out;
}

std::vector<std::string> new_unknown_fields(const JsonNode& root) {
  static const std::set<std::string_view> kKnown = {"model",
                                                    "messages",
                                                    "max_completion_tokens",
                                                    "max_tokens",
                                                    "stream",
                                                    "stream_options",
                                                    "temperature",
                                                    "top_p",
                                                    "top_k",
                                                    "min_p",
                                                    "repetition_penalty",
                                                    "ignore_eos",
                                                    "min_tokens",
                                                    "stop_token_ids",
                                                    "skip_special_tokens",
                                                    "presence_penalty",
                                                    "frequency_penalty",
                                                    "n",
                                                    "seed",
                                                    "stop",
                                                    "logit_bias",
                                                    "logprobs",
                                                    "top_logprobs",
                                                    "tools",
                                                    "tool_choice",
                                                    "parallel_tool_calls",
                                                    "response_format",
                                                    "thinking",
                                                    "reasoning_effort",
                                                    "chat_template_kwargs",
                                                    "user",
                                                    "metadata",
                                                    "store",
                                                    "service_tier",
                                                    "cache_salt",
                                                    "add_generation_prompt",
                                                    "continue_final_message",
                                                    "prompt",
                                                    "echo",
                                                    "suffix",
                                                    "best_of",
                                                    "add_special_tokens",
                                                    "add_special",
                                                    "parse_special",
                                                    "cache_prompt",
                                                    "id_slot",
                                                    "priority",
                                                    "input",
                                                    "instructions",
                                                    "max_output_tokens",
                                                    "previous_response_id",
                                                    "reasoning",
                                                    "text",
                                                    "system",
                                                    "stop_sequences",
                                                    "include",
                                                    "truncation",
                                                    "structured_outputs",
                                                    "guided_json",
                                                    "guided_regex",
                                                    "guided_grammar",
                                                    "grammar",
                                                    "json_schema"};
  constexpr size_t kMostNames = 100, kMostNameBytes = 60;
  static std::mutex mutex;
  static std::set<std::string> seen;
  std::vector<std::string> out;
  const std::lock_guard lock(mutex);
  for (const std::string& key : root.keys) {
    if (kKnown.contains(key) || key.size() > kMostNameBytes || seen.size() >= kMostNames) continue;
    // What would break or colour a line of the log is not worth one.
    if (std::any_of(key.begin(), key.end(), [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7F; })) continue;
    if (seen.insert(key).second) out.push_back(key);
  }
  return out;
}

}  // namespace k3::server
