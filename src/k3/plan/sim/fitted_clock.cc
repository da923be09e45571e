#include "k3/plan/sim/fitted_clock.h"

#include <algorithm>
#include <cmath>

#include "k3/base/file.h"
#include "k3/format/json/json_tree.h"
#include "k3/format/trace/trace_fields.h"

namespace k3::plan {
namespace {

constexpr double kLeastSeconds = 1e-9, kMostSeconds = 1e9;  // of a step
constexpr int64_t kMostTokens = int64_t{1} << 40;
constexpr int64_t kMostFileBytes = int64_t{64} << 20;

// Solves the symmetric system of the chosen columns by elimination with a small ridge: columns may say the same.
std::vector<double> solve(const std::vector<std::vector<double>>& normal, const std::vector<double>& right,
                          const std::vector<size_t>& chosen) {
  const size_t n = chosen.size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n + 1));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) a[i][j] = normal[chosen[i]][chosen[j]];
    a[i][i] *= 1 + 1e-10;
    a[i][n] = right[chosen[i]];
  }
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row) {
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    }
    std::swap(a[column], a[pivot]);
    if (a[column][column] == 0) continue;
    for (size_t row = 0; row < n; ++row) {
      if (row == column) continue;
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k <= n; ++k) a[row][k] -= factor * a[column][k];
    }
  }
  std::vector<double> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = a[i][i] != 0 ? a[i][n] / a[i][i] : 0;
  return out;
}

// Lawson and Hanson: columns enter one by one while that lessens the error, and leave when they would become negative.
std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& wanted) {
  const size_t columns = rows.front().size();
  std::vector<std::vector<double>> normal(columns, std::vector<double>(columns));
  std::vector<double> right(columns), x(columns);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < columns; ++i) {
      right[i] += rows[r][i] * wanted[r];
      for (size_t j = 0; j < columns; ++j) normal[i][j] += rows[r][i] * rows[r][j];
    }
  }
  std::vector<size_t> chosen;
  for (size_t round = 0; round < 10 * columns; ++round) {
    size_t best = columns;
    double best_gain = 1e-12;
    for (size_t i = 0; i < columns; ++i) {
      double gradient = right[i];
      for (size_t j = 0; j < columns; ++j) gradient -= normal[i][j] * x[j];
      const double gain = normal[i][i] > 0 ? gradient / std::sqrt(normal[i][i]) : 0;
      if (gain > best_gain && std::ranges::find(chosen, i) == chosen.end()) best = i, best_gain = gain;
    }
    if (best == columns) break;
    chosen.push_back(best);
    for (;;) {
      const std::vector<double> z = solve(normal, right, chosen);
      double step = 1;
      for (size_t i = 0; i < chosen.size(); ++i) {
        if (z[i] <= 0) step = std::min(step, x[chosen[i]] / (x[chosen[i]] - z[i] + 1e-300));
      }
      for (size_t i = 0; i < chosen.size(); ++i) x[chosen[i]] += step * (z[i] - x[chosen[i]]);
      if (step >= 1) break;
      std::erase_if(chosen, [&](size_t i) {
        const bool gone = x[i] <= 1e-15;
        if (gone) x[i] = 0;
        return gone;
      });
      if (chosen.empty()) break;
    }
  }
  return x;
}

}  // namespace

struct FittedClock::Sums {
  double tokens = 0, decode_rows = 0, prompts = 0, decode_history = 0, narrow_pairs = 0, wide_pairs = 0, wide_history = 0;

  void add_prompts(double count, double each, double history, double few) {
    prompts += count;
    tokens += count * each;
    (each > few ? wide_pairs : narrow_pairs) += count * each * (history + each / 2);
    if (each > few) wide_history += count * history;
  }
};

// A point tells no more than sums: its prompts are taken for equal.
FittedClock::Sums FittedClock::sums_of(const StepPoint& p, double few) {
  Sums s;
  s.tokens = s.decode_rows = static_cast<double>(p.decode_rows);
  s.decode_history = static_cast<double>(p.decode_history_tokens);
  if (p.new_tokens == 0) return s;
  const double count = std::max<double>(1, static_cast<double>(p.prompts)), each = static_cast<double>(p.new_tokens) / count;
  s.add_prompts(count, each, std::max(0.0, p.key_pairs / static_cast<double>(p.new_tokens) - each / 2), few);
  return s;
}

FittedClock::Sums FittedClock::sums_of(std::span<const StepPart> parts, double few) {
  Sums s;
  for (const StepPart& part : parts) {
    if (part.decode) {
      ++s.tokens;
      ++s.decode_rows;
      s.decode_history += static_cast<double>(part.history_tokens);
    } else {
      s.add_prompts(1, static_cast<double>(part.new_tokens), static_cast<double>(part.history_tokens), few);
    }
  }
  return s;
}

