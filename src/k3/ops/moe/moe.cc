#include "k3/ops/moe/moe.h"

#include <algorithm>
#include <utility>

#include "k3/base/check.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/panel.h"
#include "k3/ops/moe/moe_plan.h"
#include "k3/ops/moe/moe_train.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops {
namespace {

constexpr int64_t kUpBlock = 64;     // hidden rows per unit of the first phase: w1 and w3 of these rows, then the activation
constexpr int64_t kDownBlock = 128;  // output columns whose per-slot results a worker holds at once in the second phase
// Hidden activations of one chunk of tokens: 64 Mi floats, about 1,300 tokens of K3. A longer call reads its experts
// once a chunk.
constexpr int64_t kMaxHidden = int64_t{64} << 20;
constexpr int64_t kSerialProducts = 1 << 16;  // as in linear

bool is_mx(const Weight& w) { return w.scheme == Scheme::mxfp4; }

void check_weight(const Weight& w, int64_t rows, int64_t cols, int32_t expert, const char* name) {
  K3_CHECK(w && w.rows == rows && w.cols == cols, "moe: {} of expert {} is {} x {}, expected {} x {}", name, expert, w.rows,
           w.cols, rows, cols);
  K3_CHECK(!scheme_has_scales(w.scheme) || (w.cols % 32 == 0 && w.scales != nullptr), "moe: {} of expert {}: {} columns",
           name, expert, w.cols);
}

struct Call {
  const Ctx& ctx;
  std::span<const ExpertWeights> experts;
  const Glu& activation;
  Tensor z, weights, out;  // of this chunk; weights and out are empty when slot results are wanted
  Tensor slot_out;         // [slots, width] of this chunk, or empty
  int64_t topk, width, hidden;
  bool round;
  int64_t workers;
  MoePlan plan;
  int64_t most;         // slots of the largest group
  Tensor plain, mixed;  // z in the order of unpacked and of mxfp4 weights; empty when no expert needs it
  Tensor h;             // [slots, hidden], rows by position, in the order that the expert's w2 wants
  // On BF16 dots and tiles z and h are BF16 rows of dots_stride instead; for tiles they are packed, too.
  bool dots, tiles;
  uint16_t* z_bf16;
  uint16_t* h_bf16;
  bool int8;  // z and h are rows of int8_row_bytes
  uint8_t* z_int8;
  uint8_t* h_int8;
  uint16_t* packed;         // of z, then of h
  int64_t* packed_tokens;   // [groups] where a group's packed tokens begin

