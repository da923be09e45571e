// Causal attention over expanded keys and values on Hopper. A block has 128 queries of one head: two warpgroups of 64 each
// and a thread that copies tiles of 128 keys (128 of the head + 64 shared) and values through two stages. Tiles go from the
// diagonal backwards, so that the masked ones come first. The scores of a tile are computed while the product of the one
// before it with the values runs, and the two warpgroups take turns at the tensor cores, so that one's softmax hides behind
// the other's products.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/wgmma.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 384, kTile = 128, kBlockBytes = kTile * 128, kStages = 2;
constexpr int kKeyBlocks = 3, kValueBlocks = 2;
constexpr int kQueryAt = 0, kKeysAt = kKeyBlocks * kBlockBytes, kValuesAt = kKeysAt + kStages * kKeyBlocks * kBlockBytes;
constexpr int kBars =
    kValuesAt + kStages * kValueBlocks * kBlockBytes;  // query; keys full, empty; values full, empty [stages]
constexpr int kBytes = kBars + (1 + 4 * kStages) * 8;

struct Work {
  int head, queries, keys, query0, query_row,
      key_row;  // query0: of the tile in the request; rows: of its first query and key
  int ahead;    // keys of the request from the first of this part on; `keys` of them are in it
  bool first;   // the part has the request's first key
};

// Heads whose keys and values fit into L2 together go side by side; within them long tiles come first.
template <bool kParts>
__device__ bool find_work(const MlaPrefillLaunch& p, Work& w) {
  const int heads = static_cast<int>(p.args.heads), most = static_cast<int>(gridDim.x) / heads;
  const int group = static_cast<int>(blockIdx.x) / (p.head_group * most),
            in_group = static_cast<int>(blockIdx.x) % (p.head_group * most);
  const int width = min(p.head_group, heads - group * p.head_group);
  w.head = group * p.head_group + in_group % width;
  int left = in_group / width;  // from the last tile
  for (int s = static_cast<int>(p.args.batch) - 1; s >= 0; --s) {
    const int first = p.args.query_offsets[s], queries = p.args.query_offsets[s + 1] - first,
              tiles = (queries + kTile - 1) / kTile;
    if (left >= tiles) {
      left -= tiles;
      continue;
    }
    w.query0 = (tiles - 1 - left) * kTile;
    w.queries = queries;
    w.query_row = first + w.query0;
    w.key_row = p.args.key_offsets[s];
    w.keys = w.ahead = p.args.key_offsets[s + 1] - w.key_row;
    w.first = true;
    if constexpr (kParts) {
      const int begin = static_cast<int>(p.args.first_key), end = begin + static_cast<int>(p.args.keys);
      w.first = w.key_row >= begin;
      const int from = max(w.key_row, begin), key_end = w.key_row + w.keys;
      w.key_row = from - begin;
      w.ahead = key_end - from;
      w.keys = min(key_end, end) - from;
      return w.keys > 0;
    }
    return true;
  }
  return false;
}

struct Bars {
  uint32_t base;
  __device__ uint32_t query() const { return base; }
  __device__ uint32_t keys_full(int i) const { return base + 8 + 32 * i; }
  __device__ uint32_t keys_empty(int i) const { return base + 16 + 32 * i; }
  __device__ uint32_t values_full(int i) const { return base + 24 + 32 * i; }
  __device__ uint32_t values_empty(int i) const { return base + 32 + 32 * i; }
};

