// Sampling: a cluster of 8 or 16 blocks a row, each with its slice of the row in shared memory (so the row is read once). A filter
// is the search for a bound: the last entry, in the filter's order, of the smallest set whose values reach a target. A
// histogram of counts says where the bound should be; one pass over the row sums exactly what lies above that bracket and
// lists what lies in it; block 0 finds the bound among the list. When the guess was wrong or the bracket is full, the
// bracket is halved until it is right.
#include "k3/ops/sampling/cuda/sampling_row.cuh"

namespace k3::ops::cuda {
namespace {

// The build for racecheck (warp_arrive.cuh): with clusters of 16 the tool did not end a row in a minute.
#ifdef K3_RACECHECK
constexpr bool kSmallClusters = true;
#else
constexpr bool kSmallClusters = false;
#endif

constexpr int kMine = 5, kCandidates = kMine * kThreads;
constexpr uint32_t kOne = 0x3F800000U, kBinBits = 18;
constexpr int kBins = 640, kBinsMine = 2;  // bins of weights: 32 an octave, 20 octaves; what is smaller is in none
constexpr float kBinsPerUnit = 32;         // bins of logits
constexpr uint32_t kIdBits = 18, kIds = (1U << kIdBits) - 1;
constexpr int32_t kAllIds = 0x7FFFFFFF;

struct Slice {
  float* x;  // padded with -infinity to a multiple of 4
  int32_t begin, count;
  uint32_t* keys;  // candidates: this block's, then (in block 0) all
  int32_t* ids;
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
  for (int i = row.tid; i < kBins; i += kThreads) slice.bins[i] = 0;
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

// A bin of all blocks; the loads of eight in one statement, so that they wait together.
struct Bin {
  uint32_t count = 0, below = 0;
};
template <bool kMass>
__device__ __forceinline__ Bin cluster_bin(const Row& row, uint32_t address) {
  Bin sum;
  for (int first = 0; first < row.cluster; first += 8) {
    uint32_t from[8], x[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) from[r] = cluster_map(address, first + r);
    asm volatile(
        "ld.shared::cluster.u32 %0, [%8];\nld.shared::cluster.u32 %1, [%9];\nld.shared::cluster.u32 %2, [%10];\n"
        "ld.shared::cluster.u32 %3, [%11];\nld.shared::cluster.u32 %4, [%12];\nld.shared::cluster.u32 %5, [%13];\n"
        "ld.shared::cluster.u32 %6, [%14];\nld.shared::cluster.u32 %7, [%15];\n"
        : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3]), "=&r"(x[4]), "=&r"(x[5]), "=&r"(x[6]), "=&r"(x[7])
        : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7])
        : "memory");
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      sum.count += kMass ? x[r] >> kCountBits : x[r];
      sum.below += kMass ? x[r] & ((1U << kCountBits) - 1) : 0;
    }
  }
  return sum;
}

