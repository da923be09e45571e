#include "k3/cli/version.h"

#include <fmt/format.h>

#include "k3/base/threads.h"
#include "k3/ops/cpu/isa.h"

#ifndef K3_VERSION
#define K3_VERSION "0.0.0"
#endif

namespace k3::cli {

std::string version_text() {
  return fmt::format("k3 {} (g++/clang {}, cpu {}, {} threads)", K3_VERSION, __VERSION__, ops::isa_name(ops::detect_isa()),
                     available_threads());
}

}  // namespace k3::cli
