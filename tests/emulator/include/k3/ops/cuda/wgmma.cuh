// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/wgmma.cuh.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

void ask_for_product(int width, float* d, const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate, bool trans_a,
                     bool trans_b);

template <int N>
struct Wgmma {
  template <int kTransA = 0, int kTransB = 0>
  static void ss(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
    ask_for_product(N, d, nullptr, a, b, accumulate, kTransA != 0, kTransB != 0);
  }
  template <int kTransB = 0>
  static void rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    ask_for_product(N, d, a, 0, b, accumulate, false, kTransB != 0);
  }
};

}  // namespace k3::ops::cuda
