// Purpose:  what every op and layer is told about where and how to compute.
// Shapes:   none.
// Units:    none.
// Memory:   refers to a pool and a workspace that outlive the call; ops give back what they take.
// Threads:  one Ctx is used by one thread at a time; parallel regions are inside the ops.
// Errors:   none; ops are noexcept and check their arguments with K3_CHECK.
// Source:   architecture: "One model definition for CPU and CUDA, inference and training".
#pragma once

#include "k3/base/threads.h"
#include "k3/ops/cpu/isa.h"
#include "k3/tensor/tensor.h"

namespace k3::ops {

// exact: FP32 activations, state, conv tail and latent.
// bf16:  inputs of matrix products, the conv tail and the latent are rounded to BF16; accumulation, norms,
//        gates, softmax and the KDA state stay FP32. On the CPU activations travel in FP32 either way.
enum class Policy { exact, bf16 };

class Tape;  // records vjps in training; null means inference

struct Ctx {
  ThreadPool* pool = nullptr;
  Workspace* workspace = nullptr;
  Isa isa = Isa::scalar;
  Policy policy = Policy::exact;
  // Every token is computed by the same arithmetic whatever the phase, the chunking, the neighbours and the
  // thread count: recurrent KDA, absorbed MLA, fixed-order row-wise products.
  bool deterministic = false;
  // Lossy: inputs of products with 8-bit and MXFP4 weights are rounded to 8 bits in groups of 32 (int8_dots.h). Products in
  // full precision and those with other weights are as ever.
  bool int8_activations = false;
  Tape* tape = nullptr;
};

}  // namespace k3::ops
