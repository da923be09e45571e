#include "k3/server/loadgen/prompt.h"

#include <array>
#include <charconv>
#include <string_view>

#include "k3/base/rng.h"

namespace k3::server {
namespace {

constexpr uint64_t kSeed = 0x6b336c6f6164;

constexpr std::array<std::string_view, 64> kWords = {
    "the",     "water",    "house",  "light",  "small",  "green",  "river", "stone",  "after",  "under", "night",
    "morning", "letter",   "paper",  "table",  "world",  "people", "city",  "road",   "number", "story", "field",
    "music",   "garden",   "winter", "summer", "north",  "south",  "open",  "close",  "begin",  "again", "never",
    "always",  "until",    "where",  "which",  "their",  "every",  "first", "second", "third",  "large", "great",
    "right",   "wrong",    "happy",  "quiet",  "early",  "later",  "white", "black",  "bread",  "train", "school",
    "answer",  "question", "doctor", "friend", "mother", "father", "child", "window", "door"};

}  // namespace

void append_token_ids(std::string& json, const Prompt& prompt, int64_t vocab) {
  json += '[';
  for (const PromptPiece& piece : prompt) {
    const Rng rng(kSeed, piece.id);
    for (int64_t i = 0; i < piece.tokens; ++i) {
      // The high half of a product: an even choice of `vocab` values without a division.
      const uint64_t id = static_cast<uint64_t>(rng.bits(static_cast<uint64_t>(i))) * static_cast<uint64_t>(vocab) >> 32;
      char text[24];
      const auto end = std::to_chars(text, text + sizeof text, id).ptr;
      if (json.back() != '[') json += ',';
      json.append(text, end);
    }
  }
  json += ']';
}

std::string prompt_words(const Prompt& prompt) {
  std::string text;
  for (const PromptPiece& piece : prompt) {
    const Rng rng(kSeed, piece.id);
    for (int64_t i = 0; i < piece.tokens; ++i) {
      if (!text.empty()) text += ' ';
      text += kWords[rng.bits(static_cast<uint64_t>(i)) % kWords.size()];
    }
  }
  return text;
}

}  // namespace k3::server
