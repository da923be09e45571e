// Purpose:  request traces, record by record: Mooncake JSONL (with the fields of agent sessions), Azure LLM inference CSV,
//           BurstGPT CSV.
// Shapes:   block_ids [ceil(input_tokens / block_tokens)], or empty when the trace has none. Ids are chained: an equal id
//           means an equal whole prefix up to the end of that block; the last block may be partial.
// Units:    seconds since the first record of the trace's clock (Azure: since the first row); think_ms milliseconds; tokens.
// Memory:   one line and one record, whatever the length of the file; one entry per session besides.
// Threads:  one at a time.
// Errors:   invalid_argument naming file, line and field for everything that is not as the format says, records out of order
//           in time included; what File says for a file that cannot be read. Unknown JSON fields and CSV columns are
//           skipped.
// Source:   Mooncake FAST25 trace format; AzurePublicDataset LLM inference traces 2023 and 2024; BurstGPT v1 and v2 columns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/trace/line_reader.h"

namespace k3 {

struct TraceRecord {
  double timestamp_s = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  std::vector<int64_t> block_ids;
  int64_t block_tokens = 0;  // 0: no block ids
  int64_t session = -1;      // -1: the request stands alone
  int64_t turn = 0;          // within the session, ascending; counted from 0 where the trace does not say
  int64_t turn_end = -1;     // tokens of the sequence after this turn; -1: not said
  int64_t think_ms = 0;      // between the end of the turn before and this one
  int64_t fork = -1;         // the session that this one branched off, for people: block_ids say what they share; -1: none
};

enum class TraceKind { mooncake, azure, burstgpt };
std::string_view trace_kind_name(TraceKind kind);

struct TraceOptions {
  int64_t block_tokens = 512;     // tokens a hash id stands for (JSONL)
  std::optional<TraceKind> kind;  // not given: told from the first line
};

class TraceReader {
 public:
  static Result<TraceReader> open(const std::string& path, const TraceOptions& options = {});
  static Result<TraceReader> of_text(std::string text, std::string name, const TraceOptions& options = {});

  // Nothing at the end. After an error the reader is not used again.
  Result<std::optional<TraceRecord>> next();

  TraceKind kind() const { return kind_; }
  int64_t line() const { return lines_.line(); }

 private:
  TraceReader(LineReader lines, const TraceOptions& options) : lines_(std::move(lines)), options_(options) {}
  static Result<TraceReader> start(LineReader lines, const TraceOptions& options);
  Status read_header(std::string_view line);
  Result<TraceRecord> from_json(std::string_view line) const;
  Result<TraceRecord> from_row(std::string_view line);
  Status place_turn(TraceRecord* record);

  struct Session {
    int64_t number = 0, turns = 0;
  };

  LineReader lines_;
  TraceOptions options_;
  TraceKind kind_ = TraceKind::mooncake;
  std::optional<std::string> first_line_;  // JSONL: read to learn the kind, and still to be given
  double start_timestamp_ = 0, last_timestamp_ = 0;
  bool has_records_ = false;
  // CSV: the column of each field that is used, -1 when absent; sessions by the text of their id.
  int64_t column_count_ = 0;
  int time_column_ = -1, input_column_ = -1, output_column_ = -1, session_column_ = -1;
  double first_time_ = 0;
  std::unordered_map<std::string, Session> sessions_;
  std::unordered_map<int64_t, int64_t> last_turns_;  // JSONL: of each session
};

// All records, at most `most` of them (0: all).
Result<std::vector<TraceRecord>> read_trace(const std::string& path, const TraceOptions& options = {}, int64_t most = 0);

}  // namespace k3
