#include "k3/format/tokenizer/bpe.h"

#include <algorithm>
#include <functional>

namespace k3 {
namespace {

// Longest piece that is merged by scanning; beyond, n^2 / 4 steps cost more than the heap (tokenizer_bench).
constexpr size_t kScanBytes = 512;

using Vec = uint32_t __attribute__((vector_size(16)));
constexpr size_t kLanes = 4;
constexpr uint32_t kPositionBits = 12;  // a rank takes the other 20
static_assert(kScanBytes <= size_t{1} << kPositionBits && kMaxVocab <= 1 << (32 - kPositionBits));

uint32_t lowest(const Vec* values, size_t count) {
  Vec best = values[0];
  for (size_t i = 1; i < count; ++i) best = values[i] < best ? values[i] : best;
  return std::min(std::min(best[0], best[1]), std::min(best[2], best[3]));
}

uint8_t byte_at(std::string_view piece, size_t i) { return static_cast<uint8_t>(piece[i]); }

}  // namespace

// A part is named by the position of its first byte; next and prev link the parts. pair[i] is the rank of part i
// joined with the part after it, and the position below the rank makes the lowest value the leftmost of its rank.
void merge_scan(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out) {
  const size_t n = piece.size();
  K3_DCHECK(n <= kScanBytes);
  alignas(Vec) uint32_t pair[kScanBytes + kLanes];
  uint32_t token[kScanBytes];
  uint16_t next[kScanBytes + 1], prev[kScanBytes + 1];
  const size_t vectors = (n + kLanes - 1) / kLanes;

  const auto packed = [](uint32_t rank, size_t i) {
    return rank == kNoRank ? kNoRank : rank << kPositionBits | static_cast<uint32_t>(i);
  };
  for (size_t i = 0; i < n; ++i) {
    token[i] = ranks.byte_rank(byte_at(piece, i));
    pair[i] = i + 1 < n ? packed(ranks.two_byte_rank(byte_at(piece, i), byte_at(piece, i + 1)), i) : kNoRank;
    next[i] = static_cast<uint16_t>(i + 1);
    prev[i + 1] = static_cast<uint16_t>(i);
  }
  for (size_t i = n; i < vectors * kLanes; ++i) pair[i] = kNoRank;

  for (;;) {
    const uint32_t best = lowest(reinterpret_cast<const Vec*>(pair), vectors);
    if (best == kNoRank) break;
    const size_t i = best & ((1U << kPositionBits) - 1);
    const size_t gone = next[i], end = next[gone];
    token[i] = best >> kPositionBits;
    pair[gone] = kNoRank;
    next[i] = static_cast<uint16_t>(end);
    prev[end] = static_cast<uint16_t>(i);
    pair[i] = end < n ? packed(ranks.find(piece.data() + i, next[end] - i), i) : kNoRank;
    if (i > 0) {
      const size_t before = prev[i];
      pair[before] = packed(ranks.find(piece.data() + before, end - before), before);
    }
  }
  for (size_t i = 0; i < n; i = next[i]) out.push_back(static_cast<int32_t>(token[i]));
}

void merge_heap(const RankTable& ranks, std::string_view piece, std::vector<int32_t>& out) {
  const auto n = static_cast<uint32_t>(piece.size());
  struct Part {
    uint32_t next, prev, pair, token;
  };
  thread_local std::vector<Part> parts;
  thread_local std::vector<uint64_t> heap;  // rank << 32 | position: by rank, then leftmost
  parts.resize(n + 1);
  heap.clear();
  for (uint32_t i = 0; i <= n; ++i) parts[i] = {i + 1, i - 1, kNoRank, kNoRank};
  for (uint32_t i = 0; i < n; ++i) {
    parts[i].token = ranks.byte_rank(byte_at(piece, i));
    if (i + 1 < n) parts[i].pair = ranks.two_byte_rank(byte_at(piece, i), byte_at(piece, i + 1));
    if (parts[i].pair != kNoRank) heap.push_back(uint64_t{parts[i].pair} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  const auto refresh = [&](uint32_t i, uint32_t end) {
    const uint32_t rank = ranks.find(piece.data() + i, end - i);
    parts[i].pair = rank;
    if (rank == kNoRank) return;
    heap.push_back(uint64_t{rank} << 32 | i);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const auto i = static_cast<uint32_t>(heap.front());
    const auto rank = static_cast<uint32_t>(heap.front() >> 32);
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    Part& part = parts[i];
    if (part.pair != rank) continue;  // the pair has changed since; equal ranks mean equal bytes: then it is current
    const uint32_t end = parts[part.next].next;
    parts[part.next].pair = kNoRank;
    parts[end].prev = i;
    part.next = end;
    part.token = rank;
    part.pair = kNoRank;
    if (end < n) refresh(i, parts[end].next);
    if (i > 0) refresh(part.prev, end);
  }
  for (uint32_t i = 0; i < n; i = parts[i].next) out.push_back(static_cast<int32_t>(parts[i].token));
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
