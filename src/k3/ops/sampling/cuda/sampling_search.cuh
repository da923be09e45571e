// Internal to ops/sampling. The search for a filter's bound: the last entry, in the filter's order, of the smallest set whose
// values reach a target. A histogram of counts says where the bound should be; one pass over the row sums exactly what lies
// above that bracket and lists what lies in it; among the lists of all, block 0 (every block, where there are 16) finds the
// bound. When the guess was wrong or the bracket is full, the bracket is halved until it is right.
#pragma once

#include "k3/ops/sampling/cuda/sampling_row.cuh"

namespace k3::ops::cuda {

constexpr int kMine = 5, kCandidates = kMine * kThreads;
constexpr uint32_t kOne = 0x3F800000U, kBinBits = 18;
constexpr int kBins = kThreads;     // bins of weights: 32 an octave, 16 octaves; what is smaller is in none
constexpr float kBinsPerUnit = 32;  // bins of logits
constexpr uint32_t kIdBits = 18, kIds = (1U << kIdBits) - 1;
constexpr int32_t kAllIds = 0x7FFFFFFF;

struct Slice {
  float* x;  // padded with -infinity to a multiple of 4
  int32_t begin, count;
  uint32_t* keys;  // candidates of this block
  int32_t* ids;
  uint32_t* all_keys;  // of all blocks: in block 0, where they lie behind its own, or everywhere, in lists of their own
  int32_t* all_ids;
  uint32_t* bins;  // 2,048 words: a histogram of counts, or the four of refine()
};
struct Bound {  // kept: key > this, or equal and id at most this
  uint32_t key;
  int32_t id;
  __device__ bool keeps(uint32_t other, int32_t other_id) const { return other > key || (other == key && other_id <= id); }
};
struct Found {
  Bound bound;
  bool listed;  // the entries around the bound are in the blocks' lists
};
struct Bracket {  // the bound's key is in [low, high); values of entries with key >= high: above
  uint32_t low, high;
  uint64_t above;
  uint32_t count;  // entries inside
};

// take(j, x) for every four entries; the last ones may be padding.
template <class Take>
__device__ __forceinline__ void for_each_four(int first, int step, int last, const float* x, const Take& take) {
#pragma unroll 2
  for (int j = first; j < last; j += step) take(j, *reinterpret_cast<const float4*>(x + j));
}
template <class Take>
__device__ __forceinline__ void for_each_four(const Row& row, const Slice& slice, const Take& take) {
  for_each_four(4 * row.tid, 4 * kThreads, slice.count, slice.x, take);
}

// ---- the guess ----

// Of weights: how many, in the upper 12 bits (more of them spoil the guess, no more), and the sum of how far below the upper
// edge they lie, in 256 parts of a bin: few entries may hold most of the mass. Small weights are many and are not counted;
// should they matter, halving finds them. Of logits: how many.
constexpr uint32_t kCountBits = 20, kPartBits = 8;

__device__ __forceinline__ void clear_bins(Row& row, const Slice& slice) {
  slice.bins[row.tid] = 0;
  __syncthreads();
}
__device__ __forceinline__ void count_weight(const Slice& slice, float w) {
  const uint32_t below = kOne - __float_as_uint(w), bin = below >> kBinBits;
  constexpr uint32_t kParts = (1U << kPartBits) - 1;
  if (bin < kBins) atomicAdd(slice.bins + bin, (1U << kCountBits) | (below >> (kBinBits - kPartBits) & kParts));
}
__device__ __forceinline__ void count_logit(const Slice& slice, float distance) {
  atomicAdd(slice.bins + static_cast<int>(fminf(distance * kBinsPerUnit, kBins - 1)), 1U);
}

// A bin of all blocks.
struct Bin {
  uint32_t count = 0, below = 0;
};
// The loads of eight blocks in one statement, so that they wait together.
__device__ __forceinline__ void load_eight(uint32_t address, int first, uint32_t* x) {
  uint32_t from[8];
#pragma unroll
  for (int r = 0; r < 8; ++r) from[r] = cluster_map(address, first + r);
  asm volatile(
      "ld.shared::cluster.u32 %0, [%8];\nld.shared::cluster.u32 %1, [%9];\nld.shared::cluster.u32 %2, [%10];\n"
      "ld.shared::cluster.u32 %3, [%11];\nld.shared::cluster.u32 %4, [%12];\nld.shared::cluster.u32 %5, [%13];\n"
      "ld.shared::cluster.u32 %6, [%14];\nld.shared::cluster.u32 %7, [%15];\n"
      : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3]), "=&r"(x[4]), "=&r"(x[5]), "=&r"(x[6]), "=&r"(x[7])
      : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7])
      : "memory");
}
template <bool kMass>
__device__ __forceinline__ Bin cluster_bin(const Row& row, uint32_t address) {
  uint32_t x[kMostCluster] = {};
  load_eight(address, 0, x);
  if (row.cluster == kMostCluster) load_eight(address, 8, x + 8);
  Bin sum;
#pragma unroll
  for (int r = 0; r < kMostCluster; ++r) {
    sum.count += kMass ? x[r] >> kCountBits : x[r];
    sum.below += kMass ? x[r] & ((1U << kCountBits) - 1) : 0;
  }
  return sum;
}

