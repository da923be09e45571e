// Purpose:  chat requests, their rendering to the exact prompt of the checkpoint's chat format, and the parts that
//           `render`, `run`, `chat` and the server share. Two formats: XTML (K3) and K2 style (Kimi-Linear, unverified).
// Shapes:   a Prompt is a list of segments; each segment is encoded on its own (no BPE merge across a border), and
//           ordinary text never yields special tokens.
// Units:    counts in tokens; image sizes in pixels.
// Memory:   everything is owned by value; a ChatFormat is immutable after load.
// Threads:  const members may be called concurrently.
// Errors:   requests: invalid_argument naming the JSON path ("messages[2].tool_calls[0].function.name: ...").
//           load: corrupt or not_found naming the file. A fixed sentence that a request needs and the checkpoint does
//           not hold: not_found naming it. No input reaches a CHECK.
// Source:   api.md 3.1, 3.2, 6, 7, 8, 13; model.md 4.4, 5.3, 5.5. Token ids are exact, there is no tolerance.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/image_header.h"
#include "k3/format/tokenizer.h"

namespace k3 {

enum class Role { system, user, assistant, tool };
std::string_view role_name(Role role);

struct ContentPart {
  enum class Kind { text, image };
  Kind kind = Kind::text;
  std::string text;         // text
  std::string image_bytes;  // image: the encoded file
  ImageHeader image;
};

// One top-level argument of a call in the history, ready to print.
struct CallArgument {
  std::string key;
  std::string type;  // string, number, boolean, null, object, array
  std::string text;  // string: raw text; others: JSON
};

struct ToolCall {
  std::string id;
  std::string name;
  std::vector<CallArgument> arguments;
  std::optional<std::string> unparsed;  // an arguments string that is not JSON, kept verbatim
  std::string json;                     // the arguments as JSON text, for formats that print it whole
};

struct ToolDeclaration {
  std::string name;
  std::optional<bool> strict;
  std::string parameters_json;    // compact, sorted; empty when absent
  std::string parameters_source;  // as it stands in the request: the order of properties counts for constrained calls
};

struct ToolSet {
  std::vector<ToolDeclaration> items;
  std::string json;  // the whole array: compact, keys sorted recursively, non-ASCII kept
  bool empty() const { return items.empty(); }
};

struct ChatMessage {
  Role role = Role::user;
  std::vector<ContentPart> content;
  std::string reasoning;
  std::string name;
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  ToolSet tools;                     // system: dynamic declaration
  bool partial = false;              // last assistant message: left open and continued
};

ChatMessage text_message(Role role, std::string text);
std::string content_text(const ChatMessage& message);  // its text parts joined

enum class Effort { low, high, max };
std::string_view effort_name(Effort effort);

// What the request says; what it leaves open is the checkpoint's default (ChatFormat::thinking_of).
struct ThinkingRequest {
  std::optional<bool> enabled;
  std::optional<Effort> effort;
};

struct Thinking {
  bool enabled = true;
  Effort effort = Effort::max;
};

enum class ToolChoice { automatic, none, required, named };

struct ResponseFormat {
  enum class Kind { text, json_object, json_schema };
  Kind kind = Kind::text;
  std::string name;
  bool strict = true;
  std::string schema_json;    // compact, sorted
  std::string schema_source;  // as it stands in the request: the order of properties is that of constrained output
};

inline constexpr int64_t kMaxRequestImageTokens = int64_t{1} << 20;  // the longest context of the family

struct ChatRequest {
  std::vector<ChatMessage> messages;
  ToolSet tools;
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string tool_choice_name;  // named
  bool parallel_tool_calls = true;
  ResponseFormat response_format;
  ThinkingRequest thinking;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // also set by partial: true on the last message

  // Calls in the history: the first global index of new calls (api.md 7.3).
  int64_t call_count() const;
  bool declares_tool(std::string_view name) const;  // global or dynamic
  bool has_images() const;
};

// A chat completion request body (OpenAI style). Strict JSON: duplicate keys, invalid UTF-8, trailing bytes and
// non-objects are refused. Fields that do not concern the prompt are ignored.
Result<ChatRequest> parse_chat_request(std::string_view json);
class JsonNode;
Result<ChatRequest> parse_chat_request(const JsonNode& root);  // for callers that read other fields too

struct Segment {
  enum class Kind {
    text,     // ordinary text, special-token matching off
    special,  // the name of one special token
    media,    // encoded with special-token matching on (made by us, holds no user text)
  };
  Kind kind = Kind::text;
  std::string text;
};

// Where generation starts: inside which element of an open assistant message.
enum class OpenChannel { none, think, response };

struct Prompt {
  std::vector<Segment> segments;
  OpenChannel open = OpenChannel::none;
  bool thinking = false;
  int pending_tokens = 0;  // tokens of the last channel opener: part of the prompt, not of the reported usage

  std::string text() const;
  Result<std::vector<int32_t>> encode(const Tokenizer& tokenizer) const;
  int64_t reported_tokens(int64_t encoded_tokens) const { return encoded_tokens - pending_tokens; }
};

class ChatFormat {
 public:
  enum class Kind { xtml, k2 };

  // The format follows the special tokens of the checkpoint; its fixed sentences come from chat_format.json, else
  // from the literals of encoding_k3.py. A checkpoint with neither kind of special tokens: unsupported.
  static Result<ChatFormat> load(const std::string& model_folder, const Tokenizer& tokenizer);
  // For tests and tools: an XTML (or K2) format from the text of a chat_format.json.
  static Result<ChatFormat> from_json(Kind kind, std::string_view chat_format_json, std::string_view source);
  ChatFormat(ChatFormat&&) noexcept;
  ChatFormat& operator=(ChatFormat&&) noexcept;
  ~ChatFormat();

  Kind kind() const;
  bool verified() const { return kind() == Kind::xtml; }  // false: written from public descriptions, never compared
  std::string_view end_token() const;                     // the special token that ends a message
  Thinking thinking_of(const ChatRequest& request) const;

  // The whole prompt. With first_message > 0: only what follows the messages before it (no tool declaration, no effort
  // message), for a session that keeps the model's state between turns. With the assistant's turn between,
  // render(all) == render(first turn) + generated ids + OutputParser::closing() + render(all, index of the new message).
  Result<Prompt> render(const ChatRequest& request, int64_t first_message = 0) const;

 private:
  struct Impl;
  explicit ChatFormat(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3