// After the histograms of all blocks are complete (a cluster barrier): the bin in which the values, from the top, reach the
// target.
template <bool kMass>
__device__ int guess_bin(Row& row, const Slice& slice, uint64_t target) {
  // Merged first by neighbours: a warp's loads from another block are contiguous.
  for (int bin = row.tid; bin < kBins; bin += kThreads) {
    const Bin all = cluster_bin<kMass>(row, shared_address(slice.bins + bin));
    const float count = static_cast<float>(all.count);
    float value = count;
    if (kMass) {
      const float edge = __uint_as_float(kOne - (static_cast<uint32_t>(bin) << kBinBits));
      const float step =
          edge - __uint_as_float(__float_as_uint(edge) - 1);  // of the bits below the edge: the bin is in one octave
      const float below = (static_cast<float>(all.below) + 0.5F * count) * (1 << (kBinBits - kPartBits));
      value = count * edge - below * step;
    }
    slice.ids[bin] = __float_as_int(value);  // the lists are empty
    slice.keys[bin] = all.count;
  }
  __syncthreads();
  float values[kBinsMine], sum = 0;
#pragma unroll
  for (int i = 0; i < kBinsMine; ++i) {
    const int bin = kBinsMine * row.tid + i;
    values[i] = bin < kBins ? __int_as_float(slice.ids[bin]) : 0;
    sum += values[i];
  }
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
  if (before < goal) {
#pragma unroll
    for (int i = 0; i < kBinsMine; ++i) {
      before += values[i];
      if (before >= goal) {
        atomicMin(&row.s.bin, static_cast<uint32_t>(kBinsMine * row.tid + i));
        break;
      }
    }
  }
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

// Entries in order of (key, lower id), as one number each; repeatedly 512 bins between the smallest and the largest, until
// at most 32 entries share a bin.
template <bool kMass>
__device__ void refine(Row& row, const Slice& slice, const Bracket& bracket, uint64_t target) {
  uint64_t mine[kMine];
#pragma unroll
  for (int c = 0; c < kMine; ++c) {
    const int j = row.tid + c * kThreads;
    mine[c] = j < static_cast<int>(bracket.count)
                  ? static_cast<uint64_t>(slice.keys[j]) << kIdBits | (kIds - static_cast<uint32_t>(slice.ids[j]))
                  : 0;
  }
  uint64_t low = static_cast<uint64_t>(bracket.low) << kIdBits, high = static_cast<uint64_t>(bracket.high) << kIdBits,
           above = bracket.above;
  uint32_t left = bracket.count;
  while (left > 32) {
    Range range{~uint64_t{0}, ~uint64_t{0}};
#pragma unroll
    for (int c = 0; c < kMine; ++c) {
      if (mine[c] >= low && mine[c] < high) range = Range::of(range, {mine[c], ~mine[c]});
    }
    for (int i = row.tid; i < 2048; i += kThreads) slice.bins[i] = 0;
    range = row.block_reduce(range);  // its barrier also ends the clearing
    low = range.low, high = ~range.not_high + 1;
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
  if (row.lane > 0 && row.lane < row.cluster) {
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(cluster_map(shared_address(&row.s.key), row.lane)),
                 "r"(row.s.key)
                 : "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(cluster_map(shared_address(&row.s.id), row.lane)),
                 "r"(static_cast<uint32_t>(row.s.id))
                 : "memory");
  }
}

// Copies this block's list behind those of the blocks before it, in block 0. The reduction before told every block's count.
template <class T>
__device__ void gather(Row& row, const Slice& slice) {
  uint32_t at = 0;
  for (int i = 0; i < row.rank; ++i) at += row.template of_rank<T>(i).count;
  const uint32_t count = row.template of_rank<T>(row.rank).count;
  if (row.rank != 0) {
    const uint32_t keys = cluster_map(shared_address(slice.keys), 0), ids = cluster_map(shared_address(slice.ids), 0);
    for (uint32_t i = row.tid; i < count; i += kThreads) {
      asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(keys + 4 * (at + i)), "r"(slice.keys[i]) : "memory");
      asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(ids + 4 * (at + i)), "r"(static_cast<uint32_t>(slice.ids[i]))
                   : "memory");
    }
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
  if (row.rank == 0) refine<kMass>(row, slice, bracket, target);
  sync_cluster();
  return {{row.s.key, row.s.id}, true};
}

// log of the sum of e^(x - best), from masses.
__device__ __forceinline__ double log_total(uint64_t total) {
  return log(static_cast<double>(total)) - 44 * 0.69314718055994530942;
}

// The bounds of a filter by logits: the `wanted` largest. kAllIds and key 0 when no more than that are finite.
__device__ Bound top_bound(Row& row, const Slice& slice, int32_t vocab, int64_t wanted, float best) {
  clear_bins(row, slice);
  Mass finite{0, 0};
  for_each_four(row, slice, [&](int, const float4& x) {
    const auto one = [&](float y) {
      const float distance = best - y;
      if (distance == INFINITY) return;
      count_logit(slice, distance);
      ++finite.count;
    };
    one(x.x), one(x.y), one(x.z), one(x.w);
  });
  finite = row.reduce(finite);
  if (finite.count <= wanted) return {0, kAllIds};
  return search<false>(row, slice, vocab, static_cast<uint64_t>(wanted), key_of(best)).bound;
}

