// Purpose:  shapes of the optimizer tests and benches: flat sizes, Newton-Schulz units, routers; and the units of a small model.
// Shapes:   muon.h, quantile.h.
// Units:    none.
// Memory:   none.
// Threads:  none.
// Errors:   none.
// Source:   training.md 2.2; tails on every side of the vector widths.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/ops/optim/muon/muon.h"

namespace k3::ops {

inline std::vector<int64_t> flat_cases() { return {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 100, 1000, 16383, 16384, 16385, 50001}; }

inline std::vector<NsUnits> ns_cases() {
  std::vector<NsUnits> cases;
  const auto add = [&](int64_t count, int64_t rows, int64_t cols, int64_t gap = 0) {
    cases.push_back({count, rows, cols, rows * cols + gap});
  };
  for (const int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 33, 48, 49, 63, 65}) add(1, n, n);
  add(3, 1, 40);
  add(3, 40, 1);
  add(4, 32, 96);     // heads of a small model
  add(4, 96, 32);     // tall
  add(2, 24, 100);
  add(2, 100, 24);
  add(3, 17, 33, 5);  // apart
  add(3, 33, 17, 100);
  add(16, 64, 48);
  add(1, 130, 70);
  add(2, 128, 128);
  add(1, 96, 384);
  add(1, 384, 96);
  add(0, 8, 8);
  return cases;
}

// Muon's units of a model of two million parameters: width 128, eight layers, 16 experts.
inline std::vector<NsUnits> nano_units() {
  std::vector<NsUnits> units;
  const auto add = [&](int64_t layers, int64_t count, int64_t rows, int64_t cols) {
    for (int64_t l = 0; l < layers; ++l) units.push_back({count, rows, cols, rows * cols});
  };
  add(4 * 6, 4, 32, 128);  // q, k, v, g of six KDA layers
  add(6, 1, 32, 128);      // decay, down
  add(6, 4, 32, 32);       // decay, up
  add(8, 1, 128, 128);     // o
  add(2, 1, 64, 128);      // MLA: q down, q up, kv down, kv up, gate
  add(2, 4, 48, 64);
  add(2, 1, 80, 128);
  add(2, 8, 32, 64);
  add(2, 4, 32, 128);
  add(2, 1, 384, 128);     // dense MLP
  add(1, 1, 128, 384);
  add(14, 1, 64, 128);     // latent projections, shared experts (half of them tall)
  add(14, 1, 128, 64);
  add(7, 1, 16, 128);      // router
  add(3 * 7, 16, 32, 64);  // experts
  return units;
}

}  // namespace k3::ops
