// Greedy sampling: the largest logit of each row, the lowest id on ties; a cluster shares a row.
#include "k3/ops/sampling/cuda/sampling_row.cuh"

namespace k3::ops::cuda {
namespace {

template <bool kBf16>
__global__ void __launch_bounds__(kThreads) argmax(const __grid_constant__ Sampling s, int cluster, int64_t per_block) {
  __shared__ Shared shared;
  Row row{shared,
          cluster > 1 ? static_cast<int>(cluster_rank()) : 0,
          cluster,
          static_cast<int>(threadIdx.x),
          static_cast<int>(threadIdx.x / 32),
          static_cast<int>(threadIdx.x & 31)};
  if (cluster > 1) cluster_arrive();
  dependent_begin();
  const int64_t r = blockIdx.x / cluster, begin = min(row.rank * per_block, s.vocab), end = min(begin + per_block, s.vocab);
  const char* logits = static_cast<const char*>(s.logits) + r * s.stride * (kBf16 ? 2 : 4);
  // A thread meets ascending ids, so the first of equals stays.
  struct Take {
    Extremes& extremes;
    int& at;
    __device__ void operator()(int i, float x) const {
      if (x > extremes.best) at = i;
      extremes.take(x);
    }
    __device__ void operator()(int i, const float4& x) const {
      (*this)(i, x.x), (*this)(i + 1, x.y), (*this)(i + 2, x.z), (*this)(i + 3, x.w);
    }
  };
  Extremes extremes;
  int at = 0;
  load_slice<kBf16>(logits, begin, static_cast<int>(end - begin), row.tid, Take{extremes, at});
  if (cluster > 1) cluster_wait();
  const Range found = row.reduce(
      Range{static_cast<uint64_t>(~key_of(extremes.best)) << 32 | static_cast<uint32_t>(begin + at), ~uint64_t{0}});
  const uint32_t flags = row.reduce(Best{0, extremes.flags()}).flags;
  if (row.rank == 0 && row.tid == 0) {
    const bool nothing = value_of(~static_cast<uint32_t>(found.low >> 32)) == -INFINITY;
    s.ids[r] = nothing || (flags & kSampleBroken) != 0 ? -1 : static_cast<int32_t>(found.low);
    if (s.flags != nullptr) s.flags[r] = flags | (nothing && (flags & kSampleBroken) == 0 ? kSampleNoToken : 0);
  }
}

}  // namespace

int argmax_launch(const Sampling& s, int cluster, int64_t slice, void* stream) {
  LaunchOptions options{.grid = dim3(static_cast<unsigned>(s.rows * cluster)), .block = dim3(kThreads)};
  options.cluster = cluster;
  options.dependent = s.dependent;
  return launch(s.logits_bf16 ? argmax<true> : argmax<false>, options, static_cast<cudaStream_t>(stream), s, cluster, slice);
}

}  // namespace k3::ops::cuda
