// Purpose:  shapes of the norms for test and bench.
// Shapes:   tokens, [heads,] width.
// Units:    none.
// Memory:   none.
// Threads:  none.
// Errors:   none.
// Source:   tails around 4 x 16 lanes, no tokens, and K3's widths (hidden, latents, head).
#pragma once

#include <cstdint>
#include <vector>

namespace k3::ops {

struct RmsNormCase {
  int64_t tokens, width;
};

inline const std::vector<RmsNormCase> kRmsNormCases = {{0, 8},    {1, 1},    {1, 3},    {2, 15},  {3, 16},  {2, 17},
                                                       {1, 63},   {5, 64},   {2, 65},   {3, 79},  {2, 127}, {4, 512},
                                                       {2, 1536}, {2, 2304}, {3, 3584}, {5, 7168}};

struct GatedCase {
  int64_t tokens, heads, width;
};

inline const std::vector<GatedCase> kGatedCases = {{0, 2, 8},  {1, 1, 1},  {1, 3, 5},   {2, 2, 16},
                                                   {3, 4, 33}, {1, 7, 70}, {3, 96, 128}};

}  // namespace k3::ops
