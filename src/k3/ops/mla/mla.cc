#include "k3/ops/mla/mla.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/mla/mla_kernel.h"
#include "k3/ops/mla/mla_matrix.h"
#include "k3/ops/mla/mla_train.h"

namespace k3::ops {
namespace {

// Cached tokens per part of an absorbed query: long caches are split on this grid of positions, whatever the
// number of threads, and the parts are combined in order.
constexpr int64_t kSegment = 2048;
static_assert(kSegment % kMlaBlock == 0);
constexpr int64_t kPartFloats = 320 << 10;            // queries and sums of one absorbed task (1.25 MiB)
constexpr int64_t kExpandTokens = 512;                // query tokens per expanded task: they share one expansion
constexpr int64_t kScratchFloats = int64_t{8} << 20;  // bound on queries and parts of the tokens taken at a time

const MlaKernels& kernels(Isa isa) {
  if (isa >= Isa::avx512) return kMlaAvx512;
  return isa == Isa::avx2 ? kMlaAvx2 : kMlaPortable;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check(const MlaArgs& a) {
  K3_CHECK(a.q.rank == 3 && a.q.dtype == DType::f32 && a.q.contiguous(), "mla: q is {}", a.q.shape_text());
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1);
  K3_CHECK(a.nope > 0 && a.rope >= 0 && a.value > 0 && a.rank > 0 && a.q.dim(2) == a.nope + a.rope,
           "mla: q is {} for nope {} rope {}", a.q.shape_text(), a.nope, a.rope);
  K3_CHECK(a.out.rank == 3 && a.out.dtype == DType::f32 && a.out.contiguous() && a.out.dim(0) == tokens &&
               a.out.dim(1) == heads && a.out.dim(2) == a.value,
           "mla: out is {}", a.out.shape_text());
  K3_CHECK(a.kv_b && !scheme_has_scales(a.kv_b.scheme) && a.kv_b.rows == heads * (a.nope + a.value) && a.kv_b.cols == a.rank,
           "mla: kv_b is [{}, {}]", a.kv_b.rows, a.kv_b.cols);
  K3_CHECK(a.offsets.size() == a.caches.size() + 1 && a.history.size() == a.caches.size() && a.offsets.front() == 0 &&
               a.offsets.back() == tokens && std::is_sorted(a.offsets.begin(), a.offsets.end()),
           "mla: {} sequences, {} caches", a.history.size(), a.caches.size());
  for (size_t s = 0; s < a.caches.size(); ++s) {
    if (a.offsets[s] == a.offsets[s + 1]) continue;
    K3_CHECK(a.history[s] >= 0 && a.caches[s].width == a.rank + a.rope &&
                 (a.caches[s].dtype == DType::f32 || a.caches[s].dtype == DType::bf16 || a.caches[s].dtype == DType::f8_e4m3),
             "mla: cache of width {} and dtype {}", a.caches[s].width, dtype_name(a.caches[s].dtype));
  }
}

// A run of consecutive query tokens of one sequence.
struct Run {
  size_t sequence;
  int64_t first;     // row of q and out
  int64_t position;  // in the sequence
  int64_t tokens;
};

struct Absorbed {
  const Ctx& ctx;
  const MlaArgs& args;
  const MlaKernels& kernel;
  MlaDims dims = mla_dims(args);
  int64_t query_row = mla_padded(dims.width());
  int64_t state_row = kMlaStateHead + mla_padded(dims.rank);

  int64_t segments(const Run& run) const { return ceil_div(run.position + run.tokens, kSegment); }
  int64_t floats_per_token(int64_t segments) const { return dims.heads * (query_row + segments * state_row); }
  Weight head_weight(int64_t head) const {
    const int64_t rows = dims.nope + dims.value;
    return weight_rows(args.kv_b, head * rows, (head + 1) * rows);
  }

