// Purpose:  the errors of the API: one table from Code to HTTP status, and the envelopes of both dialects.
// Shapes:   none.
// Units:    seconds.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   none; texts that quote the client's bytes are made valid UTF-8.
// Source:   api.md 12.
#pragma once

#include <string>
#include <string_view>

#include "k3/base/result.h"
#include "k3/server/http/http.h"

namespace k3::server {

enum class Envelope { openai, anthropic };

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param = {};  // empty: null
  std::string code = {};   // empty: null
  double retry_after_seconds = 0;
};

// The error's JSON path, when its message begins with one ("messages[2].role: ..."), becomes param.
ApiError api_error(const Error& error);
ApiError bad_request(std::string param, std::string message, std::string code = "invalid_value");
ApiError status_error(int status, std::string message);  // with the type that belongs to the status
ApiError model_not_found(std::string_view model);
ApiError context_exceeded(int64_t prompt_tokens, int64_t ctx_tokens);
ApiError queue_full(double retry_after_seconds);

std::string error_json(const ApiError& error, Envelope envelope = Envelope::openai);
http::Response error_response(const ApiError& error, Envelope envelope = Envelope::openai);

// What the route answers from a worker: the result, or the error to send.
template <class T>
struct Outcome {
  std::optional<T> value;
  ApiError error;

  Outcome(T given) : value(std::move(given)) {}
  Outcome(ApiError given) : error(std::move(given)) {}
  Outcome(Error given) : error(api_error(given)) {}
  bool ok() const { return value.has_value(); }
  T& operator*() { return *value; }
  T* operator->() { return &*value; }
};

}  // namespace k3::server
