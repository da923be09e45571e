#include "k3/format/tokenizer/special_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "k3/format/tokenizer/rank_table.h"

namespace k3 {
namespace {

constexpr int32_t kReserved = 256;  // ids above the ranks, named or not
constexpr size_t kMaxNameBytes = 1024;
constexpr const char* kField = "added_tokens_decoder";

using Json = nlohmann::json;

// Parses the config; the library keeps the last of equal keys, so repeated ids are looked for on the way.
Result<Json> parse_config(std::string_view text, std::string_view source) {
  std::set<std::string> seen;
  std::string top, repeated;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key) return true;
    const std::string& key = parsed.get_ref<const std::string&>();
    if (depth == 1) top = key;
    if (depth == 2 && top == kField && !seen.insert(key).second) repeated = key;
    return true;
  };
  try {
    Json config = Json::parse(text, watch);
    if (!repeated.empty()) return fail(Code::corrupt, "{}: {}: id {} appears twice", source, kField, repeated);
    return config;
  } catch (const Json::exception& error) {
    return fail(Code::corrupt, "{}: not JSON: {}", source, error.what());
  }
}

// Canonical decimal below 10^9, or -1.
int64_t parse_id(std::string_view text) {
  if (text.empty() || text.size() > 9 || (text.size() > 1 && text[0] == '0')) return -1;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  return value;
}

}  // namespace

SpecialTokens::SpecialTokens(int32_t base) : base_(base), names_(kReserved) {}

Result<SpecialTokens> SpecialTokens::parse(std::string_view config_json, int32_t base, std::string_view source) {
  if (base > kMaxVocab - kReserved) {
    return fail(Code::exhausted, "{}: {} ranks leave no room for {} specials within {} ids", source, base, kReserved,
                kMaxVocab);
  }
  SpecialTokens tokens(base);
  if (!config_json.empty()) K3_TRY(tokens.read(config_json, source));
  K3_TRY(tokens.finish(source));
  return tokens;
}

Status SpecialTokens::read(std::string_view config_json, std::string_view source) {
  K3_TRY_ASSIGN(const Json config, parse_config(config_json, source));
  if (!config.is_object()) return fail(Code::corrupt, "{}: expected a JSON object", source);
  const auto decoder = config.find(kField);
  if (decoder == config.end()) return {};
  if (!decoder->is_object()) return fail(Code::corrupt, "{}: {}: expected an object of ids", source, kField);
  for (const auto& [key, token] : decoder->items()) {
    const int64_t id = parse_id(key);
    if (id < 0) return fail(Code::corrupt, "{}: {}: '{}' is not an id", source, kField, key);
    if (id >= kMaxVocab) {
      return fail(Code::exhausted, "{}: {}: id {} is beyond the {} ids supported", source, kField, id, kMaxVocab);
    }
    if (id < base_) {
      return fail(Code::corrupt, "{}: {}: id {} lies among the {} ranks; is this the config of another vocabulary?", source,
                  kField, id, base_);
    }
    const auto content = token.is_object() ? token.find("content") : token.end();
    if (content == token.end() || !content->is_string()) {
      return fail(Code::corrupt, "{}: {}: id {}: field 'content' is missing or not a string", source, kField, id);
    }
    K3_TRY(add(static_cast<int32_t>(id), content->get_ref<const std::string&>(), source));
  }
  return {};
}

Status SpecialTokens::add(int32_t id, std::string_view content, std::string_view source) {
  if (content.empty() || content.size() > kMaxNameBytes) {
    return fail(Code::corrupt, "{}: {}: id {}: 'content' must have 1 to {} bytes", source, kField, id, kMaxNameBytes);
  }
  const auto index = static_cast<size_t>(id - base_);
  if (index >= names_.size()) names_.resize(index + 1);
  names_[index] = content;
  return {};
}

Status SpecialTokens::finish(std::string_view source) {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i].empty()) names_[i] = fmt::format("<|reserved_token_{}|>", base_ + static_cast<int32_t>(i));
  }
  ids_.reserve(names_.size());
  for (size_t i = 0; i < names_.size(); ++i) {
    const int32_t id = base_ + static_cast<int32_t>(i);
    const auto [entry, added] = ids_.emplace(names_[i], id);
    if (!added) {
      return fail(Code::corrupt, "{}: {}: ids {} and {} have the same content '{}'", source, kField, entry->second, id,
                  names_[i]);
    }
    auto& lengths = lengths_[static_cast<uint8_t>(names_[i][0])];
    const auto place = std::lower_bound(lengths.begin(), lengths.end(), names_[i].size(), std::greater<>());
    if (place == lengths.end() || *place != names_[i].size()) lengths.insert(place, names_[i].size());
  }
  return {};
}

std::optional<int32_t> SpecialTokens::find(std::string_view name) const {
  const auto entry = ids_.find(name);
  if (entry == ids_.end()) return std::nullopt;
  return entry->second;
}

std::optional<SpecialTokens::Match> SpecialTokens::next(std::string_view text, size_t pos) const {
  for (; pos < text.size(); ++pos) {
    for (const size_t length : lengths_[static_cast<uint8_t>(text[pos])]) {
      if (length > text.size() - pos) continue;
      if (const auto id = find(text.substr(pos, length))) return Match{pos, length, *id};
    }
  }
  return std::nullopt;
}

}  // namespace k3
