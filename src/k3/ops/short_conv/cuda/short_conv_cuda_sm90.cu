// A thread has eight channels and passes through a run of tokens with the last three inputs in registers. The first three
// tokens of a sequence belong to the thread that has its first one; so no other reads the old tail, and it writes the new
// one at once.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/short_conv/cuda/short_conv_cuda.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kChannelThreads = 64, kRuns = 4;

struct Lane8 {  // eight channels of one token
  float x[8];
  __device__ __forceinline__ void set(uint4 raw) {
    x[0] = low_bf16(raw.x), x[1] = high_bf16(raw.x), x[2] = low_bf16(raw.y), x[3] = high_bf16(raw.y);
    x[4] = low_bf16(raw.z), x[5] = high_bf16(raw.z), x[6] = low_bf16(raw.w), x[7] = high_bf16(raw.w);
  }
};

__device__ __forceinline__ uint4 packed(const float (&x)[8]) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
__device__ __forceinline__ void load_state(const ShortConvArgs& a, int64_t at, Lane8& out) {
  if (a.conv_bf16 != 0) {
    out.set(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.conv) + at));
  } else {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(a.conv) + at);
    const float4 low = from[0], high = from[1];
    out.x[0] = low.x, out.x[1] = low.y, out.x[2] = low.z, out.x[3] = low.w;
    out.x[4] = high.x, out.x[5] = high.y, out.x[6] = high.z, out.x[7] = high.w;
  }
}
__device__ __forceinline__ void store_state(const ShortConvArgs& a, int64_t at, const Lane8& v) {
  if (a.conv_bf16 != 0) {
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(a.conv) + at) = packed(v.x);
  } else {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(a.conv) + at);
    to[0] = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
    to[1] = make_float4(v.x[4], v.x[5], v.x[6], v.x[7]);
  }
}

struct Where {  // of a thread
  int part, channel;
  const __nv_bfloat16* x;
  int64_t stride;
};

// Input `index` tokens after the start of a sequence; below 0: of the call before.
__device__ __forceinline__ void fetch(const ShortConvArgs& a, const Where& w, int sequence, int start, int index,
                                      Lane8& out) {
  if (index >= 0) {
    out.set(__ldg(reinterpret_cast<const uint4*>(w.x + (start + index) * w.stride)));
    return;
  }
  const int slot = a.slots[sequence];
  if (slot < 0 || (a.fresh != nullptr && a.fresh[sequence] != 0)) {
#pragma unroll
    for (float& v : out.x) v = 0;
    return;
  }
  load_state(a, slot * a.conv_stride + static_cast<int64_t>(w.part * 3 + 3 + index) * a.channels + w.channel, out);
}

__device__ __forceinline__ Where where(const ShortConvArgs& a, int part, int channel) {
  return {part, channel, static_cast<const __nv_bfloat16*>(a.x[part]) + channel, a.x_stride[part]};
}

// The sequence that holds token t: the last one that starts at or before it and is not empty.
__device__ __forceinline__ int find_sequence(const int32_t* offsets, int sequences, int t) {
  int low = 0, high = sequences;  // offsets[low] <= t < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

struct Taps {
  float w[8][4];
  __device__ __forceinline__ void load(const ShortConvArgs& a, int part, int channel) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 t = __ldg(reinterpret_cast<const float4*>(a.taps[part]) + channel + i);
      w[i][0] = t.x, w[i][1] = t.y, w[i][2] = t.z, w[i][3] = t.w;
    }
  }
  __device__ __forceinline__ uint4 apply(const Lane8& a, const Lane8& b, const Lane8& c, const Lane8& d) const {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float s = fmaf(w[i][3], d.x[i], fmaf(w[i][2], c.x[i], fmaf(w[i][1], b.x[i], w[i][0] * a.x[i])));
      y[i] = s * rcp_approx(1.0F + exp2_approx(-1.4426950408889634F * s));
    }
    return packed(y);
  }
};

// Tail after `tokens` tokens; `old` is the one before, at its channels.
__device__ __forceinline__ void store_tail(const ShortConvArgs& a, const Where& w, int start, int tokens, int slot,
                                           const Lane8 (&old)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int index = tokens - 3 + i;
    Lane8 row = index == -2 ? old[1] : old[2];
    if (index >= 0) row.set(__ldg(reinterpret_cast<const uint4*>(w.x + (start + index) * w.stride)));
    store_state(a, slot * a.conv_stride + static_cast<int64_t>(w.part * 3 + i) * a.channels + w.channel, row);
  }
}

// All tails that a sequence leaves.
__device__ __noinline__ void store_tails(const ShortConvArgs& a, const Where& w, int sequence, int start, int tokens,
                                         const Lane8 (&old)[3]) {
  const int slot = a.slots[sequence];
  if (slot < 0) return;
  for (int e = 0; e < a.exports; ++e) {
    if (a.export_sequences[e] == sequence) store_tail(a, w, start, a.export_tokens[e], a.export_slots[e], old);
  }
  store_tail(a, w, start, tokens, slot, old);
}

