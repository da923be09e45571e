// Sampling: a cluster of 8 blocks a row, each with its slice of the row in shared memory (so the row is read once). A filter
// is the search for a key: the largest one such that the values of all entries at or above it reach a target. The search
// halves an interval of keys over the whole row until few entries lie in it; these go to block 0, which ends it alone.
#include <cmath>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/sampling/cuda/sampling_args.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kCluster = 8, kCandidates = 3072, kMostTop = 20;
constexpr int kMine = kCandidates / kThreads;  // candidates a thread
constexpr uint32_t kFull = 0xFFFFFFFFU;
constexpr int32_t kAllIds = 0x7FFFFFFF;

// Keys that order floats as unsigned numbers. For weights (>= 0) their bits do.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x == 0 ? 0.0F : x);  // -0 ties with 0
  return bits ^ ((bits >> 31) != 0 ? kFull : 0x80000000U);
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000U : kFull));
}
// Larger value, then lower id.
__device__ __forceinline__ uint64_t rank_key(float x, int32_t id) {
  return static_cast<uint64_t>(key_of(x)) << 32 | (kFull - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int32_t rank_id(uint64_t key) { return static_cast<int32_t>(kFull - static_cast<uint32_t>(key)); }

__device__ __forceinline__ void sync_cluster() {
  __syncwarp();  // the barrier wants whole warps
  cluster_sync();
}

struct Sum {
  __device__ static uint64_t of(uint64_t a, uint64_t b) { return a + b; }
};
struct Max {
  __device__ static uint64_t of(uint64_t a, uint64_t b) { return a > b ? a : b; }
};

struct Pair {
  uint64_t value;  // mass, or a rank key
  uint32_t count;  // summed (flags: or-ed)
};
struct Boxes {
  Pair warp[2][kWarps], block[2][kCluster];
  uint32_t fill, key;
  int32_t id;
  uint64_t warp_mass[kWarps];
};

template <class Op, bool kOr = false>
__device__ __forceinline__ Pair combine(const Pair& a, const Pair& b) {
  return {Op::of(a.value, b.value), kOr ? a.count | b.count : a.count + b.count};
}
template <class Op, bool kOr = false>
__device__ __forceinline__ Pair warp_reduce(Pair x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2)
    x = combine<Op, kOr>(x, {__shfl_xor_sync(kFull, x.value, i), __shfl_xor_sync(kFull, x.count, i)});
  return x;
}

__device__ __forceinline__ void remote_store(uint32_t address, uint32_t rank, const Pair& x) {
  const uint32_t to = cluster_map(address, rank);
  asm volatile("st.shared::cluster.u64 [%0], %1;\nst.shared::cluster.u32 [%0+8], %2;\n" ::"r"(to), "l"(x.value), "r"(x.count)
               : "memory");
}

// What a row's threads share. The parities alternate between reductions, so that one barrier each is enough; block 0 makes
// some alone, so the cluster has a parity of its own.
struct Row {
  Boxes& boxes;
  int rank, cluster, tid, warp, lane;
  int parity = 0, cluster_parity = 0;

  template <class Op, bool kOr = false>
  __device__ Pair block_reduce(Pair x) {  // all threads get it
    parity ^= 1;
    x = warp_reduce<Op, kOr>(x);
    if (lane == 0) boxes.warp[parity][warp] = x;
    __syncthreads();
    x = lane < kWarps ? boxes.warp[parity][lane] : Pair{0, 0};
    return warp_reduce<Op, kOr>(x);
  }
  template <class Op, bool kOr = false>
  __device__ Pair reduce(Pair x) {  // over the cluster
    x = block_reduce<Op, kOr>(x);
    if (cluster == 1) return x;
    cluster_parity ^= 1;
    if (warp == 0 && lane < cluster) remote_store(shared_address(&boxes.block[cluster_parity][rank]), lane, x);
    sync_cluster();
    Pair all = boxes.block[cluster_parity][0];
    for (int i = 1; i < cluster; ++i) all = combine<Op, kOr>(all, boxes.block[cluster_parity][i]);
    return all;
  }
};

// Entries of a row as the search sees them.
template <bool kMass>
__device__ __forceinline__ uint32_t search_key(float x) {
  return kMass ? __float_as_uint(x) : key_of(x);
}
template <bool kMass>
__device__ __forceinline__ uint64_t search_value(uint32_t key) {
  return kMass ? sample_mass(__uint_as_float(key)) : 1;
}

struct Slice {
  float* x;
  int32_t begin, count;
};
struct Candidates {
  uint32_t* keys;
  int32_t* ids;
};
struct Bound {  // kept: key > this, or equal and id at most this
  uint32_t key;
  int32_t id;
  __device__ bool keeps(uint32_t other, int32_t other_id) const { return other > key || (other == key && other_id <= id); }
};

// The smallest id such that `wanted` entries of that key have it or a lower one: halving of [0, vocab), over the cluster or,
// with candidates, in one block.
template <class Count>
__device__ int32_t search_id(uint32_t wanted, int32_t vocab, const Count& count) {
  int32_t low = -1, high = vocab - 1;  // count(low) < wanted <= count(high)
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (count(middle) >= wanted) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

// first: the first key to try (masses), or the largest there is; all: entries with key >= 1 and their value (at least
// target).
template <bool kMass>
__device__ Bound search(Row& row, const Slice& slice, const Candidates& candidates, int32_t vocab, uint64_t target,
                        uint32_t first, uint32_t all) {
  uint32_t low = 1, high = kMass ? 0x3F800001U : first + 1;  // values from low on reach the target, from high on they do not
  uint32_t count_low = all, count_high = 0;
  uint64_t above = 0;  // from high on
  float step = 4;
  for (int i = 0; count_low - count_high > kCandidates && high - low > 1; ++i) {
    uint32_t probe = low + (high - low) / 2;
    if (kMass && i == 0 && first > low && first < high) probe = first;
    if (!kMass && i < 16) {  // by value: logits are spread evenly over values, not over keys
      const float bottom = low == 1 ? value_of(first) - (step *= 2) : value_of(low);
      const uint32_t by_value = low == 1 ? key_of(bottom) : key_of(bottom + (value_of(high) - bottom) / 2);
      if (by_value > low && by_value < high) probe = by_value;
    }
    Pair sum{0, 0};
    for (int j = row.tid; j < slice.count; j += kThreads) {
      const uint32_t key = search_key<kMass>(slice.x[j]);
      if (key >= probe) {
        sum.value += search_value<kMass>(key);
        ++sum.count;
      }
    }
    sum = row.reduce<Sum>(sum);
    if (sum.value >= target) {
      low = probe, count_low = sum.count;
    } else {
      high = probe, count_high = sum.count, above = sum.value;
    }
  }
  if (high - low == 1) {  // ties, perhaps many
    const uint32_t ties = count_low - count_high;
    const uint64_t value = search_value<kMass>(low), wanted = (target - above + value - 1) / value;
    if (wanted >= ties) return {low, kAllIds};
    const int32_t id = search_id(static_cast<uint32_t>(wanted), vocab, [&](int32_t most) {
      Pair sum{0, 0};
      for (int j = row.tid; j < slice.count; j += kThreads) {
        if (search_key<kMass>(slice.x[j]) == low && slice.begin + j <= most) ++sum.count;
      }
      return row.reduce<Sum>(sum).count;
    });
    return {low, id};
  }

  // Entries of [low, high) to block 0.
  const uint32_t fill = cluster_map(shared_address(&row.boxes.fill), 0);
  const uint32_t keys = cluster_map(shared_address(candidates.keys), 0),
                 ids = cluster_map(shared_address(candidates.ids), 0);
  for (int j = row.tid; j < slice.count; j += kThreads) {
    const uint32_t key = search_key<kMass>(slice.x[j]);
    if (key < low || key >= high) continue;
    uint32_t at;
    asm volatile("atom.shared::cluster.add.u32 %0, [%1], 1;\n" : "=r"(at) : "r"(fill) : "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(keys + 4 * at), "r"(key) : "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(ids + 4 * at), "r"(static_cast<uint32_t>(slice.begin + j))
                 : "memory");
  }
  sync_cluster();
  if (row.rank == 0) {
    uint32_t left = count_low - count_high;
    const int count = static_cast<int>(left);
    uint32_t my_keys[kMine];
    uint64_t my_values[kMine];
#pragma unroll
    for (int c = 0; c < kMine; ++c) {
      const int j = row.tid + c * kThreads;
      my_keys[c] = j < count ? candidates.keys[j] : 0;
      my_values[c] = j < count ? search_value<kMass>(my_keys[c]) : 0;
    }
    uint32_t from_low = left, from_high = 0;
    while (high - low > 1 && left > 1) {
      const uint32_t probe = low + (high - low) / 2;
      Pair sum{0, 0};
#pragma unroll
      for (int c = 0; c < kMine; ++c) {
        const bool in = my_keys[c] >= probe && my_keys[c] < high;
        sum.value += in ? my_values[c] : 0;
        sum.count += in ? 1 : 0;
      }
      sum = row.block_reduce<Sum>(sum);
      if (above + sum.value >= target) {
        low = probe, from_low = from_high + sum.count;
      } else {
        high = probe, from_high += sum.count, above += sum.value;
      }
      left = from_low - from_high;
    }
    if (left == 1) {  // that entry's key is the bound
#pragma unroll
      for (int c = 0; c < kMine; ++c) {
        if (my_keys[c] >= low && my_keys[c] < high) row.boxes.key = my_keys[c], row.boxes.id = kAllIds;
      }
    } else {
      const uint64_t value = search_value<kMass>(low), wanted = (target - above + value - 1) / value;
      int32_t id = kAllIds;
      if (wanted < left) {
        id = search_id(static_cast<uint32_t>(wanted), vocab, [&](int32_t most) {
          Pair sum{0, 0};
#pragma unroll
          for (int c = 0; c < kMine; ++c) {
            const int j = row.tid + c * kThreads;
            if (j < count && my_keys[c] == low && candidates.ids[j] <= most) ++sum.count;
          }
          return row.block_reduce<Sum>(sum).count;
        });
      }
      if (row.tid == 0) row.boxes.key = low, row.boxes.id = id;
    }
    __syncthreads();
    if (row.tid == 0) row.boxes.fill = 0;
    if (row.warp == 0 && row.lane < row.cluster && row.lane > 0) {
      const uint32_t key = cluster_map(shared_address(&row.boxes.key), row.lane),
                     id = cluster_map(shared_address(&row.boxes.id), row.lane);
      asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(key), "r"(row.boxes.key) : "memory");
      asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(id), "r"(static_cast<uint32_t>(row.boxes.id)) : "memory");
    }
  }
  sync_cluster();
  return {row.boxes.key, row.boxes.id};
}