  bool bf16() const { return dots || tiles; }
  const ExpertWeights& expert(const MoeGroup& g) const { return experts[static_cast<size_t>(g.expert)]; }
  int64_t slots() const { return static_cast<int64_t>(plan.token_of.size()); }
};

// Scratch of one worker, taken before the parallel region.
struct Scratch {
  void* panel;
  float* a;  // first phase: gate; second: results by position
  float* b;  // first phase: up
  float** a_rows;
  float** b_rows;
};

float* take_floats(Workspace& w, int64_t count) { return static_cast<float*>(w.bytes(count * 4)); }
float** take_rows(Workspace& w, int64_t count) { return static_cast<float**>(w.bytes(count * int64_t{sizeof(float*)})); }

// Rows of inputs in whichever form the call works on.
struct InputRows {
  const float* const* plain = nullptr;
  const float* const* mixed = nullptr;
  const uint16_t* const* bf16 = nullptr;
  const uint8_t* const* int8 = nullptr;
  InputRows from(int64_t position) const {
    return {plain == nullptr ? nullptr : plain + position, mixed == nullptr ? nullptr : mixed + position,
            bf16 == nullptr ? nullptr : bf16 + position, int8 == nullptr ? nullptr : int8 + position};
  }
};

// y[i][row - origin] = rows [begin, end) of w times the inputs of group g; x starts at the group.
void product(const Call& c, size_t g, const InputRows& x, const Weight& w, int64_t begin, int64_t end, float* const* y,
             int64_t origin, void* panel) {
  const int64_t count = c.plan.groups[g].end - c.plan.groups[g].begin;
  if (c.int8) {
    return int8_fn(c.ctx.isa)({x.int8, count, w, begin, end, y, origin, static_cast<uint8_t*>(panel), c.ctx.deterministic});
  }
  if (c.tiles) {
    return tiles_amx({c.packed + c.packed_tokens[g] * w.cols, count, w, begin, end, y, origin, static_cast<uint16_t*>(panel)});
  }
  if (c.dots) return dots_avx512bf16({x.bf16, count, w, begin, end, y, origin, static_cast<uint16_t*>(panel)});
  rows_fn(c.ctx.isa)({is_mx(w) ? x.mixed : x.plain, count, w, begin, end, y, origin, static_cast<float*>(panel)});
}

template <class Body>
void run_workers(const Call& c, const Body& body) {
  if (c.workers == 1) return body(0);
  c.ctx.pool->run(body);
}

// Weights of all groups against the call's shape; which forms of the inputs they want.
struct Forms {
  bool mx = false, plain = false, dots = true, tiles = true, int8 = true;
};

Forms check_groups(Call& c) {
  Forms forms;
  c.most = 0;
  for (const MoeGroup& g : c.plan.groups) {
    const ExpertWeights& e = c.expert(g);
    check_weight(e.w1, c.hidden, c.width, g.expert, "w1");
    check_weight(e.w3, c.hidden, c.width, g.expert, "w3");
    check_weight(e.w2, c.width, c.hidden, g.expert, "w2");
    for (const Weight* w : {&e.w1, &e.w3}) (is_mx(*w) ? forms.mx : forms.plain) = true;
    for (const Weight* w : {&e.w1, &e.w2, &e.w3}) {
      forms.int8 = forms.int8 && c.ctx.int8_activations && int8_can(w->scheme);
      forms.dots = forms.dots && c.round && dots_can(c.ctx.isa, w->scheme);
      forms.tiles = forms.tiles && c.round && tiles_can(c.ctx.isa, *w);
    }
    c.most = std::max(c.most, g.end - g.begin);
  }
  return forms;
}

void prepare_inputs(Call& c) {
  Workspace& ws = *c.ctx.workspace;
  const Forms forms = check_groups(c);
  const int64_t tokens = c.z.dim(0), stride = dots_stride(c.width);
  c.int8 = forms.int8;
  c.dots = forms.dots && !c.int8;
  // By the tokens of the call, not by the largest group: the choice must not depend on which experts are at hand.
  c.tiles = forms.tiles && !c.int8 && (tokens >= kTilesFrom || c.ctx.deterministic);
  if (c.int8) {
    c.z_int8 = static_cast<uint8_t*>(ws.bytes(tokens * int8_row_bytes(c.width)));
    c.h_int8 = static_cast<uint8_t*>(ws.bytes(c.slots() * int8_row_bytes(c.hidden)));
  } else if (c.bf16()) {
    c.z_bf16 = static_cast<uint16_t*>(ws.bytes(tokens * stride * 2));
    c.h_bf16 = static_cast<uint16_t*>(ws.bytes(c.slots() * dots_stride(c.hidden) * 2));
  } else {
    if (forms.plain) c.plain = c.round ? ws.tensor({tokens, c.width}) : c.z;
    if (forms.mx) c.mixed = ws.tensor({tokens, c.width});
    c.h = ws.tensor({c.slots(), c.hidden});
  }
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (c.int8) {
        int8_quantise_row(c.z.row(t), 0, c.width, c.width, c.z_int8 + t * int8_row_bytes(c.width));
        continue;
      }
      if (c.bf16()) {
        to_bf16_avx512bf16(c.z.row(t), c.width, c.z_bf16 + t * stride);
        continue;
      }
      if (forms.plain && c.round) prepare_row(c.z.row(t), c.width, true, false, c.plain.row(t));
      if (forms.mx) prepare_row(c.z.row(t), c.width, c.round, true, c.mixed.row(t));
    }
  };
  if (c.workers == 1 || tokens < 8) {
    body(0, tokens);
  } else {
    c.ctx.pool->parallel_for(tokens, 4, body);
  }
}

