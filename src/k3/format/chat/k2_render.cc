// The K2-style prompt of Kimi-Linear: <|im_system|>NAME<|im_middle|>TEXT<|im_end|> and so on. Unverified: written from a
// description of the family's template, never compared with the checkpoint's own.
#include "k3/format/chat/render.h"

namespace k3 {
namespace {

std::string_view k2_role_token(Role role) {
  switch (role) {
    case Role::user: return "<|im_user|>";
    case Role::assistant: return "<|im_assistant|>";
    case Role::system:
    case Role::tool: break;
  }
  return "<|im_system|>";
}

void k2_calls(SegmentWriter& out, const std::vector<ToolCall>& calls, int64_t first_index) {
  out.special("<|tool_calls_section_begin|>");
  for (size_t i = 0; i < calls.size(); ++i) {
    const ToolCall& call = calls[i];
    const std::string id =
        call.id.empty() ? fmt::format("functions.{}:{}", call.name, first_index + static_cast<int64_t>(i)) : call.id;
    out.special("<|tool_call_begin|>").text(id).special("<|tool_call_argument_begin|>").text(call.json);
    out.special("<|tool_call_end|>");
  }
  out.special("<|tool_calls_section_end|>");
}

}  // namespace

Result<Prompt> render_k2(const ChatRequest& request, size_t first_message) {
  const bool options =
      request.response_format.kind != ResponseFormat::Kind::text || request.tool_choice == ToolChoice::required;
  if (options) {
    return fail(Code::unsupported,
                "the K2-style chat format has no prompt form for response_format or tool_choice 'required'");
  }
  SegmentWriter out;
  OpenChannel open = OpenChannel::none;
  int64_t calls = 0;
  if (first_message == 0 && !request.tools.empty()) {
    out.special("<|im_system|>")
        .text("tool_declare")
        .special("<|im_middle|>")
        .text(request.tools.json)
        .special("<|im_end|>");
  }
  for (size_t i = 0; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    const int64_t first_call = calls;
    calls += static_cast<int64_t>(message.tool_calls.size());
    if (i < first_message) continue;
    const bool dynamic = !message.tools.empty();
    const std::string_view name = dynamic ? std::string_view("tool_declare") : role_name(message.role);
    out.special(k2_role_token(message.role)).text(message.name.empty() ? name : message.name).special("<|im_middle|>");
    if (dynamic) out.text(message.tools.json);
    out.parts(message.content);
    if (!message.tool_calls.empty()) k2_calls(out, message.tool_calls, first_call);
    if (request.continue_final_message && i + 1 == request.messages.size()) {
      open = OpenChannel::response;
    } else {
      out.special("<|im_end|>");
    }
  }
  if (request.add_generation_prompt && !request.continue_final_message) {
    out.special("<|im_assistant|>").text("assistant").special("<|im_middle|>");
    open = OpenChannel::response;
  }
  Prompt prompt;
  prompt.segments = out.take();
  prompt.open = open;
  return prompt;
}

}  // namespace k3
