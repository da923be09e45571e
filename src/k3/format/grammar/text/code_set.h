// Purpose:  sets of Unicode code points as sorted ranges.
// Shapes:   ranges are disjoint, ascending, not adjacent; surrogates are never members.
// Units:    code points.
// Memory:   by value.
// Threads:  values; const members may be called concurrently.
// Errors:   none.
// Source:   classes of ECMA-262 patterns (\d \w \s and the dot).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace k3::grammar {

struct CodeRange {
  uint32_t lo, hi;
  bool operator==(const CodeRange&) const = default;
};

class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::initializer_list<CodeRange> ranges);
  static CodeSet all();
  static CodeSet digits();
  static CodeSet word();
  static CodeSet space();
  static CodeSet dot();                                       // all but line terminators
  static bool property(std::string_view name, CodeSet& out);  // \p{...}; false: unknown

  void add(uint32_t lo, uint32_t hi);
  void add(const CodeSet& other);
  CodeSet complement() const;
  bool contains(uint32_t code) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CodeRange>& ranges() const { return ranges_; }
  bool operator==(const CodeSet&) const = default;

 private:
  static CodeSet of_class(uint8_t bit);  // looks at every code point
  void normalize();
  std::vector<CodeRange> ranges_;
};

}  // namespace k3::grammar
