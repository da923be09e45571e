#include "k3/format/chat/output/output_parser.h"

#include <variant>

#include "k3/format/chat/output/k2_parser.h"
#include "k3/format/chat/output/xtml_parser.h"

namespace k3 {

struct OutputParser::Impl {
  std::variant<XtmlParser, K2Parser> parser;
};

ParserOptions parser_options(const ChatRequest& request, const Prompt& prompt) {
  ParserOptions options;
  options.start = prompt.open;
  options.thinking = prompt.thinking;
  options.first_call_index = request.call_count();
  const auto add = [&](const ToolSet& set) {
    for (const ToolDeclaration& tool : set.items) options.tools.push_back(tool.name);
  };
  add(request.tools);
  for (const ChatMessage& message : request.messages) add(message.tools);
  return options;
}

OutputParser::OutputParser(const ChatFormat& format, const Tokenizer& tokenizer, ParserOptions options) {
  if (format.kind() == ChatFormat::Kind::k2) {
    impl_ = std::make_unique<Impl>(Impl{K2Parser(tokenizer, std::move(options))});
  } else {
    impl_ = std::make_unique<Impl>(Impl{XtmlParser(tokenizer, std::move(options))});
  }
}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

void OutputParser::push(int32_t id, std::vector<ChatEvent>& events) {
  std::visit([&](auto& parser) { parser.push(id, events); }, impl_->parser);
}
void OutputParser::finish(StopCause cause, std::vector<ChatEvent>& events) {
  std::visit([&](auto& parser) { parser.finish(cause, events); }, impl_->parser);
}
bool OutputParser::ended() const {
  return std::visit([](const auto& parser) { return parser.ended(); }, impl_->parser);
}
bool OutputParser::in_reasoning() const {
  return std::visit([](const auto& parser) { return parser.in_reasoning(); }, impl_->parser);
}
bool OutputParser::in_content() const {
  return std::visit([](const auto& parser) { return parser.in_content(); }, impl_->parser);
}
int64_t OutputParser::reasoning_tokens() const {
  return std::visit([](const auto& parser) { return parser.reasoning_tokens(); }, impl_->parser);
}
int64_t OutputParser::warnings() const {
  return std::visit([](const auto& parser) { return parser.warnings(); }, impl_->parser);
}

Prompt OutputParser::closing() const {
  Prompt prompt;
  prompt.segments = std::visit([](const auto& parser) { return parser.closing(); }, impl_->parser);
  return prompt;
}

}  // namespace k3
