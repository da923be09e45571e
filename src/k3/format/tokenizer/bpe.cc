#include "k3/format/tokenizer/bpe.h"

#include <algorithm>
#include <functional>

namespace k3 {
namespace {

// Where the scan's n^2 begins to cost more than the heap (tokenizer_bench).
constexpr size_t kScanBytes = 128;

struct Part {
  uint32_t start;
  uint32_t pair;  // rank of this part joined with the next one
};

uint32_t span_rank(const RankTable& ranks, std::string_view piece, size_t begin, size_t end) {
  return ranks.find(piece.data() + begin, end - begin);
}

}  // namespace

void merge_scan(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out) {
  thread_local std::vector<Part> parts;
  parts.resize(piece.size() + 1);
  size_t count = piece.size();  // parts; parts[count] is the end
  for (size_t i = 0; i < count; ++i) {
    parts[i] = {static_cast<uint32_t>(i), i + 1 < count ? span_rank(ranks, piece, i, i + 2) : kNoRank};
  }
  parts[count] = {static_cast<uint32_t>(count), kNoRank};

  const auto pair_rank = [&](size_t i) {
    return i + 1 < count ? span_rank(ranks, piece, parts[i].start, parts[i + 2].start) : kNoRank;
  };
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (parts[i].pair < parts[best].pair) best = i;
    }
    if (parts[best].pair == kNoRank) break;
    std::copy(parts.begin() + static_cast<ptrdiff_t>(best) + 2, parts.begin() + static_cast<ptrdiff_t>(count) + 1,
              parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    --count;
    parts[best].pair = pair_rank(best);
    if (best > 0) parts[best - 1].pair = pair_rank(best - 1);
  }
  for (size_t i = 0; i < count; ++i) {
    out.push_back(static_cast<int32_t>(span_rank(ranks, piece, parts[i].start, parts[i + 1].start)));
  }
}

void merge_heap(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out) {
  const auto n = static_cast<uint32_t>(piece.size());
  // A part is named by its first byte; next[] and prev[] link the parts, pair[] is as in the scan.
  thread_local std::vector<uint32_t> next, prev, pair;
  thread_local std::vector<uint64_t> heap;  // rank << 32 | start: the order is by rank, then leftmost
  next.resize(n + 1);
  prev.resize(n + 1);
  pair.assign(n + 1, kNoRank);
  heap.clear();
  next[n] = n;
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    prev[i + 1] = i;
    if (i + 1 < n) pair[i] = span_rank(ranks, piece, i, i + 2);
    if (pair[i] != kNoRank) heap.push_back(uint64_t{pair[i]} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  const auto refresh = [&](uint32_t i) {
    pair[i] = next[i] < n ? span_rank(ranks, piece, i, next[next[i]]) : kNoRank;
    if (pair[i] != kNoRank) {
      heap.push_back(uint64_t{pair[i]} << 32 | i);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  while (!heap.empty()) {
    const auto i = static_cast<uint32_t>(heap.front());
    const auto rank = static_cast<uint32_t>(heap.front() >> 32);
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (pair[i] != rank) continue;  // the pair has changed since; equal ranks mean equal bytes, so this one is current
    const uint32_t gone = next[i];
    pair[gone] = kNoRank;
    next[i] = next[gone];
    prev[next[i]] = i;
    refresh(i);
    if (i > 0) refresh(prev[i]);
  }
  for (uint32_t i = 0; i < n; i = next[i]) {
    out.push_back(static_cast<int32_t>(span_rank(ranks, piece, i, next[i])));
  }
}

void encode_piece(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out) {
  if (piece.empty()) return;
  if (const uint32_t rank = ranks.find(piece.data(), piece.size()); rank != kNoRank) {
    out.push_back(static_cast<int32_t>(rank));
  } else if (piece.size() <= kScanBytes) {
    merge_scan(ranks, piece, out);
  } else {
    merge_heap(ranks, piece, out);
  }
}

}  // namespace k3
