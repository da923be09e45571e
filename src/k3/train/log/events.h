// Purpose:  a run's curves as TensorBoard reads them.
// Shapes:   none.
// Units:    those of the records.
// Memory:   none.
// Threads:  one.
// Errors:   create, add: the file and the fact.
// Source:   TFRecord framing (length, masked CRC-32C, data, masked CRC-32C) of Event protocol buffers with scalar and text summaries.
#pragma once

#include "k3/train/log/run_log.h"

namespace k3::train {

class EventWriter {
 public:
  // One file in the folder, written anew from `history` (a resumed run has no gaps and no doubles), then added to.
  static Result<EventWriter> create(const std::string& folder, const RunHistory& history);
  EventWriter(EventWriter&&) noexcept;
  ~EventWriter();
  Status add(const StepRecord& record);
  Status add(const EvaluationRecord& record);
  Status add(const SampleRecord& record);

 private:
  EventWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Status write_event(int64_t step, const std::string& summary);
  int fd_ = -1;
  std::string path_;
};

}  // namespace k3::train
