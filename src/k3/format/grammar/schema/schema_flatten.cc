// What holds at once: $ref, allOf, the branches of anyOf and oneOf; which types are left.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "k3/format/grammar/schema/schema_compiler.h"

namespace k3::grammar {
namespace {

constexpr int64_t kMaxSteps = 100'000;  // schemas looked at, over all alternatives
constexpr size_t kMaxBranches = 512;

constexpr std::array<std::string_view, 18> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "dependencies",
                                                       "contains",
                                                       "minContains",
                                                       "maxContains",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems",
                                                       "$dynamicRef",
                                                       "$recursiveRef",
                                                       "divisibleBy",
                                                       "disallow",
                                                       "extends",
                                                       "propertyDependencies"};

unsigned type_of_name(std::string_view name) {
  if (name == "null") return kNull;
  if (name == "boolean") return kBoolean;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber;
  if (name == "string") return kString;
  if (name == "array") return kArray;
  if (name == "object") return kObject;
  return 0;
}

unsigned type_of_value(const JsonNode& value) {
  switch (value.kind) {
    case JsonNode::Kind::null: return kNull;
    case JsonNode::Kind::boolean: return kBoolean;
    case JsonNode::Kind::number: return value.raw.find_first_of(".eE") == std::string_view::npos ? kInteger : kFraction;
    case JsonNode::Kind::string: return kString;
    case JsonNode::Kind::array: return kArray;
    case JsonNode::Kind::object: return kObject;
  }
  return 0;
}

std::string canonical(const JsonNode& value) {
  std::string out;
  append_json(out, value, {.sorted = true});
  return out;
}

std::set<std::string> canonical_values(const std::vector<const JsonNode*>& values) {
  std::set<std::string> out;
  for (const JsonNode* value : values) out.insert(canonical(*value));
  return out;
}

}  // namespace

unsigned implied_types(const JsonNode& node) {
  unsigned out = 0;
  for (const std::string& key : node.keys) {
    for (const char* word : {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                             "minProperties", "maxProperties"}) {
      if (key == word) out |= kObject;
    }
    for (const char* word : {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}) {
      if (key == word) out |= kArray;
    }
    for (const char* word : {"pattern", "minLength", "maxLength", "format"}) {
      if (key == word) out |= kString;
    }
    for (const char* word : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      if (key == word) out |= kNumber;
    }
  }
  return out;
}

Status SchemaCompiler::check_keywords(const JsonNode& node) const {
  for (const std::string_view word : kRefused) {
    if (node.find(word) != nullptr) return bad(node, word, "is not supported");
  }
  const JsonNode* unique = node.find("uniqueItems");
  if (unique != nullptr && !(unique->is_boolean() && !unique->flag)) return bad(node, "uniqueItems", "is not supported");
  for (const char* word : {"allOf", "anyOf", "oneOf"}) {
    const JsonNode* list = node.find(word);
    if (list != nullptr && (!list->is_array() || list->items.empty())) return bad(node, word, "must be a non-empty array");
  }
  return {};
}

Result<const JsonNode*> SchemaCompiler::resolve(const JsonNode& node, const std::string& ref) const {
  std::string_view pointer = ref;
  const JsonNode* id = root_->is_object() ? root_->find("$id") : nullptr;
  if (id != nullptr && id->is_string() && !id->text.empty() && pointer.starts_with(id->text))
    pointer.remove_prefix(id->text.size());
  if (pointer.empty() || pointer == "#") return root_;
  if (!pointer.starts_with("#/"))
    return bad(node, "$ref", "only references into the schema itself (\"#/...\") are supported");
  std::string decoded;
  for (size_t i = 0; i < pointer.size(); ++i) {
    const auto hex = [&](size_t at) {
      return std::string_view("0123456789abcdef").find(static_cast<char>(pointer[at] | 32));
    };
    if (pointer[i] == '%' && i + 2 < pointer.size() && hex(i + 1) < 16 && hex(i + 2) < 16) {
      decoded.push_back(static_cast<char>(hex(i + 1) * 16 + hex(i + 2)));
      i += 2;
    } else {
      decoded.push_back(pointer[i]);
    }
  }
  const JsonNode* at_node = root_;
  for (size_t pos = 2; pos <= decoded.size();) {
    const size_t slash = std::min(decoded.find('/', pos), decoded.size());
    std::string name;
    for (size_t i = pos; i < slash; ++i) {
      if (decoded[i] == '~' && i + 1 < slash) {
        name.push_back(decoded[++i] == '1' ? '/' : '~');
      } else {
        name.push_back(decoded[i]);
      }
    }
    pos = slash + 1;
    const JsonNode* next = nullptr;
    if (at_node->is_object()) next = at_node->find(name);
    const bool index = !name.empty() && name.size() < 9 && name.find_first_not_of("0123456789") == std::string::npos;
    if (at_node->is_array() && index) {
      const auto i = static_cast<size_t>(std::stoul(name));
      if (i < at_node->items.size()) next = &at_node->items[i];
    }
    if (next == nullptr) return bad(node, "$ref", "'" + ref + "' does not exist");
    at_node = next;
  }
  return at_node;
}

