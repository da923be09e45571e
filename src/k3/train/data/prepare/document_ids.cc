#include "k3/train/data/prepare/document_ids.h"

#include <algorithm>

namespace k3::train {
namespace {

// Follows the segments of an XTML prompt and says which of them the assistant has to produce. Special tokens are segments of
// their own and never come from message text, so what stands between <|open|> and <|sep|> is ours.
class AssistantMask {
 public:
  bool learned(const Segment& segment) {
    const bool now = learning_;
    if (segment.kind == Segment::Kind::special) on_special(segment.text);
    else if (in_tag_) tag_.push_back(segment.text);
    return now;
  }

 private:
  void on_special(const std::string& name) {
    if (name == "<|open|>") {
      in_tag_ = true;
      tag_.clear();
    } else if (name == "<|sep|>") {
      if (in_tag_ && !tag_.empty()) on_open();
      in_tag_ = false;
    } else if (name == "<|end_of_msg|>") {
      assistant_ = learning_ = false;
    }
  }

  // The first element inside an assistant message is the channel that generation is begun in.
  void on_open() {
    if (tag_[0] == "message") {
      const auto role = std::find(tag_.begin(), tag_.end(), " role");
      assistant_ = tag_.end() - role > 2 && role[2] == "assistant";
    } else if (assistant_) {
      learning_ = true;
    }
  }

  bool in_tag_ = false, assistant_ = false, learning_ = false;
  std::vector<std::string> tag_;
};

Status append_segment(const Tokenizer& tokenizer, const Segment& segment, std::vector<int32_t>& ids) {
  if (segment.kind == Segment::Kind::text) return tokenizer.encode(segment.text, ids);
  if (segment.kind == Segment::Kind::media) return tokenizer.encode_with_specials(segment.text, ids);
  const auto id = tokenizer.special(segment.text);
  if (!id) return fail(Code::not_found, "the tokenizer has no special token {}", segment.text);
  ids.push_back(*id);
  return {};
}

}  // namespace

Result<DocumentIds> text_ids(const Tokenizer& tokenizer, std::string_view text, int32_t bos, int32_t eos) {
  DocumentIds out;
  out.ids.push_back(bos);
  K3_TRY(tokenizer.encode(text, out.ids));
  out.ids.push_back(eos);
  out.text_bytes = static_cast<int64_t>(text.size());
  return out;
}

Result<ChatRequest> parse_conversation(std::string_view line) {
  K3_TRY_ASSIGN(ChatRequest conversation, parse_chat_request(line));
  conversation.add_generation_prompt = false;
  if (conversation.continue_final_message) {
    return fail(Code::invalid_argument, "the last message is left open (partial); a conversation to learn from is whole");
  }
  if (conversation.has_images()) return fail(Code::unsupported, "messages with images; text alone can be learned from");
  const auto says = [](const ChatMessage& message) { return message.role == Role::assistant; };
  if (std::none_of(conversation.messages.begin(), conversation.messages.end(), says)) {
    return fail(Code::corrupt, "no message of the assistant: there is nothing to learn");
  }
  return conversation;
}

Result<DocumentIds> chat_ids(const Tokenizer& tokenizer, const ChatFormat& format, const ChatRequest& conversation) {
  if (format.kind() != ChatFormat::Kind::xtml) {
    return fail(Code::unsupported, "conversations are prepared in the XTML format (K3) only; this tokenizer has another one");
  }
  K3_TRY_ASSIGN(const Prompt prompt, format.render(conversation));
  DocumentIds out;
  AssistantMask mask;
  for (const Segment& segment : prompt.segments) {
    K3_TRY(append_segment(tokenizer, segment, out.ids));
    out.learned.resize(out.ids.size(), mask.learned(segment) ? 1 : 0);
  }
  for (const ChatMessage& message : conversation.messages) {
    if (message.role == Role::assistant) out.text_bytes += static_cast<int64_t>(content_text(message).size());
  }
  return out;
}

}  // namespace k3::train