// After the histograms of all blocks are complete (a cluster barrier): the bin in which the values, from the top, reach the
// target.
template <bool kMass>
__device__ int guess_bin(Row& row, const Slice& slice, uint64_t target) {
  const int bin = row.tid;
  const Bin all = cluster_bin<kMass>(row, shared_address(slice.bins + bin));
  const float count = static_cast<float>(all.count);
  float sum = count;
  if (kMass) {
    const float edge = __uint_as_float(kOne - (static_cast<uint32_t>(bin) << kBinBits));
    const float step =
        edge - __uint_as_float(__float_as_uint(edge) - 1);  // of the bits below the edge: the bin is in one octave
    const float below = (static_cast<float>(all.below) + 0.5F * count) * (1 << (kBinBits - kPartBits));
    sum = count * edge - below * step;
  }
  slice.keys[bin] = all.count;  // the lists are empty
  float running = sum;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const float left = __shfl_up_sync(kFull, running, i);
    if (row.lane >= i) running += left;
  }
  if (row.lane == 31) row.s.warp_scan[row.warp] = running;
  if (row.tid == 0) row.s.bin = kBins - 1;
  __syncthreads();
  float before = running - sum;
  for (int i = 0; i < row.warp; ++i) before += row.s.warp_scan[i];
  const float goal = kMass ? static_cast<float>(static_cast<double>(target) * 0x1p-44) : static_cast<float>(target);
  // Rounding may leave the goal in no thread's part or in two: any bin will do, the pass over the row judges it.
  if (before < goal && before + sum >= goal) atomicMin(&row.s.bin, static_cast<uint32_t>(bin));
  __syncthreads();
  return static_cast<int>(row.s.bin);
}

// ---- the bracket ----

// Every warp has a contiguous part of the slice, so that the one with a running mass can be told.
struct Part {
  int first, last;
  static __device__ int entries(const Slice& slice) { return (slice.count + 128 * kWarps - 1) / (128 * kWarps) * 128; }
  __device__ Part(const Row& row, const Slice& slice) {
    const int each = entries(slice);
    first = min(row.warp * each, slice.count);
    last = min(first + each, slice.count);
  }
};

