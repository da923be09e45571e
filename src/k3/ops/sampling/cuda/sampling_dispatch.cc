// Sampling on a GPU: tokens of a step's rows.
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/sampling/cuda/sampling_cuda.h"

namespace k3::ops::cuda {

bool can_choose(int64_t vocab) noexcept { return !plain_device() && vocab <= kMostSampleVocab; }

void choose_rows(const Ctx& ctx, const Tensor& logits, const SampleRow* params, int32_t* ids, uint32_t* flags) noexcept {
  const Sampling s{.rows = logits.dim(0),
                   .vocab = logits.dim(1),
                   .logits = logits.data,
                   .stride = logits.stride(0),
                   .params = params,
                   .ids = ids,
                   .flags = flags};
  ctx.gpu->note(sampling_cuda(s, ctx.stream), "sampling");
}

}  // namespace k3::ops::cuda
