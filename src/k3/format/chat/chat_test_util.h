// Purpose:  vocabularies, formats and request shorthands that the chat tests share. Test code only.
// Shapes:   none.
// Units:    none.
// Memory:   the released vocabulary is loaded once a process.
// Threads:  single-threaded.
// Errors:   a failed load is a test failure (Result::value checks).
// Source:   model.md 5.1 (special ids).
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/format/chat/chat.h"
#include "k3/format/chat/output/output_parser.h"

namespace k3::test {

inline const std::vector<std::string> kXtmlSpecials = {
    "[BOS]",   "[EOS]",           "<|end_of_msg|>", "<|open|>",      "<|close|>",
    "<|sep|>", "<|media_begin|>", "<|media_end|>",  "<|media_pad|>", "<|media_content|>"};
inline const std::vector<std::string> kK2Specials = {"[BOS]",
                                                     "[EOS]",
                                                     "<|im_end|>",
                                                     "<|im_user|>",
                                                     "<|im_assistant|>",
                                                     "<|im_system|>",
                                                     "<|im_middle|>",
                                                     "<|tool_calls_section_begin|>",
                                                     "<|tool_calls_section_end|>",
                                                     "<|tool_call_begin|>",
                                                     "<|tool_call_argument_begin|>",
                                                     "<|tool_call_end|>"};

inline std::string specials_config(int64_t first_id, const std::vector<std::string>& names) {
  JsonWriter writer;
  writer.begin_object().key("added_tokens_decoder").begin_object();
  for (size_t i = 0; i < names.size(); ++i) {
    writer.key(std::to_string(first_id + static_cast<int64_t>(i))).begin_object().field("content", names[i]).end_object();
  }
  return writer.end_object().end_object().text();
}

// One id a byte, then specials: the smallest vocabulary in which every text has an encoding.
inline Tokenizer byte_tokenizer(const std::vector<std::string>& specials) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string model;
  for (uint32_t b = 0; b < 256; ++b) {
    model += fmt::format("{}{}== {}\n", kAlphabet[b >> 2], kAlphabet[(b & 3) << 4], b);
  }
  return Tokenizer::from_text(model, specials_config(256, specials), "byte vocabulary").value();
}

#ifdef K3_SOURCE_DIR  // test binaries only; fuzz targets read no files
// The released ranks with K3's special ids.
inline const Tokenizer& released_tokenizer() {
  static const Tokenizer tokenizer = [] {
    std::vector<std::string> names = {"[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"};
    std::string config = specials_config(163584, names);
    const std::string media =
        specials_config(163602, {"<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"});
    const size_t head = std::string_view("{\"added_tokens_decoder\":{").size();
    config.resize(config.size() - 2);
    config += "," + media.substr(head);
    const std::string model = read_file(K3_SOURCE_DIR "/tests/data/tokenizer/tiktoken.model").value();
    return Tokenizer::from_text(model, config, "released vocabulary").value();
  }();
  return tokenizer;
}

#endif

// Sentences short enough to read in an expected prompt.
inline ChatFormat short_format(std::string_view thinking_default = "enabled") {
  const std::string json = fmt::format(
      R"text({{"format":"xtml","thinking_default":"{}","constants":{{"tool_declare_before":"T(","tool_declare_dynamic_before":"D(",
      "tool_declare_after":")","effort_before":"E(","effort_after":")","choice_required":"must","choice_none":"must not",
      "response_json_object":"object","response_json_schema_before":"S(","response_json_schema_after":")"}}}})text",
      thinking_default);
  return ChatFormat::from_json(ChatFormat::Kind::xtml, json, "short").value();
}

inline Result<std::string> render_text(const ChatFormat& format, std::string_view json) {
  K3_TRY_ASSIGN(const ChatRequest request, parse_chat_request(json));
  K3_TRY_ASSIGN(const Prompt prompt, format.render(request));
  return prompt.text();
}

// The marks of a format made short: {t a="b"} opens, {/t} closes, {.} ends a message.
inline std::string shorten(std::string text) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (size_t pos = text.find(from); pos != std::string::npos; pos = text.find(from, pos + to.size())) {
      text.replace(pos, from.size(), to);
    }
  };
  replace("<|open|>", "{");
  replace("<|close|>", "{/");
  replace("<|sep|>", "}");
  replace("<|end_of_msg|>", "{.}");
  return text;
}

}  // namespace k3::test