// Loads entries [begin, begin + count) of a row and hands them to take(id, value), four vectors of 16 bytes in flight.
template <bool kBf16, class Take>
__device__ __forceinline__ void load_slice(const void* row, int64_t begin, int count, int tid, const Take& take) {
  constexpr int kPer = kBf16 ? 8 : 4, kFlight = 4;
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
#pragma unroll
        for (int i = 0; i < 8; ++i) take(at + i, y[i]);
      } else {
        take(at, __uint_as_float(x[f].x)), take(at + 1, __uint_as_float(x[f].y));
        take(at + 2, __uint_as_float(x[f].z)), take(at + 3, __uint_as_float(x[f].w));
      }
    }
  }
  for (int i = vectors * kPer + tid; i < count; i += kThreads) take(i, scalar(i));
}

__device__ __forceinline__ uint32_t flags_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  const bool odd = (bits & 0x7F800000U) == 0x7F800000U;
  return odd ? kSampleNotFinite | (bits != 0xFF800000U ? kSampleBroken : 0) : 0;
}

// Best entry and flags of a row, from a pass that kept them per thread. Without an allowed token the key is that of
// -infinity.
struct Best {
  uint64_t key = 0;
  uint32_t flags = 0;
  __device__ void take(float x, int32_t id) {
    flags |= flags_of(x);
    const uint64_t other = rank_key(x, id);  // NaN may win; the flag says so
    key = other > key ? other : key;
  }
  __device__ float value() const { return value_of(static_cast<uint32_t>(key >> 32)); }
};

