#include <fmt/format.h>

#include "k3/format/chat/chat.h"
#include "k3/format/chat/render.h"

namespace k3 {
namespace {

bool has_specials(const Tokenizer& tokenizer, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (!tokenizer.special(name)) return false;
  }
  return true;
}

std::string_view format_name(ChatFormat::Kind kind) { return kind == ChatFormat::Kind::xtml ? "xtml" : "k2"; }

}  // namespace

std::string Prompt::text() const {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

Result<std::vector<int32_t>> Prompt::encode(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  for (const Segment& segment : segments) {
    switch (segment.kind) {
      case Segment::Kind::text: K3_TRY(tokenizer.encode(segment.text, ids).with_context("encode the prompt")); break;
      case Segment::Kind::media:
        K3_TRY(tokenizer.encode_with_specials(segment.text, ids).with_context("encode the prompt"));
        break;
      case Segment::Kind::special: {
        const auto id = tokenizer.special(segment.text);
        if (!id) return fail(Code::not_found, "encode the prompt: the tokenizer has no special token {}", segment.text);
        ids.push_back(*id);
      }
    }
  }
  return ids;
}

struct ChatFormat::Impl {
  Kind kind = Kind::xtml;
  ChatConstants constants;
};

ChatFormat::ChatFormat(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatFormat::ChatFormat(ChatFormat&&) noexcept = default;
ChatFormat& ChatFormat::operator=(ChatFormat&&) noexcept = default;
ChatFormat::~ChatFormat() = default;

Result<ChatFormat> ChatFormat::load(const std::string& model_folder, const Tokenizer& tokenizer) {
  auto impl = std::make_unique<Impl>();
  if (has_specials(tokenizer, {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"})) {
    impl->kind = Kind::xtml;
  } else if (has_specials(tokenizer, {"<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"})) {
    impl->kind = Kind::k2;
  } else {
    return fail(Code::unsupported,
                "{}: this checkpoint has no chat format (its tokenizer has neither <|open|> nor <|im_user|>); use a raw "
                "prompt (--raw)",
                model_folder);
  }
  K3_TRY_ASSIGN(impl->constants, load_chat_constants(model_folder, format_name(impl->kind)));
  return ChatFormat(std::move(impl));
}

Result<ChatFormat> ChatFormat::from_json(Kind kind, std::string_view chat_format_json, std::string_view source) {
  auto impl = std::make_unique<Impl>();
  impl->kind = kind;
  K3_TRY_ASSIGN(impl->constants, constants_from_json(chat_format_json, format_name(kind), source));
  return ChatFormat(std::move(impl));
}

ChatFormat::Kind ChatFormat::kind() const { return impl_->kind; }

std::string_view ChatFormat::end_token() const { return impl_->kind == Kind::xtml ? "<|end_of_msg|>" : "<|im_end|>"; }

Thinking ChatFormat::thinking_of(const ChatRequest& request) const {
  Thinking thinking;
  if (impl_->kind == Kind::k2) return {.enabled = false, .effort = Effort::max};
  thinking.enabled = request.thinking.enabled.value_or(impl_->constants.thinking_default.value_or(true));
  thinking.effort = request.thinking.effort.value_or(impl_->constants.effort_default.value_or(Effort::max));
  return thinking;
}

Result<Prompt> ChatFormat::render(const ChatRequest& request, int64_t first_message) const {
  if (first_message < 0 || first_message > static_cast<int64_t>(request.messages.size())) {
    return fail(Code::invalid_argument, "first message {} of {}", first_message, request.messages.size());
  }
  const auto first = static_cast<size_t>(first_message);
  if (impl_->kind == Kind::k2) return render_k2(request, first);
  return render_xtml(impl_->constants, request, thinking_of(request), first);
}

}  // namespace k3
