#include "k3/format/trace/trace.h"

#include <algorithm>
#include <array>
#include <limits>

#include "k3/format/json/json_tree.h"
#include "k3/format/trace/trace_fields.h"

namespace k3 {
namespace {

constexpr int64_t kMostId = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostTurn = int64_t{1} << 62;  // records without a turn count on from it

struct Columns {
  TraceKind kind;
  std::string_view time, input, output;
};
// A header is recognised by these three names; the others of its format may be there or not.
constexpr std::array<Columns, 2> kCsvFormats = {{{TraceKind::azure, "TIMESTAMP", "ContextTokens", "GeneratedTokens"},
                                                 {TraceKind::burstgpt, "Timestamp", "Request tokens", "Response tokens"}}};

int column_of(const std::vector<std::string>& header, std::string_view name) {
  for (size_t c = 0; c < header.size(); ++c) {
    if (header[c] == name) return static_cast<int>(c);
  }
  return -1;
}

std::string_view skip_blanks(std::string_view line) {
  const size_t at = line.find_first_not_of(" \t");
  return at == std::string_view::npos ? std::string_view() : line.substr(at);
}

// The fields of one JSON line; the first failure is kept, so that reading them stays one line each.
class JsonFields {
 public:
  explicit JsonFields(const JsonNode& object) : object_(object) {}

  int64_t integer(std::string_view name, int64_t least, int64_t most, std::optional<int64_t> absent = {}) {
    const JsonNode* node = need(name, JsonNode::Kind::number, absent.has_value());
    return node == nullptr ? absent.value_or(0) : keep(name, trace_integer(node->raw, least, most));
  }
  double number(std::string_view name, double most) {
    const JsonNode* node = need(name, JsonNode::Kind::number, false);
    return node == nullptr ? 0 : keep(name, trace_number(node->raw, most));
  }
  std::vector<int64_t> integers(std::string_view name) {
    std::vector<int64_t> out;
    const JsonNode* node = need(name, JsonNode::Kind::array, true);
    if (node == nullptr) return out;
    out.reserve(node->items.size());
    for (size_t i = 0; i < node->items.size() && status_.ok(); ++i) {
      const JsonNode& item = node->items[i];
      if (!item.is_number()) {
        status_ = fail(Code::invalid_argument, "{}[{}]: {} where a number belongs", name, i, json_kind_name(item.kind));
        break;
      }
      auto value = trace_integer(item.raw, 0, kMostId);
      if (!value.ok()) status_ = std::move(value).take_error().with_context(fmt::format("{}[{}]", name, i));
      if (status_.ok()) out.push_back(*value);
    }
    return out;
  }
  const Status& status() const { return status_; }

 private:
  const JsonNode* need(std::string_view name, JsonNode::Kind kind, bool optional) {
    if (!status_.ok()) return nullptr;
    const JsonNode* node = object_.find(name);
    if (node == nullptr && !optional) status_ = fail(Code::invalid_argument, "{}: missing", name);
    if (node == nullptr || node->kind == kind) return node;
    status_ =
        fail(Code::invalid_argument, "{}: {} where {} belongs", name, json_kind_name(node->kind), json_kind_name(kind));
    return nullptr;
  }
  template <class T>
  T keep(std::string_view name, Result<T> value) {
    if (value.ok()) return *value;
    if (status_.ok()) status_ = std::move(value).take_error().with_context(name);
    return T{};
  }

