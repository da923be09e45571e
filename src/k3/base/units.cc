#include "k3/base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace k3 {
namespace {

std::string scaled(double value, double base, const auto& suffixes) {
  size_t i = 0;
  while (std::abs(value) >= base * 0.99995 && i + 1 < suffixes.size()) {
    value /= base;
    ++i;
  }
  if (i == 0) return fmt::format("{:.0f}{}{}", value, *suffixes[0] ? " " : "", suffixes[0]);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, suffixes[i]);
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  static constexpr std::array kSuffixes = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(static_cast<double>(bytes), 1024.0, kSuffixes);
}

std::string format_count(double count) {
  static constexpr std::array kSuffixes = {"", " K", " M", " B", " T"};
  size_t i = 0;
  while (std::abs(count) >= 999.995 && i + 1 < kSuffixes.size()) {
    count /= 1000;
    ++i;
  }
  return i == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.2f}{}", count, kSuffixes[i]);
}

std::string format_grouped(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string format_seconds(double seconds) {
  if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  if (!(seconds < 1e15)) return fmt::format("{:.3g} h", seconds / 3600);  // beyond whole seconds
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

Result<int64_t> parse_bytes(std::string_view text) {
  const std::string_view original = text;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto bad = [&] {
    return fail(Code::invalid_argument, "'{}' is not a size: write for example 8GiB, 512MiB or 4096", original);
  };
  if (error != std::errc() || !(value >= 0)) return bad();
  std::string suffix;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') suffix.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*c))));
  }
  double factor = 1;
  if (!suffix.empty() && suffix != "b") {
    static constexpr std::string_view kPrefixes = "kmgtp";
    const size_t power = kPrefixes.find(suffix[0]);
    if (power == std::string_view::npos) return bad();
    const std::string_view rest = std::string_view(suffix).substr(1);
    double base = 1024;
    if (rest == "b") {
      base = 1000;
    } else if (!rest.empty() && rest != "i" && rest != "ib") {
      return bad();
    }
    factor = std::pow(base, static_cast<double>(power + 1));
  }
  const double bytes = value * factor;
  if (!(bytes < 9.2e18)) return bad();
  return static_cast<int64_t>(bytes);
}

}  // namespace k3
