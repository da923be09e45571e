// Purpose:  shapes of linear used by its test and bench, and random weights in every scheme.
// Shapes:   tokens, in, out.
// Units:    none.
// Memory:   OwnedWeight owns the bytes that its view refers to.
// Threads:  none.
// Errors:   none.
// Source:   model.md 2.2 (K3's real widths), tails around the kernel's tiles (4 rows, 6 tokens, 16 lanes, blocks of
//           64 rows and 1,024 columns).
#pragma once

#include <cstring>
#include <vector>

#include "k3/ops/mxfp4/mxfp4.h"
#include "k3/ops/test_util.h"
#include "k3/ops/weight.h"
#include "k3/tensor/dtype.h"

namespace k3::ops {

struct LinearCase {
  int64_t tokens, in, out;
};

inline const std::vector<LinearCase> kLinearCases = {
    {1, 1, 1},     {1, 32, 1},    {2, 31, 3},    {3, 33, 5},     {4, 64, 4},      {5, 17, 7},
    {6, 96, 65},   {7, 160, 66},  {8, 1023, 9},  {13, 1025, 67}, {12, 1056, 130}, {19, 2080, 131},
    {1, 3072, 64}, {2, 3584, 33}, {3, 7168, 18}, {1, 7168, 97},  {17, 7168, 6},   {1, 12288, 5},
    {1, 33792, 3}, {64, 128, 96}, {33, 512, 70}, {25, 1536, 40}, {500, 64, 12},
};

inline const std::vector<Scheme> kSchemes = {Scheme::f32, Scheme::bf16, Scheme::f16, Scheme::mxfp4, Scheme::i8};

struct OwnedWeight {
  std::vector<uint8_t> data, scales;
  Scheme scheme = Scheme::f32;
  int64_t rows = 0, cols = 0;
  Weight view() const { return {data.data(), scales.empty() ? nullptr : scales.data(), scheme, rows, cols}; }
};

// Normal values of deviation 0.05; mxfp4 and i8: random codes, scale bytes 118..124 (as in the released checkpoint, wider).
inline OwnedWeight random_weight(Scheme scheme, int64_t rows, int64_t cols, uint64_t seed) {
  OwnedWeight w{.data = std::vector<uint8_t>(static_cast<size_t>(scheme_row_bytes(scheme, cols) * rows)),
                .scales = {},
                .scheme = scheme,
                .rows = rows,
                .cols = cols};
  if (scheme_has_scales(scheme)) {
    const Rng rng(seed, 5);
    for (size_t i = 0; i < w.data.size(); ++i) w.data[i] = static_cast<uint8_t>(rng.bits(i));
    w.scales.resize(static_cast<size_t>(rows * cols / kMxGroup));
    for (size_t i = 0; i < w.scales.size(); ++i) w.scales[i] = static_cast<uint8_t>(118 + rng.bits(i + w.data.size()) % 7);
    return w;
  }
  const std::vector<float> values = random_normal(rows * cols, seed, 0.05F);
  const DType dtype = scheme == Scheme::f32 ? DType::f32 : scheme == Scheme::bf16 ? DType::bf16 : DType::f16;
  convert_from_float(values.data(), dtype, rows * cols, w.data.data());
  return w;
}

}  // namespace k3::ops
