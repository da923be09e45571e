#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/train/cuda/kda_train_grads.cuh"

namespace k3::ops::cuda {
namespace {

// Element by element: a thread has two channels of eight tokens, half a tile.
template <int D>
struct GradRows : TrainGrads<D> {
  using Base = TrainGrads<D>;
  using Base::a, Base::s, Base::thread, Base::lane, Base::head, Base::block, Base::stride, Base::slot;
  static constexpr int kPairs = Base::kPairs, kGroup = Base::kGroup, kParts = Base::kParts, kHalves = Base::kHalves;
  using Window = uint32_t[kTrainHalf + kTrainHalo];

  int pair, half, row, channel;
  int64_t begin, start;  // first token of this half, and of the sequence
  Window q, k;
  uint32_t z[kTrainHalf];
  // What `activations` needs again, two channels a number: unit rows and slopes of SiLU of queries and keys, slope of the sigmoid.
  struct Kept {
    uint32_t unit[2], slope[2], gate;
  };
  Gate gate;

  __device__ GradRows(const KdaTrainCudaArgs& args, typename Base::Shared& shared, int block_row, int pass_head)
      : Base(args, shared, block_row, pass_head), pair(thread % kPairs), half(thread / kPairs), row(kTrainHalf * half),
        channel(head * D + 2 * pair), begin(block.first + row), start(block.count > 0 ? args.offsets[block.sequence] : 0) {}

  __device__ void window(int part, Window& x) const {
    const auto* rows = static_cast<const __nv_bfloat16*>(a.in[part]) + start * stride + channel;
    load_window(x, rows, stride, static_cast<int>(begin - start), static_cast<int>(block.first - start) + block.count);
  }
  __device__ bool real(int i) const { return row + i < block.count; }

  __device__ void prepare() {
    gate = gate_of(a, head, channel);
    window(0, q), window(1, k);
#pragma unroll
    for (int i = 0; i < kTrainHalf; ++i) {
      z[i] = real(i) ? *reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(a.z) + (begin + i) * stride + channel) : 0U;
    }
  }

  __device__ float2& staged(int array, int i) const { return *reinterpret_cast<float2*>(&s.stage[array][row + i][2 * pair]); }

  // Gradients of unit rows, sums of dG from each token to the end of the half, and the products that the norms need.
  __device__ void operands(Kept (&kept)[kTrainHalf]) const {
    float2 x[kTrainHalf], total;
    middle_sums(gate, z, block.count - row, half % 2 == 1, x, total, [&](int i, float low, float high) { kept[i].gate = pack_bf16(low, high); });
    const Taps q_taps(a.taps[0], channel), k_taps(a.taps[1], channel);
    const float scale = rsqrtf(static_cast<float>(D));
    float dots[2 * kTrainHalf];
    float2 after{0, 0};
#pragma unroll
    for (int i = kTrainHalf - 1; i >= 0; --i) {
      const auto operand = [&](const __nv_bfloat16(&rows)[Base::kStride]) {
        const uint32_t two = *reinterpret_cast<const uint32_t*>(&rows[2 * pair]);
        return float2{low_bf16(two), high_bf16(two)};
      };
      const float2 down = {exp2_approx(x[i].x), exp2_approx(x[i].y)}, up = {exp2_approx(-x[i].x), exp2_approx(-x[i].y)};
      const float2 d_q = staged(0, i), d_k = staged(1, i), d_m = staged(2, i);
      const float2 qp = operand(s.qp[row + i]), kp = operand(s.kp[row + i]), km = operand(s.km[row + i]);
      after.x += d_q.x * qp.x + d_k.x * kp.x - d_m.x * km.x, after.y += d_q.y * qp.y + d_k.y * kp.y - d_m.y * km.y;
      const float2 d_qn = {scale * d_q.x * down.x, scale * d_q.y * down.y};
      const float2 d_kn = {d_k.x * down.x + d_m.x * up.x, d_k.y * down.y + d_m.y * up.y};
      const auto unit = [&](const Window& w, const Taps& taps, int kind, float2 d) {
        const float2 pre = convolve(w, taps, i);
        const Activated low = silu(pre.x), high = silu(pre.y);
        const float factor = s.numbers[1 + kind][row + i], unit_low = factor * low.y, unit_high = factor * high.y;
        kept[i].unit[kind] = pack_bf16(unit_low, unit_high);
        kept[i].slope[kind] = pack_bf16(factor * low.slope, factor * high.slope);
        return unit_low * d.x + unit_high * d.y;
      };
      dots[i] = unit(q, q_taps, 0, d_qn);
      dots[kTrainHalf + i] = unit(k, k_taps, 1, d_kn);
      staged(0, i) = d_qn, staged(1, i) = d_kn, staged(2, i) = after;
    }
    *reinterpret_cast<float2*>(&s.half_sums[half][2 * pair]) = after;
    const float sum = group_sums<kGroup>(dots);
    if (lane % kGroup < 2 * kTrainHalf) s.dots[pair / 32][half][lane % (2 * kTrainHalf)] = sum;
  }

