// Internal to ops/mla. What the decode kernels share: a worker's share of the batch, positions in rings, sums across lanes.
#pragma once

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"
#include "k3/ops/mla/cuda/mla_split.h"

namespace k3::ops::cuda {

constexpr int kBlockBytes = 64 * 128;  // of the ring: 64 tokens, 64 columns
constexpr float kSlack = 10;

// What the softmax tells the warpgroups of the values with each tile: one word; and at the end of a segment where it goes.
constexpr int kRescale = 1, kFirst = 2, kLast = 4, kStop = 8;
struct Target {
  int row0, rows, slot;  // slot: of the part, -1: the request is whole
};
// Where a worker's share begins, and the walk over the requests in it.
struct Walk {
  int request, row_tile, at, lo, hi, share;
};

struct Segment {
  int request, begin, end, tiles, length, tokens;
  int row_tile, rows, row0;  // of this block
  int at;
};

// The next request of the share with tiles and rows for this block. All roles call it in the same order.
template <int kPair, bool kWarp>
__device__ __forceinline__ bool next_segment(const MlaDecodeLaunch& p, Walk& w, Segment& s) {
  const auto same = [](int x) { return kWarp ? uniform(x) : x; };  // kWarp: called by whole warps
  while (w.request < p.args.batch) {
    s.length = same(p.args.lengths[w.request]);
    s.tiles = mla_tiles(s.length);
    s.at = w.at;
    if (w.at + kMlaOverhead >= w.hi) return false;
    const MlaSegment range = mla_segment(w.at, s.tiles, w.lo, w.hi);
    s.begin = range.begin;
    s.end = range.end;
    s.request = w.request;
    const int skip_pair = w.row_tile * kPair * p.config.row_tile;
    s.row_tile = w.row_tile * kPair + (kPair == 2 ? static_cast<int>(blockIdx.x) % 2 : 0);
    w.at += s.tiles + kMlaOverhead;
    if (++w.row_tile == p.config.row_tiles) {
      w.row_tile = 0;
      ++w.request;
    }
    if (s.begin == s.end) continue;
    const int first =
        p.args.offsets != nullptr ? same(p.args.offsets[s.request]) : s.request * static_cast<int>(p.args.max_query_tokens);
    s.tokens =
        p.args.offsets != nullptr ? same(p.args.offsets[s.request + 1]) - first : static_cast<int>(p.args.max_query_tokens);
    const int skip = s.row_tile * p.config.row_tile;
    s.row0 = first * static_cast<int>(p.args.heads) + skip;
    const int rows = s.tokens * static_cast<int>(p.args.heads);
    s.rows = max(0, min(rows - skip, p.config.row_tile));
    if (rows > skip_pair) return true;
  }
  return false;
}

template <int kPair>
__device__ __forceinline__ int worker_of_block() {
  return static_cast<int>(blockIdx.x) / kPair;
}
template <int kPair>
__device__ __forceinline__ int part_slot(bool first_tile) {
  return mla_part_slot(worker_of_block<kPair>(), first_tile) * kPair + static_cast<int>(blockIdx.x) % kPair;
}

// All threads. `scratch`: 27 ints of shared memory.
template <int kPair>
__device__ Walk find_share(const MlaDecodeLaunch& p, int* scratch) {
  const int batch = static_cast<int>(p.args.batch), threads = static_cast<int>(blockDim.x),
            each = (batch + threads - 1) / threads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, batch), end = min(begin + each, batch);
  const int row_tiles = p.config.row_tiles;
  int cost = 0;
  for (int b = begin; b < end; ++b) cost += (mla_tiles(p.args.lengths[b]) + kMlaOverhead) * row_tiles;
  int sum = cost;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 1; i < 32; i <<= 1) {
    const int other = __shfl_up_sync(0xFFFFFFFFU, sum, i);
    if (lane >= i) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int total = 0;
  for (int i = 0; i < threads / 32; ++i) {
    if (i < warp) sum += scratch[i];
    total += scratch[i];
  }
  Walk w;
  w.share = mla_share(total, p.config.workers, p.config.min_tiles);
  w.lo = worker_of_block<kPair>() * w.share;
  w.hi = min(w.lo + w.share, total);
  int at = sum - cost;
  if (threadIdx.x == 0) {  // nobody's: an idle block
    scratch[24] = batch;
    scratch[25] = 0;
    scratch[26] = 0;
  }
  __syncthreads();
  if (at <= w.lo && w.lo < sum) {
    int b = begin;
    for (;; ++b) {
      const int one = mla_tiles(p.args.lengths[b]) + kMlaOverhead;
      if (w.lo < at + one * row_tiles) {
        const int tile = (w.lo - at) / one;
        scratch[24] = b;
        scratch[25] = tile;
        scratch[26] = at + tile * one;
        break;
      }
      at += one * row_tiles;
    }
  }
  __syncthreads();
  w.request = scratch[24];
  w.row_tile = scratch[25];
  w.at = scratch[26];
  __syncthreads();
  return w;
}

