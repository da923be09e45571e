// Purpose:  byte-level BPE tokenizer of tiktoken.model + tokenizer_config.json, and a streaming detokenizer.
// Shapes:   none.
// Units:    ids are int32_t; ranks are 0 .. base_count() - 1, specials lie above.
// Memory:   a Tokenizer owns its tables (about 14 MB for the released vocabulary) and is immutable after load. Each
//           thread that encodes keeps scratch of a few MB at most (a piece and a slice are bounded).
// Threads:  encode and decode may be called concurrently.
// Errors:   load: corrupt or not_found naming file and line. Input text that is not UTF-8: invalid_argument with
//           the byte offset. Ids out of range: invalid_argument. No input reaches a CHECK.
// Source:   model.md 5.1, 5.2 (split pattern, its traps, the 400,000 / 25,000 character splits). Parts: tokenizer/.
//           The ids are those of tiktoken under the released wrapper, for characters of Unicode 14.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

class Tokenizer {
 public:
  // A model folder (tiktoken.model and, when present, tokenizer_config.json) or the tiktoken.model file itself; the
  // file alone names no special tokens, so their markup is ordinary text.
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> from_text(std::string_view tiktoken_model, std::string_view tokenizer_config_json,
                                     std::string_view source);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // One segment of ordinary text: text that looks like a special token stays text.
  Status encode(std::string_view text, std::vector<int32_t>& out) const;  // appends
  Result<std::vector<int32_t>> encode(std::string_view text) const;

  // Text in which the names of special tokens are tokens (raw completion prompts, media strings). The longest name
  // wins where several begin; each stretch of text between is a segment of its own, cuts included.
  Status encode_with_specials(std::string_view text, std::vector<int32_t>& out) const;

  // The bytes of an id; specials give their name.
  std::string_view bytes(int32_t id) const;
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_specials = false) const;  // raw bytes joined

  int32_t base_count() const;  // number of ranks
  int32_t vocab_size() const;  // ranks + specials (256 when the config does not say otherwise)
  bool is_special(int32_t id) const { return id >= base_count(); }
  std::optional<int32_t> special(std::string_view name) const;  // "<|open|>", "[BOS]", ...

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns ids into text piece by piece; never splits a code point. An unfinished code point waits for the next
// token; bytes that can never become one are replaced by U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string push(int32_t id);  // specials contribute nothing
  std::string finish();          // an unfinished tail becomes one U+FFFD

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace k3
