// One token of every request: convolution, SiLU, norms, gate, recurrence and output norm in one pass over the state.
#include "k3/ops/cuda/beside.cuh"
#include "k3/ops/kda/cuda/kda_decode_cuda.cuh"
#include "k3/ops/kda/cuda/kda_decode_device.cuh"

namespace k3::ops::cuda {
namespace {

// A row of the state lies in 16 lanes, 8 values each; so every access has 16 bytes a lane and 8 shuffles become 5 (dots).
// `Raw` is what memory holds, column() the first of the lane's columns of half i (of 4 columns).
template <class State>
struct RowOf;
template <>
struct RowOf<float> {
  float4 raw[2];
  static __device__ __forceinline__ int column(int lane, int half) { return 64 * half + 4 * lane; }
  __device__ __forceinline__ void load(const float* row, int lane) {
    raw[0] = __ldcs(reinterpret_cast<const float4*>(row + column(lane, 0)));
    raw[1] = __ldcs(reinterpret_cast<const float4*>(row + column(lane, 1)));
  }
  __device__ __forceinline__ void load_shared(const float* row, int lane) {
    raw[0] = *reinterpret_cast<const float4*>(row + column(lane, 0));
    raw[1] = *reinterpret_cast<const float4*>(row + column(lane, 1));
  }
  __device__ __forceinline__ void get(float (&x)[8]) const {
    x[0] = raw[0].x, x[1] = raw[0].y, x[2] = raw[0].z, x[3] = raw[0].w;
    x[4] = raw[1].x, x[5] = raw[1].y, x[6] = raw[1].z, x[7] = raw[1].w;
  }
  static __device__ __forceinline__ void store(float* row, int lane, const float (&x)[8]) {
    __stcs(reinterpret_cast<float4*>(row + column(lane, 0)), make_float4(x[0], x[1], x[2], x[3]));
    __stcs(reinterpret_cast<float4*>(row + column(lane, 1)), make_float4(x[4], x[5], x[6], x[7]));
  }
  static __device__ __forceinline__ void store_shared(float* row, int lane, const float (&x)[8]) {
    *reinterpret_cast<float4*>(row + column(lane, 0)) = make_float4(x[0], x[1], x[2], x[3]);
    *reinterpret_cast<float4*>(row + column(lane, 1)) = make_float4(x[4], x[5], x[6], x[7]);
  }
};
template <>
struct RowOf<__nv_bfloat16> {
  uint4 raw;
  static __device__ __forceinline__ int column(int lane, int half) { return 8 * lane + 4 * half; }
  __device__ __forceinline__ void load(const __nv_bfloat16* row, int lane) {
    raw = __ldcs(reinterpret_cast<const uint4*>(row + column(lane, 0)));
  }
  __device__ __forceinline__ void load_shared(const __nv_bfloat16* row, int lane) {
    raw = *reinterpret_cast<const uint4*>(row + column(lane, 0));
  }
  __device__ __forceinline__ void get(float (&x)[8]) const {
    x[0] = low_bf16(raw.x), x[1] = high_bf16(raw.x), x[2] = low_bf16(raw.y), x[3] = high_bf16(raw.y);
    x[4] = low_bf16(raw.z), x[5] = high_bf16(raw.z), x[6] = low_bf16(raw.w), x[7] = high_bf16(raw.w);
  }
  static __device__ __forceinline__ uint4 packed(const float (&x)[8]) {
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  }
  static __device__ __forceinline__ void store(__nv_bfloat16* row, int lane, const float (&x)[8]) {
    __stcs(reinterpret_cast<uint4*>(row + column(lane, 0)), packed(x));
  }
  static __device__ __forceinline__ void store_shared(__nv_bfloat16* row, int lane, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(row + column(lane, 0)) = packed(x);
  }
};

struct Factors {  // of one head's token
  float kn[kDim], qn[kDim], decay[kDim], v[kDim];
  float beta;
};

// Sums of a and of b over the 16 lanes of each half of a warp: both lanes get both, by 5 shuffles instead of 8.
__device__ __forceinline__ void dots(float& a, float& b, int lane) {
  const bool upper = (lane & 8) != 0;
  float mine = upper ? b : a;
  mine += __shfl_xor_sync(0xFFFFFFFFU, upper ? a : b, 8);
#pragma unroll
  for (int i = 4; i > 0; i >>= 1) mine += __shfl_xor_sync(0xFFFFFFFFU, mine, i);
  const float other = __shfl_xor_sync(0xFFFFFFFFU, mine, 8);
  a = upper ? other : mine;
  b = upper ? mine : other;
}

// The lane's part of the factors, and the update of one row.
struct Step {
  float kn[8], qn[8], decay[8];
  float key_query, beta;

