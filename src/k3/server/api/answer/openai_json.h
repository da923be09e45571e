// Internal to server/api/answer. JSON that the OpenAI dialects share: usage, log probabilities, frames.
#pragma once

#include <string>

#include "k3/base/json_writer.h"
#include "k3/server/api/answer/answer.h"

namespace k3::server {

void write_usage(JsonWriter& w, const Usage& usage);                           // one value
void write_logprobs(JsonWriter& w, const std::vector<LogprobEntry>& entries);  // {"content": [...]}
double wire_logprob(float logprob);                                            // -inf is -9999.0
std::string token_text(const LogprobToken& token);                             // valid UTF-8
std::string frame(const std::string& json);                                    // "data: ...\n\n"
// The last frames of a stream: usage when it was asked for, and [DONE]; none after an end that is not normal.
std::string end_frames(const AnswerState& state, bool normal, void (*begin)(JsonWriter&, const AnswerState&));

}  // namespace k3::server