__device__ void copy_role(const MlaPrefillLaunch& p, const Work& w, int tiles, uint32_t shared) {
  const Bars bars{shared + kBars};
  mbar_expect(bars.query(), kKeyBlocks * kBlockBytes);
  for (int i = 0; i < kKeyBlocks; ++i) {
    tma_load_2d(shared + kQueryAt + i * kBlockBytes, &p.q, w.head * kMlaKey + 64 * i, w.query_row, bars.query());
  }
  uint32_t parity = 1;
  int stage = 0;
  for (int tile = tiles - 1; tile >= 0; --tile) {
    const int row = w.key_row + tile * kTile, column = w.head * (kMlaNope + kMlaValue);
    const uint32_t keys = shared + kKeysAt + stage * kKeyBlocks * kBlockBytes,
                   values = shared + kValuesAt + stage * kValueBlocks * kBlockBytes;
    mbar_wait(bars.keys_empty(stage), parity);
    mbar_expect(bars.keys_full(stage), kKeyBlocks * kBlockBytes);
    tma_load_2d(keys, &p.expanded, column, row, bars.keys_full(stage));
    tma_load_2d(keys + kBlockBytes, &p.expanded, column + 64, row, bars.keys_full(stage));
    tma_load_2d(keys + 2 * kBlockBytes, &p.shared_keys, 0, row, bars.keys_full(stage));
    mbar_wait(bars.values_empty(stage), parity);
    mbar_expect(bars.values_full(stage), kValueBlocks * kBlockBytes);
    tma_load_2d(values, &p.expanded, column + 128, row, bars.values_full(stage));
    tma_load_2d(values + kBlockBytes, &p.expanded, column + 192, row, bars.values_full(stage));
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

__device__ __forceinline__ void scores(float (&x)[64], uint32_t query, uint32_t keys) {
  const uint64_t a = make_desc(query, 16, 1024, Swizzle::bytes_128), b = make_desc(keys, 16, 1024, Swizzle::bytes_128);
#pragma unroll
  for (int i = 0; i < kKeyBlocks; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      Wgmma<128>::ss(x, a + i * (kBlockBytes / 16) + 2 * k, b + i * (kBlockBytes / 16) + 2 * k, i + k > 0);
  }
  wgmma_commit();
}

__device__ __forceinline__ void add_values(float (&out)[64], const uint32_t (&weights)[8][4], uint32_t values,
                                           bool accumulate) {
  const uint64_t b = make_desc(values, kBlockBytes, 1024, Swizzle::bytes_128);
#pragma unroll
  for (int k = 0; k < 8; ++k) Wgmma<128>::rs<1>(out, weights[k], b + 128 * k, accumulate || k > 0);
  wgmma_commit();
}

struct Softmax {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Scores to weights; factors of what was summed before.
  __device__ __forceinline__ void take(float (&x)[64], float (&factor)[2]) {
    constexpr float scale = kMlaScale * kLog2e;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = most[h];
#pragma unroll
      for (int j = 0; j < 16; ++j) top = fmaxf(top, fmaxf(x[4 * j + 2 * h], x[4 * j + 2 * h + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 2));
      const float minus = top == -INFINITY ? 0 : -top * scale;  // a row that sees nothing yet
      factor[h] = exp2_approx(fmaf(most[h], scale, minus));
      most[h] = top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& v = x[4 * j + 2 * h + c];
          v = exp2_approx(fmaf(v, scale, minus));
          part += v;
        }
      }
      sum[h] = sum[h] * factor[h] + part;
    }
  }
};

__device__ __forceinline__ void to_weights(uint32_t (&weights)[8][4], const float (&x)[64]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = pack_bf16(x[8 * k + 2 * i], x[8 * k + 2 * i + 1]);
  }
}

// Adds what the parts before gave a row to what this one gives it: `out` (every fourth pair is the row's), whose weights sum to `sum`
// at a largest score of `most`. Then lse and the sums so far are those of all parts; out is the mean, and `inverse` one.
__device__ __forceinline__ void merge_parts(const MlaPrefill& a, const Work& w, int64_t token, int column, int quad, float sum, float most,
                                            float earlier, float* out, float& inverse) {
  const float here = sum > 0 ? most * (kMlaScale * kLog2e) + log2f(sum) : -INFINITY;
  const float top = fmaxf(here, earlier), base = top == -INFINITY ? 0 : top;
  const float mine = exp2f(here - base), theirs = exp2f(earlier - base), all = mine + theirs, share = all > 0 ? 1 / all : 0;
  float* const so_far = a.so_far + token * a.heads * kMlaValue + column;
  const float own = mine * share * inverse, other = theirs * share;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    float2& past = *reinterpret_cast<float2*>(so_far + 8 * j);
    const float2 before = w.first ? float2{0, 0} : past;
    out[4 * j] = out[4 * j] * own + before.x * other;
    out[4 * j + 1] = out[4 * j + 1] * own + before.y * other;
    if (w.keys < w.ahead) past = {out[4 * j], out[4 * j + 1]};
  }
  inverse = 1;
  if (quad == 0) a.lse[token * a.heads + w.head] = all > 0 ? (base + log2f(all)) * kLn2 : -INFINITY;
}

