// Purpose:  JSON Schema to rules of a Builder.
// Shapes:   a List is schemas that all hold at once (siblings of $ref, allOf and the chosen branch of anyOf).
// Units:    lengths in code points.
// Memory:   keeps the builder and the parsed schema by reference.
// Threads:  one compiler belongs to one thread.
// Errors:   invalid_argument or exhausted, "PATH.KEYWORD: what". Nothing that restricts values is passed over.
// Source:   JSON Schema 2020-12 and draft 7, the subset of docs/structured-output.md; api.md 8.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "k3/format/grammar/automaton/builder.h"
#include "k3/format/grammar/text/number_text.h"
#include "k3/format/json/json_tree.h"

namespace k3::grammar {

enum Types : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,  // numbers that are not integers
  kNumber = kInteger | kFraction,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

// The types that the keywords of a schema speak of: those that it restricts, and that it means when it has no `type`.
unsigned implied_types(const JsonNode& schema);

// How a string is written: json between quotes, raw up to `end` (one byte or token).
struct StringStyle {
  Encoding encoding = Encoding::json;
  Expr end = 0;
};

class SchemaCompiler {
 public:
  struct Item {
    const JsonNode* node = nullptr;
    unsigned done = 0;  // keywords that were followed already: kDone...
    bool operator==(const Item&) const = default;
  };
  using List = std::vector<Item>;
  static constexpr unsigned kDoneAnyOf = 1, kDoneOneOf = 2;

  SchemaCompiler(Builder& builder, const JsonNode& root, std::string path);

  Result<RuleId> root_rule() { return value_rule({{root_, 0}}); }
  Result<RuleId> value_rule(const List& list);
  RuleId any_value();  // any JSON
  RuleId any_object();

  // A value of one of `types`. Strings in `style`.
  Result<Expr> value(const List& list, unsigned types, const StringStyle& style);

  // One object of an argument list: alternatives over anyOf, each with its members.
  struct Member {
    std::string key;
    List list;
    bool required = false;
  };
  struct Members {
    std::vector<Member> declared;
    struct Pattern {
      TextDfa keys;
      List list;
    };
    std::vector<Pattern> others;  // keys beyond the declared ones, disjoint
    uint32_t min = 0, max = kUnbounded;
  };
  Result<std::vector<Members>> argument_lists();

  Builder& builder() { return b_; }
  static std::string json_quoted(std::string_view text);

 private:
  struct Leaf {
    unsigned types = kAnyType;
    bool never = false;
    List nodes;
    std::optional<std::vector<const JsonNode*>> values;
  };
  using Path = std::vector<const JsonNode*>;

  Error bad(const JsonNode& node, std::string_view keyword, std::string_view what, Code code = Code::invalid_argument) const;
  Error at(const JsonNode& node, std::string_view keyword, Error error) const;
  std::string path_of(const JsonNode& node) const;
  Status check_source() const;

  // schema_flatten.cc
  Status flatten(const Item& item, List& out, Path& path, bool& never);
  Status check_keywords(const JsonNode& node) const;
  Result<const JsonNode*> resolve(const JsonNode& node, const std::string& ref) const;
  Result<std::vector<List>> branches(const List& list, bool& none);  // of the first anyOf or oneOf
  Result<Leaf> leaf_of(const List& flat);
  Result<bool> exclude(const Leaf& x, const Leaf& y, bool objects);
  static bool is_typed(const Leaf& leaf);
  Result<Leaf> plain_leaf(const JsonNode& branch);

  // schema_scalar.cc
  Result<Expr> leaf_value(const Leaf& leaf, unsigned types, const StringStyle& style);
  Result<Expr> literals(const Leaf& leaf, unsigned types, const StringStyle& style);
  Expr literal(const JsonNode& value);
  Result<Expr> string(const Leaf& leaf, const StringStyle& style);
  Result<TextDfa> patterns(const Leaf& leaf, bool& any) const;
  Status lengths(const Leaf& leaf, uint64_t& min, uint64_t& max) const;
  Result<TextDfa> number(const Leaf& leaf, unsigned types) const;
  Expr counted_text(const CodeSet& set, uint64_t min, uint64_t max, const StringStyle& style);
  Expr json_character();
  RuleId free_string();

  // schema_containers.cc
  Result<Expr> array(const Leaf& leaf);
  Result<Expr> object(const Leaf& leaf);
  Result<Members> members(const Leaf& leaf);
  struct KeyPattern {
    TextDfa keys;
    const JsonNode* schema;
  };
  using KeyPatterns = std::vector<std::vector<KeyPattern>>;  // one list a schema of the leaf
  Result<KeyPatterns> key_patterns(const Leaf& leaf) const;
  List schemas_of_key(const Leaf& leaf, const KeyPatterns& patterns, const std::string& key) const;
  Result<TextDfa> legal_names(const Leaf& leaf);
  Result<std::vector<Members::Pattern>> other_keys(const Leaf& leaf, const KeyPatterns& patterns, TextDfa rest,
                                                   bool named) const;
  Result<Expr> map_of(const Members& members);
  Result<Expr> key_value(const TextDfa& keys, const List& list);
  Result<std::pair<bool, uint32_t>> count_of(const JsonNode& node, std::string_view keyword) const;
  Expr repeated(Expr body, std::string_view name, uint32_t min, uint32_t max);
  Expr comma() { return b_.seq({b_.byte(','), b_.optional(b_.byte(' '))}); }
  Expr colon() { return b_.seq({b_.byte(':'), b_.optional(b_.byte(' '))}); }

  Builder& b_;
  const JsonNode* root_;
  std::string path_;
  JsonNode anything_, nothing_;                                                     // the schemas `true` and `false`
  std::unordered_map<const JsonNode*, std::pair<const JsonNode*, size_t>> places_;  // parent and index in it
  std::map<std::string, RuleId> rules_;
  std::optional<RuleId> any_value_, any_object_, free_string_;
  int depth_ = 0, nesting_ = 0;
  int64_t steps_ = 0;
};

}  // namespace k3::grammar
