// Printing of JSON trees. The reference encoder of the chat format reads the request with Python's json module and
// prints it again, so numbers follow that language's rules: integers of any size stay, everything with a point or an
// exponent becomes the shortest decimal of its double, in positional form for 1e-4 <= |x| < 1e16.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "k3/base/json_writer.h"
#include "k3/format/json/json_tree.h"

namespace k3 {
namespace {

std::string positional(std::string_view digits, int exponent) {
  std::string out;
  if (exponent < 0) {
    out.assign("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
    return out;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    out.assign(digits).append(whole - digits.size(), '0').append(".0");
    return out;
  }
  out.assign(digits.substr(0, whole)).append(".").append(digits.substr(whole));
  return out;
}

std::string float_text(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, std::fabs(value), std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  std::string out = std::signbit(value) ? "-" : "";
  if (value == 0) return out + "0.0";
  if (exponent >= -4 && exponent < 16) return out + positional(digits, exponent);
  out.push_back(digits[0]);
  if (digits.size() > 1) out.append(".").append(digits, 1);
  return out.append(text.substr(e));
}

}  // namespace

std::string normalized_number(std::string_view literal) {
  if (literal.find_first_of(".eE") == std::string_view::npos) return literal == "-0" ? "0" : std::string(literal);
  double value = 0;
  const auto parsed = std::from_chars(literal.data(), literal.data() + literal.size(), value);
  if (parsed.ec == std::errc::result_out_of_range || !std::isfinite(value)) return std::string(literal);
  return float_text(value);
}

void append_json(std::string& out, const JsonNode& node, JsonStyle style) {
  switch (node.kind) {
    case JsonNode::Kind::null: out += "null"; return;
    case JsonNode::Kind::boolean: out += node.flag ? "true" : "false"; return;
    case JsonNode::Kind::number: out += style.literal ? std::string(node.raw) : normalized_number(node.raw); return;
    case JsonNode::Kind::string: append_json_string(out, node.text); return;
    default: break;
  }
  const bool object = node.is_object();
  std::vector<size_t> order(node.items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (object && style.sorted) {
    // Byte order of UTF-8 is code point order.
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return node.keys[a] < node.keys[b]; });
  }
  out.push_back(object ? '{' : '[');
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0) out += style.spaced ? ", " : ",";
    if (object) {
      append_json_string(out, node.keys[order[i]]);
      out += style.spaced ? ": " : ":";
    }
    append_json(out, node.items[order[i]], style);
  }
  out.push_back(object ? '}' : ']');
}

}  // namespace k3