template <bool kParts>
__device__ void attend_role(const MlaPrefillLaunch& p, const Work& w, int tiles, uint32_t shared, char* memory) {
  const Bars bars{shared + kBars};
  const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4,
            lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t query = shared + kQueryAt + group * 64 * 128;
  const int row = 16 * warp + lane / 4, quad = lane % 4;  // of this warpgroup's 64; the other row of a thread is row + 8
  const int limit = w.ahead - w.queries + w.query0 + 64 * group + row + 1;  // keys that the row sees, of this part and later ones
  const int all_see = w.ahead - w.queries + w.query0 + 64 * group + 1;      // keys that every row of the warpgroup sees
  // A row that counts sees no more than there are, if all of them are here.
  const int limits[2] = {kParts ? min(limit, w.keys) : limit, kParts ? min(limit + 8, w.keys) : limit + 8};
  float x[64], out[64], factor[2];
  uint32_t weights[8][4];
  Softmax softmax;
  const auto mask = [&](int tile) {
    if ((tile + 1) * kTile <= all_see && (tile + 1) * kTile <= w.keys) return;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = tile * kTile + 8 * j + 2 * quad + c;
        if (key >= limits[0]) x[4 * j + c] = -INFINITY;
        if (key >= limits[1]) x[4 * j + 2 + c] = -INFINITY;
      }
    }
  };
  int stage = 0;
  uint32_t parity = 0;
  mbar_wait(bars.query(), 0);
  mbar_wait(bars.keys_full(0), 0);
  wgmma_fence();
  scores(x, query, shared + kKeysAt);
  // Rows of values behind the last key may be anything, and 0 * NaN is NaN.
  const int valid = w.keys - (tiles - 1) * kTile;
  if (valid < kTile) {
    mbar_wait(bars.values_full(0), 0);
    const int each = (kTile - valid) * 8;
    for (int i = static_cast<int>(threadIdx.x); i < kValueBlocks * each; i += 256) {
      *reinterpret_cast<uint4*>(memory + kValuesAt + i / each * kBlockBytes + valid * 128 + i % each * 16) =
          uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    named_barrier(1, 256);
  }
  wgmma_wait<0>();
  if (lane == 0) mbar_arrive(bars.keys_empty(0));
  mask(tiles - 1);
  softmax.take(x, factor);
  to_weights(weights, x);
  if (group == 1) named_barrier_arrive(2, 256);  // warpgroup 0 begins
#pragma unroll 1
  for (int tile = tiles - 2; tile >= 0; --tile) {
    const int next = stage + 1 == kStages ? 0 : stage + 1;
    const uint32_t next_parity = next == 0 ? parity ^ 1 : parity;
    mbar_wait(bars.keys_full(next), next_parity);
    named_barrier(2 + group, 256);
    wgmma_fence();
    scores(x, query, shared + kKeysAt + next * kKeyBlocks * kBlockBytes);
    mbar_wait(bars.values_full(stage), parity);
    wgmma_fence();
    add_values(out, weights, shared + kValuesAt + stage * kValueBlocks * kBlockBytes, tile + 2 < tiles);
    named_barrier_arrive(3 - group, 256);
    wgmma_wait<1>();
    if (lane == 0) mbar_arrive(bars.keys_empty(next));
    mask(tile);
    softmax.take(x, factor);
    wgmma_wait<0>();
    if (lane == 0) mbar_arrive(bars.values_empty(stage));
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      out[4 * j] *= factor[0];
      out[4 * j + 1] *= factor[0];
      out[4 * j + 2] *= factor[1];
      out[4 * j + 3] *= factor[1];
    }
    to_weights(weights, x);
    stage = next;
    parity = next_parity;
  }
  if (group == 0) named_barrier(2, 256);  // the last arrival of warpgroup 1
  mbar_wait(bars.values_full(stage), parity);
  wgmma_fence();
  add_values(out, weights, shared + kValuesAt + stage * kValueBlocks * kBlockBytes, tiles > 1);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    softmax.sum[h] += __shfl_xor_sync(0xFFFFFFFFU, softmax.sum[h], 1);
    softmax.sum[h] += __shfl_xor_sync(0xFFFFFFFFU, softmax.sum[h], 2);
  }
  wgmma_wait<0>();
  float earlier[2] = {-INFINITY, -INFINITY};  // binary logarithms of the sums of the parts before
  if constexpr (kParts) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int in_tile = 64 * group + row + 8 * h;
      if (w.first || w.query0 + in_tile >= w.queries) continue;
      earlier[h] = p.args.lse[static_cast<int64_t>(w.query_row + in_tile) * p.args.heads + w.head] * kLog2e;
    }
    __syncwarp();  // lanes of a row have read before one of them writes
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int in_tile = 64 * group + row + 8 * h;
    if (w.query0 + in_tile >= w.queries) continue;
    const float sum = softmax.sum[h];
    float inverse = sum > 0 ? 1 / sum : 0;
    const int64_t token = w.query_row + in_tile;
    const int column = w.head * kMlaValue + 2 * quad;
    if constexpr (kParts) {
      if (!(w.first && w.keys == w.ahead)) {
        merge_parts(p.args, w, token, column, quad, sum, softmax.most[h], earlier[h], out + 2 * h, inverse);
        if (w.keys < w.ahead) continue;
      }
    }
    auto* to = static_cast<__nv_bfloat16*>(p.args.out) + token * p.args.out_stride + column;
    const auto* gate = p.args.gate == nullptr
                           ? nullptr
                           : static_cast<const __nv_bfloat16*>(p.args.gate) + token * p.args.gate_stride + column;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float a = out[4 * j + 2 * h] * inverse, b = out[4 * j + 2 * h + 1] * inverse;
      if (gate != nullptr) {
        const uint32_t g = *reinterpret_cast<const uint32_t*>(gate + 8 * j);
        a = __fdividef(a, 1 + exp2_approx(-low_bf16(g) * kLog2e));
        b = __fdividef(b, 1 + exp2_approx(-high_bf16(g) * kLog2e));
      }
      *reinterpret_cast<uint32_t*>(to + 8 * j) = pack_bf16(a, b);
    }
    if (p.args.lse != nullptr && quad == 0 && (!kParts || (w.first && w.keys == w.ahead))) {
      p.args.lse[token * p.args.heads + w.head] =
          sum > 0 ? (softmax.most[h] * (kMlaScale * kLog2e) + log2f(sum)) * kLn2 : -INFINITY;
    }
  }
}