  __device__ float2 sum_after() const {  // of dG: later halves, and what the whole decay gets
    float2 sum = *reinterpret_cast<const float2*>(&s.constant[2 * pair]);
    for (int later = half + 1; later < kHalves; ++later) {
      const float2 x = *reinterpret_cast<const float2*>(&s.half_sums[later][2 * pair]);
      sum.x += x.x, sum.y += x.y;
    }
    return sum;
  }

  // Through gate, norms and SiLU: dz; gradients of the convolutions to the stage.
  __device__ void activations(const Kept (&kept)[kTrainHalf], const Window& v, float2& d_bias, float2& d_decay) const {
    const Taps v_taps(a.taps[2], channel);
    const float2 after = sum_after();
    const float rate = a.lower_bound * gate.rate;
    d_bias = d_decay = {0, 0};
#pragma unroll
    for (int i = 0; i < kTrainHalf; ++i) {
      const bool here = real(i);
      const float2 sum = staged(2, i);
      const float low = here ? (sum.x + after.x) * rate * low_bf16(kept[i].gate) : 0.0F;
      const float high = here ? (sum.y + after.y) * rate * high_bf16(kept[i].gate) : 0.0F;
      d_bias.x += low, d_bias.y += high;
      d_decay.x += low * (low_bf16(z[i]) + gate.bias.x), d_decay.y += high * (high_bf16(z[i]) + gate.bias.y);
      if (here) *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.dz) + (begin + i) * stride + channel) = pack_bf16(low, high);
      const auto norm_back = [&](int kind) {
        const float2 d = staged(kind, i);
        float along = 0;
#pragma unroll
        for (int part = 0; part < kParts; ++part) along += s.dots[part][half][kTrainHalf * kind + i];
        const uint32_t unit = kept[i].unit[kind], slope = kept[i].slope[kind];
        staged(kind, i) = {(d.x - low_bf16(unit) * along) * low_bf16(slope), (d.y - high_bf16(unit) * along) * high_bf16(slope)};
      };
      norm_back(0);
      norm_back(1);
      const float2 pre = convolve(v, v_taps, i);
      const uint32_t d_r = *reinterpret_cast<const uint32_t*>(&s.d_r[row + i][2 * pair]);
      const float beta = s.numbers[0][row + i];
      staged(2, i) = {beta * low_bf16(d_r) * silu(pre.x).slope, beta * high_bf16(d_r) * silu(pre.y).slope};
    }
  }

  // Through the convolution of one input.
  __device__ void convolution(int part, const Window& x) const {
    const Taps taps(a.taps[part], channel);
    float2 d[kTrainHalf + kTrainHalo], sums[kTrainTaps] = {};
#pragma unroll
    for (int i = 0; i < kTrainHalf + kTrainHalo; ++i) d[i] = row + i < kTrainRows ? staged(part, i) : float2{0, 0};
    float* halo = a.halo + slot * KdaTrainScratch<D>::kHalo + part * kTrainHalo * D + 2 * pair;
#pragma unroll
    for (int i = 0; i < kTrainHalf; ++i) {
      float2 dx{0, 0};
#pragma unroll
      for (int m = 0; m < kTrainTaps; ++m) {
        const float2 tap = taps.x[kTrainTaps - 1 - m];
        dx.x = fmaf(tap.x, d[i + m].x, dx.x), dx.y = fmaf(tap.y, d[i + m].y, dx.y);
        sums[m].x = fmaf(d[i].x, low_bf16(x[i + m]), sums[m].x), sums[m].y = fmaf(d[i].y, high_bf16(x[i + m]), sums[m].y);
      }
      if (block.last == 0 && row + i >= kTrainRows - kTrainHalo) {
        *reinterpret_cast<float2*>(halo + (3 * kTrainHalo + row + i - (kTrainRows - kTrainHalo)) * D) = dx;
      } else if (real(i)) {
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.d_in[part]) + (begin + i) * stride + channel) = pack_bf16(dx.x, dx.y);
      }
      if (half == 0 && i < kTrainHalo) *reinterpret_cast<float2*>(halo + i * D) = d[i];
    }