struct Result {
  int32_t id;
  uint32_t flags;
};

__device__ __forceinline__ bool allowed(const uint32_t* mask, int32_t id) {
  return (__ldg(mask + id / 32) >> (id % 32) & 1) != 0;
}

// log of the sum of e^(x - best), from masses.
__device__ __forceinline__ double log_total(uint64_t total) {
  return log(static_cast<double>(total)) - 44 * 0.69314718055994530942;
}

// Exponentials in place of the scores; what top_k dropped becomes 0. Total mass and number of entries that are not 0.
__device__ __forceinline__ Pair weigh(Row& row, const Slice& slice, float best, float temperature, const Bound* bound) {
  Pair sum{0, 0};
  for (int j = row.tid; j < slice.count; j += kThreads) {
    const float x = slice.x[j];
    float w = sample_weight(x, best, temperature);
    if (bound != nullptr && !bound->keeps(key_of(x), slice.begin + j)) w = 0;
    slice.x[j] = w;
    sum.value += sample_mass(w);
    sum.count += w > 0 ? 1 : 0;
  }
  return row.reduce<Sum>(sum);
}

// The first id whose running mass exceeds the point. Every warp sums a part of the slice that is contiguous; the one that
// holds the point looks closer.
__device__ int32_t draw(Row& row, const Slice& slice, const Bound& bound, float min_p, double uniform) {
  const auto kept_mass = [&](int j) -> uint64_t {
    if (j >= slice.count) return 0;
    const float w = slice.x[j];
    return w >= min_p && bound.keeps(__float_as_uint(w), slice.begin + j) ? sample_mass(w) : 0;
  };
  const int part = (slice.count + 32 * kWarps - 1) / (32 * kWarps) * 32, first = row.warp * part;
  const int last = min(first + part, slice.count);
  uint64_t mine = 0;
  for (int j = first + row.lane; j < last; j += 32) mine += kept_mass(j);
  const Pair of_warp = warp_reduce<Sum>({mine, 0});
  if (row.lane == 0) row.boxes.warp_mass[row.warp] = of_warp.value;
  const Pair total = row.reduce<Sum>({mine, 0});
  uint64_t before = 0;
  for (int i = 0; i < row.rank; ++i) before += row.boxes.block[row.cluster_parity][i].value;
  const uint64_t point = sample_point(uniform, total.value);
  for (int i = 0; i < row.warp; ++i) before += row.boxes.warp_mass[i];
  if (point < before || point >= before + of_warp.value) return -1;
  // One warp of one block is left.
  for (int j = first; j < last; j += 32) {
    uint64_t running = kept_mass(j + row.lane);
    if (j + row.lane >= last) running = 0;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const uint64_t left = __shfl_up_sync(kFull, running, i);
      if (row.lane >= i) running += left;
    }
    const uint32_t beyond = __ballot_sync(kFull, before + running > point);
    if (beyond != 0) return slice.begin + j + __ffs(static_cast<int>(beyond)) - 1;
    before += __shfl_sync(kFull, running, 31);
  }
  return -1;
}

