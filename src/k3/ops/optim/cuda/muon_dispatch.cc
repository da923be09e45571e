// Muon on a GPU: tensors of one shape go through Newton-Schulz together, as many at a time as a launch lists and memory allows.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "k3/ops/cuda/op_state.h"
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
  a.squares = static_cast<double*>(memory.bytes(units * muon_parts(a.rows, a.cols) * 8));
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

void begin(MuonLaunch* a, const NsUnits& shape, const MuonOptions& options, const float* scale) {
  *a = {};
  a->rows = static_cast<int32_t>(shape.rows);
  a->cols = static_cast<int32_t>(shape.cols);
  a->r = static_cast<int32_t>(pad8(std::min(shape.rows, shape.cols)));
  a->c = static_cast<int32_t>(pad8(std::max(shape.rows, shape.cols)));
  a->mu = static_cast<float>(options.momentum);
  a->nesterov = options.nesterov;
  a->scale = scale;
}

// `list`: tensors of one shape.
void run_shape(const Ctx& ctx, const std::vector<const MuonTensor<float>*>& list, const MuonOptions& options, const float* scale) {
  MuonLaunch a;
  const NsUnits& shape = list[0]->units;
  begin(&a, shape, options, scale);
  const int64_t most = std::clamp<int64_t>(kMostNumbers / (static_cast<int64_t>(a.r) * a.c), 1, kMostUnits);
  const auto flush = [&] {
    if (a.units > 0) run_launch(ctx, a);
    begin(&a, shape, options, scale);
  };
  for (const MuonTensor<float>* t : list) {
    for (int64_t first = 0; first < t->units.count;) {
      if (a.count == kMuonList || a.units >= most) flush();
      const int64_t units = std::min(t->units.count - first, most - a.units), at = first * t->units.stride;
      a.tensors[a.count++] = {t->weight + at,
                              t->momentum == nullptr ? nullptr : t->momentum + at,
                              t->grad + at,
                              t->bf16 == nullptr ? nullptr : t->bf16 + at,
                              t->units.stride,
                              a.units,
                              static_cast<float>(1 - t->lr * t->decay),
                              static_cast<float>(t->lr * muon_update_scale(t->units))};
      a.units += static_cast<int32_t>(units);
      first += units;
    }
  }
  flush();
}

}  // namespace

void muon(const Ctx& ctx, std::span<const MuonTensor<float>> tensors, const MuonOptions& options, const float* scale) noexcept {
  std::map<std::pair<int64_t, int64_t>, std::vector<const MuonTensor<float>*>> shapes;
  for (const MuonTensor<float>& t : tensors) {
    K3_CHECK(t.units.rows > 0 && t.units.cols > 0 && (t.units.count <= 1 || t.units.stride >= t.units.rows * t.units.cols),
             "muon: {} units of [{}, {}], {} apart", t.units.count, t.units.rows, t.units.cols, t.units.stride);
    if (t.units.count > 0) shapes[{t.units.rows, t.units.cols}].push_back(&t);
  }
  for (const auto& [shape, list] : shapes) run_shape(ctx, list, options, scale);
}

void newton_schulz(const Ctx& ctx, const NsUnits& units, const float* in, float* out) noexcept {
  if (units.count == 0) return;
  const MuonTensor<float> tensor{.weight = out, .grad = in, .units = units};
  run_shape(ctx, {&tensor}, {}, nullptr);
}

}  // namespace k3::ops::cuda
