#include "k3/server/loadgen/openai_stream.h"

#include <charconv>

#include "k3/base/utf8.h"
#include "k3/format/json/json_tree.h"

namespace k3::server {
namespace {

int64_t integer_of(const JsonNode* object, std::string_view name) {
  const JsonNode* node = object != nullptr && object->is_object() ? object->find(name) : nullptr;
  if (node == nullptr || !node->is_number()) return -1;
  int64_t value = -1;
  const auto [end, error] = std::from_chars(node->raw.data(), node->raw.data() + node->raw.size(), value);
  return error == std::errc() && end == node->raw.data() + node->raw.size() && value >= 0 ? value : -1;
}

const JsonNode* object_in(const JsonNode& node, std::string_view name) {
  const JsonNode* found = node.is_object() ? node.find(name) : nullptr;
  return found != nullptr && found->is_object() ? found : nullptr;
}

void read_usage(const JsonNode* usage, AnswerPart& part) {
  if (usage == nullptr) return;
  part.prompt_tokens = integer_of(usage, "prompt_tokens");
  part.completion_tokens = integer_of(usage, "completion_tokens");
  part.cached_tokens = integer_of(object_in(*usage, "prompt_tokens_details"), "cached_tokens");
}

bool has_text(const JsonNode& message) {
  for (const std::string_view field : {"content", "reasoning_content", "reasoning"}) {
    const JsonNode* text = message.find(field);
    if (text != nullptr && text->is_string() && !text->text.empty()) return true;
  }
  const JsonNode* calls = message.find("tool_calls");
  return calls != nullptr && calls->is_array() && !calls->items.empty();
}

void read_choice(const JsonNode& choice, AnswerPart& part) {
  const JsonNode* reason = choice.find("finish_reason");
  if (reason != nullptr && reason->is_string()) part.finish_reason = reason->text;
  const JsonNode* text = choice.find("text");
  if (text != nullptr && text->is_string()) {
    part.text = part.text || !text->text.empty();
    part.progress = part.finish_reason.empty();
  }
  for (const std::string_view name : {"delta", "message"}) {
    const JsonNode* message = object_in(choice, name);
    if (message != nullptr) part.text = part.text || has_text(*message);
  }
  read_usage(object_in(choice, "usage"), part);
}

}  // namespace

Result<AnswerPart> parse_answer_part(std::string_view json) {
  AnswerPart part;
  if (json == "[DONE]") {
    part.done = true;
    return part;
  }
  K3_TRY_ASSIGN(const JsonNode root, parse_json(json, DuplicateKeys::keep));
  if (!root.is_object()) return fail(Code::invalid_argument, "{} where an object belongs", json_kind_name(root.kind));
  if (root.find_set("error") != nullptr) part.error = error_message(json);
  const JsonNode* choices = root.find("choices");
  if (choices != nullptr && choices->is_array()) {
    for (const JsonNode& choice : choices->items) {
      if (choice.is_object()) read_choice(choice, part);
    }
  }
  read_usage(object_in(root, "usage"), part);
  return part;
}

std::string error_message(std::string_view body) {
  const auto root = parse_json(body, DuplicateKeys::keep);
  if (root.ok()) {
    const JsonNode* error = root->is_object() ? root->find_set("error") : nullptr;
    const JsonNode& holder = error != nullptr ? *error : *root;
    if (holder.is_string()) return holder.text;
    for (const std::string_view name : {"message", "detail"}) {
      const JsonNode* message = holder.is_object() ? holder.find(name) : nullptr;
      if (message != nullptr && message->is_string() && !message->text.empty()) return message->text;
    }
  }
  std::string text = utf8_repair(body.substr(0, 200));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.empty() ? "an empty answer" : text;
}

}  // namespace k3::server
