// Prompts made up from numbers: a prompt is a list of pieces, and a piece is the first `tokens` tokens of a stream of random
// tokens that its id alone decides. Equal ids at equal places give equal texts, so that a server's prefix cache sees what
// the trace's server saw.
#pragma once

#include <cstdint>
#include <string>

#include "k3/format/trace/workload.h"

namespace k3::server {

using Prompt = PromptPieces;

// Appends "[1,2,3]": ids below vocab.
void append_token_ids(std::string& json, const Prompt& prompt, int64_t vocab);

// English words, one for each token: about a token each in the vocabularies of today.
std::string prompt_words(const Prompt& prompt);

}  // namespace k3::server
