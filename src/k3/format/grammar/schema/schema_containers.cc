// Arrays and objects.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "k3/format/grammar/schema/schema_compiler.h"
#include "k3/format/grammar/text/regex.h"

namespace k3::grammar {
namespace {

constexpr uint32_t kExpandedItems = 6;  // more repeats than this are counted on the stack
constexpr size_t kMaxPrefix = 512;

}  // namespace

// (present, value); a maximum beyond what can be counted is no limit.
Result<std::pair<bool, uint32_t>> SchemaCompiler::count_of(const JsonNode& node, std::string_view keyword) const {
  const JsonNode* value = node.find(keyword);
  if (value == nullptr) return std::pair(false, 0U);
  auto number = value->is_number() ? Decimal::parse(value->raw) : Result<Decimal>(fail(Code::invalid_argument, ""));
  if (!number.ok() || number->negative || !number->fraction.empty()) return bad(node, keyword, "must be a count");
  if (number->whole.size() > 9) {
    if (keyword.starts_with("max")) return std::pair(true, kUnbounded);
    return bad(node, keyword, "is too large", Code::exhausted);
  }
  return std::pair(true, static_cast<uint32_t>(std::stoul(number->whole)));
}

// body{min,max}; the body is never empty.
Expr SchemaCompiler::repeated(Expr body, std::string_view name, uint32_t min, uint32_t max) {
  if (max == 0) return b_.empty();
  if (body == b_.never()) return min == 0 ? b_.empty() : b_.never();
  if (min <= 1 && max == kUnbounded) return min == 0 ? b_.star(body) : b_.seq({body, b_.star(body)});
  if (max <= kExpandedItems) {
    Expr out = b_.empty();
    for (uint32_t i = max; i-- > 0;) {
      out = b_.seq({body, out});
      if (i >= min) out = b_.optional(out);
    }
    return out;
  }
  const RuleId rule = b_.rule(std::string(name), body);
  return b_.call(b_.loop(std::string(name), rule, min, max));
}

Result<Expr> SchemaCompiler::array(const Leaf& leaf) {
  uint32_t min = 0, max = kUnbounded;
  size_t prefix = 0;
  struct Source {
    const JsonNode* prefix = nullptr;
    const JsonNode* items = nullptr;
  };
  std::vector<Source> sources;
  for (const Item& item : leaf.nodes) {
    const JsonNode& node = *item.node;
    K3_TRY_ASSIGN(const auto low, count_of(node, "minItems"));
    K3_TRY_ASSIGN(const auto high, count_of(node, "maxItems"));
    if (low.first) min = std::max(min, low.second);
    if (high.first) max = std::min(max, high.second);
    Source source = {node.find("prefixItems"), node.find("items")};
    if (source.items != nullptr && source.items->is_array())
      source = {source.items, node.find("additionalItems")};  // draft 7
    if (source.prefix != nullptr && !source.prefix->is_array()) return bad(node, "prefixItems", "must be an array");
    if (source.prefix != nullptr) prefix = std::max(prefix, source.prefix->items.size());
    if (source.prefix != nullptr || source.items != nullptr) sources.push_back(source);
  }
  if (prefix > kMaxPrefix) return bad(*leaf.nodes[0].node, "prefixItems", "has too many items", Code::exhausted);
  const auto list_at = [&](size_t i) {
    List out;
    for (const Source& source : sources) {
      if (source.prefix != nullptr && i < source.prefix->items.size()) {
        out.push_back({&source.prefix->items[i], 0});
      } else if (source.items != nullptr) {
        out.push_back({source.items, 0});
      }
    }
    if (out.empty()) out.push_back({&anything_, 0});
    return out;
  };
  if (min > max) return b_.never();
  K3_TRY_ASSIGN(const RuleId rest, value_rule(list_at(prefix)));
  const auto n = static_cast<uint32_t>(std::min<size_t>(prefix, max));
  const auto less = [](uint32_t a, uint32_t b) { return a > b ? a - b : 0; };
  const std::string name = (leaf.nodes.empty() ? path_ : path_of(*leaf.nodes[0].node)) + " (items)";
  Expr body = b_.empty();
  if (max > n) {
    const uint32_t most = max == kUnbounded ? kUnbounded : max - n;
    const Expr next = b_.seq({comma(), b_.call(rest)});
    if (n > 0) {
      body = repeated(next, name, less(min, n), most);
    } else {
      body = b_.seq({b_.call(rest), repeated(next, name, less(min, 1), most == kUnbounded ? most : most - 1)});
      if (min == 0) body = b_.optional(body);
    }
  }
  for (uint32_t i = n; i-- > 0;) {
    K3_TRY_ASSIGN(const RuleId item, value_rule(list_at(i)));
    body = b_.seq({i > 0 ? comma() : b_.empty(), b_.call(item), body});
    if (i >= min) body = b_.optional(body);
  }
  return b_.seq({b_.byte('['), body, b_.byte(']')});
}

Result<SchemaCompiler::Members> SchemaCompiler::members(const Leaf& leaf) {
  Members out;
  std::vector<std::string> order;
  std::set<std::string> names, required;
  const auto declare = [&](const std::string& key) {
    if (names.insert(key).second) order.push_back(key);
  };
  for (const Item& item : leaf.nodes) {
    const JsonNode& node = *item.node;
    K3_TRY_ASSIGN(const auto low, count_of(node, "minProperties"));
    K3_TRY_ASSIGN(const auto high, count_of(node, "maxProperties"));
    if (low.first) out.min = std::max(out.min, low.second);
    if (high.first) out.max = std::min(out.max, high.second);
    const JsonNode* properties = node.find("properties");
    if (properties != nullptr && !properties->is_object()) return bad(node, "properties", "must be an object");
    if (properties != nullptr) std::for_each(properties->keys.begin(), properties->keys.end(), declare);
    const JsonNode* list = node.find("required");
    if (list == nullptr || list->is_boolean()) continue;  // a boolean is draft 3's, of the property itself
    if (!list->is_array()) return bad(node, "required", "must be an array of strings");
    for (const JsonNode& name : list->items) {
      if (!name.is_string()) return bad(node, "required", "must be an array of strings");
      required.insert(name.text);
    }
  }
  std::for_each(required.begin(), required.end(), declare);
  constexpr size_t kMostProperties = 10'000;
  if (order.size() > kMostProperties) return bad(*leaf.nodes[0].node, "properties", "are too many", Code::exhausted);
  K3_TRY_ASSIGN(const KeyPatterns patterns, key_patterns(leaf));
  K3_TRY_ASSIGN(const TextDfa names_allowed, legal_names(leaf));
  for (const std::string& key : order) {
    out.declared.push_back({key, schemas_of_key(leaf, patterns, key), required.count(key) != 0});
    if (!names_allowed.matches(key)) out.declared.back().list.push_back({&nothing_, 0});
  }
  K3_TRY_ASSIGN(TextDfa rest, subtract(names_allowed, text_of(order)));
  K3_TRY_ASSIGN(out.others, other_keys(leaf, patterns, std::move(rest), !names.empty()));
  return out;
}

Result<SchemaCompiler::KeyPatterns> SchemaCompiler::key_patterns(const Leaf& leaf) const {
  KeyPatterns out(leaf.nodes.size());
  for (size_t i = 0; i < leaf.nodes.size(); ++i) {
    const JsonNode& node = *leaf.nodes[i].node;
    const JsonNode* list = node.find("patternProperties");
    if (list == nullptr) continue;
    if (!list->is_object()) return bad(node, "patternProperties", "must be an object");
    for (size_t k = 0; k < list->keys.size(); ++k) {
      auto dfa = parse_regex(list->keys[k], false);
      if (!dfa.ok()) return at(node, "patternProperties", std::move(dfa).take_error());
      out[i].push_back({*std::move(dfa), &list->items[k]});
    }
  }
  return out;
}

// What each schema says of a key: its property and its patterns, else additionalProperties.
SchemaCompiler::List SchemaCompiler::schemas_of_key(const Leaf& leaf, const KeyPatterns& patterns,
                                                    const std::string& key) const {
  List out;
  for (size_t i = 0; i < leaf.nodes.size(); ++i) {
    const JsonNode& node = *leaf.nodes[i].node;
    const size_t before = out.size();
    const JsonNode* properties = node.find("properties");
    const JsonNode* schema = properties == nullptr ? nullptr : properties->find(key);
    if (schema != nullptr) out.push_back({schema, 0});
    for (const KeyPattern& pattern : patterns[i]) {
      if (pattern.keys.matches(key)) out.push_back({pattern.schema, 0});
    }
    const JsonNode* more = node.find("additionalProperties");
    if (out.size() == before && more != nullptr) out.push_back({more, 0});
  }
  if (out.empty()) out.push_back({&anything_, 0});
  return out;
}

// propertyNames.
Result<TextDfa> SchemaCompiler::legal_names(const Leaf& leaf) {
  TextDfa out = any_text();
  for (const Item& item : leaf.nodes) {
    const JsonNode* rule = item.node->find("propertyNames");
    if (rule == nullptr) continue;
    bool any = false;
    K3_TRY_ASSIGN(const Leaf name, plain_leaf(*rule));
    const bool plain = std::none_of(name.nodes.begin(), name.nodes.end(), [](const Item& part) {
      return part.node->find("anyOf") != nullptr || part.node->find("oneOf") != nullptr;
    });
    if (!plain) return bad(*item.node, "propertyNames", "with alternatives is not supported");
    if (name.never || (name.types & kString) == 0) return TextDfa();
    K3_TRY_ASSIGN(TextDfa keys, patterns(name, any));
    if (!any) keys = any_text();
    if (name.values) {
      std::vector<std::string> texts;
      for (const JsonNode* value : *name.values) {
        if (value->is_string()) texts.push_back(value->text);
      }
      K3_TRY_ASSIGN(keys, intersect(keys, text_of(texts)));
    }
    uint64_t min = 0, max = 0;
    K3_TRY(lengths(name, min, max));
    auto both = intersect(out, keys);
    if (both.ok() && (min > 0 || max != UINT64_MAX)) {
      auto length = text_of_length(min, max);
      both = length.ok() ? intersect(*both, *length) : std::move(length);
    }
    if (!both.ok()) return at(*item.node, "propertyNames", std::move(both).take_error());
    out = *std::move(both);
  }
  return out;
}

// Keys beyond the named ones. Without additionalProperties an object that names properties has no others: that is within
// the schema and what its author means.
Result<std::vector<SchemaCompiler::Members::Pattern>> SchemaCompiler::other_keys(const Leaf& leaf,
                                                                                 const KeyPatterns& patterns, TextDfa rest,
                                                                                 bool named) const {
  std::vector<Members::Pattern> open = {{std::move(rest), {}}};
  bool opened = !named;
  for (size_t i = 0; i < leaf.nodes.size(); ++i) {
    const JsonNode& node = *leaf.nodes[i].node;
    const JsonNode* more = node.find("additionalProperties");
    opened = opened || more != nullptr || !patterns[i].empty();
    const bool shut = more != nullptr ? more->is_boolean() && !more->flag : named && !patterns[i].empty();
    std::vector<Members::Pattern> next;
    for (Members::Pattern& part : open) {
      TextDfa left = part.keys;
      for (size_t k = 0; k < patterns[i].size(); ++k) {
        K3_TRY_ASSIGN(TextDfa matched, intersect(part.keys, patterns[i][k].keys));
        for (size_t other = 0; other < k; ++other) {
          K3_TRY_ASSIGN(const TextDfa both, intersect(matched, patterns[i][other].keys));
          if (!both.empty())
            return bad(node, "patternProperties", "has patterns that match the same key, which is not supported");
        }
        if (matched.empty()) continue;
        List list = part.list;
        list.push_back({patterns[i][k].schema, 0});
        next.push_back({std::move(matched), std::move(list)});
        K3_TRY_ASSIGN(left, subtract(left, patterns[i][k].keys));
      }
      if (left.empty() || shut) continue;
      if (more != nullptr) part.list.push_back({more, 0});
      next.push_back({std::move(left), std::move(part.list)});
    }
    open = std::move(next);
  }
  if (!opened) open.clear();
  std::erase_if(open, [](const Members::Pattern& part) { return part.keys.empty(); });
  for (Members::Pattern& part : open) {
    if (part.list.empty()) part.list.push_back({&anything_, 0});
  }
  return open;
}

Result<Expr> SchemaCompiler::key_value(const TextDfa& keys, const List& list) {
  K3_TRY_ASSIGN(const RuleId rule, value_rule(list));
  return b_.seq({b_.byte('"'), b_.text(keys, Encoding::json), b_.byte('"'), colon(), b_.call(rule)});
}

// Only keys that the schema does not name.
Result<Expr> SchemaCompiler::map_of(const Members& all) {
  std::vector<Expr> kinds;
  for (const Members::Pattern& part : all.others) {
    K3_TRY_ASSIGN(const Expr member, key_value(part.keys, part.list));
    kinds.push_back(member);
  }
  const Expr member = b_.alt(std::move(kinds));
  if (all.min > all.max) return b_.never();
  if (all.max == 0 || member == b_.never()) return all.min == 0 ? b_.literal("{}") : b_.never();
  const RuleId rule = b_.rule("members", member);
  const uint32_t least = all.min > 1 ? all.min - 1 : 0, most = all.max == kUnbounded ? kUnbounded : all.max - 1;
  Expr body = b_.seq({b_.call(rule), repeated(b_.seq({comma(), b_.call(rule)}), "members", least, most)});
  if (all.min == 0) body = b_.optional(body);
  return b_.seq({b_.byte('{'), body, b_.byte('}')});
}

Result<Expr> SchemaCompiler::object(const Leaf& leaf) {
  K3_TRY_ASSIGN(const Members all, members(leaf));
  if (all.declared.empty()) return map_of(all);
  const auto is_required = [](const Member& m) { return m.required; };
  const auto required = static_cast<uint32_t>(std::count_if(all.declared.begin(), all.declared.end(), is_required));
  const bool least = all.min <= required;
  const bool most = all.max == kUnbounded || (all.others.empty() && all.max >= all.declared.size());
  if (!least || !most) {
    const char* word = least ? "maxProperties" : "minProperties";
    const auto has = [&](const Item& item) { return item.node->find(word) != nullptr; };
    const auto where = std::find_if(leaf.nodes.begin(), leaf.nodes.end(), has);
    return bad(*where->node, word, "is supported only where properties and required settle it, or without properties");
  }
  std::vector<Expr> items, others;
  std::vector<char> flags;
  for (const Member& member : all.declared) {
    K3_TRY_ASSIGN(const Expr item, key_value(text_of({member.key}), member.list));
    items.push_back(item);
    flags.push_back(member.required ? 1 : 0);
  }
  for (const Members::Pattern& part : all.others) {
    K3_TRY_ASSIGN(const Expr member, key_value(part.keys, part.list));
    others.push_back(member);
  }
  const Expr list = b_.list(std::move(items), std::move(flags), b_.alt(std::move(others)), comma());
  return b_.seq({b_.byte('{'), list, b_.byte('}')});
}

Result<std::vector<SchemaCompiler::Members>> SchemaCompiler::argument_lists() {
  K3_TRY(check_source());
  std::vector<Members> out;
  std::vector<List> todo = {{{root_, 0}}};
  while (!todo.empty()) {
    const List list = std::move(todo.back());
    todo.pop_back();
    List flat;
    bool never = false, none = false;
    for (const Item& item : list) {
      Path path;
      K3_TRY(flatten(item, flat, path, never));
    }
    if (never) continue;
    K3_TRY_ASSIGN(std::vector<List> choices, branches(flat, none));
    if (!none) {
      for (size_t i = choices.size(); i-- > 0;) todo.push_back(std::move(choices[i]));
      continue;
    }
    K3_TRY_ASSIGN(const Leaf leaf, leaf_of(flat));
    if (leaf.values) return bad(*flat[0].node, "enum", "of whole argument lists is not supported");
    if ((leaf.types & kObject) == 0) continue;
    K3_TRY_ASSIGN(Members all, members(leaf));
    const auto required = static_cast<uint32_t>(
        std::count_if(all.declared.begin(), all.declared.end(), [](const Member& m) { return m.required; }));
    if (all.min > required || (all.max != kUnbounded && (!all.others.empty() || all.max < all.declared.size()))) {
      return bad(*flat[0].node, "minProperties", "and maxProperties are not supported for argument lists");
    }
    out.push_back(std::move(all));
  }
  if (out.empty()) return bad(*root_, "type", "must let arguments be an object");
  return out;
}

}  // namespace k3::grammar