Status SchemaCompiler::flatten(const Item& item, List& out, Path& path, bool& never) {
  const JsonNode& node = *item.node;
  if (++steps_ > kMaxSteps) return bad(node, "", "the alternatives are too many", Code::exhausted);
  if (node.is_boolean()) {
    never = never || !node.flag;
    return {};
  }
  if (!node.is_object()) return bad(node, "", "a schema must be an object or a boolean");
  constexpr size_t kMostPath = 512;  // $ref and allOf inside each other: the recursion is as deep
  if (path.size() >= kMostPath) return bad(node, "$ref", "leads through too many schemas", Code::exhausted);
  if (std::find(path.begin(), path.end(), &node) != path.end()) return bad(node, "$ref", "refers to itself without an end");
  for (Item& other : out) {
    if (other.node != &node) continue;
    other.done |= item.done;
    return {};
  }
  K3_TRY(check_keywords(node));
  path.push_back(&node);
  if (const JsonNode* ref = node.find("$ref")) {
    if (!ref->is_string()) return bad(node, "$ref", "must be a string");
    K3_TRY_ASSIGN(const JsonNode* target, resolve(node, ref->text));
    K3_TRY(flatten({target, 0}, out, path, never));
  }
  out.push_back(item);
  if (const JsonNode* all = node.find("allOf")) {
    for (const JsonNode& part : all->items) K3_TRY(flatten({&part, 0}, out, path, never));
  }
  path.pop_back();
  return {};
}

Result<std::vector<SchemaCompiler::List>> SchemaCompiler::branches(const List& flat, bool& none) {
  none = true;
  std::vector<List> out;
  for (size_t i = 0; i < flat.size(); ++i) {
    const JsonNode& node = *flat[i].node;
    for (const auto& [word, done] : {std::pair("anyOf", kDoneAnyOf), std::pair("oneOf", kDoneOneOf)}) {
      const JsonNode* choices = node.find(word);
      if (choices == nullptr || (flat[i].done & done) != 0) continue;
      if (choices->items.size() > kMaxBranches) return bad(node, word, "has too many branches", Code::exhausted);
      if (done == kDoneOneOf) {
        // What holds beside the branches may say that all of them are objects.
        K3_TRY_ASSIGN(const Leaf beside, leaf_of(flat));
        const bool objects = beside.types == kObject && is_typed(beside);
        std::vector<Leaf> leaves;
        for (const JsonNode& branch : choices->items) {
          K3_TRY_ASSIGN(Leaf leaf, plain_leaf(branch));
          leaves.push_back(std::move(leaf));
        }
        for (size_t a = 0; a < leaves.size(); ++a) {
          for (size_t b = a + 1; b < leaves.size(); ++b) {
            if (++steps_ > kMaxSteps) return bad(node, word, "the alternatives are too many", Code::exhausted);
            K3_TRY_ASSIGN(const bool apart, exclude(leaves[a], leaves[b], objects));
            if (apart) continue;
            return bad(node, word,
                       fmt::format("branches {} and {} cannot be told apart by type, by a constant or by a required "
                                   "property; use anyOf",
                                   a, b));
          }
        }
      }
      none = false;
      for (const JsonNode& branch : choices->items) {
        List list = flat;
        list[i].done |= done;
        list.push_back({&branch, 0});
        out.push_back(std::move(list));
      }
      return out;
    }
  }
  return out;
}