// Exponentials in place of the scores; what top_k dropped becomes 0. Mass and number of entries; the masses of the warps
// stay.
template <bool kCount>
__device__ __forceinline__ Mass weigh(Row& row, const Slice& slice, float best, float temperature, const Bound& bound) {
  if (kCount) clear_bins(row, slice);
  const float inverse = sample_inverse(temperature);
  const Part part(row, slice);
  Mass sum{0, 0};
  for_each_four(part.first + 4 * row.lane, 128, part.last, slice.x, [&](int j, const float4& x) {
    const float y[4] = {x.x, x.y, x.z, x.w};
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = sample_weight(y[i], best, inverse);
    if (bound.key > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = bound.keeps(key_of(y[i]), slice.begin + j + i) ? w[i] : 0;
    }
    *reinterpret_cast<float4*>(slice.x + j) = {w[0], w[1], w[2], w[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.value += sample_mass(w[i]);
    if constexpr (kCount) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        count_weight(slice, w[i]);
      }
    }
  });
  const Mass of_warp = warp_reduce(sum);
  if (row.lane == 0) row.s.warp_mass[row.warp] = of_warp.value;
  return row.reduce(sum);
}

__device__ __forceinline__ uint64_t kept(float w, int32_t id, const Bound& bound, float min_p) {  // padding weighs 0
  return sample_mass(w >= min_p && bound.keeps(__float_as_uint(w), id) ? w : 0);
}

// The mass that bound and min_p keep; of each warp's part in warp_mass, of each block in the reduction's boxes.
__device__ Mass kept_mass(Row& row, const Slice& slice, const Bound& bound, float min_p) {
  const Part part(row, slice);
  Mass sum{0, 0};
  for_each_four(part.first + 4 * row.lane, 128, part.last, slice.x, [&](int j, const float4& x) {
    const float w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.value += kept(w[i], slice.begin + j + i, bound, min_p);
  });
  const Mass of_warp = warp_reduce(sum);
  if (row.lane == 0) row.s.warp_mass[row.warp] = of_warp.value;
  return row.reduce(sum);
}

// The same without min_p, from the last survey: what lay above its bracket is kept, the rest is in the list.
__device__ Mass kept_mass_of_list(Row& row, const Slice& slice, const Bound& bound) {
  const Sums mine = row.of_rank<Sums>(row.rank);
  const int entries = Part::entries(slice);
  Mass sum{row.tid == 0 ? mine.above : 0, 0};
  for (int i = row.tid; i < static_cast<int>(mine.count); i += kThreads) {
    if (!bound.keeps(slice.keys[i], slice.ids[i])) continue;
    const uint64_t mass = search_value<true>(slice.keys[i]);
    sum.value += mass;
    atomicAdd(reinterpret_cast<unsigned long long*>(row.s.warp_mass + (slice.ids[i] - slice.begin) / entries), mass);
  }
  return row.reduce(sum);
}

// The first id whose running mass exceeds the point, of what bound and min_p keep; -1 in all warps but one of the cluster.
// total: what was kept, just reduced.
__device__ int32_t draw(Row& row, const Slice& slice, const Bound& bound, float min_p, double uniform, const Mass& total) {
  const Part part(row, slice);
  uint64_t before = 0;
  for (int i = 0; i < row.rank; ++i) before += row.of_rank<Mass>(i).value;
  const uint64_t point = sample_point(uniform, total.value);
  for (int i = 0; i < row.warp; ++i) before += row.s.warp_mass[i];
  if (point < before || point >= before + row.s.warp_mass[row.warp]) return -1;
  // One warp of one block is left; it looks at 128 entries at a time.
  for (int base = part.first; base < part.last; base += 128) {
    const int j = base + 4 * row.lane;
    uint64_t mass[4] = {};
    if (j < part.last) {
      const float4 w = *reinterpret_cast<const float4*>(slice.x + j);
      const float x[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) mass[i] = kept(x[i], slice.begin + j + i, bound, min_p);
    }
    const uint64_t sum = (mass[0] + mass[1]) + (mass[2] + mass[3]);
    uint64_t running = sum;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const uint64_t left = __shfl_up_sync(kFull, running, i);
      if (row.lane >= i) running += left;
    }
    const uint32_t beyond = __ballot_sync(kFull, before + running > point);
    if (beyond == 0) {
      before += __shfl_sync(kFull, running, 31);
      continue;
    }
    int32_t id = j + 3;
    uint64_t at = before + running - sum;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      at += mass[i];
      if (at > point) {
        id = j + i;
        break;
      }
    }
    return slice.begin + __shfl_sync(kFull, id, __ffs(static_cast<int>(beyond)) - 1);
  }
  return -1;
}