FittedClock::Features FittedClock::features(const Sums& s) {
  Features f{};
  double cap = 1;
  for (size_t i = 0; i < kCaps; ++i, cap *= 2) f[i] = std::min(s.tokens, cap);
  f[kCaps] = s.tokens;
  f[kCaps + 1] = s.decode_rows;
  f[kCaps + 2] = s.prompts;
  f[kCaps + 3] = s.decode_history;
  f[kCaps + 4] = s.narrow_pairs;
  f[kCaps + 5] = s.wide_pairs;
  f[kCaps + 6] = s.wide_history;
  return f;
}

double FittedClock::seconds_of(const Sums& sums) const {
  const Features f = features(sums);
  double sum = overhead_;
  for (size_t i = 0; i < kFeatures; ++i) sum += weights_[i] * f[i];
  return std::max(sum, kLeastSeconds);
}

double FittedClock::step_seconds(std::span<const StepPart> parts) const { return seconds_of(sums_of(parts, few_)); }

FittedClock FittedClock::fit_with(const std::vector<StepPoint>& points, double few) {
  std::vector<Features> all;
  Features scale{};
  for (const StepPoint& p : points) {
    all.push_back(features(sums_of(p, few)));
    for (size_t i = 0; i < kFeatures; ++i) scale[i] = std::max(scale[i], all.back()[i]);
  }
  std::vector<std::vector<double>> rows;
  for (size_t k = 0; k < points.size(); ++k) {
    std::vector<double>& row = rows.emplace_back(kFeatures);
    for (size_t i = 0; i < kFeatures; ++i)
      row[i] = scale[i] > 0 ? all[k][i] / scale[i] / points[k].seconds : 0;  // each error relative to its step
  }
  const std::vector<double> x = non_negative_least_squares(rows, std::vector<double>(points.size(), 1));
  FittedClock clock;
  clock.few_ = few;
  for (size_t i = 0; i < kFeatures; ++i) clock.weights_[i] = scale[i] > 0 ? x[i] / scale[i] : 0;
  double squares = 0;
  for (const StepPoint& p : points) {
    const double error = clock.seconds_of(sums_of(p, few)) / p.seconds - 1;
    clock.largest_error_ = std::max(clock.largest_error_, std::abs(error));
    squares += error * error;
  }
  clock.rms_error_ = std::sqrt(squares / static_cast<double>(points.size()));
  return clock;
}

Result<std::shared_ptr<const FittedClock>> FittedClock::fit(const std::vector<StepPoint>& points,
                                                            double step_overhead_seconds) {
  if (points.empty()) return fail(Code::invalid_argument, "no measured steps to fit a clock to");
  if (!(step_overhead_seconds >= 0) || !std::isfinite(step_overhead_seconds))
    return fail(Code::invalid_argument, "a step overhead of {} s", step_overhead_seconds);
  for (const StepPoint& p : points) {
    const bool sound = p.seconds >= kLeastSeconds && p.seconds <= kMostSeconds && p.decode_rows >= 0 &&
                       p.decode_history_tokens >= 0 && p.prompts >= 0 && p.new_tokens >= 0 && p.key_pairs >= 0 &&
                       std::isfinite(p.key_pairs) && p.decode_rows + p.new_tokens > 0;
    if (!sound) {
      return fail(Code::invalid_argument, "point {}: {} decode rows and {} new tokens in {} s are no step",
                  &p - points.data(), p.decode_rows, p.new_tokens, p.seconds);
    }
  }
  FittedClock best = fit_with(points, 0);
  for (double few = 16; few <= 512; few *= 2) {
    FittedClock other = fit_with(points, few);
    if (other.rms_error_ < best.rms_error_ * (1 - 1e-9)) best = other;
  }
  best.overhead_ = step_overhead_seconds;
  return std::make_shared<const FittedClock>(best);
}

// ---- files ----

