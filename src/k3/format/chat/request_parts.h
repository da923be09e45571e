// Purpose:  the parts of request parsing, one function a part of the JSON body; internal to format/chat.
// Shapes:   none.
// Units:    none.
// Memory:   results own their text.
// Threads:  pure functions.
// Errors:   invalid_argument, always starting with the JSON path.
// Source:   api.md 3.1, 3.2, 6.1, 7.1, 8.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "k3/format/chat/chat.h"
#include "k3/format/json/json_tree.h"

namespace k3 {

template <class... Args>
Error bad_field(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::invalid_argument, "{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
}

// request_tools.cc; names collects the declared names of the whole request.
Result<ToolSet> parse_tools(const JsonNode& node, const std::string& path, std::set<std::string>& names);
Result<ToolCall> parse_tool_call(const JsonNode& node, const std::string& path);
Status parse_tool_choice(const JsonNode& root, ChatRequest& request);

// request_options.cc
Result<ThinkingRequest> parse_thinking(const JsonNode& root);
Result<ResponseFormat> parse_response_format(const JsonNode& root);

// request_image.cc
Result<ContentPart> parse_image_part(const JsonNode& part, const std::string& path);

// "a string", or an error naming the path.
Result<std::string> required_string(const JsonNode& object, std::string_view key, const std::string& path);

}  // namespace k3
