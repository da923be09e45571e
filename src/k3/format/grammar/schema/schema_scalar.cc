// Values that are not containers: literals, strings, numbers.
#include <fmt/format.h>

#include <algorithm>

#include "k3/base/utf8.h"
#include "k3/format/grammar/schema/schema_compiler.h"
#include "k3/format/grammar/text/formats.h"
#include "k3/format/grammar/text/regex.h"

namespace k3::grammar {
namespace {

constexpr uint64_t kExpanded = 64;  // a text of one character set longer than this keeps a count instead of states

bool has_any(const JsonNode& node, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return node.find(word) != nullptr; });
}

}  // namespace

Result<Expr> SchemaCompiler::leaf_value(const Leaf& leaf, unsigned types, const StringStyle& style) {
  types &= leaf.types;
  if (leaf.values) return literals(leaf, types, style);
  if (types == kAnyType && style.encoding == Encoding::json) {
    const auto restricts = [](const Item& item) { return implied_types(*item.node) != 0; };
    if (std::none_of(leaf.nodes.begin(), leaf.nodes.end(), restricts)) return b_.call(any_value());
  }
  std::vector<Expr> parts;
  if ((types & kNull) != 0) parts.push_back(b_.literal("null"));
  if ((types & kBoolean) != 0) parts.push_back(b_.alt({b_.literal("true"), b_.literal("false")}));
  if ((types & kNumber) != 0) {
    K3_TRY_ASSIGN(TextDfa dfa, number(leaf, types));
    parts.push_back(b_.text(std::move(dfa), Encoding::raw));
  }
  if ((types & kString) != 0) {
    K3_TRY_ASSIGN(const Expr part, string(leaf, style));
    parts.push_back(part);
  }
  if ((types & kArray) != 0) {
    K3_TRY_ASSIGN(const Expr part, array(leaf));
    parts.push_back(part);
  }
  if ((types & kObject) != 0) {
    K3_TRY_ASSIGN(const Expr part, object(leaf));
    parts.push_back(part);
  }
  return b_.alt(std::move(parts));
}

Expr SchemaCompiler::literal(const JsonNode& value) {
  std::vector<Expr> parts;
  switch (value.kind) {
    case JsonNode::Kind::string: return b_.seq({b_.byte('"'), b_.text(text_of({value.text}), Encoding::json), b_.byte('"')});
    case JsonNode::Kind::array:
    case JsonNode::Kind::object: break;
    default: return b_.literal(value.raw);
  }
  const bool object = value.is_object();
  parts.push_back(b_.byte(object ? '{' : '['));
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) parts.push_back(comma());
    if (object) {
      parts.push_back(b_.seq({b_.byte('"'), b_.text(text_of({value.keys[i]}), Encoding::json), b_.byte('"'), colon()}));
    }
    parts.push_back(literal(value.items[i]));
  }
  parts.push_back(b_.byte(object ? '}' : ']'));
  return b_.seq(std::move(parts));
}