// A position in the ring of barriers.
template <int kCount>
struct Turn {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance(int by = 1) {
    slot += by;
    if (slot >= kCount) {
      slot -= kCount;
      parity ^= 1;
    }
  }
};

// A warp has done with a block of the ring.
template <int kPair>
__device__ __forceinline__ void release_block(uint32_t bar, int lane) {
  if constexpr (kPair == 2) {
    if (lane < 2) mbar_arrive_cluster_relaxed(bar, static_cast<uint32_t>(lane));
  } else {
    if (lane == 0) mbar_arrive(bar);
  }
}

__device__ __forceinline__ uint64_t desc_128(uint32_t address) { return make_desc(address, 16, 1024, Swizzle::bytes_128); }

// Sums over the 8 lanes with the same lane % 4, each lane keeping a part of the values as long as halving goes evenly; in
// place.
constexpr int half(int n) { return n % 2 == 0 ? n / 2 : n; }
template <int K>
constexpr int kFolded = half(half(half(K)));

template <int kCount, int kBit, int K>
__device__ __forceinline__ void fold_once(float (&v)[K], int lane) {
  const bool upper = (lane & kBit) != 0;
#pragma unroll
  for (int i = 0; i < half(kCount); ++i) {
    if constexpr (kCount % 2 == 0) {
      const float send = upper ? v[i] : v[i + kCount / 2], keep = upper ? v[i + kCount / 2] : v[i];
      v[i] = keep + __shfl_xor_sync(0xFFFFFFFFU, send, kBit);
    } else {
      v[i] += __shfl_xor_sync(0xFFFFFFFFU, v[i], kBit);
    }
  }
}
template <int K>
__device__ __forceinline__ void fold(float (&v)[K], int lane) {
  fold_once<K, 4>(v, lane);
  fold_once<half(K), 8>(v, lane);
  fold_once<half(half(K)), 16>(v, lane);
}
// Which value the i-th of a lane's folded ones is.
template <int K>
__device__ __forceinline__ int folded_index(int i, int lane) {
  constexpr int kSecond = half(K), kThird = half(kSecond);
  if (K % 2 == 0 && (lane & 4) != 0) i += kSecond;
  if (kSecond % 2 == 0 && (lane & 8) != 0) i += kThird;
  if (kThird % 2 == 0 && (lane & 16) != 0) i += half(kThird);
  return i;
}

// Four accumulators of a thread, 16 latents from `latent` on times 8 rows from `row` on of a warp, to the rows of `ol`.
__device__ __forceinline__ void store_rows(const MlaDecode& args, const Target& s, const float* v, float2 inverse, int row,
                                           int latent, int lane) {
  const int quad = lane % 4;
  if (args.ol_f32) {
    float* out =
        static_cast<float*>(args.ol) + (static_cast<int64_t>(s.row0) + row + 2 * quad) * kLatent + latent + lane / 4;
    if (row + 2 * quad < s.rows) {
      out[0] = v[0] * inverse.x;
      out[8] = v[2] * inverse.x;
    }
    if (row + 2 * quad + 1 < s.rows) {
      out[kLatent] = v[1] * inverse.y;
      out[kLatent + 8] = v[3] * inverse.y;
    }
    return;
  }
  const uint32_t low = movmatrix_trans(pack_bf16(v[0] * inverse.x, v[1] * inverse.y));
  const uint32_t high = movmatrix_trans(pack_bf16(v[2] * inverse.x, v[3] * inverse.y));
  const bool odd = (lane & 1) != 0;
  const uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, odd ? low : high, 1);
  if (row + lane / 4 < s.rows) {
    auto* out = static_cast<__nv_bfloat16*>(args.ol) + (static_cast<int64_t>(s.row0) + row + lane / 4) * kLatent + latent;
    // even lanes: latents 2 quad .. + 3; odd: 8 + 2 (quad - 1) .. + 3
    *reinterpret_cast<uint2*>(out + (odd ? 6 + 2 * quad : 2 * quad)) = odd ? uint2{other, high} : uint2{low, other};
  }
}

}  // namespace k3::ops::cuda
