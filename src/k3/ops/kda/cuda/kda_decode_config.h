// Purpose:  which kernel serves a decode call; a pure function, tested without a GPU.
// Shapes:   pairs = requests * heads.
// Units:    none.
// Memory:   none.
// Threads:  any.
// Errors:   none.
// Source:   measured on an H200 (kda_decode_gpu_bench.cc).
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

// Rows of V over `split` blocks of a cluster, `warps` a block. bulk: the state passes through shared memory by bulk copies.
struct KdaDecodeConfig {
  int split = 1, warps = 8;
  bool bulk = false;
  bool operator==(const KdaDecodeConfig&) const = default;
};

// form: 0 automatic, else 1: in registers, 2: in registers over a cluster of 4, 3 4: bulk with 4 or 8 warps.
inline KdaDecodeConfig kda_decode_config(int64_t pairs, bool state_bf16, int form, int sm_count) {
  constexpr KdaDecodeConfig kForms[4] = {{1, 8, false}, {4, 4, false}, {1, 4, true}, {1, 8, true}};
  if (form >= 1) return kForms[form - 1];
  if (3 * pairs <= sm_count) return kForms[1];
  const int64_t waves = pairs / sm_count;
  // FP32: two blocks in registers or three in shared memory; what leaves the smaller last wave.
  if (pairs <= sm_count || (!state_bf16 && waves >= 3 && waves < 8)) return kForms[0];
  return state_bf16 && waves >= 3 ? kForms[2] : kForms[3];
}

}  // namespace k3::ops::cuda
