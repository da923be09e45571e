// Stop strings across token borders. The loop itself is tested with a real model in tests/golden.
#include "k3/engine/generate.h"

#include <gtest/gtest.h>

namespace k3 {
namespace {

// Feeds `text` in pieces of every size and returns what was shown.
std::string shown(const std::vector<std::string>& stops, const std::string& text, size_t piece, std::string* stop) {
  StopMatcher matcher(stops);
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) out += matcher.push(text.substr(i, piece));
  out += matcher.finish();
  *stop = matcher.matched_stop();
  EXPECT_EQ(matcher.matched(), !stop->empty());
  return out;
}

TEST(StopMatcher, CutsAtTheFirstMatchWhateverThePieces) {
  const struct {
    std::vector<std::string> stops;
    std::string text, expected, stop;
  } cases[] = {
      {{"END"}, "one END two", "one ", "END"}, {{"END"}, "one EN two", "one EN two", ""},
      {{"END"}, "one EN", "one EN", ""},       {{"aab"}, "aaab", "a", "aab"},
      {{"xyz", "y"}, "axyz", "ax", "y"},       {{"\n\n"}, "a\nb\n\nc", "a\nb", "\n\n"},
      {{"b", "ab"}, "xab", "x", "ab"},         {{}, "text", "text", ""},
  };
  for (const auto& c : cases) {
    for (size_t piece = 1; piece <= c.text.size(); ++piece) {
      std::string stop;
      EXPECT_EQ(shown(c.stops, c.text, piece, &stop), c.expected) << c.text << " by " << piece;
      EXPECT_EQ(stop, c.stop);
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldMatch) {
  StopMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.push("abc ST"), "abc ");
  EXPECT_EQ(matcher.push("x"), "STx");
  EXPECT_EQ(matcher.push("STO"), "");
  EXPECT_EQ(matcher.finish(), "STO");
}

}  // namespace
}  // namespace k3
