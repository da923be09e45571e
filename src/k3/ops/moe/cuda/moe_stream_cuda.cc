#include "k3/ops/moe/cuda/moe_stream_cuda.h"

#include <algorithm>

#include "k3/base/check.h"
#include "k3/ops/moe/cuda/moe_plan_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_pack.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kInOrderTokens = 8, kInOrderSlots = 128, kMaxTokens = 1024;

int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t chunks_of(MoeWeights kind, int64_t columns) { return (columns + moe_chunk_columns(kind) - 1) / moe_chunk_columns(kind); }
bool shape_fits(MoeWeights kind, int64_t width, int64_t hidden) {
  const int64_t unit = kind == MoeWeights::mxfp4 ? 32 : 8;
  return width >= 1 && hidden >= 1 && width % unit == 0 && hidden % unit == 0;
}

struct Parts {  // of the workspace
  int64_t hidden, offsets, row_slot, tiles, tile_count, plan, total;
};
Parts parts_of(int64_t tokens, int64_t topk, int64_t experts, int64_t hidden) {
  Parts p{};
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t mine = at;
    at += align(bytes);
    return mine;
  };
  p.hidden = take(tokens * topk * hidden * 2);
  p.offsets = take((experts + 1) * 4);
  p.row_slot = take(tokens * topk * 4);
  p.tiles = take(moe_max_tiles(tokens, topk, experts, 8) * static_cast<int64_t>(sizeof(MoeTile)));
  p.tile_count = take(4);
  p.plan = take(moe_plan_workspace_bytes(tokens, experts));
  p.total = at;
  return p;
}

}  // namespace

MoeStreamConfig moe_stream_config(MoeWeights kind, int64_t tokens, int64_t topk, int64_t experts, int64_t width, int64_t hidden,
                                  const DeviceInfo& device) {
  MoeStreamConfig c;
  c.grid = 0;
  if (!shape_fits(kind, width, hidden) || device.sm_count < 1 || device.capability != 90) return c;
  c.in_order = tokens <= kInOrderTokens && tokens * topk <= kInOrderSlots;
  c.tile = c.in_order || tokens * topk <= 3 * experts ? 8 : 16;  // beyond 3 rows an expert, too many have more than 8
  c.warps = kind == MoeWeights::bf16 ? 8 : c.tile == 8 ? 16 : 12;
  c.stages = c.tile == 8 ? 4 : 3;
  c.max_tiles = c.in_order ? static_cast<int>(kInOrderSlots)
                           : static_cast<int>(moe_max_tiles(tokens, topk, experts, c.tile) / device.sm_count + 2);
  const auto shared = [&](int64_t columns) {
    const int64_t b = chunks_of(kind, columns) * moe_chunk_columns(kind) * 2 * c.tile, rings = c.warps * c.stages * moe_chunk_bytes(kind);
    const int64_t joined = c.warps * 32 * 16 * (c.tile / 8), bars = c.warps * c.stages * 8;
    const int64_t table = c.in_order ? kInOrderSlots * (kInOrderTokens + 2) : c.max_tiles * 10;
    return static_cast<int>(std::min<int64_t>(b + rings + joined + bars + table, 1 << 30));
  };
  c.shared_gate = shared(width);
  c.shared_down = shared(hidden);
  // 640 bytes of the table's making are static.
  if (std::max(c.shared_gate, c.shared_down) + 1024 <= device.shared_bytes_per_block) c.grid = device.sm_count;
  return c;
}

int64_t moe_stream_workspace_bytes(int64_t tokens, int64_t topk, int64_t experts, int64_t hidden) {
  return parts_of(tokens, topk, experts, hidden).total;
}

