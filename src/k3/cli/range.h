// Ranges of options that hold real numbers. CLI::Range refuses what is below or above, so that NaN passes it; these want
// the value to lie between.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <concepts>
#include <string>

namespace k3::cli {

// Described in --help as CLI::Range is; description("") leaves that out.
inline CLI::Validator real_range(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double value = 0;
        const bool within = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return within ? std::string() : fmt::format("Value {} not in range {} to {}", text, least, most);
      },
      CLI::Range(least, most).get_description());
}

// Of whole numbers as well, and not described: where the help text says it, or a type name.
template <class Number>
CLI::Validator range(Number least, Number most) {
  if constexpr (std::floating_point<Number>)
    return real_range(least, most).description("");
  else
    return CLI::Validator(CLI::Range(least, most)).description("");
}

}  // namespace k3::cli
