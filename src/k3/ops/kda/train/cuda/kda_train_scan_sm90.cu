// Second kernel of the vjp: the gradient of the state from the end of each sequence to its start, a thread block a (sequence, head), tile
// after tile. Warps have 16 values each and never meet; what they read of a tile comes through a ring in shared memory. Where sequences
// and heads are few, `kParts` thread blocks share the values: a tile then takes less of each one's shared memory bandwidth.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/train/cuda/kda_train_tile.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kStages = 3;

template <int D>
struct Stage {
  __nv_bfloat16 kp[kTrainTile][kTrainStride<D>], qp[kTrainTile][kTrainStride<D>], km[kTrainTile][kTrainStride<D>],
      d_o[kTrainTile][kTrainStride<D>];
  __nv_bfloat16 p[kTrainTile][kTrainTile], t[kTrainTile][kTrainTile];
  float edge[2][D];  // of this tile and the one after it
  float beta[kTrainTile];
};

template <int D, int kThreads>
__device__ void fetch(const KdaTrainCudaArgs& a, int64_t slot, int tile, Stage<D>& to) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto rows = [&](const void* from, __nv_bfloat16(*rows_to)[kTrainStride<D>]) {
    const auto* x = static_cast<const __nv_bfloat16*>(from) + slot * KdaTrainScratch<D>::kTile + tile * kTrainTile * D;
    constexpr int kEach = kTrainTile * D / 8 / kThreads;
    static_assert(kEach * kThreads * 8 == kTrainTile * D);
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = thread + n * kThreads;
      cp_async<16>(shared_address(&rows_to[i / (D / 8)][i % (D / 8) * 8]), x + 8 * i);
    }
  };
  rows(a.kp, to.kp), rows(a.qp, to.qp), rows(a.km, to.km), rows(a.d_o, to.d_o);
  constexpr int kSquare = kTrainTile * kTrainTile;
  const int64_t square = slot * KdaTrainScratch<D>::kSmall + tile * kSquare;
  static_assert(kSquare / 8 <= kThreads);
  if (thread < kSquare / 8) {
    cp_async<16>(shared_address(&to.p[0][0] + 8 * thread), static_cast<const __nv_bfloat16*>(a.p) + square + 8 * thread);
    cp_async<16>(shared_address(&to.t[0][0] + 8 * thread), static_cast<const __nv_bfloat16*>(a.t) + square + 8 * thread);
  }
  for (int i = thread; i < 2 * D / 4; i += kThreads) {
    cp_async<16>(shared_address(&to.edge[0][0] + 4 * i), a.edges + slot * KdaTrainScratch<D>::kEdges + tile * D + 4 * i);
  }
  if (thread < kTrainTile / 4) {
    cp_async<16>(shared_address(&to.beta[4 * thread]), a.row_numbers + slot * KdaTrainScratch<D>::kRowNumbers + tile * kTrainTile + 4 * thread);
  }
}

// One tile; d_r as A operand. d_state: relative to the middle of this tile before, of the one before it after.
template <int D>
__device__ __forceinline__ void reverse(float (&d_state)[D / 8][4], const Stage<D>& s, int value, uint32_t (&d_r)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t d_o[4], b[4];
  load_left_turned(d_o, shared_address(&s.d_o[0][0]), kTrainStride<D>, value, 0);
  float d_u[2][4] = {}, solved[2][4] = {};
  load_columns(b, shared_address(&s.p[0][0]), kTrainTile, 0, 0);
  mma_pair(d_u[0], d_u[1], d_o, b);
  read_state<D>(d_u, d_state, shared_address(&s.km[0][0]));
  pack_left(d_r, d_u[0], d_u[1]);
  load_columns(b, shared_address(&s.t[0][0]), kTrainTile, 0, 0);
  mma_pair(solved[0], solved[1], d_r, b);
  pack_left(d_r, solved[0], solved[1]);
  write_state<D>(d_state, d_o, shared_address(&s.qp[0][0]));
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) solved[j][i] *= -s.beta[8 * j + 2 * (lane % 4) + i % 2];
  }
  uint32_t d_delta[4];
  pack_left(d_delta, solved[0], solved[1]);
  write_state<D>(d_state, d_delta, shared_address(&s.kp[0][0]));
  scale_columns<D>(d_state, s.edge[0]);
}

template <int D, int kParts>
__global__ void __launch_bounds__(2 * D / kParts, 2) scan(const __grid_constant__ KdaTrainCudaArgs a) {
  K3_SHARED_ARRAY(float4, shared);
  auto* stages = reinterpret_cast<Stage<D>*>(shared);
  const int chain = static_cast<int>(blockIdx.x) / kParts, first_value = static_cast<int>(blockIdx.x) % kParts * (D / kParts);
  const int pass_head = chain % a.pass_heads, sequence = chain / a.pass_heads;
  const int value = first_value + static_cast<int>(threadIdx.x) / 32 * 16;  // first one of the warp
  const int begin = a.offsets[sequence], tiles = (a.offsets[sequence + 1] - begin + kTrainTile - 1) / kTrainTile;
  const int64_t place = (static_cast<int64_t>(sequence) * a.heads + a.first_head + pass_head) * D * D + first_value * D;
  const auto slot_of = [&](int tile) {
    return static_cast<int64_t>(begin / kTrainRows + sequence + tile / kTrainTiles) * a.pass_heads + pass_head;
  };
  float d_state[D / 8][4];
  load_state<D>(d_state, a.d_final == nullptr ? nullptr : a.d_final + place);
  const auto request = [&](int done) {  // tiles are taken from the last to the first
    const int tile = tiles - 1 - done;
    if (tile >= 0) fetch<D, 2 * D / kParts>(a, slot_of(tile), tile % kTrainTiles, stages[done % kStages]);
    cp_async_commit();
  };
  for (int i = 0; i < kStages - 1; ++i) request(i);
  for (int done = 0; done < tiles; ++done) {
    const int tile = tiles - 1 - done;
    const bool border = done == 0 || tile % kTrainTiles == kTrainTiles - 1;
    if (border) store_state<D>(d_state, static_cast<__nv_bfloat16*>(a.d_state) + slot_of(tile) * D * D + first_value * D);
    cp_async_wait<kStages - 2>();
    __syncthreads();
    request(done + kStages - 1);
    if (border) scale_columns<D>(d_state, stages[done % kStages].edge[1]);
    uint32_t d_r[4];
    reverse<D>(d_state, stages[done % kStages], value, d_r);
    store_turned(static_cast<__nv_bfloat16*>(a.d_r) + slot_of(tile) * KdaTrainScratch<D>::kTile + tile % kTrainTiles * kTrainTile * D + value, D,
                 d_r, kTrainTile);
  }
  if (a.d_initial != nullptr) store_state<D>(d_state, a.d_initial + place);
}

template <int D, int kParts>
int start(const KdaTrainCudaArgs& a, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(a.sequences * a.pass_heads * kParts));
  o.block = dim3(2 * D / kParts);
  o.shared_bytes = static_cast<int>(kStages * sizeof(Stage<D>));
  return launch(scan<D, kParts>, o, stream, a);
}

}  // namespace

int kda_train_scan_launch(const KdaTrainCudaArgs& a, int dim, int parts, CUstream_st* stream) {
  if (dim == 128) return parts > 1 ? start<128, 4>(a, stream) : start<128, 1>(a, stream);
  if (dim == 64) return parts > 1 ? start<64, 2>(a, stream) : start<64, 1>(a, stream);
  return start<32, 1>(a, stream);
}

}  // namespace k3::ops::cuda