// The top entries of a row, ranked by counting.
__device__ void write_top(Row& row, const Slice& slice, const Sampling& s, int64_t r, float best, double log_sum) {
  const Bound bound = top_bound(row, slice, static_cast<int32_t>(s.vocab), s.top, best);
  if (row.tid == 0) row.s.fill = 0;
  __syncthreads();
  Mass mine{0, 0};
  for_each_four(row, slice, [&](int j, const float4& x) {
    const auto one = [&](float y, int at) {
      const uint32_t key = key_of(y);
      if (y == -INFINITY || !bound.keeps(key, slice.begin + at)) return;
      const uint32_t to = atomicAdd(&row.s.fill, 1U);
      slice.keys[to] = key, slice.ids[to] = slice.begin + at;
      ++mine.count;
    };
    one(x.x, j), one(x.y, j + 1), one(x.z, j + 2), one(x.w, j + 3);
  });
  const int count = static_cast<int>(row.reduce(mine).count);
  gather<Mass>(row, slice);
  if (row.rank != 0 || row.tid >= s.top) return;
  const int64_t out = r * s.top;
  if (row.tid >= count) {
    s.top_ids[out + row.tid] = -1;
    s.top_logprobs[out + row.tid] = -INFINITY;
    return;
  }
  const uint32_t key = slice.keys[row.tid];
  const int32_t id = slice.ids[row.tid];
  int place = 0;
  for (int i = 0; i < count; ++i) place += slice.keys[i] > key || (slice.keys[i] == key && slice.ids[i] < id) ? 1 : 0;
  s.top_ids[out + place] = id;
  s.top_logprobs[out + place] = static_cast<float>(static_cast<double>(value_of(key)) - log_sum);
}

// The lowest id with that logit.
__device__ int32_t first_id(Row& row, const Slice& slice, float best) {
  Best found{0, 0};
  for (int j = row.tid; j < slice.count; j += kThreads) {
    if (slice.x[j] == best) found.key = max(found.key, kFull - static_cast<uint32_t>(slice.begin + j));
  }
  return static_cast<int32_t>(kFull - row.reduce(found).key);
}

__device__ __forceinline__ bool allowed(const uint32_t* mask, int32_t id) {
  return (__ldg(mask + id / 32) >> (id % 32) & 1) != 0;
}