  template <class State>
  __device__ __forceinline__ void load(const Factors& f, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = RowOf<State>::column(lane, half);
      float part[4];
      load4(f.kn + column, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) kn[4 * half + i] = part[i];
      load4(f.qn + column, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) qn[4 * half + i] = part[i];
      load4(f.decay + column, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) decay[4 * half + i] = part[i];
    }
    key_query = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) key_query = fmaf(kn[i], qn[i], key_query);
#pragma unroll
    for (int i = 8; i > 0; i >>= 1) key_query += __shfl_xor_sync(0xFFFFFFFFU, key_query, i);
    beta = f.beta;
  }
  // x becomes the row after the token; returns the output. The output is read after the update, but its dot is taken beside
  // the key's over the decayed row: what the update adds to it is u kn.qn.
  __device__ __forceinline__ float row(float (&x)[8], float v, int lane) const {
    float a = 0, b = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] *= decay[i];
      a = fmaf(kn[i], x[i], a);
      b = fmaf(qn[i], x[i], b);
    }
    dots(a, b, lane);
    const float u = beta * (v - a);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = fmaf(u, kn[i], x[i]);
    return fmaf(u, key_query, b);
  }
};

// What a lane of the q, k or v warp carries from the loads to the stores of the conv state.
struct ConvLane {
  float x[4][4];  // oldest first; the last one is the token's
};

__device__ __forceinline__ void store_window(const KdaSlots& slots, int64_t at, int heads, const ConvLane& conv) {
#pragma unroll
  for (int i = 0; i < 3; ++i) store_conv(slots, at + static_cast<int64_t>(i) * heads * kDim, conv.x[i + 1]);
}

// z of all channels and the gate of kRows rows from their second factors in shared memory. By all threads, with two barriers.
constexpr int kLowPitch = kDim * 2 + 16;
template <int kWarps, int kRows, int kWidth>
__device__ __forceinline__ void low_products(const uint8_t* w, const float (&in)[2][kWidth], bool with_gate, float* z, float* gate) {
  const int tid = static_cast<int>(threadIdx.x);
  cp_async_wait<0>();
  __syncthreads();
  const auto part = [&](int row, int from, int pieces, const float* x) {
    float sum = 0;
#pragma unroll 4
    for (int i = from; i < from + pieces; ++i) {
      const uint4 eight = *reinterpret_cast<const uint4*>(w + row * kLowPitch + i * 16);
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = fmaf(low_bf16(words[j]), x[8 * i + 2 * j], fmaf(high_bf16(words[j]), x[8 * i + 2 * j + 1], sum));
    }
    return sum;
  };
  for (int row = tid; row < kDim; row += kWarps * 32) z[row] = part(row, 0, kDim / 8, in[0]);
  if (with_gate) {
    constexpr int kEach = kWarps * 32 / kRows;  // threads a row
    float sum = part(kDim + tid / kEach, tid % kEach * (kDim / 8 / kEach), kDim / 8 / kEach, in[1]);
#pragma unroll
    for (int i = 1; i < kEach; i <<= 1) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, i);
    if (tid % kEach == 0) gate[tid / kEach] = sum;
  }
  __syncthreads();
}

