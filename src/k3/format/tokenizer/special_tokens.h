// Purpose:  names and ids of the special tokens above the ranks, and the longest name at a place of a text.
// Shapes:   ids base .. base + size() - 1; ids without a name in the config are "<|reserved_token_{id}|>".
// Units:    none.
// Memory:   owns the names.
// Threads:  immutable after parse.
// Errors:   parse: corrupt naming source and field (bad JSON, id not a number, below the ranks or repeated, content
//           missing, empty or repeated); exhausted for an id beyond kMaxVocab.
// Source:   model.md 5.1; tokenizer_config.json, added_tokens_decoder {"<id>": {"content": "<name>", ...}}.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

class SpecialTokens {
 public:
  // `base` is the number of ranks. An empty config means that no token is named.
  static Result<SpecialTokens> parse(std::string_view config_json, int32_t base, std::string_view source);
  SpecialTokens(SpecialTokens&&) = default;  // ids_ points into the heap block of names_, which moves along
  SpecialTokens& operator=(SpecialTokens&&) = default;

  int32_t base() const { return base_; }
  int32_t size() const { return static_cast<int32_t>(names_.size()); }
  std::string_view name(int32_t id) const { return names_[static_cast<size_t>(id - base_)]; }
  std::optional<int32_t> find(std::string_view name) const;

  struct Match {
    size_t begin;
    size_t size;
    int32_t id;
  };
  // The first name at or after pos; where several begin at one place the longest.
  std::optional<Match> next(std::string_view text, size_t pos) const;

 private:
  explicit SpecialTokens(int32_t base);
  Status read(std::string_view config_json, std::string_view source);
  Status add(int32_t id, std::string_view content, std::string_view source);
  Status finish(std::string_view source);

  int32_t base_;
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, int32_t> ids_;  // keys point into names_
  std::array<std::vector<size_t>, 256> lengths_;       // of the names that begin with a byte, longest first, each once
};

}  // namespace k3
