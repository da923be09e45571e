#include "k3/cli/exit_codes.h"

namespace k3::cli {

int exit_code(Code code) {
  switch (code) {
    case Code::invalid_argument: return kExitUsage;
    case Code::not_found: return kExitNotFound;
    case Code::corrupt: return kExitCorrupt;
    case Code::unsupported: return kExitUnsupported;
    case Code::exhausted: return kExitExhausted;
    case Code::cancelled: return kExitInterrupted;
    case Code::device_lost: return kExitDeviceLost;
    case Code::deadline:
    case Code::unavailable:
    case Code::internal: break;
  }
  return kExitFailure;
}

std::string exit_code_help() {
  return "Exit codes: 0 done, 1 failed, 2 wrong usage or request, 3 not found, 4 corrupt file,\n"
         "5 not supported, 6 out of memory, disk or context, 7 GPU lost, 130 interrupted.\n"
         "'k3 COMMAND --help' explains a command.";
}

}  // namespace k3::cli
