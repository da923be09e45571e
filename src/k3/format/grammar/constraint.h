// Purpose:  structured output: which tokens a choice may emit next. Grammars (JSON Schema, regex, EBNF, tool calls) are
//           compiled to byte-level pushdown automata and applied to the vocabulary token by token.
// Shapes:   a mask is mask_words(vocab) words; bit id % 32 of word id / 32 is set when the token may come.
// Units:    none.
// Memory:   a Grammar is immutable and shared by requests; a Constraint is the small state of one choice, copyable.
// Threads:  compile and const members may be called concurrently; one Constraint belongs to one thread at a time.
// Errors:   compile: invalid_argument naming where ("response_format.json_schema.schema.properties.a.pattern: ...") and the
//           keyword that cannot be honoured; nothing is silently left unconstrained. No input reaches a CHECK; compile
//           time and size are bounded for each pattern and for the whole automaton (exhausted, naming the part).
// Source:   api.md 6.3, 7.5, 8.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/chat/chat.h"
#include "k3/format/tokenizer.h"

namespace k3 {

namespace grammar {
class Builder;
}

constexpr size_t mask_words(int64_t vocab) { return static_cast<size_t>((vocab + 31) / 32); }

// What the tokenizer contributes: byte strings of all ordinary tokens as a trie. Built once per model.
class TokenTrie {
 public:
  static std::shared_ptr<const TokenTrie> build(const Tokenizer& tokenizer);
  TokenTrie(const TokenTrie&) = delete;
  TokenTrie& operator=(const TokenTrie&) = delete;
  ~TokenTrie();

 private:
  friend class Grammar;
  friend class Constraint;
  struct Impl;
  explicit TokenTrie(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class Grammar {
 public:
  // Everything that a chat request asks for: response_format, required / named / strict tools. Null: nothing to enforce.
  // The grammar knows the channels of the format: think is free, the response or the tools section is constrained.
  static Result<std::shared_ptr<const Grammar>> for_chat(const ChatFormat& format, const Tokenizer& tokenizer,
                                                         std::shared_ptr<const TokenTrie> trie, const ChatRequest& request,
                                                         const Prompt& prompt);
  // Raw text from the first token on (completions): JSON Schema text, ECMA regex (whole match), EBNF (start rule "root").
  static Result<std::shared_ptr<const Grammar>> json_schema(std::shared_ptr<const TokenTrie> trie, std::string_view schema);
  static Result<std::shared_ptr<const Grammar>> regex(std::shared_ptr<const TokenTrie> trie, std::string_view pattern);
  static Result<std::shared_ptr<const Grammar>> ebnf(std::shared_ptr<const TokenTrie> trie, std::string_view grammar);
  ~Grammar();

 private:
  friend class Constraint;
  struct Impl;
  explicit Grammar(std::unique_ptr<Impl> impl);
  static Result<std::shared_ptr<const Grammar>> finish(std::shared_ptr<const TokenTrie> trie,
                                                       const grammar::Builder& builder, uint32_t start);
  std::unique_ptr<Impl> impl_;
};

class Constraint {
 public:
  // end_ids: tokens that may come when the text is complete (end of message, [EOS]).
  Constraint(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> end_ids);
  Constraint(const Constraint& other);
  Constraint& operator=(const Constraint& other);
  Constraint(Constraint&&) noexcept;
  Constraint& operator=(Constraint&&) noexcept;
  ~Constraint();

  // False: every token may come now, the mask was not touched. Else the mask is overwritten; it is never empty.
  bool fill_mask(std::span<uint32_t> mask);
  // False: the token was not allowed (the state is unchanged).
  bool accept(int32_t id);

 private:
  friend class Grammar;
  bool begin(std::string_view given);  // text that stands before the first token

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3
