#include "k3/ops/moe/cuda/moe_stream_cuda.h"

#include "k3/base/check.h"
#include "k3/ops/moe/cuda/moe_one_types.h"
#include "k3/ops/moe/cuda/moe_plan_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_config.h"
#include "k3/ops/moe/cuda/moe_stream_pack.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kMaxTokens = 1024, kCounterBytes = 16 << 10, kOneRowsBytes = 64 << 10;
static_assert((moe_max_tiles(kMaxTokens, 16, kMoeMaxExperts, 8) + 2) * 4 <= kCounterBytes);

int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct Parts {  // of the workspace
  int64_t counters, shared_out, hidden, offsets, row_slot, tiles, tile_count, plan, total;
};
Parts parts_of(int64_t tokens, int64_t topk, int64_t experts, int64_t hidden) {
  Parts p{};
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t mine = at;
    at += align(bytes);
    return mine;
  };
  p.counters = take(kCounterBytes);  // first and of one size, so that calls of all shapes agree about them
  p.shared_out = take(kOneRowsBytes);
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

int64_t moe_stream_workspace_bytes(int64_t tokens, int64_t topk, int64_t experts, int64_t hidden) {
  return parts_of(tokens, topk, experts, hidden).total;
}

bool moe_stream_routes(int64_t tokens, int64_t topk) {
  return tokens <= kMoeInOrderTokens && tokens * topk <= kMoeInOrderSlots;
}

bool moe_stream_takes_shared(const MoeExpertsCuda& w, int64_t tokens, int64_t topk, int64_t columns, const DeviceInfo& device) {
  const MoeStreamConfig c = moe_stream_config(w.kind, tokens, topk, w.experts, w.width, w.hidden, device);
  return c.grid > 0 && c.in_order && columns % 8 == 0 && w.width % 4 == 0 &&
         c.shared_bytes + moe_shared_rows_bytes(tokens, w.width, columns, c.grid) + 1024 <= device.shared_bytes_per_block;
}

namespace {

// Shared memory of the kernel of one token; 0: it does not serve the call.
int one_bytes(const MoeStreamCuda& a) {
  const MoeExpertsCuda& w = a.weights;
  const DeviceInfo& device = device_info();
  const bool is_one = a.tokens == 1 && a.token_count == nullptr && a.sum.out != nullptr && a.sum.norm_weight == nullptr;
  const bool routes = a.route.logits == nullptr || a.route.experts <= kMoeOneRouted;
  if (!is_one || !routes || device.capability != 90 || w.width > kOneRowsBytes / 4) return 0;
  return moe_one_shared_bytes(w.kind, a.topk, w.width, w.hidden, a.shared.w != nullptr ? a.shared.columns : 0, device.sm_count,
                              device.shared_bytes_per_block);
}

CudaStatus one_token(const MoeStreamCuda& a, const Parts& parts, int shared_bytes, Stream stream) {
  const MoeExpertsCuda& w = a.weights;
  auto* base = static_cast<std::byte*>(a.workspace);
  MoeOne p{};
  p.packed[0] = w.w13;
  p.packed[1] = w.w2;
  p.places = w.places;
  p.units[0] = (w.hidden + 7) / 8;
  p.units[1] = (w.width + 15) / 16;
  p.chunks[0] = static_cast<int>(moe_chunks(w.kind, w.width));
  p.chunks[1] = static_cast<int>(moe_chunks(w.kind, w.hidden));
  for (int i = 0; i < 2; ++i) p.by_units[i] = MoeDivisor(p.units[i]);
  p.factors = w.kind == MoeWeights::mxfp4 ? w.factors : nullptr;
  p.z = a.z;
  p.hidden = base + parts.hidden;
  p.slot_out = a.slot_out;
  p.shared_out = reinterpret_cast<float*>(base + parts.shared_out);
  p.ids = a.ids;
  p.counters = reinterpret_cast<int32_t*>(base + parts.counters);
  p.glu = a.glu;
  p.route = a.route;
  p.shared = a.shared;
  p.sum = a.sum;
  p.topk = a.topk;
  p.first_expert = a.first_expert;
  p.experts = w.experts;
  p.width = w.width;
  p.hidden_width = w.hidden;
  return {moe_one_launch(w.kind, p, device_info().sm_count, shared_bytes, stream)};
}

}  // namespace

