// Purpose:  model output written readably for the parser tests, and a driver. Test code only.
// Shapes:   none.
// Units:    none.
// Memory:   by value.
// Threads:  single-threaded.
// Errors:   a failed encode is a test failure.
// Source:   api.md 7.4.
#pragma once

#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/format/chat/chat_test_util.h"

namespace k3::test {

// "«think»" opens, "«/think»" closes, "«.»" ends the message, "«|NAME|»" is the special <|NAME|>; all else is ordinary
// text, also when it spells a marker.
inline std::vector<int32_t> output_ids(const Tokenizer& tokenizer, std::string_view text) {
  constexpr std::string_view kLeft = "«", kRight = "»";
  std::vector<int32_t> ids;
  const auto special = [&](std::string_view name) { ids.push_back(tokenizer.special(name).value()); };
  while (!text.empty()) {
    const size_t left = std::min(text.find(kLeft), text.size());
    tokenizer.encode(text.substr(0, left), ids).value();
    if (left == text.size()) break;
    text.remove_prefix(left + kLeft.size());
    const size_t right = text.find(kRight);
    std::string_view mark = text.substr(0, right);
    text.remove_prefix(right + kRight.size());
    if (mark == ".") {
      special("<|end_of_msg|>");
    } else if (mark.starts_with("|")) {
      special("<" + std::string(mark) + ">");
    } else {
      special(mark.starts_with("/") ? "<|close|>" : "<|open|>");
      if (mark.starts_with("/")) mark.remove_prefix(1);
      tokenizer.encode(mark, ids).value();
      special("<|sep|>");
    }
  }
  return ids;
}

// Draws in order from a fixed seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t n) { return engine_() % n; }

 private:
  std::mt19937_64 engine_;
};

struct Outcome {
  std::vector<ChatEvent> events;
  AssistantMessage message;
  int64_t warnings = 0;
};

inline Outcome run_output(OutputParser parser, std::span<const int32_t> ids, StopCause cause) {
  Outcome run;
  for (const int32_t id : ids) parser.push(id, run.events);
  parser.finish(cause, run.events);
  MessageAssembler assembler;
  assembler.add(run.events);
  run.message = assembler.message();
  run.warnings = parser.warnings();
  return run;
}

// "r=... c=... name#id(args) -> reason"
inline std::string summary(const AssistantMessage& message) {
  std::string out = "r=" + message.reasoning + " c=" + message.content.value_or("null");
  for (const OutputCall& call : message.calls) out += " " + call.name + "#" + call.id + "(" + call.arguments + ")";
  return out + " -> " + std::string(finish_reason_name(message.finish_reason));
}

}  // namespace k3::test