// Sums above and inside of [low, high); entries inside go to the block's list while there is room. What lies above in each
// warp's part stays in warp_mass.
template <bool kMass>
__device__ Sums survey(Row& row, const Slice& slice, uint32_t low, uint32_t high) {
  if (row.tid == 0) row.s.fill = 0;
  __syncthreads();
  Sums sums{0, 0, 0};
  const Part part(row, slice);
  for_each_four(part.first + 4 * row.lane, 128, part.last, slice.x, [&](int j, const float4& x) {
    const float values[4] = {x.x, x.y, x.z, x.w};
    uint32_t keys[4], inside = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      keys[i] = search_key<kMass>(values[i]);
      const bool above = keys[i] >= high, real = kMass || j + i < slice.count;  // padding weighs 0
      sums.above += kMass ? sample_mass(above ? values[i] : 0) : above ? 1 : 0;
      inside |= keys[i] - low < high - low && real ? 1U << i : 0;
    }
    if (inside == 0) return;
    uint32_t at = atomicAdd(&row.s.fill, static_cast<uint32_t>(__popc(inside)));
    sums.count += __popc(inside);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((inside >> i & 1) == 0) continue;
      sums.inside += search_value<kMass>(keys[i]);
      if (at < kCandidates) slice.keys[at] = keys[i], slice.ids[at] = slice.begin + j + i;
      ++at;
    }
  });
  if (kMass) {
    const Mass above = warp_reduce(Mass{sums.above, 0});
    if (row.lane == 0) row.s.warp_mass[row.warp] = above.value;
  }
  return row.reduce(sums);
}

// all: entries that have key >= 1. best: the largest key (logits).
template <bool kMass>
__device__ Bracket find_bracket(Row& row, const Slice& slice, uint64_t target, uint32_t best) {
  const int bin = guess_bin<kMass>(row, slice, target);
  uint32_t low = 1, high = kMass ? kOne + 1 : best + 1;  // values from low on reach the target, from high on they do not
  uint32_t probe_low, probe_high;
  if (kMass) {
    // A bin on either side for what the guess is off by, unless the list has no room for them.
    const int before = max(bin - 1, 0), after = min(bin + 1, kBins - 1);
    const bool room = slice.keys[before] + slice.keys[bin] + slice.keys[after] <= kCandidates;
    probe_high = kOne + 1 - (static_cast<uint32_t>(room ? before : bin) << kBinBits);
    probe_low = bin == kBins - 1 ? 1 : kOne + 1 - (static_cast<uint32_t>((room ? after : bin) + 1) << kBinBits);
  } else {  // counts are exact; the edges get what rounding needs
    const float top = value_of(best);
    probe_high = bin == 0 ? high : min(key_of(top - (static_cast<float>(bin) - 0.01F) / kBinsPerUnit) + 1, high);
    probe_low = bin == kBins - 1 ? 1 : key_of(top - (static_cast<float>(bin) + 1.01F) / kBinsPerUnit);
  }
  for (int i = 0;; ++i) {
    const Sums sums = survey<kMass>(row, slice, probe_low, probe_high);
    if (sums.above >= target) {
      low = probe_high;
    } else if (sums.above + sums.inside < target) {
      high = probe_low;
    } else {
      low = probe_low, high = probe_high;
      if (sums.count <= kCandidates || high - low == 1) return {low, high, sums.above, sums.count};
    }
    // Halve: the upper half is the next bracket (and tells about the lower one). Logits by value first: they are spread over
    // values, not over keys.
    probe_high = high;
    probe_low = low + (high - low) / 2;
    if (high - low == 1) probe_low = low;
    if (!kMass && i < 16 && low > 1) {
      const uint32_t by_value = key_of(value_of(low) + (value_of(high) - value_of(low)) / 2);
      if (by_value > low && by_value < high) probe_low = by_value;
    }
  }
}

// ---- the bound among the candidates (block 0) ----

