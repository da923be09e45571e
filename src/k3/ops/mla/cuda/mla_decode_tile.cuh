// Internal to ops/mla. What a warpgroup of scores does with a tile of 64 cached tokens, whatever the kernel: thread i of it
// holds the accumulators of wgmma, scores of tokens 16 (i / 32) + i % 32 / 4 + {0, 8} and rows 8 j + 2 (i % 4) + {0, 1}; R
// rows.
#pragma once

#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/mla/cuda/mla_decode_common.cuh"

namespace k3::ops::cuda {

// A thread of a warpgroup of scores, and where its rows' numbers lie in shared memory ([R] each; cross [4, R]).
struct Scorer {
  int thread, warp, lane, quad;
  int barrier;  // of its 128 threads
  float *reference, *cross;
  int* limits;
  __device__ __forceinline__ void meet() const { named_barrier(barrier, 128); }
};
__device__ __forceinline__ Scorer make_scorer(int barrier, float* reference, int* limits, float* cross) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
  return {thread, thread / 32, lane, lane % 4, barrier, reference, cross, limits};
}

// Where a thread stores p: rows of 128 bytes a row of the query, swizzled.
__device__ __forceinline__ uint32_t p_place(const Scorer& s) {
  return static_cast<uint32_t>(((s.lane / 16) * 8 + s.lane % 8) * 128 +
                               (((16 * s.warp + 8 * (s.lane / 8 % 2)) * 2) ^ ((s.lane & 7) << 4)));
}

// Products to exponents of 2 over the reference (at the first tile none is chosen), minus infinity where a row does not see
// a token.
template <int R>
__device__ __forceinline__ void scale_scores(float (&x)[R / 2], const Scorer& s, int first_token, int window, bool first) {
  constexpr float scale = kMlaScale * kLog2e;
#pragma unroll
  for (int j = 0; j < R / 8; ++j) {
    float2 ref = {0, 0};
    if (!first) ref = *reinterpret_cast<const float2*>(s.reference + 8 * j + 2 * s.quad);
    x[4 * j] = fmaf(x[4 * j], scale, -ref.x);
    x[4 * j + 1] = fmaf(x[4 * j + 1], scale, -ref.y);
    x[4 * j + 2] = fmaf(x[4 * j + 2], scale, -ref.x);
    x[4 * j + 3] = fmaf(x[4 * j + 3], scale, -ref.y);
  }
  if (first_token + kMlaTile <= window) return;
  const int token = first_token + 16 * s.warp + s.lane / 4;
#pragma unroll
  for (int j = 0; j < R / 8; ++j) {
    const int2 limit = *reinterpret_cast<const int2*>(s.limits + 8 * j + 2 * s.quad);
    if (token >= limit.x) x[4 * j] = -INFINITY;
    if (token >= limit.y) x[4 * j + 1] = -INFINITY;
    if (token + 8 >= limit.x) x[4 * j + 2] = -INFINITY;
    if (token + 8 >= limit.y) x[4 * j + 3] = -INFINITY;
  }
}

// All 128 threads: does a row need another reference?
template <int R>
__device__ __forceinline__ bool wants_raise(const float (&x)[R / 2], const Scorer& s, bool first) {
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < R / 2; ++i) top = fmaxf(top, x[i]);
  return uniform(named_barrier_any(s.barrier, 128, first || top > kSlack)) != 0;
}

// The largest score of a row becomes its reference. factor [R] gets what sums and values of before are to be multiplied by;
// at the first tile it is left alone, unless kAlways: then it gets ones.
template <int R, bool kAlways>
__device__ __forceinline__ void raise_reference(float (&x)[R / 2], const Scorer& s, float* factor, bool first) {
#pragma unroll
  for (int j = 0; j < R / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float most = fmaxf(x[4 * j + c], x[4 * j + 2 + c]);
#pragma unroll
      for (int i = 4; i < 32; i <<= 1) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, i));
      if (s.lane < 4) s.cross[s.warp * R + 8 * j + 2 * s.quad + c] = most;
    }
  }
  s.meet();
  if (s.thread < R) {
    const float* mine = s.cross + s.thread;
    float up = fmaxf(fmaxf(mine[0], mine[R]), fmaxf(mine[2 * R], mine[3 * R]));
    if (first) {
      up = up == -INFINITY ? 0 : up;
      s.reference[s.thread] = up;
    } else {
      up = fmaxf(up, 0);
      s.reference[s.thread] += up;
    }
    s.cross[s.thread] = up;  // only this thread read this column
    if (kAlways || !first) factor[s.thread] = first ? 1 : exp2f(-up);
  }
  s.meet();
