#include "k3/ops/moe/moe.h"

#include <algorithm>

#include "k3/base/check.h"
#include "k3/ops/gemm/rows.h"
#include "k3/ops/moe/moe_plan.h"

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
  K3_CHECK(!is_mx(w) || (w.cols % 32 == 0 && w.scales != nullptr), "moe: {} of expert {}: mxfp4 with {} columns", name,
           expert, w.cols);
}

struct Call {
  const Ctx& ctx;
  std::span<const ExpertWeights> experts;
  const Glu& activation;
  Tensor z, weights, out;  // of this chunk
  int64_t topk, width, hidden;
  bool round;
  int64_t workers;
  MoePlan plan;
  Tensor plain, mixed;  // z in the order of unpacked and of mxfp4 weights; empty when no expert needs it
  Tensor h;             // [slots, hidden], rows by position, in the order that the expert's w2 wants
  int64_t most;         // slots of the largest group

  const ExpertWeights& expert(const MoeGroup& g) const { return experts[static_cast<size_t>(g.expert)]; }
  int64_t slots() const { return static_cast<int64_t>(plan.token_of.size()); }
};

// Scratch of one worker, taken before the parallel region.
struct Scratch {
  float* panel;
  float* a;  // first phase: gate; second: results by position
  float* b;  // first phase: up
  float** a_rows;
  float** b_rows;
};

float* take_floats(Workspace& w, int64_t count) { return static_cast<float*>(w.bytes(count * 4)); }
float** take_rows(Workspace& w, int64_t count) { return static_cast<float**>(w.bytes(count * int64_t{sizeof(float*)})); }

template <class Body>
void run_workers(const Call& c, const Body& body) {
  if (c.workers == 1) return body(0);
  c.ctx.pool->run(body);
}

void prepare_inputs(Call& c) {
  Workspace& ws = *c.ctx.workspace;
  bool any_mx = false, any_plain = false;
  c.most = 0;
  for (const MoeGroup& g : c.plan.groups) {
    const ExpertWeights& e = c.expert(g);
    check_weight(e.w1, c.hidden, c.width, g.expert, "w1");
    check_weight(e.w3, c.hidden, c.width, g.expert, "w3");
    check_weight(e.w2, c.width, c.hidden, g.expert, "w2");
    for (const Weight* w : {&e.w1, &e.w3}) (is_mx(*w) ? any_mx : any_plain) = true;
    c.most = std::max(c.most, g.end - g.begin);
  }
  const int64_t tokens = c.z.dim(0);
  if (any_plain) c.plain = c.round ? ws.tensor({tokens, c.width}) : c.z;
  if (any_mx) c.mixed = ws.tensor({tokens, c.width});
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (any_plain && c.round) prepare_row(c.z.row(t), c.width, true, false, c.plain.row(t));
      if (any_mx) prepare_row(c.z.row(t), c.width, c.round, true, c.mixed.row(t));
    }
  };
  if (c.workers == 1) {
    body(0, tokens);
  } else {
    c.ctx.pool->parallel_for(tokens, 4, body);
  }
  c.h = ws.tensor({c.slots(), c.hidden});
}