CudaStatus moe_stream_cuda(const MoeStreamCuda& a, Stream stream) {
  const MoeExpertsCuda& w = a.weights;
  K3_CHECK(a.tokens >= 0 && a.tokens <= kMaxTokens && a.topk >= 1 && a.topk <= 16, "moe_stream_cuda: {} tokens, top {}", a.tokens, a.topk);
  K3_CHECK(w.experts >= 1 && w.experts <= kMoeMaxExperts, "moe_stream_cuda: {} experts", w.experts);
  if (a.tokens == 0) return {};
  const MoeStreamConfig config = moe_stream_config(w.kind, a.tokens, a.topk, w.experts, w.width, w.hidden, device_info());
  K3_CHECK(config.grid > 0, "moe_stream_cuda: no kernel for width {}, hidden {}", w.width, w.hidden);
  K3_CHECK(w.w13 != nullptr && w.w2 != nullptr && (w.kind == MoeWeights::bf16 || w.factors != nullptr), "moe_stream_cuda: weights");
  K3_CHECK(a.z != nullptr && a.ids != nullptr && a.slot_out != nullptr && a.workspace != nullptr, "moe_stream_cuda: a missing array");
  const Parts parts = parts_of(a.tokens, a.topk, w.experts, w.hidden);
  auto* base = static_cast<std::byte*>(a.workspace);
  const auto ints = [&](int64_t at) { return reinterpret_cast<int32_t*>(base + at); };
  MoeStreamPass pass{};
  if (!config.in_order) {
    const MoePlanCuda plan{.ids = a.ids,
                           .token_count = a.token_count,
                           .tokens = a.tokens,
                           .topk = a.topk,
                           .experts = w.experts,
                           .first_expert = a.first_expert,
                           .tile_rows = config.tile,
                           .offsets = ints(parts.offsets),
                           .row_slot = ints(parts.row_slot),
                           .tiles = reinterpret_cast<MoeTile*>(base + parts.tiles),
                           .tile_count = ints(parts.tile_count),
                           .workspace = base + parts.plan};
    if (const CudaStatus status = moe_plan_cuda(plan, stream); !status.ok()) return status;
    pass.tiles = plan.tiles;
    pass.tile_count = plan.tile_count;
    pass.row_slot = plan.row_slot;
  }
  pass.factors = w.kind == MoeWeights::mxfp4 ? w.factors : nullptr;
  pass.ids = a.ids;
  pass.token_count = a.token_count;
  pass.glu = a.glu;
  pass.tokens = a.tokens;
  pass.topk = a.topk;
  pass.first_expert = a.first_expert;
  pass.experts = w.experts;
  pass.max_tiles = config.max_tiles;

  MoeStreamPass gate = pass;
  gate.packed = w.w13;
  gate.in = a.z;
  gate.out = base + parts.hidden;
  gate.columns = w.width;
  gate.rows = w.hidden;
  gate.units = (w.hidden + 7) / 8;
  gate.chunks = static_cast<int>(chunks_of(w.kind, w.width));
  if (const int code = moe_stream_launch(w.kind, true, config, gate, stream); code != 0) return {code};

  MoeStreamPass down = pass;
  down.packed = w.w2;
  down.in = base + parts.hidden;
  down.out = a.slot_out;
  down.columns = w.hidden;
  down.rows = w.width;
  down.units = (w.width + 15) / 16;
  down.chunks = static_cast<int>(chunks_of(w.kind, w.hidden));
  return {moe_stream_launch(w.kind, false, config, down, stream)};
}

CudaStatus moe_combine_cuda(const MoeCombineCuda& a, Stream stream) {
  K3_CHECK(a.tokens >= 0 && a.topk >= 1 && a.topk <= 16 && a.width >= 4 && a.width % 4 == 0, "moe_combine_cuda: {} tokens, top {}, width {}",
           a.tokens, a.topk, a.width);
  K3_CHECK(a.width <= 8192 && a.experts >= 1, "moe_combine_cuda: width {}, {} experts", a.width, a.experts);
  if (a.tokens == 0) return {};
  K3_CHECK(a.slot_out != nullptr && a.ids != nullptr && a.weights != nullptr, "moe_combine_cuda: a missing array");
  return {moe_combine_launch(a, stream)};
}

CudaStatus moe_pack_cuda(const MoePack& p, Stream stream) {
  K3_CHECK(shape_fits(p.kind, p.width, p.hidden), "moe_pack_cuda: width {}, hidden {}", p.width, p.hidden);
  const bool mx = p.kind == MoeWeights::mxfp4;
  K3_CHECK(p.w1 != nullptr && p.w2 != nullptr && p.w3 != nullptr && p.w13_packed != nullptr && p.w2_packed != nullptr, "moe_pack_cuda: weights");
  K3_CHECK(!mx || (p.s1 != nullptr && p.s2 != nullptr && p.s3 != nullptr && p.factors != nullptr), "moe_pack_cuda: scales");
  return {moe_pack_launch(p, stream)};
}

CudaStatus moe_unpack_cuda(MoeWeights kind, const void* packed, bool w13, int rows, int cols, void* out, Stream stream) {
  K3_CHECK(rows >= 1 && cols % 8 == 0 && (!w13 || rows % 16 == 0), "moe_unpack_cuda: [{}, {}]", rows, cols);
  return {moe_unpack_launch(kind, packed, w13, rows, cols, out, stream)};
}

}  // namespace k3::ops::cuda
