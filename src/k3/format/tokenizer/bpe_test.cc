// Byte-pair merge against the definition, and the cuts against a plain walk.
#include "k3/format/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include "k3/base/file.h"
#include "k3/base/rng.h"
#include "k3/base/utf8.h"
#include "k3/format/tokenizer/chunks.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

RankTable load(const std::string& folder) {
  const std::string path = K3_SOURCE_DIR + folder + "/tiktoken.model";
  return RankTable::parse(read_file(path).value(), path).value();
}
const RankTable& released() {
  static const RankTable ranks = load("/tests/data/tokenizer");
  return ranks;
}
const RankTable& mini() {
  static const RankTable ranks = load("/models/k3-mini");
  return ranks;
}

// The definition: join the adjacent pair of the lowest rank, the leftmost on ties, until none is a token.
Ids merge_by_definition(const RankTable& ranks, const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    uint32_t best = kNoRank;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::string joined = parts[i] + parts[i + 1];
      if (const uint32_t rank = ranks.find(joined.data(), joined.size()); rank < best) {
        best = rank;
        at = i;
      }
    }
    if (best == kNoRank) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(static_cast<int32_t>(ranks.find(part.data(), part.size())));
  return ids;
}

std::string random_piece(const Rng& rng, uint64_t stream, size_t max_bytes) {
  const auto draw = [&](uint64_t i, uint32_t limit) { return rng.bits(stream << 20 | i) % limit; };
  const size_t size = 1 + draw(0, static_cast<uint32_t>(max_bytes));
  const uint32_t kind = draw(1, 5);
  std::string piece;
  for (uint64_t i = 2; piece.size() < size; ++i) {
    switch (kind) {
      case 0: piece += static_cast<char>(draw(i, 256)); break;
      case 1: piece += "etaoin shrdlu"[draw(i, 13)]; break;
      case 2: piece += "ab"[draw(i, 2)]; break;
      case 3: append_utf8(piece, 0x4E00 + draw(i, 0x5000)); break;
      default: piece += released().bytes(draw(i, 160000)); break;  // tokens in a row
    }
  }
  piece.resize(size);
  return piece;
}

TEST(Bpe, BothWaysFollowTheDefinition) {
  const Rng rng(3, 0);
  for (const RankTable* ranks : {&released(), &mini()}) {
    for (uint64_t round = 0; round < 1500; ++round) {
      const std::string piece = random_piece(rng, round, round % 10 == 0 ? 512 : 40);
      const Ids expected = merge_by_definition(*ranks, piece);
      Ids scan, heap, whole;
      merge_scan(*ranks, piece, scan);
      merge_heap(*ranks, piece, heap);
      ASSERT_EQ(scan, expected) << round;
      ASSERT_EQ(heap, expected) << round;
      encode_piece(*ranks, piece, whole);
      const uint32_t rank = ranks->find(piece.data(), piece.size());
      ASSERT_EQ(whole, rank == kNoRank ? expected : Ids{static_cast<int32_t>(rank)});
    }
  }
}

TEST(Bpe, LongPiecesAgreeWithShortOnesInCycles) {
  // Far beyond the scan's limit: the ids of a repeated unit that merges with nothing around it repeat.
  std::string piece;
  for (int i = 0; i < 8000; ++i) piece += "\u6f22";
  Ids ids, unit;
  encode_piece(released(), piece, ids);
  encode_piece(released(), "\u6f22", unit);
  ASSERT_EQ(ids.size(), 8000 * unit.size());
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], unit[i % unit.size()]);
}

// A piece that is a token stays whole although merging cannot reach it.
TEST(Bpe, WholePieceBeforeMerging) {
  std::string text;
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    text += {digits[byte >> 2], digits[(byte & 3) << 4], '=', '=', ' '};
    text += std::to_string(b) + "\n";
  }
  const RankTable ranks = RankTable::parse(text + "YWJj 256\n", "test").value();  // abc, without ab or bc
  Ids ids;
  encode_piece(ranks, "abc", ids);
  encode_piece(ranks, "abcd", ids);
  EXPECT_EQ(ids, (Ids{256, 'a', 'b', 'c', 'd'}));
}

TEST(RankTable, FindsEveryTokenAndNothingElse) {
  for (const RankTable* ranks : {&released(), &mini()}) {
    for (int32_t rank = 0; rank < ranks->size(); ++rank) {
      const std::string_view token = ranks->bytes(static_cast<uint32_t>(rank));
      ASSERT_EQ(ranks->find(token.data(), token.size()), static_cast<uint32_t>(rank));
    }
    const std::string long_text(ranks->max_token_bytes() + 1, 'a');
    EXPECT_EQ(ranks->find(long_text.data(), long_text.size()), kNoRank);
    EXPECT_EQ(ranks->find("\xFF\xFE\xFD\xFC\xFB", 5), kNoRank);
  }
}

std::vector<size_t> plain_cuts(std::string_view text, ChunkLimits limits) {
  std::vector<size_t> ends;
  size_t slice = 0, run = 0, pos = 0;
  bool space = false;
  while (pos < text.size()) {
    const size_t begin = pos;
    const uint32_t c = next_code_point(text, &pos);
    const bool this_space = c == ' ' || c == 0x1C || c == 0x85 || c == 0x2003 || c == 0x3000 || c == '\n';  // of those drawn
    if (slice == limits.slice_chars) {
      ends.push_back(begin);
      slice = run = 0;
    } else if (run > 0 && this_space != space) {
      run = 0;
    } else if (run == limits.run_chars) {
      ends.push_back(begin);
      run = 0;
    }
    space = this_space;
    ++slice;
    ++run;
  }
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

TEST(Chunks, AgreeWithAPlainWalk) {
  constexpr uint32_t kAlphabet[] = {'a',    'b',    ' ',    '\n',   0x1C,   0x85,   0xE9,
                                    0x180E, 0x200B, 0x2003, 0x3000, 0x4E00, 0xAC00, 0x1F642};
  for (uint64_t round = 0; round < 4000; ++round) {
    const Rng rng(4, round);
    const ChunkLimits limits{1 + rng.bits(0) % 60, 1 + rng.bits(1) % 12};
    const uint32_t change = 1 + rng.bits(2) % 8;  // characters of a kind in a row, on average
    std::string text;
    uint32_t c = 'a';
    for (uint64_t i = 3; i < 3 + rng.bits(3) % 200; ++i) {
      if (rng.bits(2 * i + 1) % change == 0) c = kAlphabet[rng.bits(2 * i) % std::size(kAlphabet)];
      append_utf8(text, c);
    }
    std::vector<size_t> ends;
    split_chunks(text, ends, limits);
    ASSERT_EQ(ends, plain_cuts(text, limits)) << round;
  }
}

}  // namespace
}  // namespace k3
