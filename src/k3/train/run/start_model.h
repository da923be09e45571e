// Purpose:  the model that a run begins from, instead of drawn weights.
// Shapes:   those of the config's model; MXFP4 and BF16 are widened to the masters' FP32.
// Units:    none.
// Memory:   the largest tensor, twice; the weights are the caller's.
// Threads:  one.
// Errors:   invalid_argument: a config, tokenizer or hash that is another one's, with the first field that differs; not_found
//           and corrupt: a tensor that is missing or of another size, by its name; all with the folder.
// Source:   docs/training.md, section Config.
#pragma once

#include <string>

#include "k3/model/train/train_weights.h"
#include "k3/train/run/train_config.h"

namespace k3::train {

// The first field that makes weights of one config useless to the other: its path and both values; empty: none. How experts
// are stored, ids of special tokens and the vision tower do not.
std::string first_difference(const Config& config, const Config& start);

// SHA-256, in hex, of a list of all tensors in the order of their names: a line "NAME HASH" each, HASH that of its bytes.
// How they are spread over files does not matter.
Result<std::string> start_sha256(const Checkpoint& checkpoint);

// Reads the weights from config.start, the router's bias among them, and writes the hash into the config (and its text), so
// that it is part of what a resumed run must agree with. A config that names a hash gets no other model.
Status read_start(TrainConfig& config, TrainWeights& weights);

// Whether the run in the folder was begun from the same model, as far as its train.json can be read.
Status check_same_start(const TrainConfig& config, const std::string& run_folder);

}  // namespace k3::train
