#include "k3/cli/plan/plan_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "k3/base/report/axis.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"

namespace k3::cli::words {

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
std::string tpot(double seconds) { return seconds > 0 ? time(seconds) : "-"; }
std::string plural(int64_t n, std::string_view one) {
  return fmt::format("{} {}{}", format_grouped(n), one, n == 1 ? "" : "s");
}

std::string columns(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& left) {
  std::vector<size_t> widths;
  const auto width = [](const std::string& text) { return static_cast<size_t>(utf8_length(text)); };
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - width(row[c]), ' ');
      const bool is_left = std::find(left.begin(), left.end(), c) != left.end();
      out += (c > 0 ? "  " : "") + (is_left ? row[c] + pad : pad + row[c]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace k3::cli::words
