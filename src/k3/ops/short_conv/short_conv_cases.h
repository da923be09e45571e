// Purpose:  shapes of the short_conv tests.
// Shapes:   short_conv.h.
// Units:    none.
// Memory:   none.
// Threads:  none.
// Errors:   none.
// Source:   model.md 3.3: 36,864 channels (q, k, v of 96 x 128) and 4 taps in K3.
#pragma once

#include <cstdint>
#include <vector>

namespace k3::ops {

struct ConvCase {
  int64_t channels = 64;
  int64_t taps = 4;
  std::vector<int64_t> lengths = {5};
};

inline const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> kCases = {
      {64, 4, {0, 1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 0}},
      {1, 4, {7}},
      {5, 1, {3, 1}},
      {17, 2, {1, 1, 9}},
      {33, 3, {2, 1, 9}},
      {257, 4, {1, 2, 6}},
      {515, 8, {3, 20}},
      {36864, 4, {2, 1}},
  };
  return kCases;
}

}  // namespace k3::ops
