#include "k3/cli/chat_setup.h"

namespace k3::cli {

std::optional<Effort> effort_from(const std::string& text) {
  for (const Effort effort : {Effort::low, Effort::high, Effort::max}) {
    if (effort_name(effort) == text) return effort;
  }
  return std::nullopt;
}

ThinkingRequest thinking_request(const ThinkOptions& options) {
  ThinkingRequest request;
  if (!options.think.empty()) request.enabled = options.think == "on";
  request.effort = effort_from(options.effort);
  // Asking for an effort is asking for thinking.
  if (request.effort && !request.enabled) request.enabled = true;
  return request;
}

}  // namespace k3::cli
