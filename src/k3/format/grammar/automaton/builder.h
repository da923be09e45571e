// Purpose:  the intermediate grammar that every front end writes: rules over bytes, special tokens and other rules.
// Shapes:   an Expr is an index into the builder's nodes, a RuleId an index of its rules.
// Units:    bytes.
// Memory:   the builder owns everything; compile() copies what it needs.
// Threads:  one builder belongs to one thread.
// Errors:   building never fails; sizes are checked by compile().
// Source:   api.md 7.5, 8. Four kinds of rules: an automaton; a counted text (one character at a time between min and
//           max, then its end); a loop (a body rule min to max times); a set (each member rule at most once, in any
//           order, the required ones at least once). Counts are kept on the stack, not expanded into states.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "k3/format/grammar/text/text_dfa.h"

namespace k3::grammar {

using Expr = uint32_t;
using RuleId = uint32_t;
inline constexpr uint32_t kUnbounded = UINT32_MAX;

enum class Encoding : uint8_t {
  raw,        // UTF-8
  json,       // inside JSON quotes; one spelling a character: escapes only where JSON asks for them
  attribute,  // XTML attribute value
};

struct Node {
  enum class Kind : uint8_t { never, empty, bytes, text, token, call, seq, alt, star, list, free };
  Kind kind = Kind::never;
  uint8_t lo = 0, hi = 0;             // bytes
  Encoding encoding = Encoding::raw;  // text
  uint32_t value = 0;                 // token: id; call: rule; text: index; star: child; list: separator
  std::vector<Expr> children;         // seq, alt; list: the items and last what may follow them any number of times
  std::vector<char> required;         // list: one an item
};

struct Rule {
  enum class Kind : uint8_t { automaton, counted, loop, set };
  Kind kind = Kind::automaton;
  std::string name;             // for messages
  Expr body = 0;                // automaton; counted: one character
  Expr end = 0;                 // counted
  uint32_t min = 0, max = 0;    // counted, loop
  std::vector<RuleId> members;  // loop: one; set: at most 32
  uint32_t required = 0;        // set: bits of members
};

class Builder {
 public:
  Builder();
  Expr never() const { return 0; }
  Expr empty() const { return 1; }
  Expr byte(uint8_t lo, uint8_t hi);
  Expr byte(char c) { return byte(static_cast<uint8_t>(c), static_cast<uint8_t>(c)); }
  Expr literal(std::string_view bytes);
  Expr text(TextDfa dfa, Encoding encoding);
  Expr characters(const CodeSet& set, Encoding encoding);  // one of them
  Expr token(int32_t id);
  Expr call(RuleId rule);
  Expr seq(std::vector<Expr> parts);
  Expr alt(std::vector<Expr> parts);
  Expr star(Expr part);
  // Items in their order, the required ones all, between them the separator; then `rest` any number of times.
  Expr list(std::vector<Expr> items, std::vector<char> required, Expr rest, Expr separator);
  Expr optional(Expr part) { return alt({part, empty()}); }
  // Any bytes. `unmasked`: in this state every token may come, special ones too.
  Expr free_text(bool unmasked);

  RuleId rule(std::string name);
  RuleId rule(std::string name, Expr body);
  void define(RuleId rule, Expr body) { rules_[rule].body = body; }
  RuleId counted(std::string name, Expr character, Expr end, uint32_t min, uint32_t max);
  RuleId loop(std::string name, RuleId body, uint32_t min, uint32_t max);
  RuleId set(std::string name, std::vector<RuleId> members, uint32_t required);

  const Node& node(Expr e) const { return nodes_[e]; }
  const std::vector<Rule>& rules() const { return rules_; }
  const TextDfa& dfa(uint32_t index) const { return texts_[index]; }
  size_t size() const { return nodes_.size(); }
  // Bytes of the schemas that are written here: all of a request, whose sum is what costs.
  void count_source(size_t bytes) { source_bytes_ += bytes; }
  size_t source_bytes() const { return source_bytes_; }

 private:
  Expr add(Node node);
  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::vector<TextDfa> texts_;
  size_t source_bytes_ = 0;
};

}  // namespace k3::grammar
