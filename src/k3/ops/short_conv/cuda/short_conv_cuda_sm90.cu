// A thread has eight channels and passes through a run of tokens with the last three inputs in registers. Tails are written
// by a second kernel, when every run has read the old ones.
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

template <int kRun>
__global__ void __launch_bounds__(kChannelThreads* kRuns, 3) short_conv(const __grid_constant__ ShortConvArgs a) {
  const int channel = (static_cast<int>(blockIdx.x) * kChannelThreads + static_cast<int>(threadIdx.x)) * 8;
  const int part = static_cast<int>(blockIdx.z);
  if (channel >= a.channels) return;
  Taps taps;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 w = __ldg(reinterpret_cast<const float4*>(a.taps[part]) + channel + i);
    taps.w[i][0] = w.x, taps.w[i][1] = w.y, taps.w[i][2] = w.z, taps.w[i][3] = w.w;
  }
  pdl_wait();
  const int first = (static_cast<int>(blockIdx.y) * kRuns + static_cast<int>(threadIdx.y)) * kRun;
  const int last = min(first + kRun, min(a.tokens, a.offsets[a.sequences]));
  if (first >= last) return;
  const Where w = where(a, part, channel);
  auto* y = static_cast<__nv_bfloat16*>(a.y[part]) + first * a.y_stride[part] + channel;
  int sequence = find_sequence(a.offsets, a.sequences, first);
  int start = a.offsets[sequence], end = a.offsets[sequence + 1];
  Lane8 window[4];
#pragma unroll
  for (int i = 0; i < 3; ++i) fetch(a, w, sequence, start, first - start - 3 + i, window[i]);
  if (last - first == kRun && last <= end && a.slots[sequence] >= 0) {  // no seam: loads ahead
    constexpr int kAhead = 4;
    for (int t = 0; t < kRun; t += kAhead) {
      uint4 raw[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) raw[i] = __ldg(reinterpret_cast<const uint4*>(w.x + (first + t + i) * w.stride));
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        window[(i + 3) % 4].set(raw[i]);
        *reinterpret_cast<uint4*>(y) =
            taps.apply(window[i % 4], window[(i + 1) % 4], window[(i + 2) % 4], window[(i + 3) % 4]);
        y += a.y_stride[part];
      }
    }
    return;
  }
  for (int t = first; t < last; ++t) {
    if (t == end) {
      while (t >= end) end = a.offsets[++sequence + 1];
      start = t;
#pragma unroll
      for (int i = 0; i < 3; ++i) fetch(a, w, sequence, start, i - 3, window[i]);
    }
    window[3].set(__ldg(reinterpret_cast<const uint4*>(w.x + t * w.stride)));
    const uint4 out = taps.apply(window[0], window[1], window[2], window[3]);
    *reinterpret_cast<uint4*>(y) = a.slots[sequence] < 0 ? make_uint4(0, 0, 0, 0) : out;
    y += a.y_stride[part];
    window[0] = window[1], window[1] = window[2], window[2] = window[3];
  }
}

// Row i of the tail after `tokens` tokens, `old` being the one before.
__device__ __forceinline__ Lane8 tail_row(const ShortConvArgs& a, const Where& w, int sequence, int start, int tokens, int i,
                                          const Lane8 (&old)[3]) {
  Lane8 out;
  const int index = tokens - 3 + i;
  if (index >= 0) {
    fetch(a, w, sequence, start, index, out);
  } else {
    out = index == -3 ? old[0] : index == -2 ? old[1] : old[2];
  }
  return out;
}

__global__ void __launch_bounds__(128) short_conv_tails(const __grid_constant__ ShortConvArgs a) {
  pdl_wait();
  const int sequence = static_cast<int>(blockIdx.y), part = static_cast<int>(blockIdx.z);
  const int channel = (static_cast<int>(blockIdx.x) * 128 + static_cast<int>(threadIdx.x)) * 8;
  const int slot = a.slots[sequence];
  if (channel >= a.channels || slot < 0) return;
  const int start = a.offsets[sequence], tokens = a.offsets[sequence + 1] - start;
  const Where w = where(a, part, channel);
  const int64_t row = static_cast<int64_t>(part * 3) * a.channels + channel;
  Lane8 old[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) fetch(a, w, sequence, start, i - 3, old[i]);
  for (int e = 0; e < a.exports; ++e) {
    if (a.export_sequences[e] != sequence) continue;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      store_state(a, a.export_slots[e] * a.conv_stride + row + static_cast<int64_t>(i) * a.channels,
                  tail_row(a, w, sequence, start, a.export_tokens[e], i, old));
    }
  }
  if (tokens == 0) return;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    store_state(a, slot * a.conv_stride + row + static_cast<int64_t>(i) * a.channels,
                tail_row(a, w, sequence, start, tokens, i, old));
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
  const int status = run == 32 ? launch(short_conv<32>, o, stream, args) : launch(short_conv<8>, o, stream, args);
  if (status != 0) return status;
  o.block = dim3(128);
  o.grid = dim3(blocks(args.channels, 1024), static_cast<unsigned>(args.sequences), parts);
  o.dependent = true;
  return launch(short_conv_tails, o, stream, args);
}

}  // namespace k3::ops::cuda