// The top entries of a row, ranked by counting.
__device__ void write_top(Row& row, const Slice& slice, const Candidates& candidates, const Sampling& s, int64_t r,
                          uint32_t best_key, double log_sum) {
  const Bound bound = search<false>(row, slice, candidates, static_cast<int32_t>(s.vocab),
                                    min(static_cast<int64_t>(s.top), s.vocab), best_key, s.vocab);
  const uint32_t fill = cluster_map(shared_address(&row.boxes.fill), 0);
  const uint32_t keys = cluster_map(shared_address(candidates.keys), 0),
                 ids = cluster_map(shared_address(candidates.ids), 0);
  for (int j = row.tid; j < slice.count; j += kThreads) {
    const uint32_t key = key_of(slice.x[j]);
    if (!bound.keeps(key, slice.begin + j)) continue;
    uint32_t at;
    asm volatile("atom.shared::cluster.add.u32 %0, [%1], 1;\n" : "=r"(at) : "r"(fill) : "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(keys + 4 * at), "r"(key) : "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(ids + 4 * at), "r"(static_cast<uint32_t>(slice.begin + j))
                 : "memory");
  }
  sync_cluster();
  const int count = static_cast<int>(row.boxes.fill);
  if (row.rank == 0 && row.tid < s.top) {
    const int64_t out = r * s.top;
    if (row.tid < count) {
      const uint32_t key = candidates.keys[row.tid];
      const int32_t id = candidates.ids[row.tid];
      int place = 0;
      for (int i = 0; i < count; ++i)
        place += candidates.keys[i] > key || (candidates.keys[i] == key && candidates.ids[i] < id) ? 1 : 0;
      s.top_ids[out + place] = id;
      s.top_logprobs[out + place] = static_cast<float>(static_cast<double>(value_of(key)) - log_sum);
    } else {
      s.top_ids[out + row.tid] = -1;
      s.top_logprobs[out + row.tid] = -INFINITY;
    }
  }
  __syncthreads();
  if (row.tid == 0) row.boxes.fill = 0;
  sync_cluster();
}

