#include "k3/base/report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace k3::report {
namespace {

// 1, 2 or 5 times a power of ten, at least `value`.
double round_step(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

double step_of(double range, int most, Unit unit) {
  if (unit != Unit::bytes) return round_step(range / most);
  double scale = 1;
  while (range / scale >= 1024) scale *= 1024;
  const double step = range / scale / most;
  return scale * (step < 1 ? round_step(step) : std::exp2(std::ceil(std::log2(step) - 1e-9)));
}

// Three digits that count, without zeros behind the point.
std::string digits(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e6 || size < 1e-4) return fmt::format("{:.3g}", value);
  const int whole = static_cast<int>(std::floor(std::log10(size) + 1e-9)) + 1;
  std::string text = fmt::format("{:.{}f}", value, std::max(0, 3 - whole));
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string with_prefix(double value, double base, const std::array<const char*, 5>& names) {
  size_t i = 0;
  for (; i + 1 < names.size() && std::abs(value) >= base * 0.9995; ++i) value /= base;
  return digits(value) + names[i];
}

std::string seconds_text(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0 s";
  if (size < 0.9995e-3) return digits(value * 1e6) + " \xC2\xB5s";
  if (size < 0.9995) return digits(value * 1e3) + " ms";
  return digits(value) + " s";
}

}  // namespace

std::string unit_text(double value, Unit unit) {
  if (!std::isfinite(value)) return "\xE2\x80\x93";
  switch (unit) {
    case Unit::number: return digits(value);
    case Unit::count: return with_prefix(value, 1e3, {"", "k", "M", "G", "T"});
    case Unit::seconds: return seconds_text(value);
    case Unit::bytes: return with_prefix(value, 1024, {" B", " KiB", " MiB", " GiB", " TiB"});
    case Unit::percent: return digits(value * 100) + " %";
  }
  return "";
}

Scale::Scale(const Axis& axis, const std::vector<double>& values) : unit_(axis.unit), log_(axis.log) {
  bool any = false;
  for (const double value : values) {
    if (!holds(value)) continue;
    low_ = any ? std::min(low_, value) : value;
    high_ = any ? std::max(high_, value) : value;
    any = true;
  }
  if (!any) {
    low_ = log_ ? 1 : 0;
    high_ = log_ ? 10 : 1;
  }
  if (axis.from_zero && !log_) {
    low_ = std::min(low_, 0.0);
    high_ = std::max(high_, 0.0);
  }
  const bool whole = !axis.categories.empty();
  if (whole) {
    low_ = -0.5;
    high_ = static_cast<double>(axis.categories.size()) - 0.5;
  } else {
    widen();
  }
  if (axis.min && holds(*axis.min)) low_ = *axis.min;
  if (axis.max && holds(*axis.max)) high_ = *axis.max;
  if (!(low_ < high_)) high_ = log_ ? low_ * 10 : low_ + 1;
}

// To the next tick, so that the axis ends at a round value and no point lies on the frame.
void Scale::widen() {
  if (log_) {
    if (high_ / low_ < 1.1) {
      low_ /= 2;
      high_ *= 2;
    }
    const double margin = std::pow(high_ / low_, 0.03);
    low_ /= margin;
    high_ *= margin;
    return;
  }
  if (high_ - low_ <= 1e-12 * std::max(std::abs(low_), std::abs(high_))) {  // equal but for rounding
    const double around = low_ == 0 ? 1 : std::abs(low_) / 2;
    if (low_ != 0) low_ -= around;
    high_ += around;
  }
  const double step = step_of(high_ - low_, 5, unit_);
  low_ = std::floor(low_ / step + 1e-9) * step;
  high_ = std::ceil(high_ / step - 1e-9) * step;
}

bool Scale::holds(double value) const { return std::isfinite(value) && (!log_ || value > 0); }

double Scale::place(double value) const {
  if (log_) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

std::vector<Tick> Scale::ticks(int most) const {
  const bool narrow = log_ && high_ / low_ < 4;  // may lie between two powers: equal steps do better
  return log_ && !narrow ? log_ticks(most) : linear_ticks(most);
}

std::vector<Tick> Scale::linear_ticks(int most) const {
  std::vector<Tick> out;
  const double step = step_of(high_ - low_, std::max(most, 2), unit_);
  const double first = std::ceil(low_ / step - 1e-6);
  for (int k = 0; (first + k) * step <= high_ + step * 1e-6; ++k) {
    const double value = (first + k) * step;
    out.push_back({value, unit_text(value, unit_)});
  }
  // Far from zero three digits cannot tell neighbours apart.
  const bool same =
      std::adjacent_find(out.begin(), out.end(), [](const Tick& a, const Tick& b) { return a.text == b.text; }) != out.end();
  if (same) {
    for (Tick& tick : out) tick.text = fmt::format("{:.8g}", tick.value);
  }
  return out;
}

std::vector<Tick> Scale::log_ticks(int most) const {
  std::vector<Tick> out;
  const bool binary = unit_ == Unit::bytes;
  const auto power = [&](double exponent) { return binary ? std::exp2(exponent) : std::pow(10.0, exponent); };
  const auto exponent = [&](double value) { return binary ? std::log2(value) : std::log10(value); };
  const double range = exponent(high_) - exponent(low_);
  const double step = std::max(1.0, std::ceil(range / std::max(most, 2) - 1e-9));
  const bool between = !binary && range < most / 2.0;  // also 2 and 5
  const bool crowded = !binary && range < most / 4.0;  // all of 1 to 9
  for (double e = std::floor(exponent(low_) / step) * step; power(e) <= high_ * (1 + 1e-9); e += step) {
    for (int factor = 1; factor < 10; ++factor) {
      const double value = factor * power(e);
      if (value < low_ * (1 - 1e-9) || value > high_ * (1 + 1e-9)) continue;
      const bool labelled =
          factor == 1 || (between && (factor == 2 || factor == 5)) || (crowded && (factor < 6 || range < 0.6));
      if (labelled) out.push_back({value, unit_text(value, unit_)});
      if (!labelled && step == 1 && !binary) out.push_back({value, ""});
    }
  }
  return out;
}

}  // namespace k3::report
