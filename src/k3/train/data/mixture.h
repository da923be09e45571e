// Purpose:  which source the n-th sequence comes from, and the how-manieth of that source it is: a pure function of n whose
//           proportions are the shares, exactly, from any start on.
// Shapes:   shares [sources], sum 1.
// Units:    sequences.
// Memory:   a table of one period (at most kMostPeriod sequences).
// Threads:  immutable after create.
// Errors:   create: invalid_argument for an empty list, negative or non-finite shares or a sum of 0.
// Source:   docs/training.md, section Data. A period of P draws holds share x P draws of a source: exact where a P up to
//           kMostPeriod makes all products whole, else within half a draw in 16,384. Inside a period sources take turns by
//           earliest deadline, so that after any n draws each is within one draw of share x n.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "k3/base/result.h"

namespace k3::train {

class Mixture {
 public:
  static constexpr int64_t kMostPeriod = 16384;
  static Result<Mixture> create(std::span<const double> shares);

  struct Draw {
    int source = 0;
    int64_t index = 0;  // draws of the same source before this one
  };
  Draw draw(int64_t n) const;
  int64_t drawn(int source, int64_t n) const;  // draws of the source among the first n
  int64_t period() const { return static_cast<int64_t>(order_.size()); }

 private:
  std::vector<int32_t> order_;                // source of each draw of a period
  std::vector<int32_t> index_;                // draws of that source before it in the period
  std::vector<std::vector<int32_t>> places_;  // of each source, ascending
};

}  // namespace k3::train
