// Purpose:  the optimizer ops on a GPU: what each op's function calls when Ctx::device is one.
// Shapes:   those of the op; every pointer is device memory.
// Units:    none.
// Memory:   scratch from the workspace, which lies on the device.
// Threads:  everything is queued on Ctx::stream.
// Errors:   a launch that fails is remembered in Ctx::gpu (OpState::first_error). Built without CUDA these functions abort: no Ctx can
//           have such a device then.
// Source:   that of the op; tolerances in its header.
#pragma once

#include "k3/ops/optim/adamw/adamw.h"
#include "k3/ops/optim/grad_norm/grad_norm.h"
#include "k3/ops/optim/muon/muon.h"
#include "k3/ops/optim/qk_clip/qk_clip.h"
#include "k3/ops/optim/quantile/quantile.h"

namespace k3::ops::cuda {

void adamw(const Ctx& ctx, std::span<const AdamwTensor<float>> tensors, const AdamwOptions& options, const float* scale) noexcept;
void muon(const Ctx& ctx, std::span<const MuonTensor<float>> tensors, const MuonOptions& options, const float* scale) noexcept;
void newton_schulz(const Ctx& ctx, const NsUnits& units, const float* in, float* out) noexcept;
void grad_norm(const Ctx& ctx, std::span<const GradTensor<float>> tensors, double max_norm, GradNorm<float>* out) noexcept;
void qk_clip(const Ctx& ctx, const QkClip<float>& args) noexcept;
void quantile_accumulate(const Ctx& ctx, const QuantileInput<float>& in, int32_t* histogram) noexcept;
void quantile_update(const Ctx& ctx, int64_t experts, int64_t topk, double rate, int32_t* histogram, float* bias) noexcept;
void expert_load(const Ctx& ctx, const int32_t* ids, int64_t tokens, int64_t topk, int64_t experts, const uint8_t* valid,
                 int32_t* load) noexcept;
void sign_balance(const Ctx& ctx, const int32_t* load, int64_t experts, double rate, float* bias) noexcept;
void mxfp4_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept;
void mxfp8_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept;

}  // namespace k3::ops::cuda
