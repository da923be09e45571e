#include "k3/plan/hardware/toml_file.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>

#include "k3/base/utf8.h"

namespace k3::plan {
namespace {

// Names may be nested by dots without end, and both the library and convert() descend by recursion. Its own limit is for
// brackets alone.
constexpr int kMostDots = 32;

Status check_dots(std::string_view text, std::string_view source) {
  int64_t line = 1, dots = 0;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line, dots = 0, quote = 0;
    } else if (quote != 0) {
      if (c == '\\' && quote == '"') ++i;
      else if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '.' && ++dots > kMostDots) {
      return fail(Code::invalid_argument, "{}:{}: more than {} dots on a line", source, line, kMostDots);
    }
  }
  return {};
}

Status convert(const toml::node& from, std::string_view source, TomlNode* to) {
  to->line = static_cast<int64_t>(from.source().begin.line);
  if (const auto* table = from.as_table()) {
    to->kind = TomlNode::Kind::table;
    for (const auto& [key, value] : *table) {
      to->keys.emplace_back(key.str());
      K3_TRY(convert(value, source, &to->items.emplace_back()));
    }
  } else if (const auto* array = from.as_array()) {
    to->kind = TomlNode::Kind::array;
    for (const auto& value : *array) K3_TRY(convert(value, source, &to->items.emplace_back()));
  } else if (const auto* text = from.as_string()) {
    to->kind = TomlNode::Kind::text;
    to->text = text->get();
  } else if (const auto* flag = from.as_boolean()) {
    to->kind = TomlNode::Kind::flag;
    to->flag = flag->get();
  } else if (from.is_number()) {
    to->kind = TomlNode::Kind::number;
    to->number = from.is_integer() ? static_cast<double>(from.as_integer()->get()) : from.as_floating_point()->get();
  } else {
    return fail(Code::invalid_argument, "{}:{}: dates and times have no place here", source, to->line);
  }
  return {};
}

}  // namespace

std::string_view toml_kind_name(TomlNode::Kind kind) {
  switch (kind) {
    case TomlNode::Kind::number: return "a number";
    case TomlNode::Kind::text: return "a string";
    case TomlNode::Kind::flag: return "true or false";
    case TomlNode::Kind::array: return "an array";
    case TomlNode::Kind::table: break;
  }
  return "a table";
}

const TomlNode* TomlNode::find(std::string_view key) const {
  const auto at = std::find(keys.begin(), keys.end(), key);
  return at == keys.end() ? nullptr : &items[static_cast<size_t>(at - keys.begin())];
}

Result<TomlNode> parse_toml(std::string_view text, std::string_view source) {
  if (static_cast<int64_t>(text.size()) > kMostTomlBytes) {
    return fail(Code::invalid_argument, "{}: {} bytes; at most {} are read", source, text.size(), kMostTomlBytes);
  }
  K3_TRY(check_dots(text, source));
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return fail(Code::invalid_argument, "{}:{}: {}", source, parsed.error().source().begin.line,
                utf8_repair(parsed.error().description()));
  }
  TomlNode root;
  K3_TRY(convert(parsed.table(), source, &root));
  root.line = 1;
  return root;
}

TomlFields::TomlFields(const TomlNode& node, std::string path, std::string source)
    : node_(node), path_(std::move(path)), source_(std::move(source)) {}

const TomlNode* TomlFields::get(std::string_view key) {
  known_.emplace_back(key);
  return node_.find(key);
}

Error TomlFields::wrong(std::string_view key, std::string_view what) const {
  const TomlNode* const field = node_.find(key);
  return fail(Code::invalid_argument, "{}:{}: {}{}{} {}", source_, (field != nullptr ? *field : node_).line, path_,
              path_.empty() ? "" : ".", key, what);
}

Status TomlFields::read_number(std::string_view key, double least, double most, double* out, bool* found) {
  const TomlNode* const field = get(key);
  *found = field != nullptr;
  if (field == nullptr) return {};
  if (field->kind != TomlNode::Kind::number) return wrong(key, fmt::format("is {}; a number is wanted", toml_kind_name(field->kind)));
  if (!(field->number >= least && field->number <= most)) {  // NaN is refused, too
    return wrong(key, fmt::format("is {:g}; a number from {:g} to {:g} is wanted", field->number, least, most));
  }
  *out = field->number;
  return {};
}

Status TomlFields::number(std::string_view key, double least, double most, double* out) {
  bool found = false;
  return read_number(key, least, most, out, &found);
}

Status TomlFields::number(std::string_view key, double least, double most, std::optional<double>* out) {
  bool found = false;
  double value = 0;
  K3_TRY(read_number(key, least, most, &value, &found));
  if (found) *out = value;
  return {};
}

Status TomlFields::whole(std::string_view key, int64_t least, int64_t most, int64_t* out) {
  bool found = false;
  double value = 0;
  K3_TRY(read_number(key, static_cast<double>(least), static_cast<double>(most), &value, &found));
  if (!found) return {};
  if (value != std::floor(value)) return wrong(key, fmt::format("is {}; a whole number is wanted", value));
  *out = static_cast<int64_t>(value);
  return {};
}

Status TomlFields::text(std::string_view key, std::string* out) {
  const TomlNode* const field = get(key);
  if (field == nullptr) return {};
  if (field->kind != TomlNode::Kind::text) return wrong(key, fmt::format("is {}; a string is wanted", toml_kind_name(field->kind)));
  *out = field->text;
  return {};
}

Status TomlFields::flag(std::string_view key, bool* out) {
  const TomlNode* const field = get(key);
  if (field == nullptr) return {};
  if (field->kind != TomlNode::Kind::flag) return wrong(key, fmt::format("is {}; true or false is wanted", toml_kind_name(field->kind)));
  *out = field->flag;
  return {};
}

Status TomlFields::finish() const {
  for (size_t i = 0; i < node_.keys.size(); ++i) {
    if (std::find(known_.begin(), known_.end(), node_.keys[i]) != known_.end()) continue;
    std::string list;
    for (const std::string& name : known_) list += (list.empty() ? "" : ", ") + name;
    return wrong(node_.keys[i], "is not a name that is read; there are " + list);
  }
  return {};
}

}  // namespace k3::plan
