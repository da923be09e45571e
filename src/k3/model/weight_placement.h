// Purpose:  puts the weights of a loaded model where the workers that read them are, on machines of several memories.
// Shapes:   none.
// Units:    none.
// Memory:   moves pages; addresses and contents stay.
// Threads:  before the first step.
// Errors:   none: where the system refuses, memory stays where it is and the program is slower. False then.
// Source:   the streams are those of the layers (kda_layer.cc, mla_layer.cc, moe_layer.cc): matrices that meet one input.
//           Experts and kv_b are read by whichever worker is free: their pages take turns.
#pragma once

#include "k3/base/numa/numa_plan.h"
#include "k3/model/weights.h"

namespace k3 {

// Does nothing, truthfully, with one memory.
bool place_weights(const WeightSet& weights, const NumaPlan& plan);

// The streams of a layer, for tests: each is read as one line of bytes.
std::vector<std::vector<ops::Weight>> weight_streams(const LayerWeights& layer);

}  // namespace k3
