// What a load generator has to know of an answer: when tokens came, how it ended, what it cost. One JSON text at a time:
// a frame of a stream, or a whole answer. Dialects: chat completions and completions, usage wherever servers put it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "k3/base/result.h"

namespace k3::server {

struct AnswerPart {
  bool done = false;          // "[DONE]"
  bool text = false;          // carries text, reasoning or a part of a tool call
  bool progress = false;      // a completions frame in the middle: a token whose text is not whole yet
  std::string finish_reason;  // when it says so
  std::string error;          // an error object in the place of an answer
  int64_t prompt_tokens = -1, cached_tokens = -1, completion_tokens = -1;  // -1: not said
};

// invalid_argument: no JSON, or not an object.
Result<AnswerPart> parse_answer_part(std::string_view json);

// The message of an error body, whatever its envelope; the start of the body when it is none.
std::string error_message(std::string_view body);

}  // namespace k3::server
