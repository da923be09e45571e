// Saving and loading a conversation with its caches (slot_file.h). The header's salt holds the conversation as JSON.
#include "k3/base/json_writer.h"
#include "k3/engine/chat_session.h"
#include "k3/engine/slot_file.h"
#include "k3/format/json/json_tree.h"

namespace k3 {
namespace {

// The digits of a JSON number; 0 for anything else, which the checks of the caller refuse.
int64_t number_of(const JsonNode* node) {
  return node != nullptr && node->is_number() ? std::strtoll(std::string(node->raw).c_str(), nullptr, 10) : 0;
}

}  // namespace

void ChatSession::write_conversation(JsonWriter& w) const {
  w.key("messages").begin_array();
  for (const ChatMessage& message : request_.messages) {
    w.begin_object().field("role", role_name(message.role)).field("content", content_text(message));
    if (!message.reasoning.empty()) w.field("reasoning_content", message.reasoning);
    w.end_object();
  }
  const Thinking thought = thinking();
  w.end_array().key("thinking").begin_object().field("type", thought.enabled ? "enabled" : "disabled");
  if (thought.enabled) w.field("effort", effort_name(thought.effort));
  w.end_object();
}

Status ChatSession::save(const std::string& path, const std::string& identity, const std::string& note) const {
  if (request_.messages.empty()) return fail(Code::invalid_argument, "there is no conversation to save yet");
  JsonWriter w;
  w.begin_object();
  write_conversation(w);
  w.key("queue").begin_array();
  for (const int32_t id : queue_) w.value(id);
  w.end_array().field("rendered", rendered_).field("note", note);
  w.end_object();
  SlotHeader header;
  header.identity = identity;
  header.salt = w.text();
  header.tokens = seen_;
  if (runner_.length(sequence_) != static_cast<int64_t>(seen_.size())) {
    return fail(Code::unavailable, "the model has not read the conversation as it stands; send a message first");
  }
  K3_TRY(write_slot_file(path, header, [&](const ByteSink& sink) { return runner_.save(sequence_, sink); }));
  return {};
}

Result<std::string> ChatSession::load(const std::string& path, const std::string& identity) {
  K3_TRY_ASSIGN(SlotFileReader file, SlotFileReader::open(path, identity));
  K3_TRY_ASSIGN(const JsonNode root, parse_json(file.header().salt).with_context(path));
  K3_TRY_ASSIGN(ChatRequest request, parse_chat_request(root).with_context(path));
  std::vector<int32_t> queue;
  if (const JsonNode* list = root.find("queue")) {
    for (const JsonNode& id : list->items) queue.push_back(static_cast<int32_t>(number_of(&id)));
  }
  const int64_t rendered = number_of(root.find("rendered"));
  K3_TRY(runner_.model().check_ids(queue));
  K3_TRY(runner_.model().check_ids(file.header().tokens));
  if (rendered < 0 || rendered > static_cast<int64_t>(request.messages.size())) {
    return fail(Code::corrupt, "{}: {} of {} messages are read", path, rendered, request.messages.size());
  }
  forget_state();
  K3_TRY(runner_.restore(sequence_, static_cast<int64_t>(file.header().tokens.size()),
                         [&](std::span<std::byte> bytes) { return file.read(bytes); }));
  if (Status whole = file.finish(); !whole.ok()) {
    runner_.reset(sequence_);
    return std::move(whole).take_error();
  }
  request_.messages = std::move(request.messages);
  request_.thinking = request.thinking;
  rendered_ = rendered;
  queue_ = std::move(queue);
  seen_ = file.header().tokens;
  const JsonNode* note = root.find("note");
  return note != nullptr ? note->text : std::string();
}

}  // namespace k3
