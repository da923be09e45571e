// Quantile Balancing: cutoffs of the tokens, histograms of margins, the bias read off them; loads and the sign update.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/optim/cuda/optim_args.h"
#include "k3/ops/optim/quantile/bins.h"

namespace k3::ops::cuda {
namespace {

constexpr int kBins = static_cast<int>(kQuantileBins), kThreads = 256, kWarps = kThreads / 32;
constexpr int kGroup = 8;                 // experts a block of the histogram: 32 KB of shared memory
constexpr int64_t kTokensABlock = 2048;   // of the histogram
constexpr uint32_t kAll = 0xFFFFFFFFU;

__device__ __forceinline__ float sane(float s) { return s > 0 ? s : 0.0F; }  // NaN: 0

// Unsigned numbers in the order of floats, and back.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float unordered(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

// The (topk + 1)-th largest biased score, a warp a token. Bit by bit from the top: the largest key that at least topk + 1 experts reach.
// kHeld: keys a lane keeps in registers; 0: any number of experts, read again for each bit.
template <int kHeld>
__global__ void __launch_bounds__(kThreads) cutoff_kernel(const __grid_constant__ QuantileLaunch a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= a.tokens) return;
  const float* s = a.scores + token * a.stride;
  const auto key = [&](int e) { return e < a.experts ? ordered(__fadd_rn(sane(s[e]), a.bias[e])) : 0U; };
  uint32_t held[kHeld > 0 ? kHeld : 1];
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = key(i * 32 + lane);
  }
  uint32_t found = 0;
  for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    const uint32_t wanted = found | bit;
    unsigned count = 0;
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) count += held[i] >= wanted ? 1 : 0;
    } else {
      for (int e = lane; e < a.experts; e += 32) count += key(e) >= wanted ? 1 : 0;
    }
    // One key a lane: a vote counts them, with less latency than a sum.
    const unsigned all = kHeld == 1 ? __popc(__ballot_sync(kAll, count != 0)) : __reduce_add_sync(kAll, count);
    if (all > static_cast<unsigned>(a.topk)) found = wanted;
  }
  if (lane == 0) a.cutoffs[token] = unordered(found);
}

// Least and largest bias, by the whole block.
__device__ void bias_range(const float* bias, int experts, float* least, float* most) {
  __shared__ float shared_least[32], shared_most[32];
  float low = bias[0], high = low;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) low = fminf(low, bias[e]), high = fmaxf(high, bias[e]);
  for (int i = 16; i > 0; i /= 2) {
    low = fminf(low, __shfl_xor_sync(kAll, low, i));
    high = fmaxf(high, __shfl_xor_sync(kAll, high, i));
  }
  if (threadIdx.x % 32 == 0) shared_least[threadIdx.x / 32] = low, shared_most[threadIdx.x / 32] = high;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) low = fminf(low, shared_least[w]), high = fmaxf(high, shared_most[w]);
  *least = low;
  *most = high;
  __syncthreads();
}

__device__ __forceinline__ float bin_width(float least, float most) {
  return __fdiv_rn(__fadd_rn(__fsub_rn(most, least), 2), static_cast<float>(kBins));
}

__global__ void __launch_bounds__(kThreads) histogram_kernel(const __grid_constant__ QuantileLaunch a) {
  __shared__ int32_t counts[kGroup * kBins];
  for (int i = static_cast<int>(threadIdx.x); i < kGroup * kBins; i += kThreads) counts[i] = 0;
  float least, most;
  bias_range(a.bias, a.experts, &least, &most);  // its barrier covers the zeros
  const float lo = __fsub_rn(least, 1), inverse = __fdiv_rn(1, bin_width(least, most));
  const int local = static_cast<int>(threadIdx.x) % kGroup, expert = static_cast<int>(blockIdx.x) * kGroup + local;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kTokensABlock;
  const int64_t end = begin + kTokensABlock < a.tokens ? begin + kTokensABlock : a.tokens;
  if (expert < a.experts) {
    for (int64_t t = begin + threadIdx.x / kGroup; t < end; t += kThreads / kGroup) {
      if (a.valid != nullptr && a.valid[t] == 0) continue;
      const float s = sane(a.scores[t * a.stride + expert]);
      const float at = __fmul_rn(__fsub_rn(__fsub_rn(a.cutoffs[t], s), lo), inverse);
      const float low = at > 0 ? at : 0.0F;
      atomicAdd(&counts[local * kBins + static_cast<int>(fminf(low, kBins - 1))], 1);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kGroup * kBins; i += kThreads) {
    const int e = static_cast<int>(blockIdx.x) * kGroup + i / kBins;
    if (counts[i] != 0 && e < a.experts) atomicAdd(&a.histogram[static_cast<int64_t>(e) * kBins + i % kBins], counts[i]);
  }
}

// A warp's quantile of one row, which is zeroed; *tokens of it were counted.
__device__ double row_quantile(int32_t* row, int experts, int topk, float lo, float width, int64_t* tokens) {
  constexpr int kEach = 32;  // bins a lane: the last lane has eight
  static_assert(kBins % 8 == 0 && kBins > 31 * kEach && kBins <= 32 * kEach);
  const int lane = static_cast<int>(threadIdx.x) % 32, mine = lane < 31 ? kEach : kBins - 31 * kEach;
  int32_t bins[kEach];
  auto* const at = reinterpret_cast<int4*>(row + lane * kEach);
#pragma unroll
  for (int i = 0; i < kEach / 4; ++i) {
    const int4 four = 4 * i < mine ? at[i] : int4{0, 0, 0, 0};
    bins[4 * i] = four.x, bins[4 * i + 1] = four.y, bins[4 * i + 2] = four.z, bins[4 * i + 3] = four.w;
    if (4 * i < mine) at[i] = {0, 0, 0, 0};
  }
  int64_t own = 0;
#pragma unroll
  for (const int32_t b : bins) own += b;
  int64_t upto = own;
  for (int i = 1; i < 32; i *= 2) {
    const int64_t other = __shfl_up_sync(kAll, upto, i);
    if (lane >= i) upto += other;
  }
  *tokens = __shfl_sync(kAll, upto, 31);
  const double wanted = static_cast<double>(*tokens) * topk / experts;
  const auto least = static_cast<int64_t>(ceil(wanted));
  const int first = __ffs(static_cast<int>(__ballot_sync(kAll, upto >= least))) - 1;  // there is one: least <= tokens
  // The first bin whose cumulative count reaches `least`; without a branch, so that bins stay in registers.
  int64_t before = upto - own, sum = before;
  int found = 0, count = bins[0];
  bool reached = false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!reached) before = sum, found = i, count = bins[i];
    sum += bins[i];
    reached = reached || sum >= least;
  }
  double part = count > 0 ? (wanted - static_cast<double>(before)) / count : 0;
  part = fmin(fmax(part, 0.0), 1.0);
  return __shfl_sync(kAll, static_cast<double>(lo) + (lane * kEach + found + part) * static_cast<double>(width), first);
}

