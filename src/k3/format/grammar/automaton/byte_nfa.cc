#include "k3/format/grammar/automaton/byte_nfa.h"

#include <fmt/format.h>

#include <algorithm>

namespace k3::grammar {

uint32_t ByteNfa::state() {
  states_.emplace_back();
  return static_cast<uint32_t>(states_.size() - 1);
}

void ByteNfa::edge(uint32_t from, uint32_t lo, uint32_t hi, uint32_t to) {
  states_[from].bytes.push_back({static_cast<uint8_t>(lo), static_cast<uint8_t>(hi), to});
}

void ByteNfa::bytes(std::string_view text, uint32_t from, uint32_t to) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint32_t next = i + 1 == text.size() ? to : state();
    edge(from, byte, byte, next);
    from = next;
  }
}

bool ByteNfa::build(Expr e, uint32_t from, uint32_t to, size_t limit) {
  if (states_.size() > limit) return false;
  const Node& node = builder_.node(e);
  switch (node.kind) {
    case Node::Kind::never: return true;
    case Node::Kind::empty: jump(from, to); return true;
    case Node::Kind::bytes: edge(from, node.lo, node.hi, to); return true;
    case Node::Kind::text: return text(builder_.dfa(node.value), node.encoding, from, to, limit);
    case Node::Kind::token: states_[from].tokens.push_back({node.value, to}); return true;
    case Node::Kind::call: states_[from].calls.push_back({node.value, to}); return true;
    case Node::Kind::seq:
      for (size_t i = 0; i < node.children.size(); ++i) {
        const uint32_t next = i + 1 == node.children.size() ? to : state();
        if (!build(node.children[i], from, next, limit)) return false;
        from = next;
      }
      return true;
    case Node::Kind::alt:
      for (const Expr child : node.children) {
        const uint32_t own = state();  // a star in one branch must not loop over the others
        jump(from, own);
        if (!build(child, own, to, limit)) return false;
      }
      return true;
    case Node::Kind::list: return list(node, from, to, limit);
    case Node::Kind::star:
    case Node::Kind::free: {
      const uint32_t loop = state();
      jump(from, loop);
      jump(loop, to);
      if (node.kind == Node::Kind::free) {
        states_[loop].free = true;
        edge(loop, 0, 255, loop);
        return true;
      }
      const uint32_t begin = state(), end = state();
      jump(loop, begin);
      jump(end, loop);
      return build(node.value, begin, end, limit);
    }
  }
  return true;
}

// none: before item i when nothing came yet; some: when something did. Either way the item is entered at `enter`.
bool ByteNfa::list(const Node& node, uint32_t from, uint32_t to, size_t limit) {
  uint32_t none = from, some = state();
  const size_t items = node.children.size() - 1;
  for (size_t i = 0; i <= items; ++i) {
    const bool rest = i == items;
    const uint32_t enter = state(), after = rest ? some : state(), next_none = rest ? to : state();
    jump(none, enter);
    if (!build(node.value, some, enter, limit) || !build(node.children[i], enter, after, limit)) return false;
    if (rest) {
      jump(none, to);
      jump(some, to);
    } else if (node.required[i] == 0) {
      jump(none, next_none);
      jump(some, after);
    }
    none = next_none;
    some = after;
  }
  return true;
}

bool ByteNfa::text(const TextDfa& dfa, Encoding encoding, uint32_t from, uint32_t to, size_t limit) {
  const auto base = static_cast<uint32_t>(states_.size());
  for (size_t i = 0; i < dfa.states.size(); ++i) state();
  jump(from, base);
  for (uint32_t s = 0; s < dfa.states.size(); ++s) {
    if (dfa.states[s].accepting) jump(base + s, to);
    for (const TextDfa::Edge& e : dfa.states[s].edges) encoded(e.lo, e.hi, encoding, base + s, base + e.to);
    if (states_.size() > limit) return false;
  }
  return true;
}

void ByteNfa::encoded(uint32_t lo, uint32_t hi, Encoding encoding, uint32_t from, uint32_t to) {
  const auto plain = [&](uint32_t a, uint32_t b) {
    if (std::max(a, lo) <= std::min(b, hi)) utf8(std::max(a, lo), std::min(b, hi), from, to);
  };
  if (encoding == Encoding::raw) return utf8(lo, hi, from, to);
  if (encoding == Encoding::attribute) {
    plain(0, '"' - 1);
    plain('"' + 1, '&' - 1);
    plain('&' + 1, 0x10FFFF);
    if (lo <= '"' && hi >= '"') bytes("&quot;", from, to);
    if (lo <= '&' && hi >= '&') bytes("&amp;", from, to);
    return;
  }
  for (uint32_t code = lo; code <= std::min<uint32_t>(hi, 0x1F); ++code) {
    constexpr std::string_view kCodes = "\b\f\n\r\t", kNames = "bfnrt";
    const size_t which = code == 0 ? std::string_view::npos : kCodes.find(static_cast<char>(code));
    bytes(which == std::string_view::npos ? fmt::format("\\u{:04x}", code) : fmt::format("\\{}", kNames[which]), from, to);
  }
  plain(0x20, '"' - 1);
  plain('"' + 1, '\\' - 1);
  plain('\\' + 1, 0x10FFFF);
  if (lo <= '"' && hi >= '"') bytes("\\\"", from, to);
  if (lo <= '\\' && hi >= '\\') bytes("\\\\", from, to);
}

void ByteNfa::utf8(uint32_t lo, uint32_t hi, uint32_t from, uint32_t to) {
  struct Length {
    uint32_t first, last, lead;
    int tail;
  };
  constexpr Length kLengths[] = {
      {0, 0x7F, 0, 0}, {0x80, 0x7FF, 0xC0, 1}, {0x800, 0xFFFF, 0xE0, 2}, {0x10000, 0x10FFFF, 0xF0, 3}};
  for (const Length& length : kLengths) {
    const uint32_t a = std::max(lo, length.first), b = std::min(hi, length.last);
    if (a <= b) utf8_same_length(a, b, length.tail, length.lead, from, to);
  }
}

// lo and hi have `tail_bytes` more bytes after this one, which is `lead` plus their top bits.
void ByteNfa::utf8_same_length(uint32_t lo, uint32_t hi, int tail_bytes, uint32_t lead, uint32_t from, uint32_t to) {
  if (tail_bytes == 0) return edge(from, lead + lo, lead + hi, to);
  const int shift = 6 * tail_bytes;
  const uint32_t rest = (1U << shift) - 1;
  uint32_t a = lo >> shift, b = hi >> shift;
  if (a == b) {
    const uint32_t next = state();
    edge(from, lead + a, lead + a, next);
    return utf8_same_length(lo & rest, hi & rest, tail_bytes - 1, 0x80, next, to);
  }
  if ((lo & rest) != 0) {
    utf8_same_length(lo, (a << shift) | rest, tail_bytes, lead, from, to);
    ++a;
  }
  if ((hi & rest) != rest) {
    utf8_same_length(b << shift, hi, tail_bytes, lead, from, to);
    if (b == 0) return;
    --b;
  }
  if (a <= b) edge(from, lead + a, lead + b, tail(tail_bytes, to));
}

uint32_t ByteNfa::tail(int bytes_left, uint32_t to) {
  if (bytes_left == 0) return to;
  const auto found = tails_.find({to, bytes_left});
  if (found != tails_.end()) return found->second;
  const uint32_t next = tail(bytes_left - 1, to), out = state();
  edge(out, 0x80, 0xBF, next);
  tails_.emplace(std::pair(to, bytes_left), out);
  return out;
}

}  // namespace k3::grammar