// What rounding cuts off the outputs [kRows], by the warp that stored them, each lane its own: registers are those of the loops over the
// state's rows, which leave none for it beside them.
template <int kRows>
__device__ __forceinline__ void store_rest(const KdaDecodeArgs& args, const float* outputs, int request, int head, int first) {
  if (args.out_rest == nullptr) return;
  auto* const rest = static_cast<__nv_bfloat16*>(args.out_rest) + request * args.rows.out_stride + head * kDim + first;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kRows; i += 32) rest[i] = __float2bfloat16(outputs[i] - __bfloat162float(__float2bfloat16(outputs[i])));
}

template <class State, int kSplit, int kWarps>
constexpr int min_blocks(bool bulk) {
  if (!bulk) return kSplit == 1 && sizeof(State) == 4 ? 2 : 512 / (kWarps * 32);
  return sizeof(State) == 4 ? 3 : kWarps == 4 ? 6 : 3;
}

template <class State, int kSplit, int kWarps, bool kBulk>
__global__ void __launch_bounds__(kWarps * 32, min_blocks<State, kSplit, kWarps>(kBulk))
    kda_decode(const __grid_constant__ KdaDecodeArgs args) {
  constexpr int kRows = kDim / kSplit, kRowsWarp = kRows / kWarps, kPairs = kRowsWarp / 2, kOut = (kRows + 31) / 32;
  static_assert(kPairs >= 1 && kWarps >= 4);
  __shared__ __align__(16) Factors factors;
  __shared__ float outputs[kRows];
  __shared__ float sums[8];
  __shared__ __align__(8) uint64_t loaded[kWarps];
  __shared__ __align__(16) float low_in[2][kSplit > 1 ? kDim : 4];
  K3_SHARED_BYTES(stage, 128);

  const KdaWeights& w = args.weights;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int rank = static_cast<int>(blockIdx.x) % kSplit, pair = static_cast<int>(blockIdx.x) / kSplit;
  const int request = pair / w.heads, head = pair % w.heads, first = rank * kRows;
  auto* const out = static_cast<__nv_bfloat16*>(args.rows.out) + request * args.rows.out_stride + head * kDim + first;

  const bool early = args.launch.early_state != 0;
  if (!early) pdl_wait();
  pdl_release();
  const int slot = args.slots.slots[request];
  if (slot < 0) {
    if (early) pdl_wait();
    if (warp > 0) return;
    for (int i = lane; i < kRows; i += 32) out[i] = __float2bfloat16(0.0F), outputs[i] = 0;
    return store_rest<kRows>(args, outputs, request, head, first);
  }

  // The state first: it is what takes long.
  const int row0 = warp * kRowsWarp, half = lane / 16, row_lane = lane % 16;
  State* const state = static_cast<State*>(args.slots.state) + slot * args.slots.state_stride +
                       (static_cast<int64_t>(head) * kDim + first + row0) * kDim;
  RowOf<State> rows[kBulk ? 1 : kPairs];
  State* const staged = reinterpret_cast<State*>(stage) + row0 * kDim;
  if constexpr (kBulk) {
    if (lane == 0) {
      const uint32_t bar = shared_address(&loaded[warp]);
      mbar_init(bar, 1);
      mbar_init_fence();
      mbar_expect(bar, kRowsWarp * kDim * sizeof(State));
      bulk_load(shared_address(staged), state, kRowsWarp * kDim * sizeof(State), bar);
    }
    __syncwarp();
  } else {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) rows[p].load(state + (2 * p + half) * kDim, row_lane);
  }

  const bool low = kSplit > 1 && !kBulk && args.low.z_w != nullptr, low_gate = low && args.low.gate_w != nullptr;
  if (low) {
    const int count = (kDim + (low_gate ? kRows : 0)) * (kDim / 8);
    for (int i = tid; i < count; i += kWarps * 32) {
      const int row = i / (kDim / 8), piece = i % (kDim / 8);
      const auto* w = row < kDim ? static_cast<const __nv_bfloat16*>(args.low.z_w) + static_cast<int64_t>(head * kDim + row) * kDim
                                 : static_cast<const __nv_bfloat16*>(args.low.gate_w) +
                                       static_cast<int64_t>(head * kDim + first + row - kDim) * kDim;
      cp_async<16>(shared_address(stage + row * kLowPitch + piece * 16), w + piece * 8);
    }
    cp_async_commit();
  }

  ConvLane conv;
  float gate[kOut], norm[kSplit > 1 ? kOut : 1];
  if (kSplit > 1 && warp == 0) {  // one block's worth alone has no registers left for it
#pragma unroll
    for (int i = 0; i < (kSplit > 1 ? kOut : 1); ++i) norm[i] = lane + 32 * i < kRows ? __ldg(w.norm + first + lane + 32 * i) : 0.0F;
  }
  const int channel = head * kDim + 4 * lane;
  const int64_t conv_at = slot * args.slots.conv_stride + static_cast<int64_t>(warp) * 3 * w.heads * kDim + channel;
  if (warp < 3) {
    float4 taps[4];
#pragma unroll
    for (int i = 0; i < 3; ++i) load_conv(args.slots, conv_at + static_cast<int64_t>(i) * w.heads * kDim, conv.x[i]);
#pragma unroll
    for (int i = 0; i < 4; ++i) taps[i] = __ldg(reinterpret_cast<const float4*>(w.taps[warp]) + channel + i);
    if (early) pdl_wait();
    load4(static_cast<const __nv_bfloat16*>(args.rows.x[warp]) + request * args.rows.x_stride[warp] + channel, conv.x[3]);
    if (warp == 0 && !low_gate) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        const int row = lane + 32 * i;
        gate[i] =
            row < kRows ? load_bf16(args.rows.gate, request * args.rows.gate_stride + head * kDim + first + row) : 0.0F;
      }
    }
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = conv_silu(taps[i], conv.x[0][i], conv.x[1][i], conv.x[2][i], conv.x[3][i]);
    if (warp < 2) {
      const float scale = norm_scale(y, warp == 0 ? kQueryScale : 1.0F);
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] *= scale;
    }
    store4((warp == 0 ? factors.qn : warp == 1 ? factors.kn : factors.v) + 4 * lane, y);
    if constexpr (kSplit == 1) store_window(args.slots, conv_at, w.heads, conv);
  } else if (warp == 3) {
    const float rate = expf(__ldg(w.a_log + head));
    float bias[4], z[4];
    load4(w.dt_bias + channel, bias);
    if (early) pdl_wait();
    if (low) {
      float part[4];
      load4(static_cast<const __nv_bfloat16*>(args.low.z_in) + request * args.low.z_stride + 4 * lane, part);
      store4(low_in[0] + 4 * lane, part);
      if (low_gate) {
        load4(static_cast<const __nv_bfloat16*>(args.low.gate_in) + request * args.low.gate_stride + 4 * lane, part);
        store4(low_in[1] + 4 * lane, part);
      }
    } else {
      load4(static_cast<const __nv_bfloat16*>(args.rows.z) + request * args.rows.z_stride + channel, z);
    }
    if (lane == 0) factors.beta = sigmoid(load_bf16(args.rows.beta, request * args.rows.beta_stride + head));
    if constexpr (kSplit > 1) if (low) {
      low_products<kWarps, kRows>(stage, low_in, low_gate, factors.decay, outputs);
      load4(factors.decay + 4 * lane, z);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) z[i] = decay_factor(z[i] + bias[i], rate, w.lower_bound);
    store4(factors.decay + 4 * lane, z);
  } else if (early) {
    pdl_wait();
  }
  if constexpr (kSplit > 1) if (low && warp != 3) low_products<kWarps, kRows>(stage, low_in, low_gate, factors.decay, outputs);
  if (low_gate && warp == 0) {
#pragma unroll
    for (int i = 0; i < kOut; ++i) gate[i] = outputs[min(lane + 32 * i, kRows - 1)];
  }
  if constexpr (kSplit > 1) cluster_arrive();  // the conv state was read
  __syncthreads();

  Step step;
  step.load<State>(factors, row_lane);
  if constexpr (kBulk) {
    mbar_wait(shared_address(&loaded[warp]), 0);
#pragma unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const int row = 2 * p + half;
      float x[8];
      rows[0].load_shared(staged + row * kDim, row_lane);
      rows[0].get(x);
      const float o = step.row(x, factors.v[first + row0 + row], row_lane);
      RowOf<State>::store_shared(staged + row * kDim, row_lane, x);
      if (row_lane == 0) outputs[row0 + row] = o;
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      bulk_store(state, shared_address(staged), kRowsWarp * kDim * sizeof(State));
      bulk_commit();
    }
  } else {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int row = 2 * p + half;
      float x[8];
      rows[p].get(x);
      const float o = step.row(x, factors.v[first + row0 + row], row_lane);
      RowOf<State>::store(state + row * kDim, row_lane, x);
      if (row_lane == 0) outputs[row0 + row] = o;
    }
  }
  if constexpr (kSplit > 1) {
    cluster_wait();  // every block has read the conv state (and runs)
    if (warp < 3 && rank == 0) store_window(args.slots, conv_at, w.heads, conv);
  }
  __syncthreads();

  float o[kOut], sum = 0;
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      const int row = lane + 32 * i;
      o[i] = row < kRows ? outputs[row] : 0.0F;
      sum = fmaf(o[i], o[i], sum);
    }
    sum = warp_sum(sum);
  }
  if constexpr (kSplit > 1) {
    if (warp == 0 && lane < kSplit)
      cluster_store(cluster_map(shared_address(&sums[rank]), static_cast<uint32_t>(lane)), sum);
    cluster_arrive();
    cluster_wait();
    if (warp == 0) {
      sum = 0;
#pragma unroll
      for (int i = 0; i < kSplit; ++i) sum += sums[i];
    }
  }
  if (warp == 0) {
    const float scale = rsqrtf(sum * (1.0F / kDim) + w.norm_eps);
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      const int row = lane + 32 * i;
      if (row >= kRows) continue;
      const float y = o[i] * scale * (kSplit > 1 ? norm[kSplit > 1 ? i : 0] : __ldg(w.norm + first + row)) * sigmoid(gate[i]);
      out[row] = __float2bfloat16(y);
      outputs[row] = y;
    }
    store_rest<kRows>(args, outputs, request, head, first);
  }
  if constexpr (kBulk) {
    if (lane == 0) bulk_wait_read<0>();
  }
}

