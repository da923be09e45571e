#include "k3/format/tokenizer/pattern_scan.h"

#include <algorithm>

#include "k3/base/utf8.h"
#include "k3/format/tokenizer/unicode_classes.h"

namespace k3 {
namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(unicode_classes()) {}

  size_t piece_end(size_t pos) const {
    size_t after = pos;
    const uint8_t first = next(&after);
    if (first & kHan) return skip(after, kHan);                               // alternative 1
    if (const size_t end = word(pos, after, first)) return contraction(end);  // 2, 3
    if (first & kNumber) return number(after);                                // 4
    if (const size_t end = symbols(pos)) return end;                          // 5
    return spaces(pos);                                                       // 6, 7, 8
  }

 private:
  // Classes of the character at *pos, which moves past it.
  uint8_t next(size_t* pos) const {
    const auto byte = static_cast<uint8_t>(text_[*pos]);
    if (byte < 0x80) {
      ++*pos;
      return classes_[byte];
    }
    return classes_[next_code_point(text_, pos)];
  }

  // End of the run of characters that have one of the classes.
  size_t skip(size_t pos, uint8_t classes) const {
    while (pos < text_.size()) {
      size_t after = pos;
      if ((next(&after) & classes) == 0) break;
      pos = after;
    }
    return pos;
  }

  struct Run {
    size_t upper_end;  // end of U*, greedy
    size_t lower_end;  // end of U* W+ after backtracking, 0 when there is no match
  };

  // U* takes the longest run of U. If a W follows, W+ goes on from there. If not, U* gives characters back until W+
  // has one: that is the last one of the run that is in W too, and the one after it is not, so the match ends there.
  Run upper_lower(size_t pos) const {
    size_t lower_end = 0;
    while (pos < text_.size()) {
      size_t after = pos;
      const uint8_t c = next(&after);
      if ((c & kUpper) == 0) {
        if (c & kLower) lower_end = skip(after, kLower);
        break;
      }
      pos = after;
      if (c & kLower) lower_end = after;
    }
    return {pos, lower_end};
  }

  // Alternatives 2 and 3 without the contraction; 0 when neither matches. A mark may be the optional first character
  // or part of the word: 2 is tried with and without the option before 3. Without the option 3 adds nothing: a first
  // character in U that is no letter is a mark, which 2 takes.
  size_t word(size_t pos, size_t after, uint8_t first) const {
    if (first & kLetter) {
      const Run run = upper_lower(pos);
      return run.lower_end != 0 ? run.lower_end : run.upper_end;
    }
    if (first & (kNumber | kNewline)) return 0;
    const Run run = upper_lower(after);
    if (run.lower_end != 0) return run.lower_end;
    if (first & kLower) return upper_lower(pos).lower_end;
    return run.upper_end > after ? run.upper_end : 0;
  }

  // Case-insensitive 's 't 're 've 'm 'll 'd. U+017F (long s) folds to s.
  size_t contraction(size_t pos) const {
    const auto lower = [&](size_t i) {
      const char c = i < text_.size() ? text_[i] : '\0';
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    if (lower(pos) != '\'') return pos;
    const char a = lower(pos + 1), b = lower(pos + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return pos + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return pos + 3;
    if (a == '\xC5' && b == '\xBF') return pos + 3;
    return pos;
  }

  size_t number(size_t pos) const {
    for (int i = 1; i < 3 && pos < text_.size(); ++i) {
      size_t after = pos;
      if ((next(&after) & kNumber) == 0) break;
      pos = after;
    }
    return pos;
  }

  size_t symbols(size_t pos) const {
    size_t end = text_[pos] == ' ' ? pos + 1 : pos;
    const size_t begin = end;
    while (end < text_.size()) {
      size_t after = end;
      if (next(&after) & (kSpace | kLetter | kNumber)) break;
      end = after;
    }
    return end == begin ? 0 : skip(end, kNewline);
  }

  // 6 ends after the last CR or LF of the run; without one, 7 leaves the last character to the next piece when
  // something follows and there are at least two; 8 takes what is left.
  size_t spaces(size_t pos) const {
    size_t end = pos, last = pos, newline_end = 0;
    while (end < text_.size()) {
      size_t after = end;
      const uint8_t c = next(&after);
      if ((c & kSpace) == 0) break;
      last = end;
      end = after;
      if (c & kNewline) newline_end = end;
    }
    if (newline_end != 0) return newline_end;
    return end == text_.size() || last == pos ? end : last;
  }

  std::string_view text_;
  const uint8_t* classes_;
};

}  // namespace

void split_by_scan(std::string_view text, std::vector<size_t>& ends) {
  const Scanner scanner(text);
  for (size_t pos = 0; pos < text.size();) {
    pos = scanner.piece_end(pos);
    ends.push_back(pos);
  }
}

}  // namespace k3
