// Purpose:  the fixed sentences of a chat format. They are data of the checkpoint, never of this program: read from
//           chat_format.json, or recognised among the string literals of the checkpoint's encoding_k3.py by length and hash.
// Shapes:   none.
// Units:    UTF-8 bytes.
// Memory:   owns its strings.
// Threads:  immutable after load.
// Errors:   load: corrupt naming file (and line) for a malformed file. get: not_found naming the sentence and the files.
// Source:   api.md 7.2 (table of lengths and SHA-256 prefixes), model.md 5.3.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "k3/base/result.h"
#include "k3/format/chat/chat.h"

namespace k3 {

enum class Sentence {
  tool_declare_before,
  tool_declare_dynamic_before,
  tool_declare_after,
  effort_before,
  effort_after,
  choice_required,
  choice_none,
  response_json_object,
  response_json_schema_before,
  response_json_schema_after,
};
inline constexpr size_t kSentenceCount = 10;
std::string_view sentence_key(Sentence which);  // its key in chat_format.json

struct SentenceCheck {
  Sentence which;
  size_t length_bytes;
  std::string_view sha256_prefix;  // first 16 hex digits
};
std::span<const SentenceCheck> released_sentences();

struct ChatConstants {
  std::array<std::optional<std::string>, kSentenceCount> sentences;
  std::optional<bool> thinking_default;
  std::optional<Effort> effort_default;
  std::string source;  // what was read, for messages

  Result<std::string_view> get(Sentence which) const;
};

// The content of a chat_format.json; expected_format is "xtml" or "k2".
Result<ChatConstants> constants_from_json(std::string_view json, std::string_view expected_format, std::string_view source);
// Python source text; a sentence that is not among its literals stays empty.
Result<ChatConstants> constants_from_python(std::string_view text, std::string_view source,
                                            std::span<const SentenceCheck> checks = released_sentences());
// chat_format.json of the folder, else encoding_k3.py, else empty.
Result<ChatConstants> load_chat_constants(const std::string& model_folder, std::string_view expected_format);

}  // namespace k3
