// Purpose:  a clock fitted to measured steps: of `k3 bench` on the machine that is to be simulated, or of steps recorded
// otherwise. Shapes:   none. Units:    seconds, tokens. Memory:   a few coefficients. Threads:  immutable. Errors:   fit:
// invalid_argument for no points, and for one that is not finite or not positive. read_points: invalid_argument naming
//           file and field.
// Source:   non-negative least squares of the relative error (Lawson and Hanson 1974) over: tokens of the step capped at 1, 2, 4, ..,
//           1024 and not capped (a rising line whose slope falls: weights are read once for all tokens, experts once for some), decode
//           rows, prompts, history that decodes read, pairs of new and earlier tokens of prompts, apart for prompts of few new tokens
//           and of many, and the history of those of many: latents of a long history are expanded for many new tokens and not for few
//           (ops/mla). What few are is the one of 16, 32, .., 512 that fits best.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/plan/sim/step_clock.h"

namespace k3::plan {

// One measured step, or the mean of equal ones.
struct StepPoint {
  int64_t decode_rows = 0, decode_history_tokens = 0;  // history: of all rows together
  int64_t prompts = 0, new_tokens = 0;                 // of prompts
  double key_pairs = 0;                                // sum of new * (history + new / 2)
  double seconds = 0;
};

class FittedClock final : public StepClock {
  static constexpr size_t kCaps = 11;
  static constexpr size_t kFeatures = kCaps + 7;

 public:
  static Result<std::shared_ptr<const FittedClock>> fit(const std::vector<StepPoint>& points,
                                                        double step_overhead_seconds = 0);
  static constexpr size_t terms() { return kFeatures; }  // of the curve: fewer points leave some of them to chance
  double step_seconds(std::span<const StepPart> parts) const override;

  // Of the points it was fitted to: largest and root mean square of (fitted - measured) / measured.
  double largest_error() const { return largest_error_; }
  double rms_error() const { return rms_error_; }

 private:
  using Features = std::array<double, kFeatures>;
  struct Sums;  // over a step
  static Features features(const Sums& sums);
  static Sums sums_of(const StepPoint& point, double few);
  static Sums sums_of(std::span<const StepPart> parts, double few);
  static FittedClock fit_with(const std::vector<StepPoint>& points, double few);
  double seconds_of(const Sums& sums) const;

  Features weights_{};
  double few_ = 0;  // most new tokens of a prompt whose latents are not expanded
  double overhead_ = 0, largest_error_ = 0, rms_error_ = 0;
};

// A calibration file: JSON of `k3 bench --json` ("results"), or {"points": [{"decode_rows", "decode_history_tokens",
// "prompts", "new_tokens", "key_pairs", "seconds"}, ...]}, whose fields but the last are 0 when they are left out.
// Steps of one kind tell nothing of the other: invalid_argument where points of a kind that is needed are missing.
Status check_kinds(const std::vector<StepPoint>& points, bool decodes);

Result<std::vector<StepPoint>> read_points(const std::string& path);
Result<std::vector<StepPoint>> parse_points(std::string_view json);

}  // namespace k3::plan
