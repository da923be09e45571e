// Purpose:  the events that an output parser makes of generated tokens, and their assembly to one message.
// Shapes:   none.
// Units:    call indices count from 0 within the message.
// Memory:   by value.
// Threads:  one stream belongs to one thread at a time.
// Errors:   none; malformed output is repaired as the table in api.md 7.4 says and counted.
// Source:   api.md 4, 5, 6.3, 7.3, 7.4.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

// Why generation ended, as the caller sees it.
enum class StopCause { stop, length, cancelled };
enum class FinishReason { stop, length, tool_calls, cancelled };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "tool_calls", "server_interrupted"

struct ChatEvent {
  enum class Kind { reasoning, content, call_start, call_arguments, call_end, finished };
  Kind kind = Kind::content;
  std::string text;                          // reasoning, content, call_arguments: whole code points
  int call_index = 0;                        // call_*
  std::string call_id, call_name;            // call_start
  FinishReason reason = FinishReason::stop;  // finished
  bool cut_in_reasoning = false;             // finished: ended inside think before any content
};

struct OutputCall {
  std::string id, name, arguments;
};

struct AssistantMessage {
  std::string reasoning;
  std::optional<std::string> content;  // null: calls and an empty or blank response, or cut inside think
  std::vector<OutputCall> calls;
  FinishReason finish_reason = FinishReason::stop;
};

// The non-streaming answer is the sum of the events of the streaming one.
class MessageAssembler {
 public:
  void add(const ChatEvent& event);
  void add(const std::vector<ChatEvent>& events) {
    for (const ChatEvent& event : events) add(event);
  }
  AssistantMessage message() const;

 private:
  AssistantMessage message_;
  std::string content_;
  bool cut_in_reasoning_ = false;
};

}  // namespace k3
