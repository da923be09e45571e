// K3_CHECK: broken invariants and programmer errors. Logs and aborts; user input must never reach one.
// K3_DCHECK: the same inside hot loops, compiled only into builds with K3_DEBUG_CHECKS.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace k3 {

// Memory that no caller can do without is not there: says what for and ends the program with the exit code of exhaustion.
// Only for scratch inside a step, where no Result can be returned; everything sized beforehand uses Result.
[[noreturn]] void end_exhausted(const std::string& what);

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace k3

#define K3_CHECK(condition, ...)                                                         \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      ::k3::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                    \
  } while (0)

#if K3_DEBUG_CHECKS
#define K3_DCHECK(...) K3_CHECK(__VA_ARGS__)
#else
#define K3_DCHECK(...) \
  do {                 \
  } while (0)
#endif
