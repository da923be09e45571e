#include "k3/ops/moe/cuda/moe_grouped_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "k3/base/check.h"
#include "k3/ops/cuda/tensor_map.h"
#include "k3/ops/moe/cuda/moe_grouped_config.h"
#include "k3/ops/moe/cuda/moe_plan_cuda.h"

namespace k3::ops::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
int64_t chunks_of(MoeWeights kind, int64_t columns) {
  return (columns + moe_chunk_columns(kind) - 1) / moe_chunk_columns(kind);
}

struct Parts {  // of the workspace
  int64_t header, tiles, offsets, row_slot, slot_row, expert_slot, plan, z, hidden, total;
};
Parts parts_of(int64_t tokens, int64_t topk, int64_t experts, int64_t width, int64_t hidden) {
  Parts p{};
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t mine = at;
    at += round_up(bytes, 256);
    return mine;
  };
  const int64_t slots = tokens * topk;
  p.header = take(sizeof(MoeGroupedHeader));
  p.tiles = take(moe_max_tiles(tokens, topk, experts, kMoeGroupedLeastRows) * static_cast<int64_t>(sizeof(MoeTile)));
  p.offsets = take((experts + 1) * 4);
  p.row_slot = take(slots * 4);
  p.slot_row = take(slots * 4);
  p.expert_slot = take(experts * 4);
  p.plan = take(moe_plan_workspace_bytes(tokens, experts));
  p.z = take(slots * round_up(width, 32) * 2);
  p.hidden = take(slots * round_up(hidden, 32) * 2);
  p.total = at;
  return p;
}

struct Places {
  MoeGroupedHeader* header;
  MoeTile* tiles;
  int32_t *offsets, *row_slot, *slot_row, *expert_slot;
  std::byte *plan, *z, *hidden;
};
Places places_of(const MoeGroupedCuda& a) {
  const Parts p = parts_of(a.tokens, a.topk, a.weights.experts, a.weights.width, a.weights.hidden);
  auto* base = static_cast<std::byte*>(a.workspace);
  const auto ints = [&](int64_t at) { return reinterpret_cast<int32_t*>(base + at); };
  return {reinterpret_cast<MoeGroupedHeader*>(base + p.header),
          reinterpret_cast<MoeTile*>(base + p.tiles),
          ints(p.offsets),
          ints(p.row_slot),
          ints(p.slot_row),
          ints(p.expert_slot),
          base + p.plan,
          base + p.z,
          base + p.hidden};
}

void check_args(const MoeGroupedCuda& a) {
  const MoeExpertsCuda& w = a.weights;
  K3_CHECK(a.tokens >= 0 && a.tokens < 1 << 22 && a.topk >= 1, "moe_grouped_cuda: {} tokens, top {}", a.tokens, a.topk);
  K3_CHECK(moe_grouped_serves(w.kind, w.experts, w.width, w.hidden, device_info()),
           "moe_grouped_cuda: {} experts, width {}, hidden {}", w.experts, w.width, w.hidden);
  if (a.tokens == 0) return;
  K3_CHECK(w, "moe_grouped_cuda: weights");
  K3_CHECK(a.z != nullptr && a.ids != nullptr && a.rows != nullptr && a.workspace != nullptr,
           "moe_grouped_cuda: a missing array");
  K3_CHECK(a.z_stride >= w.width && a.z_stride % 8 == 0, "moe_grouped_cuda: rows of z {} apart, width {}", a.z_stride,
           w.width);
}

MoeGroupedGlu glu_of(const MoeGlu& g) {
  if (!g.situ) return {};
  const float b1 = std::abs(g.beta), b2 = std::abs(g.linear_beta);
  MoeGroupedGlu out;
  out.kind = b1 == 4 ? 2 : 1;
  out.scale = b2 == 0 ? b1 : b1 * b2;
  out.gate_exp = static_cast<float>(-2 * kLog2E / static_cast<double>(b1));
  out.up_exp = b2 == 0 ? 0 : static_cast<float>(-2 * kLog2E / static_cast<double>(b2));
  return out;
}

// Boxes of `box` rows and 64 columns of x [rows, columns].
int set_map(MoeGroupedGemm& gemm, void* x, int64_t rows, int columns, int box) {
  CUtensorMap out;
  static_assert(sizeof(out) == sizeof(gemm.map));
  const int code = encode_map(&out, {.base = x, .sizes = {columns, rows}, .strides = {1, columns}, .box = {64, box}});
  if (code == 0) std::memcpy(&gemm.map, &out, sizeof(out));
  return code;
}

// The same of the weights, which are read where they lie or, with places, by addresses.
int set_weights_map(MoeGroupedGemm& gemm, MoeWeights kind, int64_t experts) {
  if (gemm.places.slot != nullptr) return 0;
  CUtensorMap out;
  const int code = encode_line_map(&out, {.base = gemm.weights,
                                          .lines = gemm.unit_bytes / 128,
                                          .rows = gemm.units,
                                          .matrices = experts,
                                          .row_bytes = gemm.unit_bytes,
                                          .matrix_bytes = gemm.expert_bytes,
                                          .box_lines = moe_grouped_unit_bytes(kind) / 128,
                                          .box_rows = moe_grouped_units(kind)});
  if (code == 0) std::memcpy(&gemm.weights_map, &out, sizeof(out));
  return code;
}

}  // namespace

