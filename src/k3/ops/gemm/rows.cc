// Portable decoders and entry points of rows.h, the choice by instruction set, and the preparation of inputs.
#include "k3/ops/gemm/rows.h"

#include <bit>
#include <cstring>

#include "k3/ops/cpu/vec_portable.h"
#include "k3/ops/gemm/rows_kernel.h"
#include "k3/ops/int8/int8.h"
#include "k3/ops/mxfp4/mxfp4.h"
#include "k3/tensor/dtype.h"

namespace k3::ops {
namespace {

struct RowVecPortable : VecPortable {
  using Q = F;
  static constexpr int kTileTokens = 2;
  static constexpr int64_t kBlock = kBlockCols / 4;
  typedef uint32_t U __attribute__((vector_size(16)));

  static K3_VEC_INLINE Q load4(const float* p) { return load(p); }
  static K3_VEC_INLINE void store4(float* p, Q x) { store(p, x); }
  static K3_VEC_INLINE Q add4(Q a, Q b) { return a + b; }
  static K3_VEC_INLINE Q sum4(F a, F b, F c, F d) { return F{sum(a), sum(b), sum(c), sum(d)}; }

  struct Bf16 {
    using Element = uint16_t;
    static K3_VEC_INLINE F widen(const uint16_t* p) { return widen(p, kWidth); }
    static K3_VEC_INLINE F widen(const uint16_t* p, int64_t n) {
      U x{};
      for (int64_t i = 0; i < n; ++i) x[i] = static_cast<uint32_t>(p[i]) << 16;
      return reinterpret_cast<F>(x);
    }
  };
  struct F16 {
    using Element = uint16_t;
    static K3_VEC_INLINE F widen(const uint16_t* p) { return widen(p, kWidth); }
    static K3_VEC_INLINE F widen(const uint16_t* p, int64_t n) {
      F x{};
      for (int64_t i = 0; i < n; ++i) x[i] = f16_to_float(p[i]);
      return x;
    }
  };
  struct Mx {
    static constexpr int kVectors = 8;
    static constexpr bool kDense = false;
    const uint8_t* row[kTileRows];
    const uint8_t* scales[kTileRows];
    int64_t whole;  // columns of whole blocks from k0 on

    K3_VEC_INLINE void begin(const RowsJob& job, int64_t first, int64_t k0, int64_t) {
      whole = job.w.cols / kMxBlock * kMxBlock - k0;
      K3_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t o = clamp_row(job, first + r);
        row[r] = static_cast<const uint8_t*>(job.w.data) + o * (job.w.cols / 2) + k0 / 2;
        scales[r] = job.w.scales + o * (job.w.cols / 32) + k0 / 32;
      }
    }
    K3_VEC_INLINE void prefetch(const RowsJob& job, int r, int64_t k) const { prefetch_ahead(row[r] + k / 2, job); }
    K3_VEC_INLINE void load(int r, int64_t k, F* w) const {
      constexpr float kCodes[16] = {0.0F, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
      const uint32_t s = scales[r][k / 32];
      const F factor = set(std::bit_cast<float>(s == 0 ? 0x400000U : s << 23));  // byte 0 is the subnormal 2^-127
      const uint8_t* p = row[r] + k / 2;
      if (k < whole) {
        const int64_t g = k % kMxBlock / 32;
        const int shift = g % 2 == 0 ? 0 : 4;
        p = row[r] + k / kMxBlock * (kMxBlock / 2) + g / 2;  // byte of word 0
        K3_UNROLL
        for (int v = 0; v < 4; ++v, p += 16) {
          const auto code = [&](int word) { return kCodes[p[2 * word] >> shift & 15]; };
          w[v] = F{code(0), code(2), code(4), code(6)} * factor;
          w[v + 4] = F{code(1), code(3), code(5), code(7)} * factor;
        }
        return;
      }
      K3_UNROLL
      for (int v = 0; v < 4; ++v, p += 4) {
        w[v] = F{kCodes[p[0] & 15], kCodes[p[1] & 15], kCodes[p[2] & 15], kCodes[p[3] & 15]} * factor;
        w[v + 4] = F{kCodes[p[0] >> 4], kCodes[p[1] >> 4], kCodes[p[2] >> 4], kCodes[p[3] >> 4]} * factor;
      }
    }
  };
  // A step is a group of 32.
  struct I8 : I8Rows {
    static constexpr int kVectors = 8;

    K3_VEC_INLINE void load(int r, int64_t k, F* w) const {
      const F factor = set(int8_factor(scales[r][k / kInt8Group]));
      const int8_t* p = row[r] + k;
      K3_UNROLL
      for (int v = 0; v < 8; ++v, p += 4) {
        const F q = {static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
        w[v] = q * factor;
      }
    }
  };
};

}  // namespace

void rows_portable(const RowsJob& job) noexcept { rows_any<RowVecPortable>(job); }
void cols_portable(const ColsJob& job) noexcept { cols_any<RowVecPortable>(job); }

RowsFn rows_fn(Isa isa) {
  if (isa >= Isa::avx512) return rows_avx512;
  return isa == Isa::avx2 ? rows_avx2 : rows_portable;
}

ColsFn cols_fn(Isa isa) {
  if (isa >= Isa::avx512) return cols_avx512;
  return isa == Isa::avx2 ? cols_avx2 : cols_portable;
}

void prepare_row(const float* x, int64_t count, bool round_to_bf16, bool deinterleave, float* out) noexcept {
  if (!deinterleave) {
    if (!round_to_bf16) {
      std::memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
      return;
    }
    for (int64_t i = 0; i < count; ++i) out[i] = k3::round_to_bf16(x[i]);
    return;
  }
  for (int64_t g = 0; g < count; g += 32) {
    for (int64_t i = 0; i < 16; ++i) {
      const float even = x[g + 2 * i], odd = x[g + 2 * i + 1];
      out[g + i] = round_to_bf16 ? k3::round_to_bf16(even) : even;
      out[g + 16 + i] = round_to_bf16 ? k3::round_to_bf16(odd) : odd;
    }
  }
}

}  // namespace k3::ops