Result<Expr> SchemaCompiler::literals(const Leaf& leaf, unsigned types, const StringStyle& style) {
  std::vector<std::string> texts;
  std::vector<Expr> parts;
  bool patterned = false;
  K3_TRY_ASSIGN(const TextDfa pattern, patterns(leaf, patterned));
  uint64_t min = 0, max = 0;
  K3_TRY(lengths(leaf, min, max));
  const auto length = [](std::string_view text) { return static_cast<uint64_t>(utf8_length(text)); };
  K3_TRY_ASSIGN(const TextDfa numbers, number(leaf, kNumber));
  bool bounded = false;
  for (const Item& item : leaf.nodes) {
    bounded = bounded || has_any(*item.node, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
  }
  for (const JsonNode* value : *leaf.values) {
    switch (value->kind) {
      case JsonNode::Kind::string:
        if ((types & kString) == 0 || (patterned && !pattern.matches(value->text))) continue;
        if (length(value->text) < min || length(value->text) > max) continue;
        texts.push_back(value->text);
        continue;
      case JsonNode::Kind::null:
        if ((types & kNull) == 0) continue;
        break;
      case JsonNode::Kind::boolean:
        if ((types & kBoolean) == 0) continue;
        break;
      case JsonNode::Kind::number:
        if ((types & kNumber) == 0 || (bounded && !numbers.matches(value->raw))) continue;
        break;
      case JsonNode::Kind::array:
      case JsonNode::Kind::object: {
        const bool object = value->is_object();
        if ((types & (object ? kObject : kArray)) == 0) continue;
        for (const Item& item : leaf.nodes) {
          if ((implied_types(*item.node) & (object ? kObject : kArray)) != 0)
            return bad(*item.node, "enum", "holds containers beside keywords that restrict them, which is not supported");
        }
        break;
      }
    }
    parts.push_back(literal(*value));
  }
  if (!texts.empty()) {
    const bool json = style.encoding == Encoding::json;
    const Expr body = b_.text(text_of(texts), style.encoding);
    parts.push_back(json ? b_.seq({b_.byte('"'), body, b_.byte('"')}) : b_.seq({body, style.end}));
  }
  return b_.alt(std::move(parts));
}

Status SchemaCompiler::lengths(const Leaf& leaf, uint64_t& min, uint64_t& max) const {
  min = 0;
  max = UINT64_MAX;
  for (const Item& item : leaf.nodes) {
    K3_TRY_ASSIGN(const auto low, count_of(*item.node, "minLength"));
    K3_TRY_ASSIGN(const auto high, count_of(*item.node, "maxLength"));
    if (low.first) min = std::max<uint64_t>(min, low.second);
    if (high.first && high.second != kUnbounded) max = std::min<uint64_t>(max, high.second);
  }
  return {};
}

Result<TextDfa> SchemaCompiler::patterns(const Leaf& leaf, bool& any) const {
  TextDfa out;
  any = false;
  for (const Item& item : leaf.nodes) {
    for (const char* word : {"pattern", "format"}) {
      const JsonNode* node = item.node->find(word);
      if (node == nullptr) continue;
      if (!node->is_string()) return bad(*item.node, word, "must be a string");
      const bool format = std::string_view(word) == "format";
      if (format && (leaf.types & kString) == 0) continue;
      auto dfa = format ? format_text(node->text) : parse_regex(node->text, false);
      if (!dfa.ok()) {
        Error error = std::move(dfa).take_error();
        if (error.code == Code::not_found) error.code = Code::invalid_argument;
        return at(*item.node, word, std::move(error));
      }
      if (any) {
        auto both = intersect(out, *dfa);
        if (!both.ok()) return at(*item.node, word, std::move(both).take_error());
        out = *std::move(both);
      } else {
        out = *std::move(dfa);
      }
      any = true;
    }
  }
  return out;
}

// One character of JSON text with every escape that JSON knows; surrogates come in pairs.
Expr SchemaCompiler::json_character() {
  CodeSet plain = CodeSet{{0x20, 0x10FFFF}};
  plain = CodeSet{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10FFFF}};
  const auto hex = [&](std::string_view pattern) { return b_.text(parse_regex(pattern, true).value(), Encoding::raw); };
  return b_.alt({b_.characters(plain, Encoding::raw),
                 hex("\\\\([\"\\\\/bfnrt]|u([0-9a-cA-Ce-fE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
                     "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2}))")});
}

RuleId SchemaCompiler::free_string() {
  if (!free_string_) {
    free_string_ = b_.rule("string", b_.seq({b_.byte('"'), b_.star(json_character()), b_.byte('"')}));
  }
  return *free_string_;
}

Expr SchemaCompiler::counted_text(const CodeSet& set, uint64_t min, uint64_t max, const StringStyle& style) {
  const bool json = style.encoding == Encoding::json;
  const auto low = static_cast<uint32_t>(min), high = max >= kUnbounded ? kUnbounded : static_cast<uint32_t>(max);
  const bool all = set == CodeSet::all();
  const Expr character = json && all ? json_character() : b_.characters(set, style.encoding);
  const Expr end = json ? b_.byte('"') : style.end;
  if (low == 0 && high == kUnbounded) return b_.seq({json ? b_.byte('"') : b_.empty(), b_.star(character), end});
  const Expr call = b_.call(b_.counted(fmt::format("text of {} to {} characters", min, max), character, end, low, high));
  return json ? b_.seq({b_.byte('"'), call}) : call;
}

