// Purpose:  the ids that a run is given, as a file: to look at, or to give another program the same.
// Shapes:   [steps * 3, tokens of a step] in a .npy file: of every step its tokens, its targets (-1: no loss) and 1 where a segment begins.
// Units:    ids, as FP32, which holds them exactly.
// Memory:   a step.
// Threads:  one, and that of the feed.
// Errors:   those of the data and of the file; invalid_argument: steps of different sizes, or ids that FP32 does not hold.
// Source:   docs/training.md.
#pragma once

#include "k3/train/run/train_config.h"

namespace k3::train {

Status write_batches(const TrainConfig& config, const std::string& path);

}  // namespace k3::train
