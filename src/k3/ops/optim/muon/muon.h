// Purpose:  one Muon step over a list of matrices: momentum, orthogonalisation of each unit by Newton-Schulz, decay, update.
// Shapes:   a tensor holds `count` units of [rows, cols], unit i from element i * stride on; weight, momentum, grad and bf16 alike.
//           Whole matrix: one unit. Per head: H units of [Dk, cols]. kv_b: keys and values of each head are units of their own: 2 H
//           of [Dk, cols] where Dk = Dv, else two tensors of H units with stride (Dk + Dv) * cols. Experts: E units.
// Units:    lr and decay as factors: the weight shrinks by lr * decay a step.
// Memory:   weight, momentum and bf16 (when given) are overwritten; momentum starts at zero. On a GPU every pointer is device memory.
//           Workspace: CPU: five padded units a thread of the largest shape; GPU: four BF16 iterates of a group of shapes (at most 1.1 GB).
// Threads:  parallel over units inside (over rows of a unit where there are few and large ones); results depend neither on the
//           thread count nor on the other units. On a GPU shapes are grouped (muon_groups.h), and the list as a whole decides which
//           algorithms cuBLASLt takes: the same list gives the same bits.
// Errors:   K3_CHECK on shapes. `scale` multiplies the gradient (GradNorm::scale); a NaN there means that the gradient is not
//           finite: nothing changes then. An all-zero unit gets a zero update.
// Source:   training.md 2.1, 2.2. With g the scaled gradient: M = mu M + g; U = g + mu M (Nesterov; else U = M); O = NS5(U);
//             w = w (1 - lr decay) - lr * 0.2 sqrt(max(rows, cols)) * O
//           NS5: X = U / (||U||_F + 1e-7), transposed first if rows > cols; five times A = X X^T, B = c2 A + c3 A^2,
//           X = c1 X + B X with c = (3.4445, -4.7750, 2.0315). muon_ref is the same in double: oracle, and optimizer of runs in
//           double.
//           FP32 on the CPU against ref: O within 1e-4 in norm ratio (each of the five steps multiplies relative errors of small
//           singular values by up to 3.4445, 3.4445^5 = 485, times roundings of 6e-8 and sums of up to 8,192 terms).
//           BF16 on a GPU: 2e-2 (training.md 14.3) from 24 rows on (of the shorter side); below that 1e-1, because one near-zero
//           singular value, which is all rounding error after five steps, is a large share of a small block.
#pragma once

#include <cstdint>
#include <span>

#include "k3/ops/ctx.h"

namespace k3::ops {

struct NsUnits {
  int64_t count = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one unit to the next; rows * cols when they lie side by side
};

inline constexpr double kNsCoefficients[3] = {3.4445, -4.7750, 2.0315};
inline constexpr double kNsEps = 1e-7;
inline constexpr int kNsSteps = 5;

template <class T>  // float or double
struct MuonTensor {
  T* weight = nullptr;
  T* momentum = nullptr;
  const T* grad = nullptr;
  uint16_t* bf16 = nullptr;  // the new weight rounded to BF16, for computing; may be null
  NsUnits units;
  double lr = 0;
  double decay = 0;
};

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
};

// 0.2 sqrt(max(rows, cols)): an orthogonal block of that shape then has the RMS 0.2 of an AdamW update.
double muon_update_scale(const NsUnits& units) noexcept;

void muon(const Ctx& ctx, std::span<const MuonTensor<float>> tensors, const MuonOptions& options = {},
          const float* scale = nullptr) noexcept;
void muon_ref(std::span<const MuonTensor<double>> tensors, const MuonOptions& options = {}, const double* scale = nullptr) noexcept;

// Each unit of `in` orthogonalised into the same place of `out` (may be `in`).
void newton_schulz(const Ctx& ctx, const NsUnits& units, const float* in, float* out) noexcept;
void newton_schulz_ref(const NsUnits& units, const double* in, double* out) noexcept;

}  // namespace k3::ops