// Gate and up rows [begin, end) of one expert for its tokens, then the activation into h.
void up_block(const Call& c, const MoeGroup& g, int64_t begin, int64_t end, const float* const* plain,
              const float* const* mixed, Scratch& s) {
  const ExpertWeights& e = c.expert(g);
  const int64_t count = g.end - g.begin, rows = end - begin;
  for (int64_t i = 0; i < count; ++i) {
    s.a_rows[i] = s.a + i * kUpBlock;
    s.b_rows[i] = s.b + i * kUpBlock;
  }
  const RowsFn fn = rows_fn(c.ctx.isa);
  fn({is_mx(e.w1) ? mixed : plain, count, e.w1, begin, end, s.a_rows, begin, s.panel});
  fn({is_mx(e.w3) ? mixed : plain, count, e.w3, begin, end, s.b_rows, begin, s.panel});
  for (int64_t i = 0; i < count; ++i) {
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
  // Input rows by position, for both orders of z.
  const float** plain = const_cast<const float**>(take_rows(ws, c.slots()));
  const float** mixed = const_cast<const float**>(take_rows(ws, c.slots()));
  for (int64_t p = 0; p < c.slots(); ++p) {
    const int64_t t = c.plan.token_of[static_cast<size_t>(p)];
    plain[p] = c.plain ? c.plain.row(t) : nullptr;
    mixed[p] = c.mixed ? c.mixed.row(t) : nullptr;
  }
  auto* scratch = static_cast<Scratch*>(ws.bytes(c.workers * int64_t{sizeof(Scratch)}));
  for (int64_t i = 0; i < c.workers; ++i) {
    scratch[i] = {take_floats(ws, kPanelFloats), take_floats(ws, c.most * kUpBlock), take_floats(ws, c.most * kUpBlock),
                  take_rows(ws, c.most), take_rows(ws, c.most)};
  }
  run_workers(c, [&](int worker) {
    for (size_t i = 0; i < c.plan.groups.size(); ++i) {
      const MoeGroup& g = c.plan.groups[i];
      const RowRange range = moe_rows_of(c.plan, i, c.hidden, kUpBlock, worker, c.workers);
      for (int64_t row = range.begin; row < range.end; row += kUpBlock) {
        up_block(c, g, row, std::min(row + kUpBlock, range.end), plain + g.begin, mixed + g.begin, scratch[worker]);
      }
    }
  });
}

// Output columns [begin, end) of all tokens: every slot's result, then the weighted sum in the order of ids.
void down_block(const Call& c, int64_t begin, int64_t end, const float* const* hidden, const Scratch& s) {
  const RowsFn fn = rows_fn(c.ctx.isa);
  for (const MoeGroup& g : c.plan.groups) {
    const ExpertWeights& e = c.expert(g);
    fn({hidden + g.begin, g.end - g.begin, e.w2, begin, end, s.a_rows + g.begin, begin, s.panel});
  }
  const int64_t columns = end - begin;
  for (int64_t t = 0; t < c.out.dim(0); ++t) {
    float* out = c.out.row(t) + begin;
    for (int64_t j = 0; j < c.topk; ++j) {
      const float weight = c.weights.row(t)[j];
      const float* y = s.a_rows[c.plan.position_of[static_cast<size_t>(t * c.topk + j)]];
      if (j == 0) {
        for (int64_t i = 0; i < columns; ++i) out[i] = weight * y[i];
      } else {
        for (int64_t i = 0; i < columns; ++i) out[i] += weight * y[i];
      }
    }
  }
}

void down_phase(const Call& c) {
  Workspace& ws = *c.ctx.workspace;
  const Workspace::Scope scope(ws);
  const float** hidden = const_cast<const float**>(take_rows(ws, c.slots()));
  for (int64_t p = 0; p < c.slots(); ++p) hidden[p] = c.h.row(p);
  auto* scratch = static_cast<Scratch*>(ws.bytes(c.workers * int64_t{sizeof(Scratch)}));
  for (int64_t i = 0; i < c.workers; ++i) {
    scratch[i] = {take_floats(ws, kPanelFloats), take_floats(ws, c.slots() * kDownBlock), nullptr, take_rows(ws, c.slots()),
                  nullptr};
    for (int64_t p = 0; p < c.slots(); ++p) scratch[i].a_rows[p] = scratch[i].a + p * kDownBlock;
  }
  constexpr int64_t kGrain = 4;  // tile of the row kernel
  const int64_t units = (c.width + kGrain - 1) / kGrain;
  run_workers(c, [&](int worker) {
    const int64_t begin = units * worker / c.workers * kGrain;
    const int64_t end = std::min(c.width, units * (worker + 1) / c.workers * kGrain);
    for (int64_t column = begin; column < end; column += kDownBlock) {
      down_block(c, column, std::min(column + kDownBlock, end), hidden, scratch[worker]);
    }
  });
}

}  // namespace

void moe(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, std::span<const ExpertWeights> experts,
         const Glu& activation, const Tensor& out) noexcept {
  K3_CHECK(z.rank == 2 && out.rank == 2 && z.dims == out.dims && z.dtype == DType::f32 && out.dtype == DType::f32,
           "moe: z {}, out {}", z.shape_text(), out.shape_text());
  const int64_t tokens = z.dim(0);
  K3_CHECK(ids.rank == 2 && weights.rank == 2 && ids.dims == weights.dims && ids.dim(0) == tokens && ids.dim(1) >= 1 &&
               ids.dtype == DType::i32 && weights.dtype == DType::f32,
           "moe: ids {}, weights {} for z {}", ids.shape_text(), weights.shape_text(), z.shape_text());
  if (tokens == 0) return;
  const int64_t topk = ids.dim(1);
  const int32_t first = static_cast<const int32_t*>(ids.data)[0];
  K3_CHECK(first >= 0 && static_cast<size_t>(first) < experts.size(), "moe: expert {} of {}", first, experts.size());
  const int64_t hidden = experts[static_cast<size_t>(first)].w1.rows;
  K3_CHECK(hidden >= 1, "moe: expert {} has no weights", first);
  const int64_t chunk = std::max<int64_t>(1, kMaxHidden / (topk * hidden));
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(tokens, begin + chunk);
    const Workspace::Scope scope(*ctx.workspace);
    const bool serial = (end - begin) * topk * hidden * z.dim(1) <= kSerialProducts;
    Call call{.ctx = ctx,
              .experts = experts,
              .activation = activation,
              .z = z.slice(begin, end),
              .weights = weights.slice(begin, end),
              .out = out.slice(begin, end),
              .topk = topk,
              .width = z.dim(1),
              .hidden = hidden,
              .round = ctx.policy == Policy::bf16,
              .workers = serial ? 1 : ctx.pool->size(),
              .plan = moe_plan(*ctx.workspace, ids.slice(begin, end), static_cast<int64_t>(experts.size())),
              .plain = {},
              .mixed = {},
              .h = {},
              .most = 0};
    prepare_inputs(call);
    up_phase(call);
    down_phase(call);
  }
}

}  // namespace k3::ops