#pragma unroll
  for (int j = 0; j < R / 8; ++j) {
    const float2 up = *reinterpret_cast<const float2*>(s.cross + 8 * j + 2 * s.quad);
    x[4 * j] -= up.x;
    x[4 * j + 1] -= up.y;
    x[4 * j + 2] -= up.x;
    x[4 * j + 3] -= up.y;
  }
}

// p = 2^x to shared memory in BF16; sums of a thread's two tokens.
template <int R>
__device__ __forceinline__ void store_p(float (&x)[R / 2], uint32_t p_store, float (&sums)[R / 4]) {
#pragma unroll
  for (int j = 0; j < R / 8; j += 2) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* v = x + 4 * (j + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = exp2_approx(v[e]);
      sums[2 * (j + i)] = v[0] + v[2];
      sums[2 * (j + i) + 1] = v[1] + v[3];
      packed[2 * i] = pack_bf16(v[0], v[1]);
      packed[2 * i + 1] = pack_bf16(v[2], v[3]);
    }
    stmatrix_x4_trans(p_store + j * 1024, packed);
  }
}

// Running sums of a thread's folded rows.
template <int R>
struct RowSums {
  static constexpr int K = R / 4;
  float l[kFolded<K>];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& x : l) x = 0;
  }
  __device__ __forceinline__ void scale(const float* factor, const Scorer& s) {
#pragma unroll
    for (int i = 0; i < kFolded<K>; ++i) l[i] *= factor[row(i, s)];
  }
  __device__ __forceinline__ void add(float (&sums)[K], int lane) {
    fold<K>(sums, lane);
#pragma unroll
    for (int i = 0; i < kFolded<K>; ++i) l[i] += sums[i];
  }
  __device__ __forceinline__ void store(const Scorer& s) const {  // to cross: [4 warps, R]
#pragma unroll
    for (int i = 0; i < kFolded<K>; ++i) s.cross[s.warp * R + row(i, s)] = l[i];
  }

 private:
  static __device__ __forceinline__ int row(int i, const Scorer& s) {
    const int index = folded_index<K>(i, s.lane);
    return index / 2 * 8 + 2 * s.quad + index % 2;
  }
};

// What the pages hold beyond a request may be anything, and 0 * NaN is NaN: rows `keep` to 63 of `count` blocks of the ring
// from `block` on become zeros.
template <int kRing>
__device__ __forceinline__ void clear_rows(char* ring, Turn<kRing> block, int count, int keep, int thread) {
  for (int i = 0; i < count; ++i) {
    char* rows = ring + block.slot * kBlockBytes + keep * 128;
    for (int e = thread; e < (kMlaTile - keep) * 8; e += 128) *reinterpret_cast<uint4*>(rows + e * 16) = uint4{0, 0, 0, 0};
    block.advance();
  }
}

// Accumulators times the factors of their rows; factor_of(j): those of rows 8 j + 2 quad + {0, 1}.
template <int kTiles, int N, class Factor>
__device__ __forceinline__ void rescale(float (&acc)[kTiles][N / 2], const Factor& factor_of) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    const float2 f = factor_of(j);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      acc[i][4 * j] *= f.x;
      acc[i][4 * j + 1] *= f.y;
      acc[i][4 * j + 2] *= f.x;
      acc[i][4 * j + 3] *= f.y;
    }
  }
}

// Where the boxes of a tile lie in the pool: those of the next tile are looked up before the copies of this one wait for
// room.
struct Boxes {
  int page[4] = {}, row[4] = {};
  __device__ __forceinline__ void look_up(const int32_t* table, int first_token, int boxes, int box_tokens, int page_tokens,
                                          int length) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + i * box_tokens;
      if (i < boxes && token < length) {
        const int index = token / page_tokens;
        page[i] = table[index];
        row[i] = token - index * page_tokens;
      }
    }
  }
};