Result<Expr> SchemaCompiler::string(const Leaf& leaf, const StringStyle& style) {
  bool patterned = false;
  K3_TRY_ASSIGN(TextDfa dfa, patterns(leaf, patterned));
  uint64_t min = 0, max = 0;
  K3_TRY(lengths(leaf, min, max));
  if (min > max) return b_.never();
  const bool json = style.encoding == Encoding::json;
  if (!patterned) {
    if (min == 0 && max == UINT64_MAX && json) return b_.call(free_string());
    return counted_text(CodeSet::all(), min, max, style);
  }
  CodeSet set;
  uint32_t low = 0, high = 0;
  if (dfa.as_counted_set(set, low, high) && std::max<uint64_t>(dfa.states.size(), min) > kExpanded) {
    const uint64_t most = std::min<uint64_t>(high == kUnbounded ? UINT64_MAX : high, max);
    if (std::max<uint64_t>(low, min) > most) return b_.never();
    return counted_text(set, std::max<uint64_t>(low, min), most, style);
  }
  if (min > 0 || max != UINT64_MAX) {
    auto length = text_of_length(min, max);
    auto both = length.ok() ? intersect(dfa, *length) : std::move(length);
    if (!both.ok()) {
      const auto limited = [](const Item& item) { return has_any(*item.node, {"minLength", "maxLength"}); };
      const auto where = std::find_if(leaf.nodes.begin(), leaf.nodes.end(), limited);
      const char* word = where->node->find("maxLength") != nullptr ? "maxLength" : "minLength";
      return at(*where->node, word, std::move(both).take_error());
    }
    dfa = *std::move(both);
  }
  const Expr body = b_.text(std::move(dfa), style.encoding);
  return json ? b_.seq({b_.byte('"'), body, b_.byte('"')}) : b_.seq({body, style.end});
}

Result<TextDfa> SchemaCompiler::number(const Leaf& leaf, unsigned types) const {
  NumberSpec spec;
  spec.integer = (types & kNumber) == kInteger;
  const JsonNode* where = leaf.nodes.empty() ? nullptr : leaf.nodes[0].node;
  std::string_view word;
  const auto tighten = [&](const JsonNode& node, std::string_view keyword, bool lower, bool exclusive) -> Status {
    const JsonNode* bound = node.find(keyword);
    if (bound == nullptr || bound->is_boolean()) return {};
    if (!bound->is_number()) return bad(node, keyword, "must be a number");
    auto value = Decimal::parse(bound->raw);
    if (!value.ok()) return at(node, keyword, std::move(value).take_error());
    where = &node;
    word = keyword;
    // Draft 4: exclusiveMinimum: true beside minimum.
    const JsonNode* flag = node.find(lower ? "exclusiveMinimum" : "exclusiveMaximum");
    Bound next = {*value, exclusive || (flag != nullptr && flag->is_boolean() && flag->flag)};
    std::optional<Bound>& held = lower ? spec.min : spec.max;
    if (held) {
      const int order = compare(next.value, held->value) * (lower ? 1 : -1);
      if (order < 0 || (order == 0 && !next.exclusive)) return {};
    }
    held = next;
    return {};
  };
  for (const Item& item : leaf.nodes) {
    K3_TRY(tighten(*item.node, "minimum", true, false));
    K3_TRY(tighten(*item.node, "exclusiveMinimum", true, true));
    K3_TRY(tighten(*item.node, "maximum", false, false));
    K3_TRY(tighten(*item.node, "exclusiveMaximum", false, true));
    const JsonNode* multiple = item.node->find("multipleOf");
    if (multiple == nullptr) continue;
    if (!multiple->is_number()) return bad(*item.node, "multipleOf", "must be a number");
    auto value = Decimal::parse(multiple->raw);
    if (!value.ok()) return at(*item.node, "multipleOf", std::move(value).take_error());
    if (value->negative || value->zero()) return bad(*item.node, "multipleOf", "must be above 0");
    if (spec.multiple && compare(*spec.multiple, *value) != 0) {
      return bad(*item.node, "multipleOf", "two of them at once are not supported");
    }
    spec.multiple = *value;
    where = item.node;
    word = "multipleOf";
  }
  auto out = number_text(spec);
  if (!out.ok() && where != nullptr) return at(*where, word, std::move(out).take_error());
  return out;
}

}  // namespace k3::grammar