  const JsonNode& object_;
  Status status_;
};

Status check_blocks(const TraceRecord& record) {
  if (record.block_ids.empty()) return {};
  const int64_t blocks = (record.input_tokens + record.block_tokens - 1) / record.block_tokens;
  if (static_cast<int64_t>(record.block_ids.size()) == blocks) return {};
  return fail(Code::invalid_argument, "hash_ids: {} ids for an input_length of {}; blocks of {} tokens need {}",
              record.block_ids.size(), record.input_tokens, record.block_tokens, blocks);
}

}  // namespace

std::string_view trace_kind_name(TraceKind kind) {
  switch (kind) {
    case TraceKind::mooncake: return "Mooncake JSONL";
    case TraceKind::azure: return "Azure CSV";
    case TraceKind::burstgpt: return "BurstGPT CSV";
  }
  return "";
}

Result<TraceReader> TraceReader::open(const std::string& path, const TraceOptions& options) {
  K3_TRY_ASSIGN(LineReader lines, LineReader::open(path));
  return start(std::move(lines), options);
}

Result<TraceReader> TraceReader::of_text(std::string text, std::string name, const TraceOptions& options) {
  return start(LineReader::of_text(std::move(text), std::move(name)), options);
}

Result<TraceReader> TraceReader::start(LineReader lines, const TraceOptions& options) {
  K3_CHECK(options.block_tokens > 0);
  TraceReader reader(std::move(lines), options);
  std::optional<std::string_view> line;
  do {
    K3_TRY_ASSIGN(line, reader.lines_.next());
    if (!line) return fail(Code::invalid_argument, "{}: no records", reader.lines_.name());
  } while (skip_blanks(*line).empty());
  if (skip_blanks(*line).starts_with('{')) {
    reader.first_line_ = std::string(*line);
  } else {
    auto status = reader.read_header(*line);
    if (!status.ok()) return std::move(status).take_error().with_context(reader.lines_.place());
  }
  if (options.kind && *options.kind != reader.kind_) {
    return fail(Code::invalid_argument, "{}: this is {}, not {}", reader.lines_.place(), trace_kind_name(reader.kind_),
                trace_kind_name(*options.kind));
  }
  return reader;
}

Status TraceReader::read_header(std::string_view line) {
  K3_TRY_ASSIGN(const std::vector<std::string> header, csv_row(line));
  for (const Columns& format : kCsvFormats) {
    time_column_ = column_of(header, format.time);
    input_column_ = column_of(header, format.input);
    output_column_ = column_of(header, format.output);
    if (time_column_ < 0 || input_column_ < 0 || output_column_ < 0) continue;
    kind_ = format.kind;
    if (kind_ == TraceKind::burstgpt) session_column_ = column_of(header, "Session ID");
    column_count_ = static_cast<int64_t>(header.size());
    return {};
  }
  return fail(Code::invalid_argument,
              "'{}' begins neither JSONL of Mooncake nor a CSV with columns TIMESTAMP, ContextTokens, GeneratedTokens "
              "(Azure) or Timestamp, Request tokens, Response tokens (BurstGPT)",
              trace_excerpt(line));
}

Result<TraceRecord> TraceReader::from_json(std::string_view line) const {
  K3_TRY_ASSIGN(const JsonNode root, parse_json(line));
  if (!root.is_object()) return fail(Code::invalid_argument, "{} where an object belongs", json_kind_name(root.kind));
  JsonFields fields(root);
  TraceRecord record;
  record.timestamp_s = fields.number("timestamp", 1e3 * kMostTraceClock) / 1e3;
  record.input_tokens = fields.integer("input_length", 1, kMostTraceTokens);
  record.output_tokens = fields.integer("output_length", 0, kMostTraceTokens);
  record.block_ids = fields.integers("hash_ids");
  record.block_tokens = record.block_ids.empty() ? 0 : options_.block_tokens;
  record.session = fields.integer("session", 0, kMostId, -1);
  record.turn = fields.integer("turn", 0, kMostTurn, -1);
  record.turn_end = fields.integer("turn_end", record.input_tokens, kMostTraceTokens, -1);
  record.think_ms = fields.integer("think_ms", 0, kMostTraceTokens, 0);
  record.fork = fields.integer("fork", -1, kMostId, -1);
  if (!fields.status().ok()) return Error(fields.status().error());
  K3_TRY(check_blocks(record));
  return record;
}

Result<TraceRecord> TraceReader::from_row(std::string_view line) {
  K3_TRY_ASSIGN(const std::vector<std::string> cells, csv_row(line));
  if (static_cast<int64_t>(cells.size()) != column_count_) {
    return fail(Code::invalid_argument, "{} cells; the header has {}", cells.size(), column_count_);
  }
  const Columns& names = kCsvFormats[kind_ == TraceKind::azure ? 0 : 1];
  const auto cell = [&](int column) -> const std::string& { return cells[static_cast<size_t>(column)]; };
  const auto integer = [&](int column, std::string_view name) {
    return trace_integer(cell(column), 0, kMostTraceTokens).with_context(name);
  };
  TraceRecord record;
  K3_TRY_ASSIGN(const double time,
                (kind_ == TraceKind::azure ? trace_calendar_time(cell(time_column_))
                                           : trace_number(cell(time_column_), kMostTraceClock))
                    .with_context(names.time));
  if (!has_records_ && kind_ == TraceKind::azure) first_time_ = time;
  record.timestamp_s = time - first_time_;
  K3_TRY_ASSIGN(record.input_tokens, integer(input_column_, names.input));
  K3_TRY_ASSIGN(record.output_tokens, integer(output_column_, names.output));
  if (session_column_ >= 0 && !cell(session_column_).empty()) {
    const auto [at, added] = sessions_.try_emplace(cell(session_column_));
    if (added) at->second.number = static_cast<int64_t>(sessions_.size()) - 1;
    record.session = at->second.number;
    record.turn = at->second.turns++;
  }
  return record;
}

// Turns of a session follow each other: a cut may begin with any, none comes twice or late.
Status TraceReader::place_turn(TraceRecord* record) {
  if (kind_ != TraceKind::mooncake) return {};
  if (record->session < 0) {
    record->turn = std::max<int64_t>(0, record->turn);
    return {};
  }
  const auto [last, first] = last_turns_.try_emplace(record->session, -1);
  if (record->turn < 0) record->turn = last->second + 1;
  if (!first && record->turn <= last->second) {
    return fail(Code::invalid_argument, "{}: turn: {} of session {} comes after its turn {}", lines_.place(), record->turn,
                record->session, last->second);
  }
  last->second = record->turn;
  return {};
}

Result<std::optional<TraceRecord>> TraceReader::next() {
  std::optional<std::string> held = std::move(first_line_);
  first_line_.reset();
  std::optional<std::string_view> line;
  if (held) {
    line = *held;
  } else {
    do {
      K3_TRY_ASSIGN(line, lines_.next());
      if (!line) return std::optional<TraceRecord>();
    } while (skip_blanks(*line).empty());
  }
  auto record = kind_ == TraceKind::mooncake ? from_json(*line) : from_row(*line);
  if (!record.ok()) return std::move(record).take_error().with_context(lines_.place());
  if (has_records_ && record->timestamp_s < last_timestamp_) {
    return fail(Code::invalid_argument, "{}: timestamp: {:.3f} s is before the {:.3f} s of the record before",
                lines_.place(), record->timestamp_s, last_timestamp_);
  }
  if (!has_records_) start_timestamp_ = record->timestamp_s;
  if (record->timestamp_s - start_timestamp_ > kMostTraceSeconds) {
    return fail(Code::invalid_argument, "{}: timestamp: {:.3g} s after the first record; at most {:.0e}", lines_.place(),
                record->timestamp_s - start_timestamp_, kMostTraceSeconds);
  }
  K3_TRY(place_turn(&*record));
  has_records_ = true;
  last_timestamp_ = record->timestamp_s;
  return std::optional<TraceRecord>(*std::move(record));
}

Result<std::vector<TraceRecord>> read_trace(const std::string& path, const TraceOptions& options, int64_t most) {
  K3_TRY_ASSIGN(TraceReader reader, TraceReader::open(path, options));
  std::vector<TraceRecord> records;
  while (most == 0 || static_cast<int64_t>(records.size()) < most) {
    K3_TRY_ASSIGN(std::optional<TraceRecord> record, reader.next());
    if (!record) break;
    records.push_back(*std::move(record));
  }
  return records;
}

}  // namespace k3