template <bool kBf16>
__device__ void sample_row(Row& row, const Sampling& s, int64_t r, int64_t per_block, float* shared) {
  const int64_t begin = min(row.rank * per_block, s.vocab), end = min(begin + per_block, s.vocab);
  const Slice slice{shared, static_cast<int32_t>(begin), static_cast<int32_t>(end - begin)};
  const Candidates candidates{reinterpret_cast<uint32_t*>(shared + per_block),
                              reinterpret_cast<int32_t*>(shared + per_block) + kCandidates};
  const auto vocab = static_cast<int32_t>(s.vocab);
  const char* logits = static_cast<const char*>(s.logits) + r * s.stride * (kBf16 ? 2 : 4);
  SampleRow params;
  if (s.params != nullptr) {
    params = s.params[r];
  } else {
    params.temperature = 0;
  }
  const bool lead = row.rank == 0 && row.tid == 0;

  Best best;
  load_slice<kBf16>(logits, begin, slice.count, row.tid, [&](int i, float x) {
    slice.x[i] = x;
    best.take(x, slice.begin + i);
  });
  const Pair found = row.reduce<Max, true>({best.key, best.flags});
  best.key = found.value, best.flags = found.count;
  const auto finish = [&](int32_t id) {  // one thread
    s.ids[r] = id;
    if (s.flags != nullptr) s.flags[r] = best.flags;
  };
  const bool wants_logs = s.logprobs != nullptr || s.top > 0;
  double log_sum = 0;
  const bool broken = (best.flags & kSampleBroken) != 0, nothing = best.value() == -INFINITY;
  if (broken || nothing) {
    if (lead) {
      if (nothing) best.flags |= kSampleNoToken;
      finish(-1);
      if (s.logprobs != nullptr) s.logprobs[r] = NAN;
    }
    if (row.rank == 0 && row.tid < s.top) {
      s.top_ids[r * s.top + row.tid] = -1;
      s.top_logprobs[r * s.top + row.tid] = NAN;
    }
    return;
  }
  if (wants_logs) {
    Pair sum{0, 0};
    for (int j = row.tid; j < slice.count; j += kThreads)
      sum.value += sample_mass(sample_weight(slice.x[j], best.value(), 1));
    log_sum = static_cast<double>(best.value()) + log_total(row.reduce<Sum>(sum).value);
    if (s.top > 0) write_top(row, slice, candidates, s, r, static_cast<uint32_t>(best.key >> 32), log_sum);
  }
  const auto done = [&](int32_t id) {  // one thread
    finish(id);
    if (s.logprobs == nullptr) return;
    const float x = kBf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(logits)[id])
                          : reinterpret_cast<const float*>(logits)[id];
    s.logprobs[r] = static_cast<float>(static_cast<double>(x) - log_sum);
  };
  if (s.mask != nullptr) {
    const uint32_t* mask = s.mask + r * s.mask_stride;
    uint64_t key = 0;
    for (int j = row.tid; j < slice.count; j += kThreads) {
      const int32_t id = slice.begin + j;
      if (!allowed(mask, id)) slice.x[j] = -INFINITY;
      const uint64_t other = rank_key(slice.x[j], id);
      key = other > key ? other : key;
    }
    best.key = row.reduce<Max>({key, 0}).value;
    if (best.value() == -INFINITY) {
      if (!lead) return;
      best.flags |= kSampleNoToken;
      finish(-1);
      if (s.logprobs != nullptr) s.logprobs[r] = NAN;
      return;
    }
  }
  if (params.temperature == 0) {
    if (lead) done(rank_id(best.key));
    return;
  }
  Bound bound{0, kAllIds};
  const bool with_top_k = params.top_k > 0 && params.top_k < vocab;
  if (with_top_k)
    bound = search<false>(row, slice, candidates, vocab, params.top_k, static_cast<uint32_t>(best.key >> 32), vocab);
  const Pair all = weigh(row, slice, best.value(), params.temperature, with_top_k ? &bound : nullptr);
  bound = {0, kAllIds};
  if (params.top_p < 1) {
    // Entries that weigh less than what is cut, evenly spread over all, cannot be in the set.
    const float small = (1 - params.top_p) * static_cast<float>(static_cast<double>(all.value) * 0x1p-44 / vocab);
    bound = search<true>(row, slice, candidates, vocab, sample_target(params.top_p, all.value),
                         __float_as_uint(small * 0.999F), all.count);
  }
  const int32_t id = draw(row, slice, bound, params.min_p, params.uniform);
  if (id >= 0 && row.lane == 0) done(id);
}