// One thread: a block of a tile, 64 tokens of 64 columns from `column` on, into the ring. This block of the cluster copies
// `mine` of its boxes, from `offset` on; `bytes` come in all, of kPair == 2 from both.
template <int kPair, int kRing, class Bars>
__device__ __forceinline__ void copy_block(const CUtensorMap& pages, const Bars& bars, Turn<kRing>& turn, uint32_t ring,
                                           int column, const Boxes& at, int mine, int box_bytes, int offset, int bytes) {
  mbar_wait(bars.empty(turn.slot), turn.parity ^ 1);
  const uint32_t bar = bars.full(turn.slot);
  uint32_t to = ring + turn.slot * kBlockBytes + offset;
  mbar_expect(bar, bytes);
#pragma unroll
  for (int box = 0; box < 4; ++box) {
    if (box >= mine) break;
    if constexpr (kPair == 2) {
      tma_load_3d_multicast(to, &pages, column, at.row[box], at.page[box], bar, 3);
    } else {
      tma_load_3d(to, &pages, column, at.row[box], at.page[box], bar);
    }
    to += box_bytes;
  }
  turn.advance();
}

// ---- one block, one buffer of p: mla_decode_sm90.cu and mla_fused_sm90.cu ----

constexpr int kTileColumns = 9;  // blocks of a tile, the shared key first

// A warpgroup: scores^T [64, N] = tile x query^T. The tile's blocks lie in the ring from `at` on; of the query's, the one of the
// shared key is the last.
template <int N, int kRing, class Bars>
__device__ __forceinline__ void tile_scores(float (&x)[N / 2], Turn<kRing> at, const Bars& bars, uint32_t ring,
                                            uint32_t query) {
#pragma unroll
  for (int i = 0; i < kTileColumns; ++i) {
    mbar_wait(bars.full(at.slot), at.parity);
    wgmma_fence();
    const uint64_t a = desc_128(ring + at.slot * kBlockBytes);
    const uint64_t b = desc_128(query + (i == 0 ? kTileColumns - 1 : i - 1) * N * 128);
#pragma unroll
    for (int k = 0; k < 4; ++k) Wgmma<N>::ss(x, a + 2 * k, b + 2 * k, i + k > 0);
    at.advance();
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// What the warpgroup of scores carries from tile to tile.
template <int N>
struct Softmax {
  Scorer own;
  float* factor;  // [N]
  int* flag;
  uint32_t p_store;
  RowSums<N> sums;
  uint32_t parity = 0;  // of p_empty

  // Scores of the tile at `turn` to p, factors and flag.
  template <int kRing, class Bars>
  __device__ __forceinline__ void take(float (&x)[N / 2], int tile, int window, int length, bool first, int last,
                                       char* ring, Turn<kRing> turn, const Bars& bars) {
    const int first_token = tile * kMlaTile, left = length - first_token;
    scale_scores<N>(x, own, first_token, window, first);
    const bool raise = wants_raise<N>(x, own, first);
    mbar_wait(bars.p_empty(), parity ^ 1);
    parity ^= 1;
    if (raise) {
      raise_reference<N, false>(x, own, factor, first);  // at the first tile factor may still be read as the sums of the segment before
      if (!first) sums.scale(factor, own);
    }
    if (own.thread == 0) *flag = (first ? kFirst : raise ? kRescale : 0) | last;
    turn.advance();
    if (left < kMlaTile) clear_rows<kRing>(ring, turn, kTileColumns - 1, max(left, 0), own.thread);
    float of_tile[N / 4];
    store_p<N>(x, p_store, of_tile);
    fence_async_proxy();
    warp_arrive(bars.p_full(), own.lane);
    sums.add(of_tile, own.lane);
  }
};

// A warpgroup of values: acc (every other 64 latents, 64 (2 i + group)) of a tile more. slot: of its first block, moved on to
// that of the next tile; release(slot): the block has been read.
template <int N, int kRing, class Release>
__device__ __forceinline__ void add_values(float (&acc)[4][N / 2], int& slot, uint32_t ring, uint32_t p_at, bool fresh,
                                           const Release& release) {
  const auto later = [](int at, int by) { return at + by >= kRing ? at + by - kRing : at + by; };
  const uint64_t b = desc_128(p_at);
  int at = slot;
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint64_t a = desc_128(ring + at * kBlockBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) Wgmma<N>::template ss<1, 0>(acc[i], a + 128 * k, b + 2 * k, k > 0 || !fresh);
    wgmma_commit();
    at = later(at, 2);
  }
  const auto next = [&](int by) {
    release(slot);
    slot = later(slot, by);
  };
  wgmma_wait<3>();
  next(2);
  wgmma_wait<2>();
  next(2);
  wgmma_wait<1>();
  next(2);
  wgmma_wait<0>();
  next(3);
}

}  // namespace k3::ops::cuda
