#include "k3/format/grammar/text/code_set.h"

#include <algorithm>

#include "k3/format/tokenizer/unicode_classes.h"

namespace k3::grammar {
namespace {

constexpr uint32_t kLast = 0x10FFFF, kSurrogateFirst = 0xD800, kSurrogateLast = 0xDFFF;

}  // namespace

CodeSet::CodeSet(std::initializer_list<CodeRange> ranges) : ranges_(ranges) { normalize(); }

CodeSet CodeSet::all() { return {{0, kLast}}; }
CodeSet CodeSet::digits() { return {{'0', '9'}}; }
CodeSet CodeSet::word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CodeSet CodeSet::space() {
  return {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CodeSet CodeSet::dot() { return CodeSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement(); }

bool CodeSet::property(std::string_view name, CodeSet& out) {
  uint8_t bit = 0;
  if (name == "L" || name == "Letter" || name == "Alphabetic") bit = kLetter;
  if (name == "N" || name == "Number") bit = kNumber;
  if (name == "Han" || name == "Script=Han" || name == "sc=Han") bit = kHan;
  if (name == "White_Space") bit = kSpace;
  if (bit == 0) return false;
  // Made once: a pattern may name a class many times.
  static const CodeSet letters = of_class(kLetter), numbers = of_class(kNumber), han = of_class(kHan), blanks = of_class(kSpace);
  out = bit == kLetter ? letters : bit == kNumber ? numbers : bit == kHan ? han : blanks;
  return true;
}

CodeSet CodeSet::of_class(uint8_t bit) {
  const uint8_t* classes = unicode_classes();
  CodeSet out;
  for (uint32_t code = 0; code <= kLast; ++code) {
    if ((classes[code] & bit) == 0) continue;
    if (!out.ranges_.empty() && out.ranges_.back().hi + 1 == code) {
      out.ranges_.back().hi = code;
    } else {
      out.ranges_.push_back({code, code});
    }
  }
  out.normalize();
  return out;
}

void CodeSet::add(uint32_t lo, uint32_t hi) {
  ranges_.push_back({lo, hi});
  normalize();
}

void CodeSet::add(const CodeSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
}

void CodeSet::normalize() {
  std::vector<CodeRange> cut;
  for (const CodeRange& range : ranges_) {
    const uint32_t hi = std::min(range.hi, kLast);
    if (range.lo > hi) continue;
    if (range.lo < kSurrogateFirst) cut.push_back({range.lo, std::min(hi, kSurrogateFirst - 1)});
    if (hi > kSurrogateLast) cut.push_back({std::max(range.lo, kSurrogateLast + 1), hi});
  }
  std::sort(cut.begin(), cut.end(), [](const CodeRange& a, const CodeRange& b) { return a.lo < b.lo; });
  ranges_.clear();
  for (const CodeRange& range : cut) {
    if (!ranges_.empty() && range.lo <= ranges_.back().hi + 1) {
      ranges_.back().hi = std::max(ranges_.back().hi, range.hi);
    } else {
      ranges_.push_back(range);
    }
  }
}

CodeSet CodeSet::complement() const {
  CodeSet out;
  uint32_t next = 0;
  for (const CodeRange& range : ranges_) {
    if (range.lo > next) out.ranges_.push_back({next, range.lo - 1});
    next = range.hi + 1;
  }
  if (next <= kLast) out.ranges_.push_back({next, kLast});
  out.normalize();
  return out;
}

bool CodeSet::contains(uint32_t code) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [code](const CodeRange& range) { return code >= range.lo && code <= range.hi; });
}

}  // namespace k3::grammar
