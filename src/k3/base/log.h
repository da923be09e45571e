// Log lines on stderr, level from K3_LOG (trace debug info warn error off; default warn). Never holds prompt text.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace k3 {

enum class LogLevel { trace, debug, info, warn, error };

void log_line(LogLevel level, const std::string& text);

template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace k3
