// The exit codes of k3, one per kind of failure, so that scripts can tell them apart.
#pragma once

#include <string>

#include "k3/base/result.h"

namespace k3::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotFound = 3;
inline constexpr int kExitCorrupt = 4;
inline constexpr int kExitUnsupported = 5;
inline constexpr int kExitExhausted = 6;
inline constexpr int kExitDeviceLost = 7;
inline constexpr int kExitInterrupted = 130;

int exit_code(Code code);
std::string exit_code_help();

}  // namespace k3::cli