// Adds a value to one of 512 bins, as three limbs of 15 bits (sums stay below 2^32) and a count.
__device__ __forceinline__ void add_limbs(uint32_t* bins, bool in, uint32_t bin, uint64_t value) {
  const uint32_t limbs[4] = {in ? static_cast<uint32_t>(value) & 0x7FFF : 0,
                             in ? static_cast<uint32_t>(value >> 15) & 0x7FFF : 0,
                             in ? static_cast<uint32_t>(value >> 30) : 0, in ? 1U : 0U};
  const uint32_t present = __ballot_sync(kFull, in);
  if (present == 0) return;
  const uint32_t first = __shfl_sync(kFull, bin, __ffs(static_cast<int>(present)) - 1);
  if (__all_sync(kFull, !in || bin == first)) {  // ties: one address
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t sum = __reduce_add_sync(kFull, limbs[i]);
      if ((threadIdx.x & 31) == i) atomicAdd(bins + 512 * i + first, sum);
    }
  } else if (in) {
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicAdd(bins + 512 * i + bin, limbs[i]);
  }
}

// Entries in order of (key, lower id), as one number each; 512 bins over the bracket, and while more than 32 entries share the
// bound's, 512 more between the smallest and the largest of these.
template <bool kMass>
__device__ void refine(Row& row, const Slice& slice, const Bracket& bracket, uint64_t target) {
  uint64_t mine[kMine];
#pragma unroll
  for (int c = 0; c < kMine; ++c) {
    const int j = row.tid + c * kThreads;
    mine[c] = j < static_cast<int>(bracket.count)
                  ? static_cast<uint64_t>(slice.all_keys[j]) << kIdBits | (kIds - static_cast<uint32_t>(slice.all_ids[j]))
                  : 0;
  }
  uint64_t low = static_cast<uint64_t>(bracket.low) << kIdBits, high = static_cast<uint64_t>(bracket.high) << kIdBits,
           above = bracket.above;
  uint32_t left = bracket.count;
  for (int pass = 0; left > 32; ++pass) {
    for (int i = row.tid; i < 2048; i += kThreads) slice.bins[i] = 0;
    if (pass == 0) {
      __syncthreads();
    } else {
      Range range{~uint64_t{0}, ~uint64_t{0}};
#pragma unroll
      for (int c = 0; c < kMine; ++c) {
        if (mine[c] >= low && mine[c] < high) range = Range::of(range, {mine[c], ~mine[c]});
      }
      range = row.block_reduce(range);  // its barrier also ends the clearing
      low = range.low, high = ~range.not_high + 1;
    }
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - 1 - low)) - 9);
#pragma unroll
    for (int c = 0; c < kMine; ++c) {
      const bool in = mine[c] >= low && mine[c] < high;
      add_limbs(slice.bins, in, in ? static_cast<uint32_t>((mine[c] - low) >> shift) : 0,
                search_value<kMass>(static_cast<uint32_t>(mine[c] >> kIdBits)));
    }
    __syncthreads();
    const int bin = kThreads - 1 - row.tid;  // from the top
    const uint64_t value = slice.bins[bin] + (static_cast<uint64_t>(slice.bins[512 + bin]) << 15) +
                           (static_cast<uint64_t>(slice.bins[1024 + bin]) << 30);
    uint64_t running = value;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const uint64_t other = __shfl_up_sync(kFull, running, i);
      if (row.lane >= i) running += other;
    }
    if (row.lane == 31) row.s.scan[row.warp] = running;
    __syncthreads();
    running += above;
    for (int i = 0; i < row.warp; ++i) running += row.s.scan[i];
    if (running >= target && running - value < target) {
      row.s.low = low + (static_cast<uint64_t>(bin) << shift);
      row.s.high = min(high, low + (static_cast<uint64_t>(bin + 1) << shift));
      row.s.above = running - value;
      row.s.count = slice.bins[1536 + bin];
    }
    __syncthreads();
    low = row.s.low, high = row.s.high, above = row.s.above, left = row.s.count;
  }
  __syncthreads();
  if (row.tid == 0) row.s.fill = 0;
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kMine; ++c) {
    if (mine[c] >= low && mine[c] < high) row.s.last[atomicAdd(&row.s.fill, 1U)] = mine[c];
  }
  __syncthreads();
  if (row.warp != 0) return;
  const uint64_t entry = row.lane < static_cast<int>(left) ? row.s.last[row.lane] : 0;
  uint64_t before = above;
  for (int i = 0; i < static_cast<int>(left); ++i) {
    const uint64_t other = row.s.last[i];
    before += other > entry ? search_value<kMass>(static_cast<uint32_t>(other >> kIdBits)) : 0;
  }
  const uint32_t key = static_cast<uint32_t>(entry >> kIdBits);
  if (row.lane < static_cast<int>(left) && before < target && before + search_value<kMass>(key) >= target) {
    row.s.key = key;
    row.s.id = static_cast<int32_t>(kIds - (static_cast<uint32_t>(entry) & kIds));
  }
  __syncwarp();
  if (!row.everywhere() && row.lane > 0 && row.lane < row.cluster) {
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(cluster_map(shared_address(&row.s.key), row.lane)),
                 "r"(row.s.key)
                 : "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(cluster_map(shared_address(&row.s.id), row.lane)),
                 "r"(static_cast<uint32_t>(row.s.id))
                 : "memory");
  }
}

