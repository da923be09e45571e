#include "k3/ops/kda/kda_train.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/kda/train/kda_train_kernel.h"

namespace k3::ops {
namespace {

constexpr int64_t kMostWidth = 256;
// Sequences of a task of the vjp, at least so many tokens where there are more: each task has its own sums.
constexpr int64_t kTaskTokens = 256;

const KdaTrainKernels& kernels(Isa isa) {
  if (isa >= Isa::avx512) return kKdaTrainAvx512;
  return isa == Isa::avx2 ? kKdaTrainAvx2 : kKdaTrainPortable;
}

struct Sizes {
  int64_t tokens, heads, dim, taps, sequences;
  explicit Sizes(const KdaTrainArgs& a)
      : tokens(a.b.dim(0)), heads(a.b.dim(1)), dim(a.norm.dim(0)), taps(a.taps[0].dim(1)),
        sequences(static_cast<int64_t>(a.offsets.size()) - 1) {}
};

void check_tensor(const Tensor& t, DType dtype, std::initializer_list<int64_t> dims, const char* name) {
  K3_CHECK(t.dtype == dtype && t.contiguous() && t.rank == static_cast<int>(dims.size()) &&
               std::equal(dims.begin(), dims.end(), t.dims.begin()),
           "kda_train: {} is {} {}", name, dtype_name(t.dtype), t.shape_text());
}

// What the CPU and a GPU want of dtypes.
struct Types {
  DType activation, parameter, beta;
  explicit Types(const KdaTrainArgs& a) : activation(a.q_in.dtype), parameter(activation), beta(activation) {
    if (activation != DType::bf16) return;
    parameter = DType::f32;
    beta = a.b.dtype == DType::f32 ? DType::f32 : DType::bf16;
  }
};

void check(const KdaTrainArgs& a) {
  K3_CHECK(a.b.rank == 2 && a.norm.rank == 1 && a.taps[0].rank == 2 && !a.offsets.empty(), "kda_train: arguments missing");
  const Sizes n(a);
  const Types type(a);
  K3_CHECK(n.dim >= 1 && n.dim <= kMostWidth && n.taps >= 1 && n.taps <= kTrainMaxTaps, "kda_train: {} wide, {} taps", n.dim, n.taps);
  const int64_t width = n.heads * n.dim;
  check_tensor(a.q_in, type.activation, {n.tokens, width}, "q_in");
  check_tensor(a.k_in, type.activation, {n.tokens, width}, "k_in");
  check_tensor(a.v_in, type.activation, {n.tokens, width}, "v_in");
  check_tensor(a.z, type.activation, {n.tokens, width}, "z");
  check_tensor(a.gate, type.activation, {n.tokens, width}, "gate");
  check_tensor(a.b, type.beta, {n.tokens, n.heads}, "b");
  for (const Tensor& taps : a.taps) check_tensor(taps, type.parameter, {width, n.taps}, "taps");
  check_tensor(a.a_log, type.parameter, {n.heads}, "a_log");
  check_tensor(a.dt_bias, type.parameter, {width}, "dt_bias");
  check_tensor(a.norm, type.parameter, {n.dim}, "norm");
  K3_CHECK(a.offsets.front() == 0 && a.offsets.back() == n.tokens && std::is_sorted(a.offsets.begin(), a.offsets.end()),
           "kda_train: offsets");
  K3_CHECK(!a.lower_bound || *a.lower_bound < 0, "kda_train: lower bound {}", a.lower_bound.value_or(0));
  for (const Tensor* state : {&a.initial, &a.final}) {
    if (*state) check_tensor(*state, type.parameter, {n.sequences, n.heads, n.dim, n.dim}, "state");
  }
}

void check(const KdaTrainArgs& a, const Tensor& dy, const KdaTrainGrads& g) {
  check(a);
  const Sizes n(a);
  const Types type(a);
  const int64_t width = n.heads * n.dim;
  for (const Tensor* t : {&dy, &g.dq_in, &g.dk_in, &g.dv_in, &g.dz, &g.dgate}) {
    check_tensor(*t, type.activation, {n.tokens, width}, "a gradient");
  }
  check_tensor(g.db, type.beta, {n.tokens, n.heads}, "db");
  for (const Tensor& taps : g.dtaps) check_tensor(taps, type.parameter, {width, n.taps}, "dtaps");
  check_tensor(g.da_log, type.parameter, {n.heads}, "da_log");
  check_tensor(g.ddt_bias, type.parameter, {width}, "ddt_bias");
  check_tensor(g.dnorm, type.parameter, {n.dim}, "dnorm");
  for (const Tensor* state : {&g.d_initial, &g.d_final}) {
    if (*state) check_tensor(*state, type.parameter, {n.sequences, n.heads, n.dim, n.dim}, "gradient of a state");
  }
}

float* part_of(const Tensor& state, const Sizes& n, int64_t sequence, int64_t head) {
  return state ? state.f32() + (sequence * n.heads + head) * n.dim * n.dim : nullptr;
}

KdaTrainRun run_of(const KdaTrainArgs& a, const Sizes& n, int64_t sequence, int64_t head, const Tensor& kept, float* scratch) {
  KdaTrainRun run;
  const int64_t first = a.offsets[static_cast<size_t>(sequence)], channel = head * n.dim, at = first * n.heads * n.dim + channel;
  const Tensor* inputs[3] = {&a.q_in, &a.k_in, &a.v_in};
  for (int part = 0; part < 3; ++part) {
    run.in[part] = inputs[part]->f32() + at;
    run.taps[part] = a.taps[part].f32() + channel * n.taps;
  }
  run.z = a.z.f32() + at;
  run.gate = a.gate.f32() + at;
  run.b = a.b.f32() + first * n.heads + head;
  run.dt_bias = a.dt_bias.f32() + channel;
  run.norm = a.norm.f32();
  run.a = std::exp(a.a_log.f32()[head]);
  run.bounded = a.lower_bound.has_value();
  run.lower_bound = a.lower_bound.value_or(0);
  run.eps = a.eps;
  run.scale = 1 / std::sqrt(static_cast<float>(n.dim));
  run.tokens = a.offsets[static_cast<size_t>(sequence) + 1] - first;
  run.dim = n.dim;
  run.taps_count = n.taps;
  run.row_stride = n.heads * n.dim;
  run.heads = n.heads;
  run.initial = part_of(a.initial, n, sequence, head);
  if (kept) {
    const int64_t state = kept.dim(2) * kept.dim(3);
    run.kept = kept.f32() + (kda_train_row(first, sequence, 0) * n.heads + head) * state;
    run.kept_stride = n.heads * state;
  }
  run.scratch = scratch;
  return run;
}

// First sequences of the tasks, and the end: runs of sequences of at least kTaskTokens tokens.
std::vector<int64_t> tasks_of(const KdaTrainArgs& a, const Sizes& n) {
  std::vector<int64_t> tasks{0};
  for (int64_t s = 1; s < n.sequences; ++s) {
    const auto at = [&](int64_t i) { return a.offsets[static_cast<size_t>(i)]; };
    if (at(s) - at(tasks.back()) >= kTaskTokens) tasks.push_back(s);
  }
  tasks.push_back(n.sequences);
  return tasks;
}

// Adds the sums of all tasks of one head, in the order of tasks, in double.
void add_sums(const KdaTrainGrads& g, const Sizes& n, const float* sums, int64_t tasks, int64_t head) {
  const int64_t padded = kda_train_padded(n.dim), rows = kda_train_sum_rows(n.taps);
  const auto total = [&](int64_t row, int64_t j) {
    double sum = 0;
    for (int64_t i = 0; i < tasks; ++i) sum += static_cast<double>(sums[((i * n.heads + head) * rows + row) * padded + j]);
    return sum;
  };
  const auto add = [](float& to, double x) { to = static_cast<float>(static_cast<double>(to) + x); };
  double decay = 0;
  for (int64_t j = 0; j < n.dim; ++j) {
    decay += total(kTrainSumDecay, j);
    add(g.ddt_bias.f32()[head * n.dim + j], total(kTrainSumBias, j));
    add(g.dnorm.f32()[j], total(kTrainSumNorm, j));
    for (int64_t part = 0; part < 3; ++part) {
      for (int64_t tap = 0; tap < n.taps; ++tap) {
        add(g.dtaps[part].f32()[(head * n.dim + j) * n.taps + tap], total(kTrainSumTaps + part * n.taps + tap, j));
      }
    }
  }
  add(g.da_log.f32()[head], decay);
}

}  // namespace

Status kda_train_supported(const Ctx& ctx, int64_t heads, int64_t dim, int64_t taps) {
  if (heads < 1 || dim < 1 || dim > kMostWidth || taps < 1 || taps > kTrainMaxTaps) {
    return fail(Code::unsupported, "KDA with {} heads of {} and {} taps cannot be trained: heads may be 1 to {} wide with 1 to {} taps",
                heads, dim, taps, kMostWidth, kTrainMaxTaps);
  }
  return ctx.device.is_cuda() ? cuda::kda_train_supported(heads, dim, taps) : Status();
}

void kda_train_forward(const Ctx& ctx, const KdaTrainArgs& args, const Tensor& y, KdaTrainSaved* saved) noexcept {
  check(args);
  const Sizes n(args);
  check_tensor(y, args.q_in.dtype, {n.tokens, n.heads * n.dim}, "y");
  if (ctx.device.is_cuda()) return cuda::kda_train_forward(ctx, args, y, saved);
  if (args.q_in.dtype == DType::f64) return kda_train_forward_ref(args, y);
  K3_CHECK(args.q_in.dtype == DType::f32, "kda_train: activations of dtype {} on the CPU", dtype_name(args.q_in.dtype));
  const int64_t padded = kda_train_padded(n.dim), scratch_floats = kda_train_scratch_floats(n.dim);
  Tensor kept;
  if (saved != nullptr) kept = saved->states = ctx.workspace->tensor({kda_train_rows(n.tokens, n.sequences), n.heads, padded, padded});
  const Workspace::Scope scope(*ctx.workspace);
  float* scratch = ctx.workspace->tensor({worker_count(ctx), scratch_floats}).f32();
  run_tasks(ctx, n.sequences * n.heads, [&](int worker, int64_t task) {
    const int64_t sequence = task / n.heads, head = task % n.heads;
    KdaTrainRun run = run_of(args, n, sequence, head, kept, scratch + worker * scratch_floats);
    run.y = y.f32() + args.offsets[static_cast<size_t>(sequence)] * run.row_stride + head * n.dim;
    run.final = part_of(args.final, n, sequence, head);
    kernels(ctx.isa).forward(run);
  });
}

void kda_train_vjp(const Ctx& ctx, const KdaTrainArgs& args, const KdaTrainSaved& saved, const Tensor& dy,
                   const KdaTrainGrads& grads) noexcept {
  check(args, dy, grads);
  if (ctx.device.is_cuda()) return cuda::kda_train_vjp(ctx, args, saved, dy, grads);
  if (args.q_in.dtype == DType::f64) return kda_train_vjp_ref(args, dy, grads);
  K3_CHECK(args.q_in.dtype == DType::f32, "kda_train: activations of dtype {} on the CPU", dtype_name(args.q_in.dtype));
  const Sizes n(args);
  K3_CHECK(saved.states || n.tokens == 0, "kda_train: the forward kept nothing");
  const int64_t scratch_floats = kda_train_scratch_floats(n.dim), sum_floats = kda_train_sum_rows(n.taps) * kda_train_padded(n.dim);
  const std::vector<int64_t> first = tasks_of(args, n);
  const auto tasks = static_cast<int64_t>(first.size()) - 1;
  const Workspace::Scope scope(*ctx.workspace);
  float* scratch = ctx.workspace->tensor({worker_count(ctx), scratch_floats}).f32();
  float* sums = ctx.workspace->tensor({tasks * n.heads, sum_floats}).f32();
  std::fill_n(sums, tasks * n.heads * sum_floats, 0.0F);
  const Tensor* d_in[3] = {&grads.dq_in, &grads.dk_in, &grads.dv_in};
  run_tasks(ctx, tasks * n.heads, [&](int worker, int64_t task) {
    const int64_t head = task % n.heads;
    for (int64_t s = first[static_cast<size_t>(task / n.heads)]; s < first[static_cast<size_t>(task / n.heads) + 1]; ++s) {
      KdaTrainRun run = run_of(args, n, s, head, saved.states, scratch + worker * scratch_floats);
      const int64_t at = args.offsets[static_cast<size_t>(s)] * run.row_stride + head * n.dim;
      run.dy = dy.f32() + at;
      for (int part = 0; part < 3; ++part) run.d_in[part] = d_in[part]->f32() + at;
      run.dz = grads.dz.f32() + at;
      run.dgate = grads.dgate.f32() + at;
      run.db = grads.db.f32() + args.offsets[static_cast<size_t>(s)] * n.heads + head;
      run.d_final = part_of(grads.d_final, n, s, head);
      run.d_initial = part_of(grads.d_initial, n, s, head);
      run.sums = sums + task * sum_floats;
      kernels(ctx.isa).vjp(run);
    }
  });
  for (int64_t h = 0; h < n.heads; ++h) add_sums(grads, n, sums, tasks, h);
}

}  // namespace k3::ops
