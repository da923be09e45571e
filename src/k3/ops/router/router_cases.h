// Purpose:  shapes of the router for test and bench.
// Shapes:   tokens, experts.
// Units:    none.
// Memory:   none.
// Threads:  none.
// Errors:   none.
// Source:   model.md 1.2: 896 choose 16; 256 choose 8, scaled by 2.446.
#pragma once

#include <vector>

#include "k3/ops/router/router.h"

namespace k3::ops {

struct RouterCase {
  int64_t tokens, experts;
  RouterOptions options;
};

inline const std::vector<RouterCase> kRouterCases = {
    {0, 8, {2, true, 1.0F}},  {1, 1, {1, true, 1.0F}},   {1, 7, {7, true, 1.0F}},     {3, 17, {1, false, 2.0F}},
    {5, 33, {4, true, 0.5F}}, {9, 64, {8, false, 1.0F}}, {20, 896, {16, true, 1.0F}}, {20, 256, {8, true, 2.446F}},
};

}  // namespace k3::ops
