#include "k3/plan/calibrate/measured_runs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "k3/base/file.h"
#include "k3/base/report/quantile.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/format/json/json_tree.h"

namespace k3::plan {
namespace {

constexpr int64_t kMostRunBytes = int64_t{256} << 20;  // a loadgen file has a line for each request
constexpr double kMostTokens = 1 << 24, kMostSequences = 1 << 20, kMostSeconds = 1e6;

// A field by its path in the file, with what is wrong when something is.
class Reader {
 public:
  Reader(const JsonNode& node, std::string path, const std::string& source)
      : node_(node), path_(std::move(path)), source_(source) {}

  Error wrong(std::string_view key, std::string_view what) const {
    return fail(Code::invalid_argument, "{}: {}{}{} {}", source_, path_, path_.empty() ? "" : ".", key, what);
  }
  // Absent and null are the same: k3 writes null for what was not measured.
  Result<std::optional<double>> number_if(std::string_view key, double least, double most) const {
    const JsonNode* const field = node_.find_set(key);
    if (field == nullptr) return std::optional<double>();
    double value = 0;
    const char* const end = field->raw.data() + field->raw.size();
    if (!field->is_number() || std::from_chars(field->raw.data(), end, value).ptr != end ||
        !(value >= least && value <= most)) {
      return wrong(
          key, fmt::format("is {}; a number from {} to {} is wanted", utf8_repair(field->raw.substr(0, 40)), least, most));
    }
    return std::optional<double>(value);
  }
  Result<double> number(std::string_view key, double least, double most) const {
    K3_TRY_ASSIGN(const std::optional<double> value, number_if(key, least, most));
    if (!value) return wrong(key, "is missing");
    return *value;
  }
  Result<std::string_view> text(std::string_view key) const {
    const JsonNode* const field = node_.find_set(key);
    if (field == nullptr || !field->is_string()) return wrong(key, "is missing, or no string");
    return std::string_view(field->text);
  }
  Result<Reader> object(std::string_view key) const {
    const JsonNode* const field = node_.find_set(key);
    if (field == nullptr || !field->is_object()) return wrong(key, "is missing, or no object");
    return Reader(*field, path_.empty() ? std::string(key) : path_ + "." + std::string(key), source_);
  }
  const JsonNode& node() const { return node_; }

