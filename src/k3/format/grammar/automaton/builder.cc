#include "k3/format/grammar/automaton/builder.h"

#include <utility>

namespace k3::grammar {

Builder::Builder() {
  nodes_.resize(2);
  nodes_[1].kind = Node::Kind::empty;
}

Expr Builder::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<Expr>(nodes_.size() - 1);
}

Expr Builder::byte(uint8_t lo, uint8_t hi) {
  Node node;
  node.kind = Node::Kind::bytes;
  node.lo = lo;
  node.hi = hi;
  return add(std::move(node));
}

Expr Builder::literal(std::string_view bytes) {
  std::vector<Expr> parts;
  for (const char c : bytes) parts.push_back(byte(c));
  return seq(std::move(parts));
}

Expr Builder::text(TextDfa dfa, Encoding encoding) {
  if (dfa.empty()) return never();
  Node node;
  node.kind = Node::Kind::text;
  node.encoding = encoding;
  node.value = static_cast<uint32_t>(texts_.size());
  texts_.push_back(std::move(dfa));
  return add(std::move(node));
}

Expr Builder::characters(const CodeSet& set, Encoding encoding) {
  TextDfa dfa;
  if (set.empty()) return never();
  dfa.states.resize(2);
  dfa.states[1].accepting = true;
  for (const CodeRange& range : set.ranges()) dfa.states[0].edges.push_back({range.lo, range.hi, 1});
  return text(std::move(dfa), encoding);
}

Expr Builder::token(int32_t id) {
  Node node;
  node.kind = Node::Kind::token;
  node.value = static_cast<uint32_t>(id);
  return add(std::move(node));
}

Expr Builder::call(RuleId rule) {
  Node node;
  node.kind = Node::Kind::call;
  node.value = rule;
  return add(std::move(node));
}

Expr Builder::seq(std::vector<Expr> parts) {
  std::vector<Expr> kept;
  for (const Expr part : parts) {
    if (part == never()) return never();
    if (part != empty()) kept.push_back(part);
  }
  if (kept.empty()) return empty();
  if (kept.size() == 1) return kept[0];
  Node node;
  node.kind = Node::Kind::seq;
  node.children = std::move(kept);
  return add(std::move(node));
}

Expr Builder::alt(std::vector<Expr> parts) {
  std::erase(parts, never());
  if (parts.empty()) return never();
  if (parts.size() == 1) return parts[0];
  Node node;
  node.kind = Node::Kind::alt;
  node.children = std::move(parts);
  return add(std::move(node));
}

Expr Builder::star(Expr part) {
  if (part == never() || part == empty()) return empty();
  Node node;
  node.kind = Node::Kind::star;
  node.value = part;
  return add(std::move(node));
}

Expr Builder::list(std::vector<Expr> items, std::vector<char> required, Expr rest, Expr separator) {
  Node node;
  node.kind = Node::Kind::list;
  node.value = separator;
  node.children = std::move(items);
  node.children.push_back(rest);
  node.required = std::move(required);
  return add(std::move(node));
}

Expr Builder::free_text(bool unmasked) {
  if (!unmasked) return star(byte(0, 255));
  Node node;
  node.kind = Node::Kind::free;
  return add(std::move(node));
}

RuleId Builder::rule(std::string name) {
  rules_.emplace_back();
  rules_.back().name = std::move(name);
  return static_cast<RuleId>(rules_.size() - 1);
}

RuleId Builder::rule(std::string name, Expr body) {
  const RuleId id = rule(std::move(name));
  define(id, body);
  return id;
}

RuleId Builder::counted(std::string name, Expr character, Expr end, uint32_t min, uint32_t max) {
  const RuleId id = rule(std::move(name));
  Rule& out = rules_[id];
  out.kind = Rule::Kind::counted;
  out.body = character;
  out.end = end;
  out.min = min;
  out.max = max;
  return id;
}

RuleId Builder::loop(std::string name, RuleId body, uint32_t min, uint32_t max) {
  const RuleId id = rule(std::move(name));
  Rule& out = rules_[id];
  out.kind = Rule::Kind::loop;
  out.members = {body};
  out.min = min;
  out.max = max;
  return id;
}

RuleId Builder::set(std::string name, std::vector<RuleId> members, uint32_t required) {
  const RuleId id = rule(std::move(name));
  Rule& out = rules_[id];
  out.kind = Rule::Kind::set;
  out.members = std::move(members);
  out.required = required;
  return id;
}

}  // namespace k3::grammar
