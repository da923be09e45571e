// Purpose:  what a step of training computes, for tokens per second as a share of a machine.
// Shapes:   none.
// Units:    FLOPs (a multiply-add is two).
// Memory:   plain values.
// Threads:  pure function.
// Errors:   none.
// Source:   6 FLOPs a token and parameter that the token meets (two forward, four backward), lm_head among them and the embedding not;
//           experts by how many a token chooses. Attention and recurrence are left out: at 1,024 tokens they are below a tenth.
#pragma once

#include "k3/format/config.h"

namespace k3::train {

struct TrainFlops {
  int64_t parameters = 0, active_parameters = 0;
  double per_token = 0;
};
TrainFlops train_flops(const Config& config);

}  // namespace k3::train
