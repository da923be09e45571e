// Purpose:  work on a list of flat arrays in pieces of a fixed size, in parallel.
// Shapes:   counts of elements.
// Units:    none.
// Memory:   none beyond a small vector.
// Threads:  run_pieces runs the body on the pool; the borders of pieces do not depend on the pool.
// Errors:   none.
// Source:   -
#pragma once

#include <algorithm>
#include <vector>

#include "k3/ops/cpu/tasks.h"

namespace k3::ops {

inline constexpr int64_t kPieceSize = 16384;  // 64 KiB an array: many pieces a thread, and a call is nothing beside one

struct Piece {
  size_t array;
  int64_t begin, end;
  int64_t number;  // among all pieces
};

// first[i]: number of the first piece of array i; one more entry for their count.
template <class List>
std::vector<int64_t> first_pieces(const List& list) {
  std::vector<int64_t> first = {0};
  for (const auto& entry : list) first.push_back(first.back() + (entry.count + kPieceSize - 1) / kPieceSize);
  return first;
}

template <class List, class Body>  // body(Piece)
void run_pieces(const Ctx& ctx, const List& list, const std::vector<int64_t>& first, const Body& body) {
  run_tasks(ctx, first.back(), [&](int, int64_t number) {
    const auto array = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), number) - first.begin() - 1);
    const int64_t begin = (number - first[array]) * kPieceSize;
    body(Piece{array, begin, std::min(list[array].count, begin + kPieceSize), number});
  });
}

}  // namespace k3::ops
