// The XTML prompt, in the order of api.md 7.2.
#include <algorithm>
#include <optional>
#include <unordered_map>

#include "k3/format/chat/render.h"

namespace k3 {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

class XtmlRenderer {
 public:
  XtmlRenderer(const ChatConstants& constants, const ChatRequest& request, Thinking thinking)
      : constants_(constants), request_(request), thinking_(thinking) {}

  Result<Prompt> render(size_t first) {
    if (first == 0) K3_TRY(preamble());
    for (size_t i = 0; i < request_.messages.size(); ++i) {
      const ChatMessage& message = request_.messages[i];
      if (message.role == Role::tool) {
        const size_t end = run_end(i);
        K3_TRY(tool_run(i, end, first));
        i = end - 1;
        continue;
      }
      if (message.role == Role::assistant) {
        begin_calls(message.tool_calls);
      }
      if (i >= first) K3_TRY(one(message, i + 1 == request_.messages.size()));
    }
    K3_TRY(options());
    if (request_.add_generation_prompt && !request_.continue_final_message) {
      out_.begin("message").attribute("role", "assistant").end();
      open_ = thinking_.enabled ? OpenChannel::think : OpenChannel::response;
      out_.open(thinking_.enabled ? "think" : "response");
    }
    Prompt prompt;
    prompt.segments = out_.take();
    prompt.open = open_;
    prompt.thinking = thinking_.enabled;
    prompt.pending_tokens = open_ == OpenChannel::none ? 0 : 3;
    return prompt;
  }

 private:
  // `before` + body + `after` is one segment.
  Status system_message(std::string_view type, Sentence before, std::string_view body = {},
                        std::optional<Sentence> after = {}) {
    K3_TRY_ASSIGN(const std::string_view head, constants_.get(before));
    std::string text(head);
    text += body;
    if (after) {
      K3_TRY_ASSIGN(const std::string_view tail, constants_.get(*after));
      text += tail;
    }
    out_.begin("message").attribute("role", "system").attribute("type", type).end().text(text);
    close_message();
    return {};
  }

  void close_message() { out_.close("message").special("<|end_of_msg|>"); }

  Status preamble() {
    if (!request_.tools.empty()) {
      K3_TRY(
          system_message("tool-declare", Sentence::tool_declare_before, request_.tools.json, Sentence::tool_declare_after));
    }
    if (!thinking_.enabled) return {};
    return system_message("thinking-effort", Sentence::effort_before, effort_name(thinking_.effort), Sentence::effort_after);
  }

  Status options() {
    if (request_.tool_choice == ToolChoice::required) K3_TRY(system_message("tool-choice", Sentence::choice_required));
    if (request_.tool_choice == ToolChoice::none) K3_TRY(system_message("tool-choice", Sentence::choice_none));
    const ResponseFormat& format = request_.response_format;
    if (format.kind == ResponseFormat::Kind::json_object) {
      K3_TRY(system_message("response-format", Sentence::response_json_object));
    }
    if (format.kind == ResponseFormat::Kind::json_schema) {
      K3_TRY(system_message("response-format", Sentence::response_json_schema_before, format.schema_json,
                            Sentence::response_json_schema_after));
    }
    return {};
  }

  void begin_message(const ChatMessage& message) {
    out_.begin("message").attribute("role", role_name(message.role));
    if (!message.name.empty()) out_.attribute("name", message.name);
    out_.end();
  }

  Status one(const ChatMessage& message, bool last) {
    if (message.role == Role::system && !message.tools.empty()) {
      return system_message("tool-declare", Sentence::tool_declare_dynamic_before, message.tools.json,
                            Sentence::tool_declare_after);
    }
    begin_message(message);
    if (message.role == Role::assistant) {
      if (assistant(message, last && request_.continue_final_message)) return {};
    } else {
      out_.parts(message.content);
    }
    close_message();
    return {};
  }

  // True when the message stays open.
  bool assistant(const ChatMessage& message, bool leave_open) {
    if (thinking_.enabled) {
      out_.open("think");
      if (!is_blank(message.reasoning)) out_.text(message.reasoning);
      const auto filled = [](const ContentPart& part) {
        return part.kind == ContentPart::Kind::image || !part.text.empty();
      };
      if (leave_open && std::none_of(message.content.begin(), message.content.end(), filled)) {
        open_ = OpenChannel::think;
        return true;
      }
      out_.close("think");
    }
    out_.open("response").parts(message.content);
    if (leave_open) {
      open_ = OpenChannel::response;
      return true;
    }
    out_.close("response");
    if (!message.tool_calls.empty()) tools(message.tool_calls);
    return false;
  }

