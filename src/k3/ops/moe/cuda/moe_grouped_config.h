// Purpose:  the width of the grouped products' tiles: rows of one expert that are multiplied at once.
// Shapes:   a kernel for each width; an expert's rows become tiles of at most that many.
// Units:    rows.
// Memory:   none; pure functions.
// Threads:  any.
// Errors:   none.
// Source:   kernels.md 7. The routing is not known on the host, so rows are taken to be as random routing makes them. A tile
//           takes as long as its width, whatever its rows, and more: BF16 at least what its weights and rows take to pass
//           through shared memory (512 + 5 w clocks for 8 w of products, a step), MXFP4 about 64 rows for decoding.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

inline constexpr int kMoeGroupedWidthsBf16[] = {32, 64, 80, 96, 112, 128, 144, 160, 168};
inline constexpr int kMoeGroupedWidthsMxfp4[] = {16, 32, 48, 64, 80, 96, 112, 128};
inline constexpr int kMoeGroupedLeastRows = 16;

inline std::span<const int> moe_grouped_widths(MoeWeights kind) {
  return kind == MoeWeights::bf16 ? std::span<const int>(kMoeGroupedWidthsBf16) : std::span<const int>(kMoeGroupedWidthsMxfp4);
}

// rows: of an expert, on average.
inline int moe_grouped_width(MoeWeights kind, double rows) {
  const auto time = [kind](int w) { return kind == MoeWeights::bf16 ? std::max<double>(w, 64 + 0.625 * w) : 64.0 + w; };
  const double spread = std::sqrt(2 * std::max(rows, 1.0));
  int width = 0;
  double lowest = 0;
  for (const int w : moe_grouped_widths(kind)) {
    // Tiles of an expert: one, and one more for each multiple of the width that its rows exceed.
    const int certain = std::max(0, static_cast<int>((rows - 4 * spread) / w));
    double tiles = 1 + certain;
    for (int k = certain + 1; k * w < rows + 4 * spread; ++k) tiles += 0.5 * std::erfc((k * w + 0.5 - rows) / spread);
    const double cost = tiles * time(w);
    if (width == 0 || cost < lowest) width = w, lowest = cost;
  }
  return width;
}

}  // namespace k3::ops::cuda
