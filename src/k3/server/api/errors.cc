#include "k3/server/api/errors.h"

#include <cmath>

#include "k3/base/json_writer.h"
#include "k3/base/utf8.h"

namespace k3::server {
namespace {

// The single table from Code to HTTP status.
int status_of(Code code) {
  switch (code) {
    case Code::invalid_argument: return 400;
    case Code::not_found: return 404;
    case Code::corrupt: return 400;    // a file or text of the client's that says what cannot be
    case Code::exhausted: return 400;  // a request that asks for more than there can be; a full queue is queue_full()
    case Code::cancelled: return 499;
    case Code::deadline:
    case Code::unavailable: return 503;
    case Code::unsupported: return 501;
    case Code::device_lost:
    case Code::internal: return 500;
  }
  return 500;
}

std::string_view type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 501: return "not_implemented";
    case 503: return "unavailable_error";
    default: return "invalid_request_error";
  }
}

std::string_view anthropic_type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 500:
    case 501: return "api_error";
    default: return "invalid_request_error";
  }
}

// "messages[2].content" of "messages[2].content: is missing"; empty when the text does not begin with a path.
std::string path_of(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return {};
  const std::string_view path = message.substr(0, colon);
  for (const char c : path) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '_' && c != '.' && c != '[' && c != ']' && c != '$') return {};
  }
  return std::string(path);
}

// Messages quote what the client sent, which may be all of its body: the beginning and the end are enough. Valid UTF-8.
std::string shown(std::string_view text) {
  constexpr size_t kMostBeginBytes = 1500, kMostEndBytes = 500;
  if (text.size() <= kMostBeginBytes + kMostEndBytes) return utf8_repair(text);
  std::string_view begin = text.substr(0, kMostBeginBytes), end = text.substr(text.size() - kMostEndBytes);
  begin.remove_suffix(utf8_incomplete_suffix(begin));
  while (!end.empty() && (static_cast<uint8_t>(end.front()) & 0xC0) == 0x80) end.remove_prefix(1);
  return utf8_repair(begin) + " [...] " + utf8_repair(end);
}

std::string code_of(std::string_view param, std::string_view message) {
  if (param.ends_with("function.name") && param.find("tools[") != std::string_view::npos) return "invalid_tool_name";
  if (param.find("image_url") != std::string_view::npos) return "invalid_image";
  if (message.ends_with("is missing")) return "missing_required_parameter";
  return "invalid_value";
}

}  // namespace

ApiError api_error(const Error& error) {
  ApiError out;
  out.status = status_of(error.code);
  out.type = type_of(out.status);
  out.message = error.message.empty() ? "the request failed" : error.message;
  out.param = path_of(error.message);
  if (out.status == 400) out.code = code_of(out.param, error.message);
  if (error.code == Code::deadline) out.code = "deadline_exceeded";
  return out;
}

ApiError bad_request(std::string param, std::string message, std::string code) {
  ApiError out;
  out.message = param.empty() ? std::move(message) : param + ": " + message;
  out.param = std::move(param);
  out.code = std::move(code);
  return out;
}

ApiError status_error(int status, std::string message) {
  ApiError out;
  out.status = status;
  out.type = type_of(status);
  out.message = std::move(message);
  return out;
}

ApiError model_not_found(std::string_view model) {
  ApiError out = status_error(404, fmt::format("the model '{}' is not served here; GET /v1/models lists what is", model));
  out.param = "model";
  out.code = "model_not_found";
  return out;
}

ApiError context_exceeded(int64_t prompt_tokens, int64_t ctx_tokens) {
  return {.message = fmt::format("the prompt has {} tokens and the context holds {}, with one left for the answer",
                                 prompt_tokens, ctx_tokens),
          .param = "messages",
          .code = "context_length_exceeded"};
}

ApiError queue_full(double retry_after_seconds) {
  ApiError out = status_error(429, "the queue is full; try again later");
  out.code = "queue_full";
  out.retry_after_seconds = retry_after_seconds > 0 ? retry_after_seconds : 1;
  return out;
}

std::string error_json(const ApiError& error, Envelope envelope) {
  JsonWriter w;
  w.begin_object();
  if (envelope == Envelope::anthropic) {
    w.field("type", "error").key("error").begin_object();
    w.field("type", anthropic_type_of(error.status)).field("message", shown(error.message));
    return w.end_object().end_object().text();
  }
  w.key("error").begin_object();
  w.field("message", shown(error.message)).field("type", error.type);
  const auto text_or_null = [&](std::string_view key, const std::string& text) {
    w.key(key);
    if (text.empty()) {
      w.null();
    } else {
      w.value(shown(text));
    }
  };
  text_or_null("param", error.param);
  text_or_null("code", error.code);
  return w.end_object().end_object().text();
}

http::Response error_response(const ApiError& error, Envelope envelope) {
  http::Response response;
  response.status = error.status;
  response.body = error_json(error, envelope);
  if (error.retry_after_seconds > 0) {
    response.headers.push_back({"Retry-After", std::to_string(static_cast<int64_t>(std::ceil(error.retry_after_seconds)))});
  }
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace k3::server
