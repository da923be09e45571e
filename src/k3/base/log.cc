#include "k3/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

namespace k3 {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("k3");
    made->set_pattern("k3: %^%l%$: %v");
    const char* level = std::getenv("K3_LOG");
    made->set_level(level == nullptr ? spdlog::level::warn : spdlog::level::from_str(level));
    return made;
  }();
  return *instance;
}

}  // namespace

void log_line(LogLevel level, const std::string& text) {
  switch (level) {
    case LogLevel::trace: logger().trace(text); break;
    case LogLevel::debug: logger().debug(text); break;
    case LogLevel::info: logger().info(text); break;
    case LogLevel::warn: logger().warn(text); break;
    case LogLevel::error: logger().error(text); break;
  }
}

}  // namespace k3
