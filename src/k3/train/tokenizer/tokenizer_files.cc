// The files of a tokenizer folder.
#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/train/tokenizer/learn_tokenizer.h"

namespace k3::train {
namespace {

// Offsets above the ranks, as in K3 (model.md 5.1); the others are reserved.
struct Special {
  int64_t offset;
  const char* name;
  bool special;  // false: markup that a decoder shows
};
constexpr Special kSpecials[] = {
    {0, "[BOS]", true},          {1, "[EOS]", true},           {2, "<|end_of_msg|>", true},    {3, "<|open|>", false},
    {4, "<|close|>", false},     {5, "<|sep|>", false},        {18, "<|media_begin|>", true},  {19, "<|media_content|>", true},
    {20, "<|media_end|>", true}, {21, "<|media_pad|>", true},  {254, "[UNK]", true},           {255, "[PAD]", true},
};
constexpr int64_t kEndOfMessage = 2;

// What chat_format.json holds; a tag of fenced JSON ends where the next sentence begins.
constexpr const char* kSentences[][2] = {
    {"tool_declare_before", "You may call these tools, each described by a JSON Schema.\n```json\n"},
    {"tool_declare_dynamic_before", "From now on you may also call these tools, each described by a JSON Schema.\n```json\n"},
    {"tool_declare_after", "\n```"},
    {"effort_before", "How hard to think in this conversation: "},
    {"effort_after", "."},
    {"choice_required", "Your next message must call a tool."},
    {"choice_none", "Your next message must not call a tool."},
    {"response_json_object", "Reply with a single JSON object and no other text."},
    {"response_json_schema_before", "Reply with a single JSON value that fits this schema and no other text.\n```json\n"},
    {"response_json_schema_after", "\n```"},
};

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < count ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    for (size_t j = 0; j < 4; ++j) out.push_back(j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=');
  }
  return out;
}

}  // namespace

std::string tiktoken_text(const std::vector<std::string>& tokens) {
  std::string out;
  for (size_t rank = 0; rank < tokens.size(); ++rank) out += fmt::format("{} {}\n", base64(tokens[rank]), rank);
  return out;
}

std::string tokenizer_config_text(int64_t ranks) {
  JsonWriter w(1);
  w.begin_object();
  w.field("bos_token", "[BOS]").field("eos_token", "[EOS]").field("pad_token", "[PAD]").field("unk_token", "[UNK]");
  w.field("model_max_length", int64_t{1} << 20).field("tokenizer_class", "TikTokenTokenizer");
  w.key("added_tokens_decoder").begin_object();
  for (const Special& special : kSpecials) {
    w.key(std::to_string(ranks + special.offset)).begin_object();
    w.field("content", special.name).field("special", special.special).end_object();
  }
  w.end_object().end_object();
  return w.text() + "\n";
}

std::string chat_format_text() {
  JsonWriter w(1);
  w.begin_object().field("format", "xtml").key("constants").begin_object();
  for (const auto& [key, sentence] : kSentences) w.field(key, sentence);
  w.end_object().field("thinking_default", "disabled").end_object();
  return w.text() + "\n";
}

std::string generation_config_text(int64_t ranks) {
  JsonWriter w(1);
  w.begin_object().field("eos_token_id", ranks + kEndOfMessage).field("temperature", 1.0).field("top_p", 0.95).end_object();
  return w.text() + "\n";
}

Status write_tokenizer(const std::string& folder, const std::vector<std::string>& tokens) {
  const auto ranks = static_cast<int64_t>(tokens.size());
  K3_TRY(make_directories(folder));
  K3_TRY(write_file(join_path(folder, "tokenizer_config.json"), tokenizer_config_text(ranks)));
  K3_TRY(write_file(join_path(folder, "chat_format.json"), chat_format_text()));
  K3_TRY(write_file(join_path(folder, "generation_config.json"), generation_config_text(ranks)));
  return write_file(join_path(folder, "tiktoken.model"), tiktoken_text(tokens));
}

}  // namespace k3::train
