#include "k3/plan/report/words.h"

#include <fmt/format.h>

#include <cmath>

#include "k3/base/report/axis.h"
#include "k3/base/units.h"

namespace k3::plan::words {

std::string time(double seconds) { return report::unit_text(seconds, Unit::seconds); }
std::string gigabytes(double bytes) {
  return std::abs(bytes) >= 1e8 ? fmt::format("{:.1f} GB", bytes / 1e9) : fmt::format("{:.1f} MB", bytes / 1e6);
}
std::string count(double value) {
  return value >= 100  ? format_grouped(std::llround(value))
         : value >= 10 ? fmt::format("{:.1f}", value)
                       : fmt::format("{:.2f}", value);
}
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }
std::string signed_percent(double share) { return fmt::format("{:+.1f} %", 100 * share); }
std::string whole_percent(double share) { return fmt::format("{:+} %", std::lround(100 * share)); }
std::string price(double value) { return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value); }

}  // namespace k3::plan::words