// Places of the packed tokens of every group.
void plan_packed(Call& c) {
  Workspace& ws = *c.ctx.workspace;
  c.packed_tokens = static_cast<int64_t*>(ws.bytes(static_cast<int64_t>(c.plan.groups.size() * sizeof(int64_t))));
  int64_t tokens = 0;
  for (size_t g = 0; g < c.plan.groups.size(); ++g) {
    c.packed_tokens[g] = tokens;
    tokens += (c.plan.groups[g].end - c.plan.groups[g].begin + 15) / 16 * 16;
  }
  c.packed = static_cast<uint16_t*>(ws.bytes(tokens * std::max(c.width, c.hidden) * 2));
}

// Packs the BF16 rows of all groups, by position.
void pack(const Call& c, const uint16_t* const* rows, int64_t cols) {
  run_workers(c, [&](int worker) {
    int64_t block = 0;
    for (size_t g = 0; g < c.plan.groups.size(); ++g) {
      const MoeGroup& group = c.plan.groups[g];
      for (int64_t t = 0; t < group.end - group.begin; t += 16, ++block) {
        if (block % c.workers != worker) continue;
        pack_tiles_avx512bf16(rows + group.begin, t, std::min(t + 16, group.end - group.begin), cols,
                              c.packed + c.packed_tokens[g] * cols);
      }
    }
  });
}

// Gate and up rows [begin, end) of one expert for its tokens, then the activation into h.
void up_block(const Call& c, size_t index, int64_t begin, int64_t end, const InputRows& x, Scratch& s) {
  const MoeGroup& g = c.plan.groups[index];
  const ExpertWeights& e = c.expert(g);
  const int64_t count = g.end - g.begin, rows = end - begin;
  for (int64_t i = 0; i < count; ++i) {
    s.a_rows[i] = s.a + i * kUpBlock;
    s.b_rows[i] = s.b + i * kUpBlock;
  }
  product(c, index, x, e.w1, begin, end, s.a_rows, begin, s.panel);
  product(c, index, x, e.w3, begin, end, s.b_rows, begin, s.panel);
  for (int64_t i = 0; i < count; ++i) {
    if (c.int8) {
      glu_row(c.ctx.isa, s.a_rows[i], s.b_rows[i], rows, c.activation, s.a_rows[i]);
      int8_quantise_row(s.a_rows[i], begin, rows, c.hidden, c.h_int8 + (g.begin + i) * int8_row_bytes(c.hidden));
      continue;
    }
    if (c.bf16()) {
      glu_row(c.ctx.isa, s.a_rows[i], s.b_rows[i], rows, c.activation, s.a_rows[i]);
      to_bf16_avx512bf16(s.a_rows[i], rows, c.h_bf16 + (g.begin + i) * dots_stride(c.hidden) + begin);
      continue;
    }
    float* hidden = c.h.row(g.begin + i) + begin;
    if (!c.round && !is_mx(e.w2)) {
      glu_row(c.ctx.isa, s.a_rows[i], s.b_rows[i], rows, c.activation, hidden);
      continue;
    }
    glu_row(c.ctx.isa, s.a_rows[i], s.b_rows[i], rows, c.activation, s.a_rows[i]);
    prepare_row(s.a_rows[i], rows, c.round, is_mx(e.w2), hidden);
  }
}

void up_phase(const Call& c) {
  Workspace& ws = *c.ctx.workspace;
  const Workspace::Scope scope(ws);
  // Input rows by position, in every form of z.
  const float** plain = const_cast<const float**>(take_rows(ws, c.slots()));
  const float** mixed = const_cast<const float**>(take_rows(ws, c.slots()));
  auto** bf16 = static_cast<const uint16_t**>(ws.bytes(c.slots() * int64_t{sizeof(uint16_t*)}));
  auto** int8 = static_cast<const uint8_t**>(ws.bytes(c.slots() * int64_t{sizeof(uint8_t*)}));
  for (int64_t p = 0; p < c.slots(); ++p) {
    const int64_t t = c.plan.token_of[static_cast<size_t>(p)];
    plain[p] = c.plain ? c.plain.row(t) : nullptr;
    mixed[p] = c.mixed ? c.mixed.row(t) : nullptr;
    bf16[p] = c.bf16() ? c.z_bf16 + t * dots_stride(c.width) : nullptr;
    int8[p] = c.int8 ? c.z_int8 + t * int8_row_bytes(c.width) : nullptr;
  }
  const InputRows inputs{plain, mixed, bf16, int8};
  if (c.tiles) pack(c, bf16, c.width);
  auto* scratch = static_cast<Scratch*>(ws.bytes(c.workers * int64_t{sizeof(Scratch)}));
  for (int64_t i = 0; i < c.workers; ++i) {
    scratch[i] = {ws.bytes(kPanelBytes), take_floats(ws, c.most * kUpBlock), take_floats(ws, c.most * kUpBlock),
                  take_rows(ws, c.most), take_rows(ws, c.most)};
  }
  run_workers(c, [&](int worker) {
    for (size_t i = 0; i < c.plan.groups.size(); ++i) {
      const RowRange range = moe_rows_of(c.plan, i, c.hidden, kUpBlock, worker, c.workers);
      for (int64_t row = range.begin; row < range.end; row += kUpBlock) {
        up_block(c, i, row, std::min(row + kUpBlock, range.end), inputs.from(c.plan.groups[i].begin), scratch[worker]);
      }
    }
  });
}

