// Muon on a GPU: tensors of a group of shapes go through Newton-Schulz together, as many at a time as a launch lists and memory allows.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "k3/ops/cuda/op_state.h"
#include "k3/ops/optim/cuda/muon_groups.h"
#include "k3/ops/optim/cuda/ns_products.h"
#include "k3/ops/optim/cuda/optim_args.h"
#include "k3/ops/optim/cuda/optim_dispatch.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kMostUnits = 32768;                     // a grid's second dimension has 65,535
constexpr int64_t kMostNumbers = int64_t{1} << 27;        // of one iterate: 256 MiB

int64_t pad8(int64_t n) { return (n + 7) / 8 * 8; }

// What `tensors` says, through momentum, five steps and the update.
void run_launch(const Ctx& ctx, MuonLaunch& a) {
  const Workspace::Scope scope(*ctx.workspace);
  Workspace& memory = *ctx.workspace;
  const int64_t units = a.units, r = a.r, c = a.c;
  a.squares = static_cast<double*>(memory.bytes(units * muon_parts(a.longest) * 8));
  void* x = memory.bytes(units * r * c * 2);
  void* y = memory.bytes(units * r * c * 2);
  NsStep step{.units = units, .r = r, .c = c};
  step.a = memory.bytes(units * r * r * 2);
  step.b = memory.bytes(units * r * r * 2);
  step.workspace = memory.bytes(kNsWorkspace);
  step.c1 = static_cast<float>(kNsCoefficients[0]);
  step.c2 = static_cast<float>(kNsCoefficients[1]);
  step.c3 = static_cast<float>(kNsCoefficients[2]);
  a.x = x;
  ctx.gpu->note(CudaStatus{muon_momentum_launch(a, ctx.stream)}, "muon: momentum");
  ctx.gpu->note(CudaStatus{muon_gather_launch(a, ctx.stream)}, "muon: iterate");
  for (int i = 0; i < kNsSteps; ++i) {
    step.x = x;
    step.y = y;
    ctx.gpu->note(ns_step_cuda(step, ctx.stream), "newton_schulz");
    std::swap(x, y);
  }
  a.x = x;
  ctx.gpu->note(CudaStatus{muon_update_launch(a, ctx.stream)}, "muon: update");
}

void begin(MuonLaunch* a, const MuonShape& group, const MuonOptions& options, const float* scale) {
  *a = {};
  a->r = static_cast<int32_t>(group.r);
  a->c = static_cast<int32_t>(group.c);
  a->mu = static_cast<float>(options.momentum);
  a->nesterov = options.nesterov;
  a->scale = scale;
}

MuonShape shape_of(const NsUnits& u) { return {pad8(std::min(u.rows, u.cols)), pad8(std::max(u.rows, u.cols)), u.count}; }

// `list`: tensors of one group.
void run_group(const Ctx& ctx, const std::vector<const MuonTensor<float>*>& list, const MuonShape& group, const MuonOptions& options,
               const float* scale) {
  MuonLaunch a;
  begin(&a, group, options, scale);
  const int64_t most = std::clamp<int64_t>(kMostNumbers / (group.r * group.c), 1, kMostUnits);
  const auto flush = [&] {
    if (a.units > 0) run_launch(ctx, a);
    begin(&a, group, options, scale);
  };
  for (const MuonTensor<float>* t : list) {
    const NsUnits& u = t->units;
    for (int64_t first = 0; first < u.count;) {
      if (a.count == kMuonList || a.units >= most) flush();
      const int64_t units = std::min(u.count - first, most - a.units), at = first * u.stride;
      a.tensors[a.count++] = {t->weight + at,
                              t->momentum == nullptr ? nullptr : t->momentum + at,
                              t->grad + at,
                              t->bf16 == nullptr ? nullptr : t->bf16 + at,
                              u.stride,
                              a.units,
                              static_cast<int32_t>(u.rows),
                              static_cast<int32_t>(u.cols),
                              static_cast<float>(1 - t->lr * t->decay),
                              static_cast<float>(t->lr * muon_update_scale(u))};
      a.longest = std::max(a.longest, static_cast<int32_t>(u.rows * u.cols));
      a.units += static_cast<int32_t>(units);
      first += units;
    }
  }
  flush();
}

}  // namespace

void muon(const Ctx& ctx, std::span<const MuonTensor<float>> tensors, const MuonOptions& options, const float* scale) noexcept {
  // Shapes first: there are a few of them, whatever the number of tensors.
  std::map<std::pair<int64_t, int64_t>, size_t> number;
  std::vector<MuonShape> shapes;
  std::vector<std::vector<const MuonTensor<float>*>> of_shape;
  for (const MuonTensor<float>& t : tensors) {
    K3_CHECK(t.units.rows > 0 && t.units.cols > 0 && t.units.rows * t.units.cols < int64_t{1} << 31 &&
                 (t.units.count <= 1 || t.units.stride >= t.units.rows * t.units.cols),
             "muon: {} units of [{}, {}], {} apart", t.units.count, t.units.rows, t.units.cols, t.units.stride);
    if (t.units.count == 0) continue;
    const MuonShape shape = shape_of(t.units);
    const auto [at, fresh] = number.try_emplace({shape.r, shape.c}, shapes.size());
    if (fresh) {
      shapes.push_back({shape.r, shape.c, 0});
      of_shape.emplace_back();
    }
    shapes[at->second].units += t.units.count;
    of_shape[at->second].push_back(&t);
  }
  const MuonGroups groups = muon_groups(shapes);
  for (size_t g = 0; g < groups.groups.size(); ++g) {
    std::vector<const MuonTensor<float>*> list;
    for (size_t s = 0; s < shapes.size(); ++s) {
      if (groups.group_of[s] == g) list.insert(list.end(), of_shape[s].begin(), of_shape[s].end());
    }
    run_group(ctx, list, groups.groups[g], options, scale);
  }
}

void newton_schulz(const Ctx& ctx, const NsUnits& units, const float* in, float* out) noexcept {
  if (units.count == 0) return;
  const MuonTensor<float> tensor{.weight = out, .grad = in, .units = units};
  run_group(ctx, {&tensor}, shape_of(units), {}, nullptr);
}

}  // namespace k3::ops::cuda