template <class State, int kSplit, int kWarps, bool kBulk>
int launch_one(const KdaDecodeArgs& args, cudaStream_t stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(args.batch * args.weights.heads * kSplit));
  o.block = dim3(kWarps * 32);
  o.cluster = kSplit;
  o.dependent = args.launch.dependent != 0;
  if (args.low.z_w != nullptr) o.shared_bytes = (kDim + kDim / kSplit) * kLowPitch;
  if (kBulk) o.shared_bytes = kDim / kSplit * kDim * static_cast<int>(sizeof(State));
  return launch_beside(kda_decode<State, kSplit, kWarps, kBulk>, o, stream, args);
}

template <class State>
int launch_state(const KdaDecodeArgs& args, const KdaDecodeConfig& c, cudaStream_t stream) {
  if (c.bulk)
    return c.warps == 4 ? launch_one<State, 1, 4, true>(args, stream) : launch_one<State, 1, 8, true>(args, stream);
  return c.split == 4 ? launch_one<State, 4, 4, false>(args, stream) : launch_one<State, 1, 8, false>(args, stream);
}

}  // namespace

int kda_decode_launch(const KdaDecodeArgs& args, const KdaDecodeConfig& config, cudaStream_t stream) {
  if (args.batch * args.weights.heads == 0) return 0;
  return args.slots.state_bf16 != 0 ? launch_state<__nv_bfloat16>(args, config, stream)
                                    : launch_state<float>(args, config, stream);
}

}  // namespace k3::ops::cuda
