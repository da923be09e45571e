// Purpose:  a conversation with one model whose caches are kept between turns: a new turn feeds only what closes the
//           last answer and the new message; nothing already read is read again.
// Shapes:   none.
// Units:    tokens.
// Memory:   keeps references to runner, format and tokenizer, which must outlive it.
// Threads:  one thread; GenerateOptions::stop may be set from elsewhere.
// Errors:   set_messages: those of rendering; send: exhausted when the turn does not fit the context (the conversation stays as it was);
//           those of rendering and generation.
// Source:   model.md 5.3; api.md 6.3, 6.4.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "k3/base/json_writer.h"
#include "k3/engine/generate.h"
#include "k3/format/chat/chat.h"
#include "k3/format/chat/output/output_parser.h"

namespace k3 {

struct ChatTurn {
  AssistantMessage message;
  GenerateResult generated;
  bool ended = false;         // the model closed its message
  bool stop_string = false;   // cut at a stop string
  int64_t prompt_tokens = 0;  // fed for this turn
  int64_t reasoning_tokens = 0;
};

class ChatSession {
 public:
  ChatSession(Runner& runner, const ChatFormat& format, const Tokenizer& tokenizer, int32_t sequence = 0);

  const std::vector<ChatMessage>& messages() const { return request_.messages; }
  // Each of these makes the next turn read the whole conversation again.
  Status set_messages(std::vector<ChatMessage> messages);  // refuses what cannot be rendered, and keeps what it had
  void set_system(const std::string& text);  // empty: none
  void set_thinking(const ThinkingRequest& thinking);
  void reset();  // forgets the conversation, keeps the system message

  Thinking thinking() const { return format_.thinking_of(request_); }
  int64_t context_used() const { return runner_.length(sequence_) + static_cast<int64_t>(queue_.size()); }

  // The conversation with its caches, exact to the bit: what follows after load is what would have followed here. `note` is
  // the caller's and comes back. identity: model and settings; a file of another one is refused. load: see slot_file.h; the
  // session is forgotten when it fails half-way.
  Status save(const std::string& path, const std::string& identity, const std::string& note) const;
  Result<std::string> load(const std::string& path, const std::string& identity);

  // "messages" and "thinking" of a chat request, into an open object; parse_chat_request reads them back.
  void write_conversation(JsonWriter& writer) const;

  using EventSink = std::function<void(const ChatEvent&)>;
  Result<ChatTurn> send(const std::string& text, const GenerateOptions& options, const std::vector<std::string>& stops,
                        const EventSink& sink);

 private:
  void forget_state();
  void finish_turn(const GenerateResult& generated, const std::vector<int32_t>& fed_queue, std::vector<int32_t> closing);

  Runner& runner_;
  const ChatFormat& format_;
  const Tokenizer& tokenizer_;
  int32_t sequence_;
  ChatRequest request_;
  int64_t rendered_ = 0;        // messages that caches and queue hold
  std::vector<int32_t> queue_;  // ids that belong to the past but are not fed yet
  std::vector<int32_t> seen_;   // ids in the caches, for penalties
};

}  // namespace k3
