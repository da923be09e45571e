// Ranges of options. CLI::Range refuses what is below or above its limits, so that NaN passes it; for real numbers these
// want the value to lie between.
#pragma once

#include <cstdint>

namespace CLI {
class Validator;
}

namespace k3::cli {

// Described in --help as CLI::Range is.
CLI::Validator real_range(double least, double most);

// Not described: where the help text or a type name tells what is wanted.
CLI::Validator range(double least, double most);
CLI::Validator range(int64_t least, int64_t most);
CLI::Validator range(int least, int most);

}  // namespace k3::cli
