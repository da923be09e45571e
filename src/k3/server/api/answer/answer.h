// Purpose:  runs a job on the engine and answers the exchange, as a stream or whole, in the format of the job's dialect.
// Shapes:   choices [requests * n]; choice c belongs to request c / n.
// Units:    tokens.
// Memory:   an Answer lives until the engine has ended its requests; frames wait in the exchange's bounded output.
// Threads:  started on a worker; its callbacks run on the engine's thread; a client that goes away is told by the io thread.
// Errors:   before the first byte an HTTP error; after it an end frame with an extended finish reason.
// Source:   api.md 4, 5, 12.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "k3/server/api/answer/choice_stream.h"
#include "k3/server/api/context.h"
#include "k3/server/api/errors.h"
#include "k3/server/api/request/generation.h"

namespace k3::server {

struct Usage {
  int64_t prompt_tokens = 0;  // without the pending ones
  int64_t completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
  int64_t rendered_tokens = 0;  // of the whole prompt
};

struct PromptLogprob {
  int32_t id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

// What a format sees of an answer.
struct AnswerState {
  std::string id;  // 24 hex digits, the first 8 are the Unix seconds
  std::string model;
  int64_t created = 0;
  Generation generation;
  std::vector<ChoiceStream> choices;
  std::vector<std::vector<int32_t>> prompts;                // kept for echo only
  std::vector<std::vector<PromptLogprob>> prompt_logprobs;  // with echo and logprobs: from position 1
  const Tokenizer* tokenizer = nullptr;
  Usage prompt_usage;  // of all requests; known at admission

  Usage usage_of(size_t choice) const;
  Usage total() const;
};

// How a dialect writes an answer. Streams: frames, each with its blank line. `whole` is the body of an answer at once.
struct AnswerFormat {
  std::function<std::string(const AnswerState&)> begin;
  std::function<std::string(const AnswerState&, size_t choice, const Piece&)> piece;
  std::function<std::string(const AnswerState&, size_t choice)> end_choice;  // choices[choice].finish_reason() is set
  std::function<std::string(const AnswerState&, bool normal)> end;
  std::function<std::string(const AnswerState&)> whole;
  std::string_view ping = ": ping\n\n";  // of a stream that has nothing to say
};

struct AnswerJob {
  std::vector<Request> requests;  // without callbacks
  Generation generation;
  std::vector<ChoiceStream> choices;
  int64_t pending_tokens = 0;  // of each prompt
  bool keep_prompts = false;
  AnswerFormat format;
  Envelope envelope = Envelope::openai;
  std::string label;  // "POST /v1/chat/completions", for the log
};

std::string new_answer_id(int64_t created);  // 24 hex digits
void start_answer(std::shared_ptr<const Context> context, std::shared_ptr<http::Exchange> exchange,
                  const http::RequestHead& head, AnswerJob job);

}  // namespace k3::server
