// Purpose:  measurements that others published, as data: what ran where, what was measured, what had to be assumed.
// Shapes:   none.
// Units:    seconds, tokens, tokens/s.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   invalid_argument: file, line, field, what is wrong with it and what is wanted.
// Source:   cost-model.md 12 (share/measurements/k3.toml).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/plan/cost/layout.h"

namespace k3::plan {

enum class Quantity {
  step_seconds,                   // of a decode step
  user_tokens_per_second,         // tokens accepted in a step over its time
  tpot_seconds,                   // closed loop
  ttft_seconds,                   // closed loop
  output_tokens_per_second,       // closed loop, of all users
  tokens_per_second_gpu,          // closed loop, input and output
  prefill_tokens_per_second_gpu,  // of prompts that follow each other
};
std::string_view quantity_name(Quantity quantity);
bool is_time(Quantity quantity);

struct Measurement {
  std::string name, source, hw;
  Layout layout;
  Quantity quantity = Quantity::step_seconds;
  int64_t batch = 0, context = 0;            // decode steps
  int64_t users = 0, input = 0, output = 0;  // closed loops; input of prefills, too
  int64_t sequences = 0;                     // prefills
  double latent_bytes = 2;                   // of a cached value
  int64_t draft = 0;                         // drafted tokens; 0: none
  double accepted = 1;                       // tokens of a step
  double measured = 0;
  double expected = 0;  // the model's value in the specification
  bool fitted = false;
  std::string assumed, note;
  int64_t line = 0;

  bool scored() const { return !fitted && assumed.empty(); }
};

Result<std::vector<Measurement>> parse_measurements(std::string_view toml, const std::string& source);
Result<std::vector<Measurement>> load_measurements(const std::string& path);
const std::vector<Measurement>& published_measurements();  // share/measurements/k3.toml

}  // namespace k3::plan
