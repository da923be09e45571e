#include "k3/cli/range.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace k3::cli {

CLI::Validator real_range(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double value = 0;
        const bool within = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return within ? std::string() : fmt::format("Value {} not in range {} to {}", text, least, most);
      },
      CLI::Range(least, most).get_description());
}

CLI::Validator range(double least, double most) { return real_range(least, most).description(""); }
CLI::Validator range(int64_t least, int64_t most) { return CLI::Validator(CLI::Range(least, most)).description(""); }
CLI::Validator range(int least, int most) { return CLI::Validator(CLI::Range(least, most)).description(""); }

}  // namespace k3::cli