  void tools(const std::vector<ToolCall>& calls) {
    out_.open("tools");
    for (size_t i = 0; i < calls.size(); ++i) {
      const ToolCall& call = calls[i];
      out_.begin("call").attribute("tool", call.name).attribute("index", std::to_string(i + 1)).end();
      if (call.unparsed) {
        out_.begin("json").attribute("type", "object").end().text(*call.unparsed).close("json");
      }
      for (const CallArgument& argument : call.arguments) {
        out_.begin("argument").attribute("key", argument.key).attribute("type", argument.type).end();
        out_.text(argument.text).close("argument");
      }
      out_.close("call");
    }
    out_.close("tools");
  }

  size_t run_end(size_t i) const {
    while (i < request_.messages.size() && request_.messages[i].role == Role::tool) ++i;
    return i;
  }

  void begin_calls(const std::vector<ToolCall>& calls) {
    calls_ = &calls;
    results_ = 0;
    positions_.clear();
    for (size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i].id.empty()) positions_.emplace(calls[i].id, i);  // of equal ids the first one counts
    }
  }

  // Position of the call with this id among the latest assistant message's calls.
  std::optional<size_t> call_position(std::string_view id) const {
    const auto found = positions_.find(id);
    if (found == positions_.end()) return std::nullopt;
    return found->second;
  }

  // Consecutive results are put into call order when every id is known; else they keep theirs.
  Status tool_run(size_t begin, size_t end, size_t first) {
    struct Item {
      size_t message;
      std::optional<size_t> call;
    };
    std::vector<Item> items;
    bool all_known = true;
    for (size_t i = begin; i < end; ++i) {
      items.push_back({i, call_position(request_.messages[i].tool_call_id)});
      all_known = all_known && items.back().call.has_value();
    }
    if (all_known) {
      std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return *a.call < *b.call; });
    }
    for (const Item& item : items) {
      const ChatMessage& message = request_.messages[item.message];
      const size_t position = results_++;
      std::string name = all_known ? (*calls_)[*item.call].name : message.name;
      if (name.empty() && calls_ != nullptr && position < calls_->size()) name = (*calls_)[position].name;
      if (name.empty()) {
        return fail(
            Code::invalid_argument,
            "messages[{}].tool_call_id: '{}' is no call of the assistant message before it, and the message has no name",
            item.message, message.tool_call_id);
      }
      if (item.message < first) continue;
      out_.begin("message").attribute("role", "tool").attribute("tool", name);
      out_.attribute("index", std::to_string(position + 1)).end().parts(message.content);
      close_message();
    }
    return {};
  }

  const ChatConstants& constants_;
  const ChatRequest& request_;
  const Thinking thinking_;
  SegmentWriter out_;
  OpenChannel open_ = OpenChannel::none;
  const std::vector<ToolCall>* calls_ = nullptr;
  std::unordered_map<std::string_view, size_t> positions_;
  size_t results_ = 0;  // tool results since the last assistant message
};

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

SegmentWriter& SegmentWriter::add(Segment::Kind kind, std::string_view body) {
  if (!body.empty()) segments_.push_back({kind, std::string(body)});
  return *this;
}

SegmentWriter& SegmentWriter::attribute(std::string_view key, std::string_view value) {
  return text(" " + std::string(key)).text("=\"").text(escaped(value)).text("\"");
}

SegmentWriter& SegmentWriter::image(const ImageHeader& image) {
  std::string body = fmt::format("<|media_begin|>image {}x{}<|media_content|>", image.width, image.height);
  for (int64_t i = image_tokens(image.width, image.height); i > 0; --i) body += "<|media_pad|>";
  return add(Segment::Kind::media, body += "<|media_end|>");
}

SegmentWriter& SegmentWriter::parts(const std::vector<ContentPart>& content) {
  for (const ContentPart& part : content) {
    if (part.kind == ContentPart::Kind::image) {
      image(part.image);
    } else {
      text(part.text);
    }
  }
  return *this;
}

Result<Prompt> render_xtml(const ChatConstants& constants, const ChatRequest& request, Thinking thinking,
                           size_t first_message) {
  return XtmlRenderer(constants, request, thinking).render(first_message);
}

}  // namespace k3
