// Purpose:  byte-pair merge of one piece of text: the lowest rank first, the leftmost on ties.
// Shapes:   none.
// Units:    bytes.
// Memory:   appends to out; scratch is per thread and kept.
// Threads:  may be called concurrently.
// Errors:   none; every byte has a rank (RankTable checks).
// Source:   model.md 5.2. A piece that is a token is that token, even where merging would not reach it.
//           Pieces up to 512 bytes scan for the lowest rank, O(n^2) with a tiny constant; longer ones use a heap,
//           O(n log n).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "k3/format/tokenizer/rank_table.h"

namespace k3 {

void encode_piece(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out);

// The two ways, for tests: the piece is not looked up whole.
void merge_scan(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out);
void merge_heap(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out);

}  // namespace k3
