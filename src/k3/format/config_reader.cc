#include "k3/format/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "k3/format/safetensors_scan.h"

namespace k3::config {
namespace {

using nlohmann::json;
using safetensors::shown;

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr int kMaxDepth = 64;

// Refuses what the tree builder would accept silently: a repeated key (the last one would win) and deep nesting.
class StrictKeys {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      if (depth >= kMaxDepth) throw std::runtime_error(fmt::format("nested more than {} levels deep", kMaxDepth));
      open_.emplace_back();
    } else if (event == json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) throw std::runtime_error(fmt::format("nested more than {} levels deep", kMaxDepth));
    } else if (event == json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      open_.back().path = key;
      if (!open_.back().seen.insert(key).second) throw std::runtime_error(fmt::format("{} appears twice", path()));
    }
    return true;
  }

 private:
  struct Level {
    std::string path;
    std::set<std::string> seen;
  };
  std::string path() const {
    std::string text;
    for (const Level& level : open_) text += (text.empty() ? "" : ".") + shown(level.path);
    return text;
  }
  std::vector<Level> open_;
};

std::string kind(const json& value) {
  switch (value.type()) {
    case json::value_t::object: return "an object";
    case json::value_t::array: return "an array";
    case json::value_t::string: return fmt::format("the string \"{}\"", shown(value.get_ref<const std::string&>()));
    case json::value_t::boolean: return value.get<bool>() ? "true" : "false";
    case json::value_t::null: return "null";
    default: return value.dump();
  }
}

// Whole numbers within [least, most], or the reason against.
Result<int64_t> whole(const json& value, int64_t least, int64_t most) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    number = wide > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(wide);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const auto real = value.get<double>();
    if (!std::isfinite(real) || real != std::floor(real)) {
      return fail(Code::corrupt, "must be a whole number, is {}", kind(value));
    }
    number = real >= 9.0e18 ? INT64_MAX : real <= -9.0e18 ? INT64_MIN : static_cast<int64_t>(real);
  } else {
    return fail(Code::corrupt, "must be a whole number, is {}", kind(value));
  }
  if (number < least || number > most) {
    return fail(Code::corrupt, "is {}; it must be between {} and {}", kind(value), least, most);
  }
  return number;
}

// nlohmann says "[json.exception.parse_error.101] parse error at line 1, column 2: ...": keep what helps a reader.
std::string syntax_message(const std::exception& error) {
  const std::string_view text = error.what();
  const size_t at = text.find("] ");
  return "not valid JSON: " + shown(at == std::string_view::npos ? text : text.substr(at + 2));
}

}  // namespace

struct Document::Tree {
  json root;
};

Document::Document(std::unique_ptr<Tree> tree, std::string_view source)
    : tree_(std::move(tree)), source_(source), error_(std::make_unique<std::optional<Error>>()) {}
Document::Document(Document&&) noexcept = default;
Document::~Document() = default;

Result<Document> Document::parse(std::string_view text, std::string_view source) {
  if (text.size() > kMaxBytes) {
    return fail(Code::corrupt, "{}: {} bytes is more than a configuration can have (16 MiB)", source, text.size());
  }
  auto tree = std::make_unique<Tree>();
  try {
    StrictKeys strict;
    tree->root = json::parse(text.begin(), text.end(), std::ref(strict));
  } catch (const json::exception& error) {
    return fail(Code::corrupt, "{}: {}", source, syntax_message(error));
  } catch (const std::exception& error) {
    return fail(Code::corrupt, "{}: {}", source, error.what());
  }
  if (!tree->root.is_object()) return fail(Code::corrupt, "{}: must be a JSON object, is {}", source, kind(tree->root));
  return Document(std::move(tree), source);
}

FieldReader Document::root() { return FieldReader(this, &tree_->root, ""); }

void Document::fail_at(Code code, std::string_view path, std::string_view fact) {
  if (!failed()) error_->emplace(fail(code, "{}: {} {}", source_, shown(path), fact));
}

std::string FieldReader::path(std::string_view field) const {
  return path_.empty() ? std::string(field) : fmt::format("{}.{}", path_, field);
}

void FieldReader::fail_field(Code code, std::string_view field, std::string_view fact) const {
  document_->fail_at(code, path(field), fact);
}

const void* FieldReader::find(std::string_view field) const {
  if (document_->failed()) return nullptr;
  const auto& object = *static_cast<const json*>(node_);
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool FieldReader::has(std::string_view field) const { return find(field) != nullptr; }

std::optional<int64_t> FieldReader::maybe_count(std::string_view field, int64_t least, int64_t most) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  const auto number = whole(*value, least, most);
  if (number.ok()) return *number;
  fail_field(number.error().code, field, number.error().message);
  return std::nullopt;
}

int64_t FieldReader::count(std::string_view field, int64_t least, int64_t most) const {
  if (!document_->failed() && !has(field)) fail_field(Code::not_found, field, "is missing");
  return maybe_count(field, least, most).value_or(least);
}

int64_t FieldReader::count_or(std::string_view field, int64_t otherwise, int64_t least, int64_t most) const {
  return maybe_count(field, least, most).value_or(otherwise);
}

std::optional<double> FieldReader::maybe_number(std::string_view field) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  fail_field(Code::corrupt, field, fmt::format("must be a number, is {}", kind(*value)));
  return std::nullopt;
}

std::optional<bool> FieldReader::maybe_bool(std::string_view field) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail_field(Code::corrupt, field, fmt::format("must be true or false, is {}", kind(*value)));
  return std::nullopt;
}

std::optional<std::string> FieldReader::maybe_string(std::string_view field) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  fail_field(Code::corrupt, field, fmt::format("must be a string, is {}", kind(*value)));
  return std::nullopt;
}

std::optional<std::string> FieldReader::first_string(std::string_view field) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  if (value->is_array() && value->empty()) return std::nullopt;
  const json& first = value->is_array() ? value->front() : *value;
  if (first.is_string()) return first.get<std::string>();
  fail_field(Code::corrupt, field, fmt::format("must be an array of strings, is {}", kind(*value)));
  return std::nullopt;
}

std::optional<std::vector<int64_t>> FieldReader::maybe_counts(std::string_view field, int64_t least, int64_t most) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    fail_field(Code::corrupt, field, fmt::format("must be an array of whole numbers, is {}", kind(*value)));
    return std::nullopt;
  }
  std::vector<int64_t> counts;
  for (size_t i = 0; i < value->size(); ++i) {
    const auto number = whole((*value)[i], least, most);
    if (!number.ok()) {
      fail_field(number.error().code, fmt::format("{}[{}]", field, i), number.error().message);
      return std::nullopt;
    }
    counts.push_back(*number);
  }
  return counts;
}

std::optional<int64_t> FieldReader::first_id(std::string_view field, int64_t most) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return maybe_count(field, 0, most);
  const auto ids = maybe_counts(field, 0, most);
  return ids && !ids->empty() ? std::optional(ids->front()) : std::nullopt;
}

std::optional<FieldReader> FieldReader::maybe_object(std::string_view field) const {
  const auto* value = static_cast<const json*>(find(field));
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return FieldReader(document_, value, path(field));
  fail_field(Code::corrupt, field, fmt::format("must be an object, is {}", kind(*value)));
  return std::nullopt;
}

std::vector<std::string> FieldReader::object_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : static_cast<const json*>(node_)->items()) {
    if (value.is_object()) keys.push_back(key);
  }
  return keys;
}

}  // namespace k3::config
