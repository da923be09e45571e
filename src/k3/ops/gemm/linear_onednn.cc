#include "k3/ops/gemm/linear_onednn.h"
namespace k3::ops {
bool linear_onednn_wins(Isa, Scheme, int64_t) { return false; }
bool linear_onednn_built() { return false; }
void linear_onednn(const Ctx&, const Tensor&, const Weight&, const Tensor&) noexcept {}
}  // namespace k3::ops
