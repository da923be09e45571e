// Purpose:  bytes of a stored or moved value, block scales included (the b_* of the cost model).
// Shapes:   none.
// Units:    bytes for each value.
// Memory:   plain values.
// Threads:  immutable by use.
// Errors:   none here; validate.h refuses what is not positive.
// Source:   cost-model.md 1, 6.4, 13.
#pragma once

namespace k3::plan {

inline constexpr double kMxfp4Bytes = 0.53125, kMxfp8Bytes = 1.03125, kBf16Bytes = 2, kFp32Bytes = 4, kFp8Bytes = 1;

struct Precision {
  double state = kFp32Bytes;           // b_s, recurrent KDA state
  double conv = kBf16Bytes;            // b_v, convolution window
  double cache = kBf16Bytes;           // b_c, MLA latents
  double activation = kBf16Bytes;      // b_a
  double routed_weight = kMxfp4Bytes;  // b_x; used by idealised counts, the table knows its own
  double weight = kBf16Bytes;          // b_w; likewise
  double dispatch = kMxfp8Bytes;       // tokens sent to experts
  double combine = kBf16Bytes;         // and back
  bool routed_fp8 = true;              // W4A8 experts where the hardware has it (Hardware::w4a8); false: W4A16 everywhere
};

}  // namespace k3::plan