template <bool kBf16>
__global__ void __launch_bounds__(kThreads, 2) sample(const __grid_constant__ Sampling s, int64_t per_block) {
  extern __shared__ __align__(128) float slice[];
  __shared__ Boxes boxes;
  Row row{boxes,
          static_cast<int>(cluster_rank()),
          kCluster,
          static_cast<int>(threadIdx.x),
          static_cast<int>(threadIdx.x / 32),
          static_cast<int>(threadIdx.x & 31)};
  if (row.tid == 0) boxes.fill = 0;
  sync_cluster();  // every block has begun: stores into it may start
  dependent_begin();
  sample_row<kBf16>(row, s, blockIdx.x / kCluster, per_block, slice);
  sync_cluster();  // nobody reads from a block that has gone
}

template <bool kBf16>
__global__ void __launch_bounds__(kThreads) argmax(const __grid_constant__ Sampling s, int cluster, int64_t per_block) {
  __shared__ Boxes boxes;
  Row row{boxes,
          cluster > 1 ? static_cast<int>(cluster_rank()) : 0,
          cluster,
          static_cast<int>(threadIdx.x),
          static_cast<int>(threadIdx.x / 32),
          static_cast<int>(threadIdx.x & 31)};
  if (cluster > 1) cluster_arrive();
  dependent_begin();
  const int64_t r = blockIdx.x / cluster, begin = min(row.rank * per_block, s.vocab), end = min(begin + per_block, s.vocab);
  const char* logits = static_cast<const char*>(s.logits) + r * s.stride * (kBf16 ? 2 : 4);
  // Entries come in ascending order of ids for one thread, so the first of equals stays.
  float best = -INFINITY;
  int32_t id = static_cast<int32_t>(begin) + row.tid;
  uint32_t flags = 0;
  bool any = false;
  load_slice<kBf16>(logits, begin, static_cast<int>(end - begin), row.tid, [&](int i, float x) {
    flags |= flags_of(x);
    if (x > best || !any) best = x, id = static_cast<int32_t>(begin) + i, any = true;
  });
  if (cluster > 1) cluster_wait();
  const Pair found = row.reduce<Max, true>({any ? rank_key(best, id) : 0, flags});
  if (row.rank == 0 && row.tid == 0) {
    uint32_t out = found.count;
    const bool nothing = value_of(static_cast<uint32_t>(found.value >> 32)) == -INFINITY;
    if (nothing) out |= kSampleNoToken;
    s.ids[r] = nothing || (out & kSampleBroken) != 0 ? -1 : rank_id(found.value);
    if (s.flags != nullptr) s.flags[r] = out;
  }
}

}  // namespace

int sampling_launch(const Sampling& s, int64_t slice, int shared_bytes, void* stream) {
  LaunchOptions options{
      .grid = dim3(static_cast<unsigned>(s.rows * kCluster)), .block = dim3(kThreads), .shared_bytes = shared_bytes};
  options.cluster = kCluster;
  options.dependent = s.dependent;
  return launch(s.logits_bf16 ? sample<true> : sample<false>, options, static_cast<cudaStream_t>(stream), s, slice);
}

int argmax_launch(const Sampling& s, int cluster, int64_t slice, void* stream) {
  LaunchOptions options{.grid = dim3(static_cast<unsigned>(s.rows * cluster)), .block = dim3(kThreads)};
  options.cluster = cluster;
  options.dependent = s.dependent;
  return launch(s.logits_bf16 ? argmax<true> : argmax<false>, options, static_cast<cudaStream_t>(stream), s, cluster, slice);
}

}  // namespace k3::ops::cuda