__global__ void __launch_bounds__(kThreads) quantiles_kernel(int experts, int topk, int32_t* histogram, const float* bias, double* wanted, int64_t* counted) {
  float least, most;
  bias_range(bias, experts, &least, &most);
  const int e = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (e >= experts) return;
  int64_t tokens;
  const double b = row_quantile(histogram + static_cast<int64_t>(e) * kBins, experts, topk, __fsub_rn(least, 1), bin_width(least, most), &tokens);
  if (threadIdx.x % 32 != 0) return;
  wanted[e] = b;
  if (e == 0) *counted = tokens;
}

__global__ void __launch_bounds__(1024) update_kernel(int experts, double rate, const double* wanted, const int64_t* counted, float* bias) {
  __shared__ double parts[32];
  if (*counted == 0) return;
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += 1024) sum += wanted[e];
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(kAll, sum, i);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  double mean = 0;
  for (int w = 0; w < 32; ++w) mean += parts[w];
  mean /= experts;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += 1024) {
    const double old = bias[e], next = wanted[e] - mean;
    bias[e] = static_cast<float>(rate == 1 ? next : old + rate * (next - old));
  }
}

__global__ void __launch_bounds__(kThreads) load_kernel(const int32_t* ids, int64_t count, int topk, const uint8_t* valid, int32_t* load) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool counts = i < count && (valid == nullptr || valid[i / topk] != 0);
  const int id = counts ? ids[i] : -1;
  const unsigned same = __match_any_sync(kAll, id);  // one addition for all lanes with the same expert
  if (counts && __ffs(static_cast<int>(same)) - 1 == static_cast<int>(threadIdx.x) % 32) atomicAdd(&load[id], __popc(same));
}

__global__ void __launch_bounds__(1024) sign_kernel(const int32_t* load, int experts, float rate, float* bias) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += 1024) atomicAdd(&total, static_cast<unsigned long long>(load[e]));
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += 1024) {
    const int64_t missing = static_cast<int64_t>(total) - static_cast<int64_t>(load[e]) * experts;
    bias[e] += rate * static_cast<float>((missing > 0) - (missing < 0));
  }
}

}  // namespace

int quantile_accumulate_launch(const QuantileLaunch& a, void* s) {
  const auto stream = static_cast<cudaStream_t>(s);
  const auto blocks = static_cast<unsigned>((a.tokens + kWarps - 1) / kWarps);
  if (a.experts <= 32) {
    cutoff_kernel<1><<<blocks, kThreads, 0, stream>>>(a);
  } else if (a.experts <= 128) {
    cutoff_kernel<4><<<blocks, kThreads, 0, stream>>>(a);
  } else if (a.experts <= 1024) {
    cutoff_kernel<32><<<blocks, kThreads, 0, stream>>>(a);
  } else {
    cutoff_kernel<0><<<blocks, kThreads, 0, stream>>>(a);
  }
  if (const int code = launch_code(); code != 0) return code;
  const dim3 grid(static_cast<unsigned>((a.experts + kGroup - 1) / kGroup), static_cast<unsigned>((a.tokens + kTokensABlock - 1) / kTokensABlock));
  histogram_kernel<<<grid, kThreads, 0, stream>>>(a);
  return launch_code();
}

int quantile_update_launch(int32_t experts, int32_t topk, double rate, int32_t* histogram, float* bias, double* scratch, void* s) {
  const auto stream = static_cast<cudaStream_t>(s);
  auto* const counted = reinterpret_cast<int64_t*>(scratch + experts);
  quantiles_kernel<<<static_cast<unsigned>((experts + kWarps - 1) / kWarps), kThreads, 0, stream>>>(experts, topk, histogram, bias, scratch, counted);
  if (const int code = launch_code(); code != 0) return code;
  update_kernel<<<1, 1024, 0, stream>>>(experts, rate, scratch, counted, bias);
  return launch_code();
}

int expert_load_launch(const int32_t* ids, int64_t tokens, int32_t topk, const uint8_t* valid, int32_t* load, void* stream) {
  const auto blocks = static_cast<unsigned>((tokens * topk + kThreads - 1) / kThreads);
  load_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(ids, tokens * topk, topk, valid, load);
  return launch_code();
}

int sign_balance_launch(const int32_t* load, int32_t experts, float rate, float* bias, void* stream) {
  sign_kernel<<<1, 1024, 0, static_cast<cudaStream_t>(stream)>>>(load, experts, rate, bias);
  return launch_code();
}

}  // namespace k3::ops::cuda