template <bool kParts>
__global__ void __launch_bounds__(kThreads, 1) prefill(const __grid_constant__ MlaPrefillLaunch p) {
  K3_SHARED_MEMORY(memory);
  const uint32_t shared = shared_address(memory);
  const Bars bars{shared + kBars};
  Work w;
  if (!find_work<kParts>(p, w)) return;
  const int seen = min(w.keys, w.ahead - w.queries + w.query0 + kTile);  // by the last query of the tile
  const int tiles = max(1, (seen + kTile - 1) / kTile);
  if (threadIdx.x == 0) {
    if ((shared & 1023) != 0) __trap();
    mbar_init(bars.query(), 1);
    for (int i = 0; i < kStages; ++i) {
      mbar_init(bars.keys_full(i), 1);
      mbar_init(bars.keys_empty(i), 8);
      mbar_init(bars.values_full(i), 1);
      mbar_init(bars.values_empty(i), 8);
    }
    mbar_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    fewer_registers<24>();
    if (threadIdx.x == 256) copy_role(p, w, tiles, shared);
  } else {
    more_registers<240>();
    attend_role<kParts>(p, w, tiles, shared, memory);
  }
}

}  // namespace

int mla_prefill_sm90_launch(const MlaPrefillLaunch& p, cudaStream_t stream) {
  const int64_t tiles = (p.args.tokens + kTile - 1) / kTile + p.args.batch;  // no fewer than the requests have together
  const LaunchOptions options{
      .grid = dim3(static_cast<unsigned>(tiles * p.args.heads)), .block = dim3(kThreads), .shared_bytes = kBytes};
  return p.args.so_far != nullptr ? launch(prefill<true>, options, stream, p) : launch(prefill<false>, options, stream, p);
}

}  // namespace k3::ops::cuda