// Tokens first .. last - 1 where sequences meet; `sequence` holds the first one.
__device__ __noinline__ void pass_seams(const ShortConvArgs& a, int part, int channel, int first, int last, int total,
                                        int sequence) {
  Taps taps;
  taps.load(a, part, channel);
  const Where w = where(a, part, channel);
  const int64_t y_stride = a.y_stride[part];
  auto* const y = static_cast<__nv_bfloat16*>(a.y[part]) + channel;
  int start = a.offsets[sequence], end = a.offsets[sequence + 1];
  int t = first;
  if (t > start && t < start + 3) t = min(start + 3, end);  // another's
  bool known = false;                                       // window
  Lane8 window[4];
  for (;;) {
    while (t < total && t >= end) {
      start = t, end = a.offsets[++sequence + 1];
      known = false;
    }
    const int index = t - start;
    if (t >= total || (t >= last && (index == 0 || index >= 3))) return;
    if (!known) {
#pragma unroll
      for (int i = 0; i < 3; ++i) fetch(a, w, sequence, start, index - 3 + i, window[i]);
      if (index == 0) {
        const Lane8 old[3] = {window[0], window[1], window[2]};
        store_tails(a, w, sequence, start, end - start, old);
      }
      known = true;
    }
    window[3].set(__ldg(reinterpret_cast<const uint4*>(w.x + t * w.stride)));
    const uint4 out = taps.apply(window[0], window[1], window[2], window[3]);
    *reinterpret_cast<uint4*>(y + t * y_stride) = a.slots[sequence] < 0 ? make_uint4(0, 0, 0, 0) : out;
    window[0] = window[1], window[1] = window[2], window[2] = window[3];
    ++t;
  }
}

template <int kRun>
__global__ void __launch_bounds__(kChannelThreads* kRuns, 3) short_conv(const __grid_constant__ ShortConvArgs a) {
  const int channel = (static_cast<int>(blockIdx.x) * kChannelThreads + static_cast<int>(threadIdx.x)) * 8;
  const int part = static_cast<int>(blockIdx.z);
  if (channel >= a.channels) return;
  pdl_wait();
  const int total = min(a.tokens, a.offsets[a.sequences]);
  const int first = (static_cast<int>(blockIdx.y) * kRuns + static_cast<int>(threadIdx.y)) * kRun,
            last = min(first + kRun, total);
  if (first >= last) return;
  const int sequence = find_sequence(a.offsets, a.sequences, first);
  if (first - a.offsets[sequence] < 3 || first + kRun > a.offsets[sequence + 1] || a.slots[sequence] < 0) {
    pass_seams(a, part, channel, first, last, total, sequence);
    return;
  }
  Taps taps;
  taps.load(a, part, channel);
  constexpr int kAhead = 4;
  const int64_t x_stride = a.x_stride[part], y_stride = a.y_stride[part];
  const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(a.x[part]) + first * x_stride + channel;
  __nv_bfloat16* y = static_cast<__nv_bfloat16*>(a.y[part]) + first * y_stride + channel;
  const auto load = [&](int i) { return __ldg(reinterpret_cast<const uint4*>(x + i * x_stride)); };
  Lane8 window[4];
#pragma unroll
  for (int i = 0; i < 3; ++i) window[i].set(load(i - 3));
#pragma unroll 1
  for (int t = 0; t < kRun; t += kAhead) {  // loads ahead
    uint4 raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) raw[i] = load(i);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      window[(i + 3) % 4].set(raw[i]);
      *reinterpret_cast<uint4*>(y) =
          taps.apply(window[i % 4], window[(i + 1) % 4], window[(i + 2) % 4], window[(i + 3) % 4]);
      y += y_stride;
    }
    x += kAhead * x_stride;
  }
}

}  // namespace

int short_conv_launch(const ShortConvArgs& args, int run, cudaStream_t stream) {
  const auto blocks = [](int count, int each) { return static_cast<unsigned>((count + each - 1) / each); };
  const auto parts = static_cast<unsigned>(args.parts);
  LaunchOptions o;
  o.block = dim3(kChannelThreads, kRuns);
  o.grid = dim3(blocks(args.channels, kChannelThreads * 8), blocks(args.tokens, kRuns * run), parts);
  o.dependent = args.dependent != 0;
  switch (run) {
    case 32: return launch(short_conv<32>, o, stream, args);
    case 16: return launch(short_conv<16>, o, stream, args);
    default: return launch(short_conv<8>, o, stream, args);
  }
}

}  // namespace k3::ops::cuda