// out = sum_j weight_j * y_j over `columns`, in the order of j.
template <class SlotRow>
void combine_row(const float* weights, int64_t topk, int64_t columns, const SlotRow& slot_row, float* out) {
  for (int64_t j = 0; j < topk; ++j) {
    const float weight = weights[j];
    const float* y = slot_row(j);
    if (j == 0) {
      for (int64_t i = 0; i < columns; ++i) out[i] = weight * y[i];
    } else {
      for (int64_t i = 0; i < columns; ++i) out[i] += weight * y[i];
    }
  }
}

// Output columns [begin, end) of all tokens: every slot's result, then the weighted sum in the order of ids.
void down_block(const Call& c, int64_t begin, int64_t end, const InputRows& hidden, const Scratch& s) {
  if (c.slot_out) {
    for (int64_t p = 0; p < c.slots(); ++p) s.a_rows[p] = c.slot_out.row(c.plan.slot_of[static_cast<size_t>(p)]) + begin;
  }
  for (size_t i = 0; i < c.plan.groups.size(); ++i) {
    const MoeGroup& g = c.plan.groups[i];
    product(c, i, hidden.from(g.begin), c.expert(g).w2, begin, end, s.a_rows + g.begin, begin, s.panel);
  }
  if (c.slot_out) return;
  for (int64_t t = 0; t < c.out.dim(0); ++t) {
    const int32_t* positions = c.plan.position_of.data() + t * c.topk;
    combine_row(c.weights.row(t), c.topk, end - begin, [&](int64_t j) { return s.a_rows[positions[j]]; },
                c.out.row(t) + begin);
  }
}

void down_phase(const Call& c) {
  Workspace& ws = *c.ctx.workspace;
  const Workspace::Scope scope(ws);
  const float** floats = const_cast<const float**>(take_rows(ws, c.slots()));
  auto** bf16 = static_cast<const uint16_t**>(ws.bytes(c.slots() * int64_t{sizeof(uint16_t*)}));
  auto** int8 = static_cast<const uint8_t**>(ws.bytes(c.slots() * int64_t{sizeof(uint8_t*)}));
  for (int64_t p = 0; p < c.slots(); ++p) {
    floats[p] = c.h ? c.h.row(p) : nullptr;
    bf16[p] = c.bf16() ? c.h_bf16 + p * dots_stride(c.hidden) : nullptr;
    int8[p] = c.int8 ? c.h_int8 + p * int8_row_bytes(c.hidden) : nullptr;
  }
  const InputRows hidden{floats, floats, bf16, int8};
  if (c.tiles) pack(c, bf16, c.hidden);
  auto* scratch = static_cast<Scratch*>(ws.bytes(c.workers * int64_t{sizeof(Scratch)}));
  for (int64_t i = 0; i < c.workers; ++i) {
    scratch[i] = {ws.bytes(kPanelBytes), nullptr, nullptr, take_rows(ws, c.slots()), nullptr};
    if (c.slot_out) continue;
    scratch[i].a = take_floats(ws, c.slots() * kDownBlock);
    for (int64_t p = 0; p < c.slots(); ++p) scratch[i].a_rows[p] = scratch[i].a + p * kDownBlock;
  }
  const int64_t grain = c.tiles ? kTilesRows : kDotsRowGrain;
  const int64_t units = (c.width + grain - 1) / grain;
  run_workers(c, [&](int worker) {
    const int64_t begin = units * worker / c.workers * grain;
    const int64_t end = std::min(c.width, units * (worker + 1) / c.workers * grain);
    for (int64_t column = begin; column < end; column += kDownBlock) {
      down_block(c, column, std::min(column + kDownBlock, end), hidden, scratch[worker]);
    }
  });
}