  // All tokens of `runs` at once: absorb by head, attend by (run, segment, heads), combine and project by head.
  void step(std::span<const Run> runs) const {
    const Workspace::Scope scope(*ctx.workspace);
    std::vector<float*> queries, states;  // of each run
    for (const Run& run : runs) {
      queries.push_back(ctx.workspace->tensor({run.tokens * dims.heads * query_row}).f32());
      states.push_back(ctx.workspace->tensor({segments(run) * run.tokens * dims.heads * state_row}).f32());
    }
    absorb(runs, queries);
    attend(runs, queries, states);
    project(runs, states);
  }

  void absorb(std::span<const Run> runs, const std::vector<float*>& queries) const {
    const int64_t size = kMlaRows * mla_padded(dims.rank);
    float* scratch = ctx.workspace->tensor({worker_count(ctx), size}).f32();
    run_tasks(ctx, dims.heads, [&](int worker, int64_t head) {
      for (size_t i = 0; i < runs.size(); ++i) {
        MlaAbsorb a;
        a.dims = dims;
        a.keys = weight_rows(head_weight(head), 0, dims.nope);
        a.q = args.q.f32() + (runs[i].first * dims.heads + head) * dims.key();
        a.q_stride = dims.heads * dims.key();
        a.out = queries[i] + head * query_row;
        a.out_stride = dims.heads * query_row;
        a.tokens = runs[i].tokens;
        a.scratch = scratch + worker * size;
        kernel.absorb(a);
      }
    });
  }

  // Some tokens of a run against one segment of its cache.
  struct Part {
    size_t run;
    int64_t segment, first, tokens;
  };

  std::vector<Part> parts_of(std::span<const Run> runs) const {
    // Queries and sums of a part should stay in the second-level cache while its latent blocks pass.
    const int64_t tile = std::max<int64_t>(1, kPartFloats / (dims.heads * (query_row + state_row)));
    std::vector<Part> parts;
    for (size_t i = 0; i < runs.size(); ++i) {
      for (int64_t first = 0; first < runs[i].tokens; first += tile) {
        const int64_t tokens = std::min(tile, runs[i].tokens - first);
        const int64_t count = ceil_div(runs[i].position + first + tokens, kSegment);
        for (int64_t segment = 0; segment < count; ++segment) parts.push_back({i, segment, first, tokens});
      }
    }
    return parts;
  }

  void attend(std::span<const Run> runs, const std::vector<float*>& queries, const std::vector<float*>& states) const {
    const std::vector<Part> parts = parts_of(runs);
    const auto count = static_cast<int64_t>(parts.size());
    // A task reads its latent rows once for all its heads, so heads are split only to occupy the workers.
    const int64_t groups =
        worker_count(ctx) == 1 ? 1 : std::clamp<int64_t>(ceil_div(2 * worker_count(ctx), count), 1, dims.heads);
    const int64_t group = ceil_div(dims.heads, groups);
    const int64_t size = mla_attend_scratch(dims, group);
    float* scratch = ctx.workspace->tensor({worker_count(ctx), size}).f32();
    run_tasks(ctx, count * groups, [&](int worker, int64_t task) {
      const int64_t head = task % groups * group;
      if (head >= dims.heads) return;
      const Part& part = parts[static_cast<size_t>(task / groups)];
      const Run& run = runs[part.run];
      MlaAttend a;
      a.dims = dims;
      a.cache = args.caches[run.sequence];
      a.queries = queries[part.run] + (part.first * dims.heads + head) * query_row;
      a.query_token_stride = dims.heads * query_row;
      a.states = states[part.run] + ((part.segment * run.tokens + part.first) * dims.heads + head) * state_row;
      a.state_token_stride = dims.heads * state_row;
      a.state_stride = state_row;
      a.rows = std::min(group, dims.heads - head);
      a.tokens = part.tokens;
      a.first_position = run.position + part.first;
      a.begin = part.segment * kSegment;
      a.end = std::min(a.begin + kSegment, a.first_position + part.tokens);
      a.scratch = scratch + worker * size;
      kernel.attend(a);
    });
  }

