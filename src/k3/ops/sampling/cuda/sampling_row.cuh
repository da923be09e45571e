// Internal to ops/sampling. What the threads of a row share in both kernels: keys, reductions over a block or its cluster,
// loading.
#pragma once

#include <cmath>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/sampling/cuda/sampling_args.h"

namespace k3::ops::cuda {

constexpr int kThreads = 512, kWarps = kThreads / 32, kMostCluster = 16;
constexpr uint32_t kFull = 0xFFFFFFFFU;

// Keys that order floats as unsigned numbers. For weights (>= 0) their bits do.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x == 0 ? 0.0F : x);  // -0 ties with 0
  return bits ^ ((bits >> 31) != 0 ? kFull : 0x80000000U);
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000U : kFull));
}
template <bool kMass>
__device__ __forceinline__ uint32_t search_key(float x) {
  return kMass ? __float_as_uint(x) : key_of(x);
}
template <bool kMass>
__device__ __forceinline__ uint64_t search_value(uint32_t key) {
  return kMass ? sample_mass(__uint_as_float(key)) : 1;
}

__device__ __forceinline__ void sync_cluster() {
  __syncwarp();  // the barrier wants whole warps
  cluster_sync();
}

// What reductions carry: sums, or the largest key with or-ed flags, or a range.
struct Sums {
  uint64_t above, inside;
  uint32_t count;
  __device__ static Sums of(const Sums& a, const Sums& b) {
    return {a.above + b.above, a.inside + b.inside, a.count + b.count};
  }
  static constexpr int kWords = 5;
};
struct Mass {
  uint64_t value;
  uint32_t count;
  __device__ static Mass of(const Mass& a, const Mass& b) { return {a.value + b.value, a.count + b.count}; }
  static constexpr int kWords = 3;
};
struct Best {
  uint32_t key, flags;
  __device__ static Best of(const Best& a, const Best& b) { return {max(a.key, b.key), a.flags | b.flags}; }
  static constexpr int kWords = 2;
};
struct Range {
  uint64_t low, not_high;  // smallest, and the complement of the largest
  __device__ static Range of(const Range& a, const Range& b) { return {min(a.low, b.low), min(a.not_high, b.not_high)}; }
  static constexpr int kWords = 4;
};
template <class T>
union Words {
  T value;
  uint32_t words[(sizeof(T) + 3) / 4];
  __device__ Words() {}
};

template <int kLanes = 32, class T>
__device__ __forceinline__ T warp_reduce(T x) {
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) {
    Words<T> mine, other;
    mine.value = x;
#pragma unroll
    for (int w = 0; w < T::kWords; ++w) other.words[w] = __shfl_xor_sync(kFull, mine.words[w], i);
    x = T::of(x, other.value);
  }
  return x;
}

constexpr int kBoxWords = 6;
struct Shared {
  uint32_t warp[2][kWarps][kBoxWords], block[2][kMostCluster][kBoxWords];
  uint64_t warp_mass[kWarps];
  float warp_scan[kWarps];
  uint64_t scan[kWarps];
  uint32_t fill, bin, key;
  int32_t id;
  uint64_t low, high, above;
  uint32_t count;
  uint64_t last[32];
};

template <class T>
__device__ __forceinline__ T from_box(const uint32_t* box) {
  Words<T> x;
#pragma unroll
  for (int w = 0; w < T::kWords; ++w) x.words[w] = box[w];
  return x.value;
}

// What a row's threads share. The parities alternate between reductions, so that one barrier each is enough; block 0 makes
// some alone, so the cluster has a parity of its own.
struct Row {
  Shared& s;
  int rank, cluster, tid, warp, lane;
  int parity = 0, cluster_parity = 0;
  // In a large cluster (few rows) every block gets all candidates and finds the bound itself: nobody waits for block 0.
  __device__ bool everywhere() const { return cluster == kMostCluster; }

  template <class T>
  __device__ T block_reduce(T x) {  // all threads get it
    parity ^= 1;
    Words<T> words;
    words.value = warp_reduce(x);
#pragma unroll
    for (int w = 0; w < T::kWords; ++w) {
      if (lane == w) s.warp[parity][warp][w] = words.words[w];
    }
    __syncthreads();
    return warp_reduce<kWarps>(from_box<T>(s.warp[parity][lane % kWarps]));
  }
  template <class T>
  __device__ T reduce(T x) {  // over the cluster
    Words<T> words;
    words.value = block_reduce(x);
    if (cluster == 1) return words.value;
    cluster_parity ^= 1;
    if (warp == 0 && lane < cluster) {
      const uint32_t to = cluster_map(shared_address(s.block[cluster_parity][rank]), lane);
#pragma unroll
      for (int w = 0; w < T::kWords; ++w)
        asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(to + 4 * w), "r"(words.words[w]) : "memory");
    }
    sync_cluster();
    T all = from_box<T>(s.block[cluster_parity][0]);
    for (int i = 1; i < cluster; ++i) all = T::of(all, from_box<T>(s.block[cluster_parity][i]));
    return all;
  }
  template <class T>
  __device__ T of_rank(int r) const {
    return from_box<T>(s.block[cluster_parity][r]);
  }
};

// ---- the passes over the row ----

// Loads entries [begin, begin + count) of a row and hands them to take(id, value), four vectors of 16 bytes in flight.
template <bool kBf16, class Take>
__device__ __forceinline__ void load_slice(const void* row, int64_t begin, int count, int tid, const Take& take) {
  constexpr int kPer = kBf16 ? 8 : 4, kFlight = 8;
  const char* from = static_cast<const char*>(row) + begin * (kBf16 ? 2 : 4);
  const auto scalar = [&](int i) {
    return kBf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[i])
                 : reinterpret_cast<const float*>(from)[i];
  };
  const int vectors = reinterpret_cast<uintptr_t>(from) % 16 == 0 ? count / kPer : 0;
  for (int v = tid; v < vectors; v += kFlight * kThreads) {
    uint4 x[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      if (v + f * kThreads < vectors) x[f] = load_once(from + 16 * static_cast<int64_t>(v + f * kThreads));
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const int at = (v + f * kThreads) * kPer;
      if (v + f * kThreads >= vectors) continue;
      if constexpr (kBf16) {
        float y[8];
        unpack8(x[f], y);
        take(at, float4{y[0], y[1], y[2], y[3]});
        take(at + 4, float4{y[4], y[5], y[6], y[7]});
      } else {
        take(at, float4{__uint_as_float(x[f].x), __uint_as_float(x[f].y), __uint_as_float(x[f].z), __uint_as_float(x[f].w)});
      }
    }
  }
  for (int i = vectors * kPer + tid; i < count; i += kThreads) take(i, scalar(i));
}

// Largest value and largest magnitude tell everything about NaN and infinities.
struct Extremes {
  float best = -INFINITY;
  uint32_t magnitude = 0;
  __device__ void take(float x) {
    best = fmaxf(best, x);  // passes NaN over
    magnitude = max(magnitude, __float_as_uint(x) & 0x7FFFFFFFU);
  }
  __device__ uint32_t flags() const {
    if (magnitude < 0x7F800000U) return 0;
    return kSampleNotFinite | (magnitude > 0x7F800000U || best == INFINITY ? kSampleBroken : 0);
  }
};

}  // namespace k3::ops::cuda