// Copies this block's list behind those of the blocks before it, in block 0 or everywhere. The reduction before told every
// block's count.
template <class T>
__device__ void gather(Row& row, const Slice& slice) {
  uint32_t at = 0;
  for (int i = 0; i < row.rank; ++i) at += row.template of_rank<T>(i).count;
  const uint32_t count = row.template of_rank<T>(row.rank).count;
  const auto copy = [&](int to, uint32_t first, uint32_t step) {
    const uint32_t keys = cluster_map(shared_address(slice.all_keys + at), to),
                   ids = cluster_map(shared_address(slice.all_ids + at), to);
    for (uint32_t i = first; i < count; i += step) {
      asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(keys + 4 * i), "r"(slice.keys[i]) : "memory");
      asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(ids + 4 * i), "r"(static_cast<uint32_t>(slice.ids[i])) : "memory");
    }
  };
  if (row.everywhere()) {
    static_assert(kWarps == kMostCluster);
    copy(row.warp, row.lane, 32);  // a warp a block
  } else if (row.rank != 0) {
    copy(0, row.tid, kThreads);
  }
  sync_cluster();
}

// More ties than the list holds (a row of equal logits): halving of the ids over the cluster.
template <bool kMass>
__device__ int32_t search_tied_id(Row& row, const Slice& slice, uint32_t key, uint64_t wanted, int32_t vocab) {
  int32_t low = -1, high = vocab - 1;  // ties up to low are too few, up to high enough
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    Mass sum{0, 0};
    for_each_four(row, slice, [&](int j, const float4& x) {
      const auto one = [&](float y, int at) {
        return search_key<kMass>(y) == key && slice.begin + at <= middle && at < slice.count ? 1 : 0;
      };
      sum.count += one(x.x, j) + one(x.y, j + 1) + one(x.z, j + 2) + one(x.w, j + 3);
    });
    if (row.reduce(sum).count >= wanted) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

template <bool kMass>
__device__ Found search(Row& row, const Slice& slice, int32_t vocab, uint64_t target, uint32_t best) {
  const Bracket bracket = find_bracket<kMass>(row, slice, target, best);
  if (bracket.count > kCandidates) {
    const uint64_t value = search_value<kMass>(bracket.low), wanted = (target - bracket.above + value - 1) / value;
    return {{bracket.low, wanted >= bracket.count ? kAllIds : search_tied_id<kMass>(row, slice, bracket.low, wanted, vocab)}, false};
  }
  gather<Sums>(row, slice);
  if (row.everywhere() || row.rank == 0) refine<kMass>(row, slice, bracket, target);
  if (row.everywhere()) {
    __syncthreads();
  } else {
    sync_cluster();
  }
  return {{row.s.key, row.s.id}, true};
}

}  // namespace k3::ops::cuda
