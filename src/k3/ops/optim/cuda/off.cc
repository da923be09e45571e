// Without CUDA: no Ctx has a GPU, and nothing calls these.
#include "k3/ops/optim/cuda/optim_dispatch.h"

namespace k3::ops::cuda {
namespace {
[[noreturn]] void never() { check_failed(__FILE__, __LINE__, "no CUDA", "an op on a GPU in a program built without CUDA"); }
}  // namespace

void adamw(const Ctx&, std::span<const AdamwTensor<float>>, const AdamwOptions&, const float*) noexcept { never(); }
void muon(const Ctx&, std::span<const MuonTensor<float>>, const MuonOptions&, const float*) noexcept { never(); }
void newton_schulz(const Ctx&, const NsUnits&, const float*, float*) noexcept { never(); }
void grad_norm(const Ctx&, std::span<const GradTensor<float>>, double, GradNorm<float>*) noexcept { never(); }
void qk_clip(const Ctx&, const QkClip<float>&) noexcept { never(); }
void quantile_accumulate(const Ctx&, const QuantileInput<float>&, int32_t*) noexcept { never(); }
void quantile_update(const Ctx&, int64_t, int64_t, double, int32_t*, float*) noexcept { never(); }
void expert_load(const Ctx&, const int32_t*, int64_t, int64_t, int64_t, const uint8_t*, int32_t*) noexcept { never(); }
void sign_balance(const Ctx&, const int32_t*, int64_t, double, float*) noexcept { never(); }
void mxfp4_fake_quant(const Ctx&, const Tensor&, const Tensor&) noexcept { never(); }
void mxfp8_fake_quant(const Ctx&, const Tensor&, const Tensor&) noexcept { never(); }

}  // namespace k3::ops::cuda
