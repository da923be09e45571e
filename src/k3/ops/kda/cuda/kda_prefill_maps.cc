#include "k3/ops/kda/cuda/kda_prefill_maps.h"

#include "k3/ops/cuda/tensor_map.h"

namespace k3::ops::cuda {

int kda_prefill_encode(const K3KdaPrefill& a, PrefillMaps& maps) {
  const auto rows = [&](CUtensorMap& map, const void* base, int64_t stride) {
    return encode_map(&map, {.base = base, .sizes = {a.heads * 128, a.tokens}, .strides = {1, stride}, .box = {64, 16}});
  };
  int code = rows(maps.z, a.z, a.z_stride);
  if (code == 0) code = rows(maps.q, a.q, a.q_stride);
  if (code == 0) code = rows(maps.k, a.k, a.k_stride);
  if (code == 0) code = rows(maps.v, a.v, a.v_stride);
  return code;
}

}  // namespace k3::ops::cuda
