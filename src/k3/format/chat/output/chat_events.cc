#include "k3/format/chat/output/chat_events.h"

namespace k3 {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::tool_calls: return "tool_calls";
    case FinishReason::cancelled: return "server_interrupted";
  }
  return "unknown";
}

void MessageAssembler::add(const ChatEvent& event) {
  switch (event.kind) {
    case ChatEvent::Kind::reasoning: message_.reasoning += event.text; break;
    case ChatEvent::Kind::content: content_ += event.text; break;
    case ChatEvent::Kind::call_start: message_.calls.push_back({event.call_id, event.call_name, {}}); break;
    case ChatEvent::Kind::call_arguments:
      if (!message_.calls.empty()) message_.calls.back().arguments += event.text;
      break;
    case ChatEvent::Kind::call_end: break;
    case ChatEvent::Kind::finished:
      message_.finish_reason = event.reason;
      cut_in_reasoning_ = event.cut_in_reasoning;
      break;
  }
}

AssistantMessage MessageAssembler::message() const {
  AssistantMessage out = message_;
  const bool blank = content_.find_first_not_of(" \t\r\n\f\v") == std::string::npos;
  if (!(blank && !out.calls.empty()) && !cut_in_reasoning_) out.content = content_;
  return out;
}

}  // namespace k3