CudaStatus moe_stream_cuda(const MoeStreamCuda& a, Stream stream) {
  const MoeExpertsCuda& w = a.weights;
  K3_CHECK(a.tokens >= 0 && a.tokens <= kMaxTokens && a.topk >= 1 && a.topk <= 16, "moe_stream_cuda: {} tokens, top {}",
           a.tokens, a.topk);
  K3_CHECK(w.experts >= 1 && w.experts <= kMoeMaxExperts, "moe_stream_cuda: {} experts", w.experts);
  if (a.tokens == 0) return {};
  MoeStreamConfig config = moe_stream_config(w.kind, a.tokens, a.topk, w.experts, w.width, w.hidden, device_info());
  K3_CHECK(config.grid > 0, "moe_stream_cuda: no kernel for width {}, hidden {}", w.width, w.hidden);
  K3_CHECK(w, "moe_stream_cuda: weights");
  const bool routes = a.route.logits != nullptr;
  K3_CHECK(a.z != nullptr && (routes || a.ids != nullptr) && a.slot_out != nullptr && a.workspace != nullptr,
           "moe_stream_cuda: a missing array");
  K3_CHECK(!routes || (config.in_order && a.route.experts >= a.topk && a.route.experts <= kMoeMaxExperts),
           "moe_stream_cuda: routing of {} tokens to {} of {} experts", a.tokens, a.topk, a.route.experts);
  const Parts parts = parts_of(a.tokens, a.topk, w.experts, w.hidden);
  if (const int bytes = one_bytes(a); bytes > 0) return one_token(a, parts, bytes, stream);
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
  pass.packed[0] = w.w13;
  pass.packed[1] = w.w2;
  pass.places = w.places;
  pass.columns[0] = w.width;
  pass.columns[1] = w.hidden;
  pass.units[0] = (w.hidden + 7) / 8;
  pass.units[1] = (w.width + 15) / 16;
  for (int i = 0; i < 2; ++i) {
    pass.chunks[i] = static_cast<int>(moe_chunks(w.kind, pass.columns[i]));
    pass.by_units[i] = MoeDivisor(pass.units[i]);
    pass.by_chunks[i] = MoeDivisor(pass.chunks[i]);
  }
  pass.factors = w.kind == MoeWeights::mxfp4 ? w.factors : nullptr;
  pass.z = a.z;
  pass.hidden = base + parts.hidden;
  pass.slot_out = a.slot_out;
  pass.ids = a.ids;
  pass.token_count = a.token_count;
  pass.counters = ints(parts.counters);
  pass.glu = a.glu;
  pass.tokens = a.tokens;
  pass.topk = a.topk;
  pass.first_expert = a.first_expert;
  pass.experts = w.experts;
  pass.max_tiles = config.max_tiles;
  pass.b_bytes = config.b_bytes;
  pass.route = a.route;
  if (a.shared.w != nullptr) {
    K3_CHECK(moe_stream_takes_shared(w, a.tokens, a.topk, a.shared.columns, device_info()) && a.shared.hidden != nullptr &&
                 a.sum.out != nullptr && a.sum.norm_weight == nullptr && a.sum.out_f32 == nullptr,
             "moe_stream_cuda: shared experts of {} columns", a.shared.columns);
    pass.shared = a.shared;
    pass.shared_at = config.shared_bytes;
    config.shared_bytes += static_cast<int>(moe_shared_rows_bytes(a.tokens, w.width, a.shared.columns, config.grid));
  }
  pass.route_at = config.route_at;
  pass.sum = a.sum;
  pass.sum.slot_out = a.slot_out;
  pass.sum.ids = a.ids;
  pass.sum.tokens = a.tokens;
  pass.sum.topk = a.topk;
  pass.sum.width = w.width;
  pass.sum.experts = w.experts;
  pass.sum.first_expert = a.first_expert;
  K3_CHECK((a.sum.out == nullptr && a.sum.out_f32 == nullptr) || ((routes || a.sum.weights != nullptr) && w.width <= 8192),
           "moe_stream_cuda: the sum");
  K3_CHECK(a.sum.add == nullptr || a.sum.norm_weight == nullptr, "moe_stream_cuda: a norm and something to add");
  return {moe_stream_launch(w.kind, config, pass, stream)};
}

CudaStatus moe_combine_cuda(const MoeCombineCuda& a, Stream stream) {
  K3_CHECK(a.tokens >= 0 && a.topk >= 1 && a.topk <= 16 && a.width >= 4 && a.width % 4 == 0,
           "moe_combine_cuda: {} tokens, top {}, width {}", a.tokens, a.topk, a.width);
  K3_CHECK(a.width <= 8192 && a.experts >= 1, "moe_combine_cuda: width {}, {} experts", a.width, a.experts);
  if (a.tokens == 0) return {};
  K3_CHECK(a.slot_out != nullptr && a.ids != nullptr && a.weights != nullptr, "moe_combine_cuda: a missing array");
  return {moe_combine_launch(a, stream)};
}

CudaStatus moe_pack_cuda(const MoePack& p, Stream stream) {
  K3_CHECK(moe_shape_fits(p.kind, p.width, p.hidden), "moe_pack_cuda: width {}, hidden {}", p.width, p.hidden);
  const bool mx = p.kind == MoeWeights::mxfp4;
  K3_CHECK(p.w1 != nullptr && p.w2 != nullptr && p.w3 != nullptr && p.w13_packed != nullptr && p.w2_packed != nullptr,
           "moe_pack_cuda: weights");
  K3_CHECK(!mx || (p.s1 != nullptr && p.s2 != nullptr && p.s3 != nullptr && p.factors != nullptr), "moe_pack_cuda: scales");
  return {moe_pack_launch(p, stream)};
}

CudaStatus moe_unpack_cuda(MoeWeights kind, const void* packed, bool w13, int rows, int cols, void* out, Stream stream) {
  K3_CHECK(rows >= 1 && cols % 8 == 0 && (!w13 || rows % 16 == 0), "moe_unpack_cuda: [{}, {}]", rows, cols);
  return {moe_unpack_launch(kind, packed, w13, rows, cols, out, stream)};
}

}  // namespace k3::ops::cuda