 private:
  const JsonNode& node_;
  std::string path_;
  const std::string& source_;
};

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

std::string tokens_text(double tokens) { return format_grouped(static_cast<int64_t>(std::llround(tokens))); }

Result<std::vector<double>> seconds_of(const Reader& result) {
  const JsonNode* const list = result.node().find_set("seconds");
  if (list == nullptr || !list->is_array() || list->items.empty())
    return result.wrong("seconds", "is missing: a list of the runs' seconds");
  std::vector<double> out;
  for (const JsonNode& item : list->items) {
    double value = 0;
    const char* const end = item.raw.data() + item.raw.size();
    if (!item.is_number() || std::from_chars(item.raw.data(), end, value).ptr != end ||
        !(value > 0 && value <= kMostSeconds)) {
      return result.wrong("seconds",
                          fmt::format("holds {}; seconds above 0 are wanted", utf8_repair(item.raw.substr(0, 40))));
    }
    out.push_back(value);
  }
  std::sort(out.begin(), out.end());
  return out;
}

// What must not vary within a file: every setting is another machine to the cost model.
struct Settings {
  double threads = 0;
  std::string_view policy;  // of the file's tree
};

Result<MeasuredPoint> bench_point(const Reader& result, const std::string& source, Settings* settings) {
  MeasuredPoint point;
  K3_TRY_ASSIGN(const std::string_view test, result.text("test"));
  K3_TRY_ASSIGN(const double tokens, result.number("tokens", 1, kMostTokens));
  K3_TRY_ASSIGN(const double depth, result.number("depth", 0, kMostTokens));
  K3_TRY_ASSIGN(const double batch, result.number("batch", 1, kMostSequences));
  K3_TRY_ASSIGN(const double threads, result.number("threads", 0, 1e6));
  K3_TRY_ASSIGN(const std::string_view policy, result.text("policy"));
  if (settings->threads < 0) *settings = {threads, policy};
  if (threads != settings->threads || policy != settings->policy) {
    return result.wrong("threads",
                        "or policy differs from the result before: measure one setting a file (k3 bench -t N --policy P)");
  }
  K3_TRY_ASSIGN(const std::vector<double> seconds, seconds_of(result));
  const double median = quantile_of_sorted(seconds, 0.5);
  point.users = static_cast<int64_t>(batch);
  point.spread = (seconds.back() - seconds.front()) / 2 / median;
  if (test == "decode") {
    point.kind = MeasuredPoint::Kind::decode_step;
    point.context = depth + tokens / 2;
    point.seconds = median / tokens;
    point.name = fmt::format("{}: decode of {} at {}", file_name(source), point.users, tokens_text(point.context));
  } else if (test == "prefill") {
    point.kind = MeasuredPoint::Kind::prefill;
    point.input = tokens;
    point.past = depth;
    point.seconds = median;
    point.name = fmt::format("{}: prefill of {} x {} after {}", file_name(source), point.users, tokens_text(tokens),
                             tokens_text(depth));
  } else {
    return result.wrong("test", fmt::format("is '{}'; prefill or decode is wanted", utf8_repair(test)));
  }
  return point;
}

Result<std::vector<MeasuredPoint>> read_bench(const JsonNode& root, const std::string& source) {
  const Reader top(root, "", source);
  K3_TRY_ASSIGN(const double parameters, top.number("parameters", 1, 1e18));
  const JsonNode& results = *root.find("results");
  if (!results.is_array() || results.items.empty()) return top.wrong("results", "is empty, or no list");
  std::vector<MeasuredPoint> points;
  Settings settings{-1, ""};
  for (size_t i = 0; i < results.items.size(); ++i) {
    const std::string path = fmt::format("results[{}]", i);
    if (!results.items[i].is_object()) return top.wrong(path, "is no object");
    K3_TRY_ASSIGN(MeasuredPoint point, bench_point(Reader(results.items[i], path, source), source, &settings));
    point.parameters = parameters;
    points.push_back(std::move(point));
  }
  return points;
}

// "8 users, closed loop", "one user, closed loop", "one at a time".
std::optional<int64_t> users_of(std::string_view pacing) {
  // GCC 12 takes starts_with here for a read of an uninitialised buffer.
  if (pacing == "one at a time" || pacing.find("one user, closed loop") == 0) return 1;
  int64_t users = 0;
  const auto [end, error] = std::from_chars(pacing.data(), pacing.data() + pacing.size(), users);
  const std::string_view rest = pacing.substr(static_cast<size_t>(end - pacing.data()));
  const bool closed = error == std::errc() && rest.starts_with(" users, closed loop");
  return closed && users >= 1 && users <= static_cast<int64_t>(kMostSequences) ? std::optional(users) : std::nullopt;
}

Result<std::vector<MeasuredPoint>> read_loadgen(const JsonNode& root, const std::string& source) {
  const Reader top(root, "", source);
  K3_TRY_ASSIGN(const Reader settings, top.object("settings"));
  K3_TRY_ASSIGN(const Reader summary, top.object("summary"));
  K3_TRY_ASSIGN(const std::string_view pacing, settings.text("pacing"));
  const std::optional<int64_t> users = users_of(pacing);
  if (!users) {
    return settings.wrong(
        "pacing", fmt::format("is '{}': the cost model has a closed form for closed loops alone (k3 loadgen --users N or "
                              "--sequential); k3 sim replays others",
                              utf8_repair(pacing)));
  }
  K3_TRY_ASSIGN(const double ok, summary.number("ok", 1, 1e9));
  K3_TRY_ASSIGN(const double prompts, summary.number("prompt_tokens", 1, 1e15));
  K3_TRY_ASSIGN(const double outputs, summary.number("output_tokens", 1, 1e15));
  K3_TRY_ASSIGN(const double cached, summary.number("cached_tokens", 0, prompts));
  MeasuredPoint point;
  point.users = *users;
  point.past = cached / ok;
  point.input = std::clamp((prompts - cached) / ok, 1.0, kMostTokens);
  point.output = std::clamp(outputs / ok, 1.0, kMostTokens);
  std::vector<MeasuredPoint> points;
  using Kind = MeasuredPoint::Kind;
  for (const auto& [field, kind, word] :
       {std::tuple("ttft_s", Kind::ttft, "TTFT"), std::tuple("tpot_s", Kind::tpot, "TPOT")}) {
    K3_TRY_ASSIGN(const Reader spread, summary.object(field));
    K3_TRY_ASSIGN(const std::optional<double> median, spread.number_if("p50", 1e-9, kMostSeconds));
    K3_TRY_ASSIGN(const std::optional<double> high, spread.number_if("p95", 1e-9, kMostSeconds));
    if (!median || !high) continue;  // answers of one token have no TPOT
    point.kind = kind;
    point.seconds = *median;
    point.spread = std::max(0.0, *high / *median - 1) / std::sqrt(ok);
    point.name = fmt::format("{}: {} of {} users, {} + {} tokens", file_name(source), word, point.users,
                             tokens_text(point.input), tokens_text(point.output));
    points.push_back(point);
  }
  if (points.empty()) return summary.wrong("ttft_s", "has no p50: nothing was measured");
  return points;
}

}  // namespace

Result<std::vector<MeasuredPoint>> parse_measured_run(std::string_view json, const std::string& source) {
  K3_TRY_ASSIGN(const JsonNode root, parse_json(json).with_context(source));
  if (root.is_object() && root.find("results") != nullptr) return read_bench(root, source);
  if (root.is_object() && root.find("summary") != nullptr) return read_loadgen(root, source);
  return fail(Code::invalid_argument, "{}: neither the JSON of k3 bench (results) nor that of k3 loadgen (summary)", source);
}

Result<std::vector<MeasuredPoint>> load_measured_run(const std::string& path) {
  K3_TRY_ASSIGN(const std::string text, read_file(path, kMostRunBytes));
  return parse_measured_run(text, path);
}

}  // namespace k3::plan
