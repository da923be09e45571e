// Purpose:  causal depthwise convolution over tokens followed by SiLU, with carried inputs.
// Shapes:   x [T, C] f32 (rows may be strided), the packed rows of B sequences; taps [C, K] f32, the last tap
//           multiplies the current token; offsets [B + 1]; tail [K - 1, C] of each sequence, oldest first;
//           y [T, C] f32 contiguous.
// Units:    none.
// Memory:   y is overwritten (may be x when contiguous); each tail is read, then replaced by the last K - 1
//           inputs. With a BF16 tail every input is first rounded to BF16, so that a token sees the same
//           neighbours whether they came in this call or an earlier one.
// Threads:  parallel over channels inside.
// Errors:   K3_CHECK on shapes. Empty sequences leave their tail as it is.
// Source:   model.md 3.3; no bias. Tolerance against ref: 2e-6 relative to sum |tap * x| (FP32).
#pragma once

#include <span>

#include "k3/ops/ctx.h"

namespace k3::ops {

struct ConvTail {
  void* data = nullptr;
  DType dtype = DType::f32;  // f32 or bf16
};

void short_conv(const Ctx& ctx, const Tensor& x, const Tensor& taps, std::span<const int64_t> offsets,
                std::span<const ConvTail> tails, const Tensor& y) noexcept;
void short_conv_ref(const Tensor& x, const Tensor& taps, std::span<const int64_t> offsets, std::span<const ConvTail> tails,
                    const Tensor& y) noexcept;

}  // namespace k3::ops
