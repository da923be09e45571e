#include "k3/engine/chat_session.h"

namespace k3 {
namespace {

ChatMessage to_message(const AssistantMessage& answer) {
  ChatMessage message = text_message(Role::assistant, answer.content.value_or(""));
  message.reasoning = answer.reasoning;
  return message;
}

StopCause cause_of(StopReason reason) {
  if (reason == StopReason::cancelled) return StopCause::cancelled;
  return reason == StopReason::length || reason == StopReason::context ? StopCause::length : StopCause::stop;
}

// Events on their way to the sink: stop strings act on content alone.
class ContentFilter {
 public:
  ContentFilter(const std::vector<std::string>& stops, const ChatSession::EventSink& sink, MessageAssembler& message)
      : matcher_(stops), sink_(sink), message_(message) {}

  void pass(const std::vector<ChatEvent>& events) {
    for (const ChatEvent& event : events) {
      if (event.kind == ChatEvent::Kind::content) {
        emit_content(matcher_.push(event.text));
      } else {
        if (event.kind == ChatEvent::Kind::finished) emit_content(matcher_.finish());
        emit(event);
      }
    }
  }
  bool matched() const { return matcher_.matched(); }

 private:
  void emit_content(std::string text) {
    if (text.empty()) return;
    ChatEvent event;
    event.text = std::move(text);
    emit(event);
  }
  void emit(const ChatEvent& event) {
    message_.add(event);
    sink_(event);
  }

  StopMatcher matcher_;
  const ChatSession::EventSink& sink_;
  MessageAssembler& message_;
};

}  // namespace

ChatSession::ChatSession(Runner& runner, const ChatFormat& format, const Tokenizer& tokenizer, int32_t sequence)
    : runner_(runner), format_(format), tokenizer_(tokenizer), sequence_(sequence) {}

void ChatSession::forget_state() {
  runner_.reset(sequence_);
  rendered_ = 0;
  queue_.clear();
  seen_.clear();
}

Status ChatSession::set_messages(std::vector<ChatMessage> messages) {
  ChatRequest request = request_;
  request.messages = std::move(messages);
  K3_TRY_ASSIGN(const Prompt prompt, format_.render(request));
  if (auto ids = prompt.encode(tokenizer_); !ids.ok()) return std::move(ids).take_error();
  request_ = std::move(request);
  forget_state();
  return {};
}

void ChatSession::set_system(const std::string& text) {
  std::vector<ChatMessage>& messages = request_.messages;
  if (!messages.empty() && messages.front().role == Role::system) messages.erase(messages.begin());
  if (!text.empty()) messages.insert(messages.begin(), text_message(Role::system, text));
  forget_state();
}

void ChatSession::set_thinking(const ThinkingRequest& thinking) {
  request_.thinking = thinking;
  forget_state();
}

void ChatSession::reset() {
  std::vector<ChatMessage>& messages = request_.messages;
  const bool keep_first = !messages.empty() && messages.front().role == Role::system;
  messages.resize(keep_first ? 1 : 0);
  forget_state();
}

Result<ChatTurn> ChatSession::send(const std::string& text, const GenerateOptions& options,
                                   const std::vector<std::string>& stops, const EventSink& sink) {
  request_.messages.push_back(text_message(Role::user, text));
  const auto undo = [&](Error error) {
    request_.messages.pop_back();
    return error;
  };
  auto prompt = format_.render(request_, rendered_);
  if (!prompt.ok()) return undo(std::move(prompt).take_error());
  auto ids = prompt->encode(tokenizer_);
  if (!ids.ok()) return undo(std::move(ids).take_error());
  std::vector<int32_t> fed = queue_;
  fed.insert(fed.end(), ids->begin(), ids->end());
  const int64_t room = runner_.room(sequence_);
  if (static_cast<int64_t>(fed.size()) >= room) {
    return undo(fail(Code::exhausted,
                     "the message needs {} tokens and the context has room for {} more; start anew or raise --ctx",
                     fed.size(), room));
  }

  OutputParser parser(format_, tokenizer_, parser_options(request_, *prompt));
  MessageAssembler assembler;
  ContentFilter filter(stops, sink, assembler);
  std::vector<ChatEvent> events;
  auto generated = generate(runner_, sequence_, seen_, fed, options, [&](int32_t id) {
    events.clear();
    parser.push(id, events);
    filter.pass(events);
    return !parser.ended() && !filter.matched();
  });
  if (!generated.ok()) {
    // The caches may have moved on: the next turn reads everything again.
    forget_state();
    return undo(std::move(generated).take_error());
  }
  ChatTurn turn;
  turn.ended = parser.ended() || generated->reason == StopReason::stop_token;
  turn.stop_string = filter.matched();
  events.clear();
  parser.finish(cause_of(generated->reason), events);
  filter.pass(events);
  turn.message = assembler.message();
  turn.prompt_tokens = generated->prompt_tokens_fed;
  turn.reasoning_tokens = parser.reasoning_tokens();
  K3_TRY_ASSIGN(std::vector<int32_t> closing, parser.closing().encode(tokenizer_));
  finish_turn(*generated, fed, std::move(closing));
  request_.messages.push_back(to_message(turn.message));
  rendered_ = static_cast<int64_t>(request_.messages.size());
  // The caches hold what the stop string cut off; the conversation does not. The next turn reads it as it stands.
  if (turn.stop_string) forget_state();
  turn.generated = *std::move(generated);
  return turn;
}

void ChatSession::finish_turn(const GenerateResult& generated, const std::vector<int32_t>& fed_queue,
                              std::vector<int32_t> closing) {
  const auto fed = fed_queue.begin() + generated.prompt_tokens_fed;
  seen_.insert(seen_.end(), fed_queue.begin(), fed);
  queue_.assign(fed, fed_queue.end());
  const auto unfed = generated.ids.end() - (generated.last_id_unfed ? 1 : 0);
  seen_.insert(seen_.end(), generated.ids.begin(), unfed);
  queue_.insert(queue_.end(), unfed, generated.ids.end());
  queue_.insert(queue_.end(), closing.begin(), closing.end());
}

}  // namespace k3
