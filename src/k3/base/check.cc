#include "k3/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace k3 {

void end_exhausted(const std::string& what) {
  constexpr int kExitExhausted = 6;  // as documented in cli/exit_codes.h
  std::fprintf(stderr, "k3: error: out of memory: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(kExitExhausted);
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "k3: internal error at %s:%d: %s%s%s\nThis is a bug in k3; please report it with the command.\n",
               file, line, condition, message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace k3
