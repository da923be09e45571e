// Purpose:  which kernel serves a decode, verify or commit call; pure functions, tested without a GPU.
// Shapes:   pairs = requests * heads.
// Units:    none.
// Memory:   none.
// Threads:  any.
// Errors:   none.
// Source:   measured on an H200 (kda_decode_gpu_bench.cc, kda_verify_gpu_bench.cc).
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

// Rows of V over `split` blocks of a cluster, `warps` a block. bulk: the state passes through shared memory by bulk copies.
struct KdaDecodeConfig {
  int split = 1, warps = 8;
  bool bulk = false;
  bool operator==(const KdaDecodeConfig&) const = default;
};

// form: 0 automatic, else 1 2 3 4: split 1 2 4 8; 5 6: bulk with 4 or 8 warps.
inline KdaDecodeConfig kda_decode_config(int64_t pairs, bool state_bf16, int form, int sm_count) {
  if (form >= 1 && form <= 4) return {.split = 1 << (form - 1), .warps = form == 1 ? 8 : 4, .bulk = false};
  if (form >= 5) return {.split = 1, .warps = form == 5 ? 4 : 8, .bulk = true};
  if (3 * pairs <= sm_count) return {.split = 4, .warps = 4, .bulk = false};
  if (pairs <= sm_count) return {.split = 1, .warps = 8, .bulk = false};
  const bool one_wave = pairs <= 3 * sm_count;
  return {.split = 1, .warps = state_bf16 && !one_wave ? 4 : 8, .bulk = true};
}

// Over how many blocks of a cluster the rows of V are split; form: 0 automatic, else 1 2 3: 1 2 4.
inline int kda_verify_split(int64_t pairs, int form, int sm_count) {
  if (form >= 1 && form < 10) return 1 << (form - 1);
  return 4 * pairs <= sm_count ? 4 : 1;
}

}  // namespace k3::ops::cuda