// One call in chunks of tokens. weights and out, or slot_out, are empty.
void run(const Ctx& ctx, const Tensor& z, const Tensor& ids, std::span<const uint8_t> wanted, int64_t hidden,
         std::span<const ExpertWeights> experts, const Glu& activation, const Tensor& weights, const Tensor& out,
         const Tensor& slot_out) {
  const int64_t tokens = z.dim(0), topk = ids.dim(1);
  const int64_t chunk = std::max<int64_t>(1, kMaxHidden / (topk * hidden));
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(tokens, begin + chunk);
    const Workspace::Scope scope(*ctx.workspace);
    const bool serial = (end - begin) * topk * hidden * z.dim(1) <= kSerialProducts;
    Call call{.ctx = ctx,
              .experts = experts,
              .activation = activation,
              .z = z.slice(begin, end),
              .weights = weights ? weights.slice(begin, end) : Tensor(),
              .out = out ? out.slice(begin, end) : Tensor(),
              .slot_out = slot_out ? slot_out.slice(begin * topk, end * topk) : Tensor(),
              .topk = topk,
              .width = z.dim(1),
              .hidden = hidden,
              .round = ctx.policy == Policy::bf16,
              .workers = serial ? 1 : ctx.pool->size(),
              .plan = moe_plan(*ctx.workspace, ids.slice(begin, end), static_cast<int64_t>(experts.size()), wanted),
              .most = 0,
              .plain = {},
              .mixed = {},
              .h = {},
              .dots = false,
              .tiles = false,
              .z_bf16 = nullptr,
              .h_bf16 = nullptr,
              .int8 = false,
              .z_int8 = nullptr,
              .h_int8 = nullptr,
              .packed = nullptr,
              .packed_tokens = nullptr};
    if (call.slots() == 0) continue;
    prepare_inputs(call);
    if (call.tiles) plan_packed(call);
    up_phase(call);
    down_phase(call);
  }
}

void check_ids(const Tensor& z, const Tensor& ids) {
  K3_CHECK(z.rank == 2 && z.dtype == DType::f32 && ids.rank == 2 && ids.dim(0) == z.dim(0) && ids.dim(1) >= 1 &&
               ids.dtype == DType::i32,
           "moe: z {}, ids {}", z.shape_text(), ids.shape_text());
}

int64_t hidden_of(std::span<const ExpertWeights> experts, int32_t expert) {
  K3_CHECK(expert >= 0 && static_cast<size_t>(expert) < experts.size(), "moe: expert {} of {}", expert, experts.size());
  const int64_t hidden = experts[static_cast<size_t>(expert)].w1.rows;
  K3_CHECK(hidden >= 1, "moe: expert {} has no weights", expert);
  return hidden;
}

// The chosen experts that are here, in no order; `all` is false when others were chosen, too: those of other ranks.
struct Present {
  std::span<const int32_t> experts;
  bool all = true;
};
Present present_of(Workspace& workspace, const Tensor& ids, std::span<const ExpertWeights> experts) {
  Present present;
  auto* seen = static_cast<uint8_t*>(workspace.bytes(static_cast<int64_t>(experts.size())));
  auto* list = static_cast<int32_t*>(workspace.bytes(static_cast<int64_t>(experts.size()) * 4));
  std::fill_n(seen, experts.size(), uint8_t{0});
  size_t count = 0;
  for (int64_t slot = 0; slot < ids.size(); ++slot) {
    const int32_t e = static_cast<const int32_t*>(ids.data)[slot / ids.dim(1) * ids.stride(0) + slot % ids.dim(1)];
    K3_CHECK(e >= 0 && static_cast<size_t>(e) < experts.size(), "moe: expert {} of {}", e, experts.size());
    if (std::exchange(seen[e], uint8_t{1}) != 0) continue;
    if (experts[static_cast<size_t>(e)].w1) {
      list[count++] = e;
    } else {
      present.all = false;
    }
  }
  present.experts = {list, count};
  return present;
}

}  // namespace

