// Purpose:  one element of a weight in any scheme, for references and tests.
// Shapes:   scalar.
// Units:    MXFP4 scale byte s means 2^(s-127), that of i8 2^(s-133).
// Memory:   none.
// Threads:  pure function.
// Errors:   none; indices are the caller's.
// Source:   model.md 2.5. Exact.
#pragma once

#include <cmath>

#include "k3/ops/int8/int8.h"
#include "k3/ops/mxfp4/mxfp4.h"
#include "k3/ops/weight.h"
#include "k3/tensor/dtype.h"

namespace k3::ops {

inline float weight_value(const Weight& w, int64_t row, int64_t col) {
  const int64_t index = row * w.cols + col;
  switch (w.scheme) {
    case Scheme::f64: return static_cast<float>(static_cast<const double*>(w.data)[index]);
    case Scheme::f32: return static_cast<const float*>(w.data)[index];
    case Scheme::bf16: return bf16_to_float(static_cast<const uint16_t*>(w.data)[index]);
    case Scheme::f16: return f16_to_float(static_cast<const uint16_t*>(w.data)[index]);
    case Scheme::mxfp4: {
      const uint8_t* packed = static_cast<const uint8_t*>(w.data) + row * (w.cols / 2);
      return std::ldexp(mxfp4_value(mxfp4_code(packed, w.cols, col)), w.scales[index / kMxGroup] - 127);
    }
    case Scheme::i8:
      return int8_factor(w.scales[index / kInt8Group]) * static_cast<float>(static_cast<const int8_t*>(w.data)[index]);
  }
  return 0;
}

}  // namespace k3::ops