Result<SchemaCompiler::Leaf> SchemaCompiler::leaf_of(const List& flat) {
  Leaf leaf;
  leaf.nodes = flat;
  unsigned implied = 0;
  bool typed = false;
  for (const Item& item : flat) {
    const JsonNode& node = *item.node;
    if (const JsonNode* type = node.find("type")) {
      typed = true;
      unsigned types = 0;
      const auto one = [&](const JsonNode& name) { return name.is_string() ? type_of_name(name.text) : 0U; };
      if (type->is_array()) {
        for (const JsonNode& name : type->items) {
          if (one(name) == 0) return bad(node, "type", "has an unknown name");
          types |= one(name);
        }
      } else {
        types = one(*type);
      }
      if (types == 0) return bad(node, "type", "is not the name of a type");
      leaf.types &= types;
    }
    implied |= implied_types(node);
    std::vector<const JsonNode*> values;
    const JsonNode* list = node.find("enum");
    const JsonNode* constant = node.find("const");
    if (list != nullptr) {
      if (!list->is_array() || list->items.empty()) return bad(node, "enum", "must be a non-empty array");
      for (const JsonNode& value : list->items) values.push_back(&value);
    }
    const auto narrow = [&](const std::vector<const JsonNode*>& with) {
      if (!leaf.values) {
        leaf.values = with;
        return;
      }
      const std::set<std::string> kept = canonical_values(with);
      std::erase_if(*leaf.values, [&](const JsonNode* value) { return kept.count(canonical(*value)) == 0; });
    };
    if (list != nullptr) narrow(values);
    if (constant != nullptr) narrow({constant});
  }
  if (!typed && implied != 0 && !leaf.values) leaf.types &= implied;
  if (leaf.values) {
    std::erase_if(*leaf.values, [&](const JsonNode* value) { return (type_of_value(*value) & leaf.types) == 0; });
    unsigned types = 0;
    for (const JsonNode* value : *leaf.values) types |= type_of_value(*value);
    leaf.types &= types;
  }
  return leaf;
}

// What a branch says beside its own anyOf and oneOf, which can only narrow it.
Result<SchemaCompiler::Leaf> SchemaCompiler::plain_leaf(const JsonNode& branch) {
  List flat;
  Path path;
  bool never = false;
  K3_TRY(flatten({&branch, 0}, flat, path, never));
  K3_TRY_ASSIGN(Leaf leaf, leaf_of(flat));
  leaf.never = never;
  return leaf;
}

// A schema that only implies its type still lets the other types pass, so the implied ones prove nothing.
bool SchemaCompiler::is_typed(const Leaf& leaf) {
  const auto has_type = [](const Item& item) { return item.node->find("type") != nullptr; };
  return leaf.values || std::any_of(leaf.nodes.begin(), leaf.nodes.end(), has_type);
}

// No value satisfies both. objects: only objects count.
Result<bool> SchemaCompiler::exclude(const Leaf& x, const Leaf& y, bool objects) {
  if (x.never || y.never) return true;
  if (is_typed(x) && is_typed(y) && (x.types & y.types) == 0) return true;
  const auto apart = [](const std::vector<const JsonNode*>& p, const std::vector<const JsonNode*>& q) {
    const std::set<std::string> kept = canonical_values(p);
    return std::none_of(q.begin(), q.end(), [&](const JsonNode* value) { return kept.count(canonical(*value)) != 0; });
  };
  if (x.values && y.values && apart(*x.values, *y.values)) return true;
  if (!objects && (!is_typed(x) || !is_typed(y) || (x.types & y.types) != kObject)) return false;
  const auto requires_key = [](const Leaf& leaf, const std::string& key) {
    return std::any_of(leaf.nodes.begin(), leaf.nodes.end(), [&](const Item& item) {
      const JsonNode* list = item.node->find("required");
      return list != nullptr && std::any_of(list->items.begin(), list->items.end(),
                                            [&](const JsonNode& name) { return name.is_string() && name.text == key; });
    });
  };
  const auto property = [](const Leaf& leaf, const std::string& key) -> const JsonNode* {
    for (const Item& item : leaf.nodes) {
      const JsonNode* properties = item.node->find("properties");
      const JsonNode* found = properties == nullptr ? nullptr : properties->find(key);
      if (found != nullptr) return found;
    }
    return nullptr;
  };
  const auto forbids = [&](const Leaf& leaf, const std::string& key) {
    return property(leaf, key) == nullptr && std::any_of(leaf.nodes.begin(), leaf.nodes.end(), [](const Item& item) {
             const JsonNode* more = item.node->find("additionalProperties");
             return more != nullptr && more->is_boolean() && !more->flag && item.node->find("patternProperties") == nullptr;
           });
  };
  for (const auto& [one, two] : {std::pair(&x, &y), std::pair(&y, &x)}) {
    for (const Item& item : one->nodes) {
      const JsonNode* list = item.node->find("required");
      if (list == nullptr) continue;
      for (const JsonNode& name : list->items) {
        if (!name.is_string()) continue;
        if (forbids(*two, name.text)) return true;
        const JsonNode* p = property(*one, name.text);
        const JsonNode* q = property(*two, name.text);
        if (p == nullptr || q == nullptr || !requires_key(*two, name.text)) continue;
        K3_TRY_ASSIGN(const Leaf of_p, plain_leaf(*p));
        K3_TRY_ASSIGN(const Leaf of_q, plain_leaf(*q));
        if (of_p.values && of_q.values && apart(*of_p.values, *of_q.values)) return true;
      }
    }
  }
  return false;
}

}  // namespace k3::grammar