namespace {

Result<double> field(const JsonNode& node, std::string_view name, std::optional<double> absent = {}) {
  const JsonNode* found = node.find(name);
  if (found == nullptr && absent) return *absent;
  if (found == nullptr || !found->is_number())
    return fail(Code::invalid_argument, "{}: {} where a number belongs", name,
                found == nullptr ? "nothing" : json_kind_name(found->kind));
  K3_TRY_ASSIGN(const double value, trace_number(found->raw).with_context(name));
  if (!(value >= 0) || value > static_cast<double>(kMostTokens))
    return fail(Code::invalid_argument, "{}: {} is no measurement", name, value);
  return value;
}

Result<int64_t> count(const JsonNode& node, std::string_view name) {
  const JsonNode* found = node.find(name);
  if (found == nullptr) return 0;
  if (!found->is_number())
    return fail(Code::invalid_argument, "{}: {} where a number belongs", name, json_kind_name(found->kind));
  return trace_integer(found->raw, 0, kMostTokens).with_context(name);
}

Result<StepPoint> own_point(const JsonNode& node) {
  constexpr std::string_view kNames[] = {"decode_rows", "decode_history_tokens", "prompts", "new_tokens", "key_pairs", "seconds"};
  for (const std::string& key : node.keys) {
    if (std::ranges::find(kNames, std::string_view(key)) != std::end(kNames)) continue;
    return fail(Code::invalid_argument, "{}: no such field; there are decode_rows, decode_history_tokens, prompts, "
                "new_tokens, key_pairs and seconds", trace_excerpt(key));
  }
  StepPoint p;
  K3_TRY_ASSIGN(p.decode_rows, count(node, "decode_rows"));
  K3_TRY_ASSIGN(p.decode_history_tokens, count(node, "decode_history_tokens"));
  K3_TRY_ASSIGN(p.prompts, count(node, "prompts"));
  K3_TRY_ASSIGN(p.new_tokens, count(node, "new_tokens"));
  K3_TRY_ASSIGN(p.key_pairs, field(node, "key_pairs", 0));
  K3_TRY_ASSIGN(p.seconds, field(node, "seconds"));
  return p;
}

Result<double> median_seconds(const JsonNode& node) {
  const JsonNode* all = node.find("seconds");
  if (all == nullptr || !all->is_array() || all->items.empty())
    return fail(Code::invalid_argument, "seconds: no list of times");
  std::vector<double> values;
  for (const JsonNode& one : all->items) {
    if (!one.is_number())
      return fail(Code::invalid_argument, "seconds: {} where a number belongs", json_kind_name(one.kind));
    K3_TRY_ASSIGN(values.emplace_back(), trace_number(one.raw).with_context("seconds"));
  }
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// A decode of n tokens at depth d: n steps whose history is d + n / 2 in the mean.
Result<StepPoint> bench_point(const JsonNode& node) {
  StepPoint p;
  const JsonNode* test = node.find("test");
  if (test == nullptr || !test->is_string() || (test->text != "prefill" && test->text != "decode")) {
    return fail(Code::invalid_argument, "test: neither \"prefill\" nor \"decode\"");
  }
  K3_TRY_ASSIGN(const int64_t tokens, count(node, "tokens"));
  K3_TRY_ASSIGN(const int64_t depth, count(node, "depth"));
  K3_TRY_ASSIGN(const int64_t batch, count(node, "batch"));
  K3_TRY_ASSIGN(p.seconds, median_seconds(node));
  if (tokens < 1 || batch < 1 || tokens > kMostTokens / batch || depth > kMostTokens / batch - tokens) {
    return fail(Code::invalid_argument, "{} sequences of {} tokens are no measurement", batch, tokens);
  }
  if (test->text == "decode") {
    p.decode_rows = batch;
    p.decode_history_tokens = batch * (depth + tokens / 2);
    p.seconds /= static_cast<double>(tokens);
  } else {
    p.prompts = batch;
    p.new_tokens = batch * tokens;
    p.key_pairs = static_cast<double>(p.new_tokens) * (static_cast<double>(depth) + static_cast<double>(tokens) / 2);
  }
  return p;
}

}  // namespace

Result<std::vector<StepPoint>> parse_points(std::string_view json) {
  K3_TRY_ASSIGN(const JsonNode root, parse_json(json));
  const JsonNode* own = root.is_object() ? root.find("points") : nullptr;
  const JsonNode* bench = root.is_object() ? root.find("results") : nullptr;
  const JsonNode* list = own != nullptr ? own : bench;
  if (list == nullptr || !list->is_array()) {
    return fail(Code::invalid_argument, "no list \"points\" of measured steps, nor the \"results\" of k3 bench --json");
  }
  std::vector<StepPoint> out;
  std::string threads;
  for (size_t i = 0; i < list->items.size(); ++i) {
    const JsonNode& node = list->items[i];
    const std::string place = fmt::format("{}[{}]", own != nullptr ? "points" : "results", i);
    if (!node.is_object())
      return fail(Code::invalid_argument, "{}: {} where an object belongs", place, json_kind_name(node.kind));
    K3_TRY_ASSIGN(out.emplace_back(), (own != nullptr ? own_point(node) : bench_point(node)).with_context(place));
    const JsonNode* with = own == nullptr ? node.find("threads") : nullptr;
    if (with == nullptr) continue;
    if (i > 0 && threads != with->raw)
      return fail(Code::invalid_argument, "{}: threads: {} after {}: give results of one number", place, with->raw, threads);
    threads = with->raw;
  }
  if (out.empty()) return fail(Code::invalid_argument, "an empty list of measurements");
  return out;
}

Status check_kinds(const std::vector<StepPoint>& points, bool decodes) {
  const bool prompt = std::ranges::any_of(points, [](const StepPoint& p) { return p.new_tokens > 0; });
  const bool decode = std::ranges::any_of(points, [](const StepPoint& p) { return p.decode_rows > 0; });
  if (!prompt) {
    return fail(Code::invalid_argument,
                "only decodes are measured; what a prompt takes needs a point with new_tokens (k3 bench -p 64,512)");
  }
  if (decodes && !decode) {
    return fail(Code::invalid_argument,
                "only prompts are measured; what a token of an answer takes needs a point with decode_rows (k3 bench -n 32)");
  }
  return {};
}

Result<std::vector<StepPoint>> read_points(const std::string& path) {
  K3_TRY_ASSIGN(const std::string text, read_file(path, kMostFileBytes));
  return parse_points(text).with_context(path);
}

}  // namespace k3::plan
