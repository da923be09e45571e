// Thinking options of run and chat as the chat format wants them.
#pragma once

#include "k3/cli/options.h"
#include "k3/format/chat/chat.h"

namespace k3::cli {

ThinkingRequest thinking_request(const ThinkOptions& options);
std::optional<Effort> effort_from(const std::string& text);

}  // namespace k3::cli