template <bool kBf16>
__device__ void sample_row(Row& row, const Sampling& s, int64_t r, int64_t per_block, float* shared) {
  const int64_t begin = min(row.rank * per_block, s.vocab), end = min(begin + per_block, s.vocab);
  uint32_t* lists = reinterpret_cast<uint32_t*>(shared + per_block);
  const Slice slice{shared,
                    static_cast<int32_t>(begin),
                    static_cast<int32_t>(end - begin),
                    lists,
                    reinterpret_cast<int32_t*>(lists + kCandidates),
                    lists + 2 * kCandidates};
  const auto vocab = static_cast<int32_t>(s.vocab);
  const char* logits = static_cast<const char*>(s.logits) + r * s.stride * (kBf16 ? 2 : 4);
  SampleRow params;
  if (s.params != nullptr) {
    params = s.params[r];
  } else {
    params.temperature = 0;
  }
  struct Take {
    float* to;
    Extremes& extremes;
    __device__ void operator()(int i, float x) const {
      to[i] = x;
      extremes.take(x);
    }
    __device__ void operator()(int i, const float4& x) const {
      *reinterpret_cast<float4*>(to + i) = x;
      extremes.take(x.x), extremes.take(x.y), extremes.take(x.z), extremes.take(x.w);
    }
  };
  Extremes extremes;
  load_slice<kBf16>(logits, begin, slice.count, row.tid, Take{slice.x, extremes});
  if (slice.count + row.tid < (slice.count + 3) / 4 * 4) slice.x[slice.count + row.tid] = -INFINITY;
  const Best found = row.reduce(Best{key_of(extremes.best), extremes.flags()});
  float best = value_of(found.key);
  uint32_t flags = found.flags;

  // Results are written by one thread.
  double log_sum = 0;
  const auto finish = [&](int32_t id) {
    s.ids[r] = id;
    if (s.flags != nullptr) s.flags[r] = flags;
    if (s.logprobs == nullptr) return;
    if (id < 0) {
      s.logprobs[r] = NAN;
      return;
    }
    const float x = kBf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(logits)[id])
                          : reinterpret_cast<const float*>(logits)[id];
    s.logprobs[r] = static_cast<float>(static_cast<double>(x) - log_sum);
  };
  const bool lead = row.rank == 0 && row.tid == 0;
  const bool broken = (flags & kSampleBroken) != 0;
  if (broken || best == -INFINITY) {
    if (!broken) flags |= kSampleNoToken;
    if (lead) finish(-1);
    if (row.rank == 0 && row.tid < s.top) {
      s.top_ids[r * s.top + row.tid] = -1;
      s.top_logprobs[r * s.top + row.tid] = NAN;
    }
    return;
  }
  if (s.logprobs != nullptr || s.top > 0) {
    Mass sum{0, 0};
    for_each_four(row, slice, [&](int, const float4& x) {
      const auto one = [&](float y) { return sample_mass(sample_weight(y, best, 1)); };
      sum.value += (one(x.x) + one(x.y)) + (one(x.z) + one(x.w));
    });
    log_sum = static_cast<double>(best) + log_total(row.reduce(sum).value);
    if (s.top > 0) write_top(row, slice, s, r, best, log_sum);
  }
  if (s.mask != nullptr) {
    const uint32_t* mask = s.mask + r * s.mask_stride;
    Extremes left;
    for (int j = row.tid; j < slice.count; j += kThreads) {
      if (!allowed(mask, slice.begin + j)) slice.x[j] = -INFINITY;
      left.take(slice.x[j]);
    }
    best = value_of(row.reduce(Best{key_of(left.best), 0}).key);
    if (best == -INFINITY) {
      flags |= kSampleNoToken;
      if (lead) finish(-1);
      return;
    }
  }
  if (params.temperature == 0) {
    const int32_t id = first_id(row, slice, best);
    if (lead) finish(id);
    return;
  }
  __syncthreads();  // a thread's entries change between the passes
  Bound bound{0, kAllIds};
  if (params.top_k > 0 && params.top_k < vocab) bound = top_bound(row, slice, vocab, params.top_k, best);
  const bool with_top_p = params.top_p < 1;
  Mass all = with_top_p ? weigh<true>(row, slice, best, params.temperature, bound)
                        : weigh<false>(row, slice, best, params.temperature, bound);
  Found cut{{0, kAllIds}, false};
  if (with_top_p) cut = search<true>(row, slice, vocab, sample_target(params.top_p, all.value), 0);
  if (cut.listed && params.min_p == 0) {
    all = kept_mass_of_list(row, slice, cut.bound);
  } else if (with_top_p || params.min_p > 0) {
    all = kept_mass(row, slice, cut.bound, params.min_p);
  }
  __syncthreads();
  const int32_t id = draw(row, slice, cut.bound, params.min_p, params.uniform, all);
  if (id >= 0 && row.lane == 0) finish(id);
}

template <bool kBf16>
__global__ void __launch_bounds__(kThreads, 2) sample(const __grid_constant__ Sampling s, int cluster, int64_t per_block) {
  extern __shared__ __align__(128) float slice[];
  __shared__ Shared shared;
  Row row{shared,
          static_cast<int>(cluster_rank()),
          cluster,
          static_cast<int>(threadIdx.x),
          static_cast<int>(threadIdx.x / 32),
          static_cast<int>(threadIdx.x & 31)};
  sync_cluster();  // every block has begun: stores into it may start
  dependent_begin();
  sample_row<kBf16>(row, s, blockIdx.x / cluster, per_block, slice);
  sync_cluster();  // nobody reads from a block that has gone
}

}  // namespace

int sampling_most_cluster() {
  static const int most = [] {
    cudaLaunchConfig_t config{};
    config.gridDim = kMostCluster, config.blockDim = kThreads;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kMostCluster, 1, 1};
    config.attrs = &cluster, config.numAttrs = 1;
    int there = 0;
    for (auto* kernel : {sample<true>, sample<false>}) {
      if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
          cudaOccupancyMaxActiveClusters(&there, kernel, &config) != cudaSuccess)
        there = 0;
    }
    cudaGetLastError();  // not being able to is no error
    return there > 0 && !kSmallClusters ? kMostCluster : 8;
  }();
  return most;
}

int sampling_launch(const Sampling& s, int cluster, int64_t slice, int shared_bytes, void* stream) {
  LaunchOptions options{
      .grid = dim3(static_cast<unsigned>(s.rows * cluster)), .block = dim3(kThreads), .shared_bytes = shared_bytes};
  options.cluster = cluster;
  options.dependent = s.dependent;
  return launch(s.logits_bf16 ? sample<true> : sample<false>, options, static_cast<cudaStream_t>(stream), s, cluster, slice);
}

}  // namespace k3::ops::cuda
