// Purpose:  the cache of a layer's experts on the GPU, kept by the GPU: which experts a step wants is counted, and those in host
//           memory that are used more than what a slot holds are copied there before the kernels read them.
// Shapes:   ids [T, topk] i32; slot [E], owner [slots], score [E]; E up to 1,024, slots up to E. owner[slot[e] - first_slot] = e
//           for every slot[e] >= 0.
// Units:    experts, bytes.
// Memory:   tables and slots are read and written. Host memory is pinned and mapped; each admitted expert is read once over the
//           bus. Nothing is allocated, nothing waits for the host: capturable, values that vary are in memory.
// Threads:  stream order; no other stream may read the layer's slots meanwhile.
// Errors:   K3_CHECK on sizes; CudaStatus of the launches. T = 0 is legal.
// Source:   least frequently used with ageing: score = keep * score + tokens that chose the expert. The missing experts of a step,
//           highest score first, take the slots of the lowest, as long as theirs is higher; experts of the step itself stay. Which
//           experts have slots never changes a result: kernels read the same bytes elsewhere.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

CudaStatus moe_fetch_cuda(const MoeFetch& fetch, Stream stream);

}  // namespace k3::ops::cuda
