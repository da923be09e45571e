#include "k3/format/chat/constants/chat_constants.h"

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"
#include "k3/format/chat/constants/python_literals.h"
#include "k3/format/json/json_tree.h"

namespace k3 {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{4} << 20;

constexpr std::array<std::string_view, kSentenceCount> kKeys = {"tool_declare_before",
                                                                "tool_declare_dynamic_before",
                                                                "tool_declare_after",
                                                                "effort_before",
                                                                "effort_after",
                                                                "choice_required",
                                                                "choice_none",
                                                                "response_json_object",
                                                                "response_json_schema_before",
                                                                "response_json_schema_after"};

constexpr SentenceCheck kReleased[] = {
    {Sentence::tool_declare_before, 72, "bbd0773d27b2a814"},
    {Sentence::tool_declare_dynamic_before, 188, "b5f3063ffeff6dab"},
    {Sentence::tool_declare_after, 4, "6bc2c714960a94e3"},
    {Sentence::effort_before, 218, "73fa8d45588e2c98"},
    {Sentence::effort_after, 2, "c351cefdbeee2b2f"},
    {Sentence::choice_required, 91, "e2c3dc236d94164a"},
    {Sentence::choice_none, 95, "efabd595d24633a1"},
    {Sentence::response_json_object, 162, "a88696fd119e35ca"},
    {Sentence::response_json_schema_before, 218, "35c44c528f6c1e22"},
    {Sentence::response_json_schema_after, 4, "6bc2c714960a94e3"},  // the fence that also closes a tool declaration
};

template <class... Args>
Error bad(std::string_view source, fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::corrupt, "{}: {}", source, fmt::format(format, std::forward<Args>(args)...));
}

std::optional<size_t> index_of(std::string_view key) {
  for (size_t i = 0; i < kKeys.size(); ++i) {
    if (kKeys[i] == key) return i;
  }
  return std::nullopt;
}

Status read_sentences(const JsonNode& node, std::string_view source, ChatConstants& out) {
  if (!node.is_object()) return bad(source, "constants must be an object, not {}", json_kind_name(node.kind));
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const auto which = index_of(node.keys[i]);
    if (!which) return bad(source, "constants.{} is not the name of a sentence", node.keys[i]);
    if (!node.items[i].is_string()) {
      return bad(source, "constants.{} must be a string, not {}", node.keys[i], json_kind_name(node.items[i].kind));
    }
    out.sentences[*which] = node.items[i].text;
  }
  return {};
}

Status read_defaults(const JsonNode& root, std::string_view source, ChatConstants& out) {
  if (const JsonNode* thinking = root.find("thinking_default")) {
    if (!thinking->is_string() || (thinking->text != "enabled" && thinking->text != "disabled")) {
      return bad(source, "thinking_default must be \"enabled\" or \"disabled\"");
    }
    out.thinking_default = thinking->text == "enabled";
  }
  if (const JsonNode* effort = root.find("effort_default")) {
    for (const Effort level : {Effort::low, Effort::high, Effort::max}) {
      if (effort->is_string() && effort->text == effort_name(level)) out.effort_default = level;
    }
    if (!out.effort_default) return bad(source, "effort_default must be \"low\", \"high\" or \"max\"");
  }
  return {};
}

}  // namespace

std::string_view sentence_key(Sentence which) { return kKeys[static_cast<size_t>(which)]; }
std::span<const SentenceCheck> released_sentences() { return kReleased; }

Result<std::string_view> ChatConstants::get(Sentence which) const {
  const auto& sentence = sentences[static_cast<size_t>(which)];
  if (sentence) return std::string_view(*sentence);
  return fail(Code::not_found,
              "{}: the sentence '{}' of the chat format is missing, and this request needs it; put it into chat_format.json",
              source, sentence_key(which));
}

Result<ChatConstants> constants_from_json(std::string_view json, std::string_view expected_format, std::string_view source) {
  const auto parsed = parse_json(json);
  if (!parsed.ok()) return bad(source, "{}", parsed.error().message);
  const JsonNode& root = *parsed;
  if (!root.is_object()) return bad(source, "must be a JSON object, not {}", json_kind_name(root.kind));
  const JsonNode* format = root.find("format");
  if (format == nullptr || !format->is_string()) return bad(source, "format must be \"xtml\" or \"k2\"");
  if (format->text != expected_format) {
    return bad(source, "format is '{}', but the special tokens of the tokenizer are those of '{}'", format->text,
               expected_format);
  }
  ChatConstants out;
  out.source = source;
  if (const JsonNode* constants = root.find("constants")) K3_TRY(read_sentences(*constants, source, out));
  K3_TRY(read_defaults(root, source, out));
  return out;
}

Result<ChatConstants> constants_from_python(std::string_view text, std::string_view source,
                                            std::span<const SentenceCheck> checks) {
  K3_TRY_ASSIGN(const auto literals, python_string_literals(text, source));
  ChatConstants out;
  out.source = source;
  for (const std::string& literal : literals) {
    std::string hash;
    for (const SentenceCheck& check : checks) {
      if (literal.size() != check.length_bytes) continue;
      if (hash.empty()) hash = sha256_hex(literal);
      if (std::string_view(hash).substr(0, 16) == check.sha256_prefix)
        out.sentences[static_cast<size_t>(check.which)] = literal;
    }
  }
  return out;
}

Result<ChatConstants> load_chat_constants(const std::string& model_folder, std::string_view expected_format) {
  if (const std::string path = join_path(model_folder, "chat_format.json"); path_exists(path)) {
    K3_TRY_ASSIGN(const std::string text, read_file(path, kMaxFileBytes));
    return constants_from_json(text, expected_format, path);
  }
  if (const std::string path = join_path(model_folder, "encoding_k3.py"); path_exists(path)) {
    K3_TRY_ASSIGN(const std::string text, read_file(path, kMaxFileBytes));
    return constants_from_python(text, path);
  }
  ChatConstants out;
  out.source = model_folder + " (neither chat_format.json nor encoding_k3.py)";
  return out;
}

}  // namespace k3
