// Purpose:  the ranks of tiktoken.model: bytes of a rank, and rank of bytes through one open-addressing hash.
// Shapes:   ranks 0 .. size() - 1, each with 1 to max_token_bytes() bytes.
// Units:    bytes.
// Memory:   owns one arena of all token bytes, a span per rank, a hash of 16 bytes a slot (at most half full), a bit
//           filter in front of it (most lookups of a merge find nothing) and a table of all two-byte tokens.
// Threads:  immutable after parse; any number of readers.
// Errors:   parse: corrupt naming source and line (malformed line, rank out of order of 0 .. N-1 or repeated, bytes
//           repeated, one of the 256 single bytes missing), exhausted for more ranks than ids.
// Source:   model.md 5.1.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

inline constexpr int32_t kMaxVocab = 1 << 20;  // ids of all kinds
inline constexpr uint32_t kNoRank = 0xFFFFFFFFU;

class RankTable {
 public:
  static Result<RankTable> parse(std::string_view text, std::string_view source);

  int32_t size() const { return static_cast<int32_t>(spans_.size()); }
  size_t max_token_bytes() const { return max_token_bytes_; }
  std::string_view bytes(uint32_t rank) const { return {arena_.data() + spans_[rank].offset, spans_[rank].length}; }
  uint32_t byte_rank(uint8_t byte) const { return byte_ranks_[byte]; }
  uint32_t two_byte_rank(uint8_t first, uint8_t second) const { return two_byte_ranks_[size_t{first} << 8 | second]; }

  // kNoRank when the bytes are no token.
  uint32_t find(const char* data, size_t size) const {
    if (size > max_token_bytes_) return kNoRank;
    const Key key = make_key(data, size);
    if ((filter_[key.filter_word(filter_mask_)] >> (key.hash & 63) & 1) == 0) return kNoRank;
    for (size_t i = key.slot() & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.rank == kNoRank) return kNoRank;
      if (slot.word == key.word && slot.size == size &&
          (size <= 8 || std::memcmp(arena_.data() + spans_[slot.rank].offset, data, size) == 0)) {
        return slot.rank;
      }
    }
  }

  // Starts the memory access that find() will wait for.
  void prefetch(const char* data, size_t size) const { __builtin_prefetch(&slots_[make_key(data, size).slot() & mask_]); }

 private:
  struct Span {
    uint32_t offset, length;
  };
  struct Slot {
    uint64_t word = 0;
    uint32_t rank = kNoRank;
    uint32_t size = 0;
  };
  // Up to 8 bytes `word` and the size name the bytes exactly; beyond, `word` is the hash.
  struct Key {
    uint64_t word, hash;
    size_t slot() const { return static_cast<size_t>(hash >> 32); }
    size_t filter_word(size_t mask) const { return static_cast<size_t>(hash >> 6) & mask; }
  };

  static uint64_t load8(const char* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
  }
  static uint64_t load4(const char* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
  }
  static uint64_t mix(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  // Multiply-and-fold of two words; sizes up to 16 bytes, nearly all tokens, take overlapping loads and no loop.
  static Key make_key(const char* p, size_t n) {
    constexpr uint64_t k0 = 0x9E3779B97F4A7C15U, k1 = 0xD1B54A32D192ED03U;
    if (n <= 8) {
      uint64_t a = 0;
      if (n >= 4) {
        a = load4(p) | load4(p + n - 4) << 32;
      } else if (n != 0) {
        a = static_cast<uint8_t>(p[0]) | uint64_t{static_cast<uint8_t>(p[n / 2])} << 8 |
            uint64_t{static_cast<uint8_t>(p[n - 1])} << 16;
      }
      return {a, mix(a ^ k0, k1 ^ n)};
    }
    uint64_t state = n;
    for (; n > 16; p += 16, n -= 16) state = mix(load8(p) ^ k0 ^ state, load8(p + 8) ^ k1);
    const uint64_t hash = n < 8 ? mix(load_tail(p, n) ^ k0 ^ state, k1) : mix(load8(p) ^ k0 ^ state, load8(p + n - 8) ^ k1);
    return {hash, hash};
  }
  static uint64_t load_tail(const char* p, size_t n) {
    uint64_t v = 0;
    std::memcpy(&v, p, n);
    return v;
  }

  Status insert_all(const std::vector<uint32_t>& lines, std::string_view source);

  std::string arena_;
  std::vector<Span> spans_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> filter_;
  std::vector<uint32_t> two_byte_ranks_;
  size_t mask_ = 0, filter_mask_ = 0;
  size_t max_token_bytes_ = 0;
  std::array<uint32_t, 256> byte_ranks_{};
};

}  // namespace k3
