// Sampling: a cluster of 8 or 16 blocks a row, each with its slice of the row in shared memory (so the row is read once). A filter
// is the search for a bound (sampling_search.cuh); the token is drawn among what it keeps.
#include "k3/ops/sampling/cuda/sampling_search.cuh"

namespace k3::ops::cuda {
namespace {

// The build for racecheck (warp_arrive.cuh): with clusters of 16 the tool did not end a row in a minute.
#ifdef K3_RACECHECK
constexpr bool kSmallClusters = true;
#else
constexpr bool kSmallClusters = false;
#endif

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

// What is kept of the row, and of it before this block.
struct Kept {
  uint64_t total, before;
};
__device__ __forceinline__ Kept kept_of(const Row& row, const Mass& total) {  // just reduced
  Kept all{total.value, 0};
  for (int i = 0; i < row.rank; ++i) all.before += row.of_rank<Mass>(i).value;
  return all;
}

// The same without min_p, from the last survey: what lay above its bracket is kept, the rest is in the list. Adds to
// warp_mass what the warps' parts have of it.
__device__ Kept kept_of_list(Row& row, const Slice& slice, const Bound& bound) {
  const int entries = Part::entries(slice);
  const auto kept = [&](uint32_t key, int32_t id) { return bound.keeps(key, id) ? search_value<true>(key) : 0; };
  const auto to_warp = [&](int32_t id, uint64_t mass) {
    if (mass > 0) atomicAdd(reinterpret_cast<unsigned long long*>(row.s.warp_mass + (id - slice.begin) / entries), mass);
  };
  if (!row.everywhere()) {
    const Sums mine = row.of_rank<Sums>(row.rank);
    Mass sum{row.tid == 0 ? mine.above : 0, 0};
    for (int i = row.tid; i < static_cast<int>(mine.count); i += kThreads) {
      const uint64_t mass = kept(slice.keys[i], slice.ids[i]);
      sum.value += mass;
      to_warp(slice.ids[i], mass);
    }
    return kept_of(row, row.reduce(sum));
  }
  int begin = 0, end = 0, all = 0;
  Sums sum{0, 0, 0};  // inside: of the row; above: before this block
  for (int i = 0; i < row.cluster; ++i) {
    const Sums of_block = row.of_rank<Sums>(i);
    if (i == row.rank) begin = all, end = all + static_cast<int>(of_block.count);
    all += static_cast<int>(of_block.count);
    if (row.tid > 0) continue;
    sum.inside += of_block.above;
    sum.above += i < row.rank ? of_block.above : 0;
  }
  for (int i = row.tid; i < all; i += kThreads) {
    const uint64_t mass = kept(slice.all_keys[i], slice.all_ids[i]);
    sum.inside += mass;
    sum.above += i < begin ? mass : 0;
    if (i >= begin && i < end) to_warp(slice.all_ids[i], mass);
  }
  sum = row.block_reduce(sum);
  return {sum.inside, sum.above};
}

// The first id whose running mass exceeds the point, of what bound and min_p keep; -1 in all warps but one of the cluster.
__device__ int32_t draw(Row& row, const Slice& slice, const Bound& bound, float min_p, double uniform, const Kept& all) {
  const Part part(row, slice);
  uint64_t before = all.before;
  const uint64_t point = sample_point(uniform, all.total);
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
  const uint32_t key = slice.all_keys[row.tid];
  const int32_t id = slice.all_ids[row.tid];
  int place = 0;
  for (int i = 0; i < count; ++i) place += slice.all_keys[i] > key || (slice.all_keys[i] == key && slice.all_ids[i] < id) ? 1 : 0;
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
__device__ __forceinline__ void sample_row(Row& row, const Sampling& s, int64_t r, int64_t per_block, float* shared) {
  const int64_t begin = min(row.rank * per_block, s.vocab), end = min(begin + per_block, s.vocab);
  uint32_t *lists = reinterpret_cast<uint32_t*>(shared + per_block), *bins = lists + 2 * kCandidates;
  uint32_t* const all_lists = row.everywhere() ? bins + 2048 : lists;
  const Slice slice{shared,
                    static_cast<int32_t>(begin),
                    static_cast<int32_t>(end - begin),
                    lists,
                    reinterpret_cast<int32_t*>(lists + kCandidates),
                    all_lists,
                    reinterpret_cast<int32_t*>(all_lists + kCandidates),
                    bins};
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
  __syncwarp();
  cluster_wait();  // every block has begun: stores into it may start
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
  Kept kept;
  if (cut.listed && params.min_p == 0) {
    kept = kept_of_list(row, slice, cut.bound);
  } else {
    if (with_top_p || params.min_p > 0) all = kept_mass(row, slice, cut.bound, params.min_p);
    kept = kept_of(row, all);
  }
  __syncthreads();
  const int32_t id = draw(row, slice, cut.bound, params.min_p, params.uniform, kept);
  if (id >= 0 && row.lane == 0) finish(id);
}

// kWide: a cluster of 16 blocks, for few rows, so a block has a multiprocessor; else of 8, two to a multiprocessor.
template <bool kBf16, bool kWide>
__global__ void __launch_bounds__(kThreads, kWide ? 1 : 2) sample(const __grid_constant__ Sampling s, int64_t per_block) {
  extern __shared__ __align__(128) float slice[];
  __shared__ Shared shared;
  constexpr int kCluster = kWide ? kMostCluster : 8;
  Row row{shared,
          static_cast<int>(cluster_rank()),
          kCluster,
          static_cast<int>(threadIdx.x),
          static_cast<int>(threadIdx.x / 32),
          static_cast<int>(threadIdx.x & 31)};
  // Waited for before the first store into another block. Whatever is read from or stored into another block, a barrier of
  // the cluster follows, so nobody touches a block that has gone.
  cluster_arrive();
  dependent_begin();
  sample_row<kBf16>(row, s, blockIdx.x / kCluster, per_block, slice);
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
    for (auto* kernel : {sample<true, true>, sample<false, true>}) {
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
  auto* const kernel = cluster == kMostCluster ? (s.logits_bf16 ? sample<true, true> : sample<false, true>)
                                               : (s.logits_bf16 ? sample<true, false> : sample<false, false>);
  return launch(kernel, options, static_cast<cudaStream_t>(stream), s, slice);
}

}  // namespace k3::ops::cuda