#pragma unroll
    for (int m = 0; m < kTrainTaps; ++m) *reinterpret_cast<float2*>(&s.sums[kTrainTaps * part + m][half][2 * pair]) = sums[m];
  }

  __device__ void block_sums() const {
    float* to = a.sums + slot * KdaTrainScratch<D>::kSums;
    for (int i = thread; i < (3 * kTrainTaps + 2) * D; i += Base::kThreads) {
      float sum = 0;
      for (int h = 0; h < kHalves; ++h) sum += s.sums[i / D][h][i % D];
      to[i] = sum;
    }
  }
};

template <int D>
constexpr int kResident = D == 128 ? 1 : D == 64 ? 2 : 3;  // on a multiprocessor: what shared memory allows

template <int D>
__global__ void __launch_bounds__(4 * D, kResident<D>) grads(const __grid_constant__ KdaTrainCudaArgs a) {
  K3_SHARED_ARRAY(float4, shared);
  using Shared = typename TrainGrads<D>::Shared;
  const int row = static_cast<int>(blockIdx.x) / a.pass_heads;
  GradRows<D> g(a, *reinterpret_cast<Shared*>(shared), row, static_cast<int>(blockIdx.x) % a.pass_heads);
  if (g.block.count == 0) return;
  g.load(row);
  // Loads that the products need not wait for: narrow heads have registers for them from the start on.
  if constexpr (D == 32) g.prepare();
  cp_async_wait<1>();
  __syncthreads();
  g.links();
  g.pairs();
  cp_async_wait<0>();
  __syncthreads();
  g.decays();
  {
    typename TrainGrads<D>::Tiles tiles;
    g.from_states(tiles);
    g.from_pairs(tiles);
    __syncthreads();
    g.constants();
    g.stage(tiles);
  }
  if constexpr (D != 32) g.prepare();
  __syncthreads();
  typename GradRows<D>::Kept kept[kTrainHalf];
  g.operands(kept);
  uint32_t x[3][kTrainHalf + kTrainHalo];
  g.window(2, x[2]);  // loads go ahead of barriers
  __syncthreads();
  float2 d_bias, d_decay;
  g.activations(kept, x[2], d_bias, d_decay);
  g.window(0, x[0]), g.window(1, x[1]);
  *reinterpret_cast<float2*>(&g.s.sums[3 * kTrainTaps][g.half][2 * g.pair]) = d_bias;
  *reinterpret_cast<float2*>(&g.s.sums[3 * kTrainTaps + 1][g.half][2 * g.pair]) = d_decay;
  __syncthreads();
#pragma unroll
  for (int part = 0; part < 3; ++part) g.convolution(part, x[part]);
  __syncthreads();
  g.block_sums();
}

template <int D>
int start(const KdaTrainCudaArgs& a, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(a.rows * a.pass_heads));
  o.block = dim3(4 * D);
  o.shared_bytes = static_cast<int>(sizeof(typename TrainGrads<D>::Shared));
  return launch(grads<D>, o, stream, a);
}

}  // namespace

int kda_train_grads_launch(const KdaTrainCudaArgs& a, int dim, CUstream_st* stream) {
  return dim == 128 ? start<128>(a, stream) : dim == 64 ? start<64>(a, stream) : start<32>(a, stream);
}

}  // namespace k3::ops::cuda
