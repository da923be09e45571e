// Purpose:  how each dialect writes an answer: chat completions, text completions, Responses, Anthropic messages.
// Shapes:   none.
// Units:    tokens.
// Memory:   a format may keep the state of one answer (open blocks): one format, one answer.
// Threads:  as Answer.
// Errors:   none.
// Source:   api.md 4, 5, 7.3, 9, 10, 11.
#pragma once

#include <string>
#include <vector>

#include "k3/format/json/json_tree.h"
#include "k3/server/api/answer/answer.h"

namespace k3::server {

AnswerFormat chat_format();
AnswerFormat text_format(bool echo);
AnswerFormat responses_format(const JsonNode& request);  // says again which tools it was given
AnswerFormat messages_format();

}  // namespace k3::server
