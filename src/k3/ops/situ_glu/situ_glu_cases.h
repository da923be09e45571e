// Purpose:  shapes and kinds of the gated activations for test and bench.
// Shapes:   tokens, width.
// Units:    none.
// Memory:   none.
// Threads:  none.
// Errors:   none.
// Source:   lane tails, parts of 1,024, and K3's widths.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/ops/situ_glu/situ_glu.h"

namespace k3::ops {

struct GluCase {
  int64_t tokens, width;
};

inline const std::vector<GluCase> kGluCases = {{0, 4},  {1, 1},    {1, 5},    {2, 15},   {3, 16},   {2, 17},
                                               {1, 33}, {2, 1023}, {3, 1025}, {1, 3072}, {2, 6144}, {1, 33792}};

inline const std::vector<Glu> kGluKinds = {{GluKind::silu, 1.0F, {}}, {GluKind::situ, 4.0F, 25.0F},
                                           {GluKind::situ, 4.0F, {}}, {GluKind::situ, 1.0F, 3.0F},
                                           {GluKind::situ, 2.5F, {}}, {GluKind::situ, -4.0F, -3.0F}};

}  // namespace k3::ops
