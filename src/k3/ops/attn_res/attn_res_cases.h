// Purpose:  shapes of the attn_res tests.
// Shapes:   attn_res.h.
// Units:    none.
// Memory:   none.
// Threads:  none.
// Errors:   none.
// Source:   model.md 3.1: 0 to 8 banked blocks of 7,168 numbers in K3; 9 is one more.
#pragma once

#include <cstdint>
#include <vector>

namespace k3::ops {

struct AttnResCase {
  int64_t blocks = 1, tokens = 1, hidden = 64;
  float query_scale = 1;
  float row_scale = 1;
};

inline std::vector<AttnResCase> attn_res_cases() {
  std::vector<AttnResCase> cases;
  for (int64_t blocks = 0; blocks <= 9; ++blocks) cases.push_back({blocks, 3, 128});
  for (const int64_t hidden : {1, 7, 16, 33, 100, 257, 2304, 7168}) cases.push_back({4, 2, hidden});
  for (const int64_t tokens : {0, 1, 8, 9, 65}) cases.push_back({3, tokens, 64});
  cases.push_back({8, 2, 7168, 0.02F});
  cases.push_back({8, 2, 7168, 0});        // plain mean
  cases.push_back({8, 4, 128, 1, 1e-3F});  // epsilon matters
  cases.push_back({2, 4, 128, 50});        // one-hot weights
  return cases;
}

}  // namespace k3::ops