bool moe_grouped_serves(MoeWeights kind, int64_t experts, int64_t width, int64_t hidden, const DeviceInfo& device) {
  const int64_t unit = kind == MoeWeights::mxfp4 ? 32 : 8;
  return device.capability == 90 && device.sm_count >= 2 && experts >= 1 && experts <= kMoeMaxExperts && width >= unit &&
         hidden >= unit && width % unit == 0 && hidden % unit == 0 && width <= 8192;
}

int64_t moe_grouped_workspace_bytes(int64_t tokens, int64_t topk, int64_t experts, int64_t width, int64_t hidden) {
  return parts_of(tokens, topk, experts, width, hidden).total;
}

CudaStatus moe_grouped_prepare_cuda(const MoeGroupedCuda& a, Stream stream) {
  check_args(a);
  if (a.tokens == 0) return {};
  const Places at = places_of(a);
  const MoePlanCuda plan{.ids = a.ids,
                         .token_count = a.token_count,
                         .tokens = a.tokens,
                         .topk = a.topk,
                         .experts = a.weights.experts,
                         .first_expert = a.first_expert,
                         .offsets = at.offsets,
                         .row_slot = at.row_slot,
                         .slot_row = at.slot_row,
                         .workspace = at.plan};
  if (const CudaStatus status = moe_plan_cuda(plan, stream); !status.ok()) return status;
  return {
      moe_grouped_gather_launch({a.z, a.z_stride, at.row_slot, a.tokens * a.topk, a.topk, a.weights.width, at.z}, stream)};
}

CudaStatus moe_grouped_products_cuda(const MoeGroupedCuda& a, Stream stream) {
  return moe_grouped_part_cuda(a, {0, a.weights.experts, -1}, stream);
}

CudaStatus moe_grouped_part_cuda(const MoeGroupedCuda& a, const MoeGroupedPart& part, Stream stream) {
  check_args(a);
  K3_CHECK(part.begin >= 0 && part.begin <= part.end && part.end <= a.weights.experts, "moe_grouped_cuda: experts {} to {}",
           part.begin, part.end);
  if (a.tokens == 0) return {};
  const MoeExpertsCuda& w = a.weights;
  const Places at = places_of(a);
  const int routed = a.routed_experts > 0 ? a.routed_experts : w.experts;
  const int rows = moe_grouped_width(w.kind, static_cast<double>(a.tokens) * a.topk / routed);
  if (const int code = moe_grouped_tiles_launch({at.offsets, part.begin, part.end, rows, w.places.slot, at.expert_slot,
                                                 part.staged, at.header, at.tiles},
                                                stream);
      code != 0)
    return {code};
  const auto run = w.kind == MoeWeights::mxfp4 ? moe_grouped_mxfp4_launch : moe_grouped_bf16_launch;
  const int blocks = device_info().sm_count;
  const int64_t slots = static_cast<int64_t>(a.tokens) * a.topk;
  const auto width = static_cast<int>(round_up(w.width, 32)), hidden = static_cast<int>(round_up(w.hidden, 32));

  MoeGroupedGemm up;
  up.weights = static_cast<const uint8_t*>(w.w13);
  up.expert_bytes = moe_packed_bytes(w.kind, 2 * w.hidden, w.width);
  up.unit_bytes = chunks_of(w.kind, w.width) * moe_chunk_bytes(w.kind);
  up.units = (w.hidden + 7) / 8;
  up.places = w.places;
  if (w.places.slot != nullptr) up.places.slot = at.expert_slot;
  if (const int code = set_weights_map(up, w.kind, w.experts); code != 0) return {code};
  up.factors = w.kind == MoeWeights::mxfp4 ? w.factors : nullptr;
  if (const int code = set_map(up, at.z, slots, width, moe_grouped_box(w.kind, rows)); code != 0) return {code};
  up.k = width;
  up.out = at.hidden;
  up.out_stride = hidden;
  up.out_columns = hidden;
  up.hidden = w.hidden;
  up.tiles = at.tiles;
  up.header = at.header;
  up.glu = glu_of(a.glu);
  if (const int code = run(up, false, rows, blocks, stream); code != 0) return {code};

  MoeGroupedGemm down = up;
  down.weights = static_cast<const uint8_t*>(w.w2);
  down.place_offset = up.expert_bytes;
  down.expert_bytes = moe_packed_bytes(w.kind, w.width, w.hidden);
  down.unit_bytes = chunks_of(w.kind, w.hidden) * moe_chunk_bytes(w.kind);
  down.units = (w.width + 15) / 16;
  if (const int code = set_weights_map(down, w.kind, w.experts); code != 0) return {code};
  if (const int code = set_map(down, at.hidden, slots, hidden, moe_grouped_box(w.kind, rows)); code != 0) return {code};
  down.k = hidden;
  down.out = a.rows;
  down.out_stride = w.width;
  down.out_columns = w.width;
  return {run(down, true, rows, blocks, stream)};
}

CudaStatus moe_grouped_cuda(const MoeGroupedCuda& a, Stream stream) {
  if (const CudaStatus status = moe_grouped_prepare_cuda(a, stream); !status.ok()) return status;
  return moe_grouped_products_cuda(a, stream);
}

CudaStatus moe_grouped_combine_cuda(const MoeGroupedCuda& a, const MoeGroupedSum& sum, Stream stream) {
  check_args(a);
  if (a.tokens == 0) return {};
  K3_CHECK(sum.weights != nullptr, "moe_grouped_combine_cuda: weights");
  return {moe_grouped_combine_launch({a.rows, places_of(a).slot_row, a.token_count, a.tokens, a.topk, a.weights.width,
                                      sum.weights, sum.out, sum.out_f32, sum.norm_weight, sum.eps},
                                     stream)};
}

}  // namespace k3::ops::cuda
