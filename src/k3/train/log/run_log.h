// Purpose:  what a training run leaves for its reader: log.jsonl (one object a line), TensorBoard events, report.html.
// Shapes:   none.
// Units:    seconds, tokens, nats; bits per byte where said.
// Memory:   the records so far (about 100 bytes a step), for the report.
// Threads:  one.
// Errors:   open, add: the file and the fact (disk full). A run that resumes drops what was logged after the step it resumes from.
// Source:   docs/training.md describes the fields.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::train {

struct StepRecord {
  int64_t step = 0;  // done steps, from 1
  std::string phase;
  double loss = 0;  // nats a token with loss
  double learning_rate = 0;  // factor of the schedule
  double gradient_norm = 0, load_violation = 0, load_violation_worst = 0, largest_logit = 0;
  double seconds = 0;  // of the step
  int64_t tokens = 0;  // of the step
  double flops = 0;    // of the step, by the formula of train_flops.h; 0: not known
};

struct EvaluationRecord {
  int64_t step = 0;
  std::string source;
  double nats_per_token = 0, bits_per_byte = 0;
  int64_t tokens = 0, bytes = 0;
};

struct SampleRecord {
  int64_t step = 0;
  std::string kind, prompt, text;  // kind: text | chat
};

struct RunFacts {
  std::string title, config_json, device;
  int64_t parameters = 0, active_parameters = 0, total_steps = 0;
  double peak_flops = 0;  // a second; 0: no MFU
};

struct RunHistory {
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<SampleRecord> samples;
};

// The lines of a log.jsonl up to and with step `last`; `kept` gets these lines. What is no line of ours, or half of one, is left out.
RunHistory read_history(std::string_view lines, int64_t last, std::string* kept);

class RunLog {
 public:
  // Reads what a former part of the run wrote, up to and with `resumed_step`.
  static Result<RunLog> open(const std::string& folder, int64_t resumed_step, RunFacts facts);
  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) noexcept;
  ~RunLog();

  Status add(const StepRecord& record);
  Status add(const EvaluationRecord& record);
  Status add(const SampleRecord& record);
  const std::vector<StepRecord>& steps() const;
  const std::vector<EvaluationRecord>& evaluations() const;

  // Writes report.html from everything so far.
  Status write_report() const;

 private:
  struct Impl;
  explicit RunLog(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3::train