void moe(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, std::span<const ExpertWeights> experts,
         const Glu& activation, const Tensor& out, const ExpertBank& bank) noexcept {
  if (ctx.device.is_cuda()) return cuda::moe(ctx, z, ids, weights, bank, activation, out);
  check_ids(z, ids);
  K3_CHECK(z.dims == out.dims && out.rank == 2 && out.dtype == DType::f32, "moe: z {}, out {}", z.shape_text(),
           out.shape_text());
  K3_CHECK(weights.rank == 2 && ids.dims == weights.dims && weights.dtype == DType::f32, "moe: ids {}, weights {}",
           ids.shape_text(), weights.shape_text());
  if (z.dim(0) == 0) return;
  {
    const Workspace::Scope scope(*ctx.workspace);
    if (const Present present = present_of(*ctx.workspace, ids, experts); !present.all) {
      const Tensor slot_out = ctx.workspace->tensor({ids.size(), z.dim(1)});
      std::fill_n(slot_out.f32(), slot_out.size(), 0.0F);
      moe_slots(ctx, z, ids, present.experts, experts, activation, slot_out);
      return moe_combine(ctx, slot_out, weights, out);
    }
  }
  run(ctx, z, ids, {}, hidden_of(experts, *static_cast<const int32_t*>(ids.data)), experts, activation, weights, out, {});
}

void routed_experts(const Ctx& ctx, const RoutedExperts& args) noexcept {
  if (ctx.training) return routed_experts_train(ctx, args);
  if (ctx.device.is_cuda()) return cuda::routed_experts(ctx, args);
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor ids = ctx.workspace->tensor({args.z.dim(0), args.route.topk}, DType::i32);
  const Tensor weights = ctx.workspace->tensor({args.z.dim(0), args.route.topk});
  router(ctx, args.logits, args.bias, args.route, ids, weights);
  moe(ctx, args.z, ids, weights, args.experts, args.activation, args.out);
  if (args.norm) rms_norm(ctx, args.out, args.norm, args.eps, args.out);
  if (args.shared_down) linear(ctx, args.shared_hidden, args.shared_down, args.out, {.accumulate = true});
}

void moe_slots(const Ctx& ctx, const Tensor& z, const Tensor& ids, std::span<const int32_t> subset,
               std::span<const ExpertWeights> experts, const Glu& activation, const Tensor& slot_out) noexcept {
  check_ids(z, ids);
  K3_CHECK(slot_out.rank == 2 && slot_out.dtype == DType::f32 && slot_out.dim(0) == z.dim(0) * ids.dim(1) &&
               slot_out.dim(1) == z.dim(1),
           "moe_slots: z {}, ids {}, slot_out {}", z.shape_text(), ids.shape_text(), slot_out.shape_text());
  if (z.dim(0) == 0 || subset.empty()) return;
  const Workspace::Scope scope(*ctx.workspace);
  const std::span<uint8_t> wanted(static_cast<uint8_t*>(ctx.workspace->bytes(static_cast<int64_t>(experts.size()))),
                                  experts.size());
  std::fill(wanted.begin(), wanted.end(), uint8_t{0});
  for (const int32_t e : subset) {
    hidden_of(experts, e);
    wanted[static_cast<size_t>(e)] = 1;
  }
  run(ctx, z, ids, wanted, hidden_of(experts, subset[0]), experts, activation, {}, {}, slot_out);
}

void moe_combine(const Ctx& ctx, const Tensor& slot_out, const Tensor& weights, const Tensor& out) noexcept {
  const int64_t topk = weights.dim(1);
  K3_CHECK(out.dim(0) == weights.dim(0) && slot_out.dim(0) == out.dim(0) * topk && slot_out.dim(1) == out.dim(1),
           "moe_combine: slot_out {}, weights {}, out {}", slot_out.shape_text(), weights.shape_text(), out.shape_text());
  ctx.pool->parallel_for(out.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      combine_row(weights.row(t), topk, out.dim(1), [&](int64_t j) { return slot_out.row(t * topk + j); }, out.row(t));
    }
  });
}

}  // namespace k3::ops
