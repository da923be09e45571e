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
#include "k3/tensor/device.h"
#include "k3/tensor/tensor.h"

namespace k3::ops {

// exact: FP32 activations, state, conv tail and latent.
// bf16:  inputs of matrix products, the conv tail and the latent are rounded to BF16; accumulation, norms,
//        gates, softmax and the KDA state stay FP32. On the CPU activations travel in FP32 either way; on a GPU in
//        BF16 (it has no policy exact).
enum class Policy { exact, bf16 };

class Tape;  // tape.h

namespace cuda {
class OpState;  // what the ops keep on a GPU between steps (cuda/op_state.h)
}

// What varies from step to step, as kernels read it: in device memory, at addresses that stay, so that a captured graph reads the
// values of the step it is replayed for.
struct DeviceStep {
  const int32_t* tokens = nullptr;      // [T]
  const int32_t* offsets = nullptr;     // [B + 1]
  const int32_t* history = nullptr;     // [B]
  const int32_t* lengths = nullptr;     // [B] history and step together
  const int32_t* key_offsets = nullptr;  // [B + 1] running sum of lengths
  const int32_t* logit_rows = nullptr;
  int64_t sequences = 0;                // B
  int64_t longest = 0;                  // most tokens of a sequence in the step
  int64_t keys = 0;                     // sum of lengths; not known (0) in a graph
};

struct Ctx {
  // Where tensors, weights and caches lie and the work is done. On a GPU everything is queued on `stream`; host spans in arguments
  // (offsets, history, exports) give sizes, their values are taken from `step`.
  Device device = {};
  Stream stream = nullptr;
  const DeviceStep* step = nullptr;
  cuda::OpState* gpu = nullptr;
  // The training forms of ops (*_train.h): no caches, every sequence of the batch begins afresh; with `tape` they are recorded,
  // without it only the forward is done.
  bool training = false;
  bool mxfp8_experts = false;  // with training: inputs of routed experts' products are rounded to MXFP8
  // With training: its oracle, on the CPU: every tensor FP64, every op the obvious one.
  bool double_precision = false;
  DType activation() const { return device.is_cuda() ? DType::bf16 : double_precision ? DType::f64 : DType::f32; }

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
