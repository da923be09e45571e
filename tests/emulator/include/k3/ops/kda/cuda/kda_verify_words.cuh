// Internal to tests/emulator. Stands in front of src/k3/ops/kda/cuda/kda_verify_words.cuh.
#pragma once

#include "k3/ops/kda/cuda/kda_prefill_words.cuh"

namespace k3::ops::cuda {

inline float tf32_nearest(float x) { return std::bit_cast<float>(tf32(x)); }
template <class T>
T* hold(T* p) {
  return p;
}

}  // namespace k3::ops::cuda
