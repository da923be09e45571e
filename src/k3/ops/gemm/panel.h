// Purpose:  the kernels that linear and moe choose from, and how much scratch does for any of them.
// Shapes:   none.
// Units:    bytes.
// Memory:   a panel is private to a worker of a call, 64-byte aligned.
// Threads:  none.
// Errors:   none.
// Source:   rows.h, dots.h, tiles.h, int8_dots.h.
#pragma once

#include <algorithm>

#include "k3/ops/gemm/dots.h"
#include "k3/ops/gemm/int8_dots.h"
#include "k3/ops/gemm/rows.h"
#include "k3/ops/gemm/tiles.h"

namespace k3::ops {

inline constexpr int64_t kPanelBytes = std::max<int64_t>(
    {kPanelFloats * int64_t{4}, kDotsPanelElements* int64_t{2}, kTilesPanelElements* int64_t{2}, kInt8PanelBytes});

}  // namespace k3::ops