  // Brings the parts of one (token, head) together in the first one and divides by the sum.
  void combine(float* state, int64_t part_stride, int64_t parts) const {
    const int64_t rank = mla_padded(dims.rank);
    float top = state[0];
    for (int64_t p = 1; p < parts; ++p) top = std::max(top, state[p * part_stride]);
    float sum = 0;
    for (int64_t p = 0; p < parts; ++p) {
      float* part = state + p * part_stride;
      const float weight = std::exp(part[0] - top);
      sum += weight * part[1];
      for (int64_t i = kMlaStateHead; i < kMlaStateHead + rank; ++i) {
        state[i] = p == 0 ? weight * part[i] : state[i] + weight * part[i];
      }
    }
    for (int64_t i = kMlaStateHead; i < kMlaStateHead + rank; ++i) state[i] /= sum;
  }

  void project(std::span<const Run> runs, const std::vector<float*>& states) const {
    int64_t longest = 0;
    for (const Run& run : runs) longest = std::max(longest, run.tokens);
    const int64_t size = kMlaRows * (mla_padded(dims.rank) + longest);
    float* scratch = ctx.workspace->tensor({worker_count(ctx), size}).f32();
    run_tasks(ctx, dims.heads, [&](int worker, int64_t head) {
      for (size_t i = 0; i < runs.size(); ++i) {
        const Run& run = runs[i];
        for (int64_t t = 0; t < run.tokens; ++t) {
          // Segments that a token does not reach do not count: its result must not depend on later tokens.
          const int64_t parts = (run.position + t) / kSegment + 1;
          combine(states[i] + (t * dims.heads + head) * state_row, run.tokens * dims.heads * state_row, parts);
        }
        MlaProject a;
        a.dims = dims;
        a.values = weight_rows(head_weight(head), dims.nope, dims.nope + dims.value);
        a.latent = states[i] + head * state_row + kMlaStateHead;
        a.latent_stride = dims.heads * state_row;
        a.out = args.out.f32() + (run.first * dims.heads + head) * dims.value;
        a.out_stride = dims.heads * dims.value;
        a.tokens = run.tokens;
        a.scratch = scratch + worker * size;
        kernel.project(a);
      }
    });
  }
};

void run_absorbed(const Ctx& ctx, const MlaArgs& args, const MlaKernels& kernel, std::span<const size_t> sequences) {
  const Absorbed op{ctx, args, kernel};
  std::vector<Run> runs;
  int64_t floats = 0;
  const auto flush = [&] {
    if (!runs.empty()) op.step(runs);
    runs.clear();
    floats = 0;
  };
  for (const size_t s : sequences) {
    for (int64_t done = 0, length = args.offsets[s + 1] - args.offsets[s]; done < length;) {
      Run run{s, args.offsets[s] + done, args.history[s] + done, length - done};
      const int64_t per_token = op.floats_per_token(op.segments(run));
      run.tokens = std::clamp<int64_t>((kScratchFloats - floats) / per_token, 1, run.tokens);
      runs.push_back(run);
      floats += run.tokens * per_token;
      done += run.tokens;
      if (floats >= kScratchFloats / 2) flush();
    }
  }
  flush();
}

void run_expanded(const Ctx& ctx, const MlaArgs& args, const MlaKernels& kernel, std::span<const size_t> sequences) {
  const MlaDims dims = mla_dims(args);
  std::vector<Run> runs;
  int64_t longest = 0;
  for (const size_t s : sequences) {
    for (int64_t done = 0, length = args.offsets[s + 1] - args.offsets[s]; done < length;) {
      const int64_t tokens = std::min(kExpandTokens, length - done);
      runs.push_back({s, args.offsets[s] + done, args.history[s] + done, tokens});
      longest = std::max(longest, tokens);
      done += tokens;
    }
  }
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t size = mla_expand_scratch(dims, longest), rows = dims.nope + dims.value;
  float* scratch = ctx.workspace->tensor({worker_count(ctx), size}).f32();
  // Late runs see most of the cache: they go first, so that the workers end together.
  run_tasks(ctx, static_cast<int64_t>(runs.size()) * dims.heads, [&](int worker, int64_t task) {
    const Run& run = runs[runs.size() - 1 - static_cast<size_t>(task / dims.heads)];
    const int64_t head = task % dims.heads;
    MlaExpand a;
    a.dims = dims;
    a.weight = weight_rows(args.kv_b, head * rows, (head + 1) * rows);
    a.cache = args.caches[run.sequence];
    a.q = args.q.f32() + (run.first * dims.heads + head) * dims.key();
    a.q_stride = dims.heads * dims.key();
    a.out = args.out.f32() + (run.first * dims.heads + head) * dims.value;
    a.out_stride = dims.heads * dims.value;
    a.tokens = run.tokens;
    a.first_position = run.position;
    a.scratch = scratch + worker * size;
    kernel.expand(a);
  });
}

bool matrix_units(const Ctx& ctx, const MlaArgs& args) {
  return ctx.policy == Policy::bf16 && !ctx.deterministic && ctx.isa >= Isa::avx512bf16 &&
         mla_matrix_can(mla_dims(args), args.kv_b.scheme);
}

void attend(const Ctx& ctx, const MlaArgs& args) {
  check(args);
  if (args.q.size() == 0) return;
  K3_CHECK(ctx.workspace != nullptr, "mla needs a workspace");
  const bool matrix = matrix_units(ctx, args);
  const MlaExpandRate& rate = !matrix ? kMlaRowsRate : ctx.isa >= Isa::amx ? kMlaTilesRate : kMlaDotsRate;
  std::vector<size_t> absorbed, expanded;
  for (size_t s = 0; s < args.caches.size(); ++s) {
    const int64_t length = args.offsets[s + 1] - args.offsets[s];
    if (length == 0) continue;
    const bool expand =
        args.form == MlaForm::expanded || (args.form == MlaForm::automatic && !ctx.deterministic &&
                                           mla_expansion_pays(mla_dims(args), args.history[s], length, rate));
    (expand ? expanded : absorbed).push_back(s);
  }
  const MlaKernels& kernel = kernels(ctx.isa);
  if (!absorbed.empty()) run_absorbed(ctx, args, kernel, absorbed);
  if (expanded.empty()) return;
  if (matrix) {
    mla_run_matrix(ctx, args, ctx.isa >= Isa::amx ? packed_amx : packed_avx512bf16, expanded);
  } else {
    run_expanded(ctx, args, kernel, expanded);
  }
}

}  // namespace

MlaDims mla_dims(const MlaArgs& a) {
  return {a.q.dim(1), a.nope, a.rope, a.value, a.rank, 1 / std::sqrt(static_cast<float>(a.nope + a.rope))};
}

bool mla_expansion_pays(const MlaDims& d, int64_t history, int64_t length, const MlaExpandRate& rate) {
  const auto tokens = static_cast<double>(length);
  const auto cached = static_cast<double>(ceil_div(history + length, rate.strip) * rate.strip);
  const double pairs = tokens * (static_cast<double>(history) + (tokens + 1) / 2);
  const double projection = static_cast<double>(d.rank * (d.nope + d.value));
  const double absorbed = (pairs * static_cast<double>(2 * d.rank + d.rope) + tokens * projection) * (1 + rate.shared / static_cast<double>(d.heads));
  const double expanded = pairs * static_cast<double>(d.key() + d.value) + cached * projection;
  return length > 1 && expanded < absorbed * rate.speed;
}

void mla(const Ctx& ctx, const MlaArgs& args) noexcept {
  if (ctx.training) return mla_train(ctx, args);
  if (ctx.device.is_cuda()) return cuda::mla(ctx, args);
  if (args.kv) latent_append(ctx, args.kv, args.kv_norm, args.kv_eps, args.offsets, args.history, args.caches);
  attend(ctx, args);
  if (args.gate) sigmoid_gate(ctx, args.gate, args.out.reshape({args.gate.dim(0), args.gate.dim(1)}));
}

}  // namespace k3::ops
