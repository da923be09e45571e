// Internal to train/data. The bytes of a shard: a fixed header, then ids, document borders, byte counts and the loss mask.
//
//   0   magic "k3tokens"                    48  payload hash: XXH3-64 of all bytes from 64 on
//   8   u32 version 1                       56  header hash: XXH3-64 of bytes 0 .. 55
//   12  u32 bytes of an id: 2 or 4          64  ids [tokens], zeros up to a multiple of 8
//   16  u64 tokens                          ..  u64 ends [documents]: position after each document's last token
//   24  u64 documents                       ..  u64 text bytes [documents]
//   32  u64 vocabulary: ids are below it    ..  mask, when bit 0 of the flags is set: bit i % 8 of byte i / 8 is token i's;
//   40  u32 flags, 44 u32 zero                  zeros up to a multiple of 8
//
// Everything is little-endian. No document is empty; the last end is the number of tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::train {

inline constexpr int64_t kShardHeaderBytes = 64;
inline constexpr int64_t kMostShardTokens = int64_t{1} << 40;

struct ShardHeader {
  int64_t id_bytes = 2, tokens = 0, documents = 0, vocab = 0;
  bool has_mask = false;
  uint64_t payload_hash = 0;
};

// Offsets within the file, and its size, as they follow from a header.
struct ShardLayout {
  int64_t ids = 0, ends = 0, text_bytes = 0, mask = 0, size = 0;
};
ShardLayout shard_layout(const ShardHeader& header);

std::string encode_shard_header(const ShardHeader& header);

// A shard in memory, checked whole: what a reader may rely on. Pointers go into `bytes` (8-byte aligned).
struct ShardView {
  ShardHeader header;
  const std::byte* ids = nullptr;
  const uint64_t* ends = nullptr;
  const uint64_t* text_bytes = nullptr;
  const uint8_t* mask = nullptr;  // null: text

  int32_t id(int64_t i) const {
    return header.id_bytes == 2 ? reinterpret_cast<const uint16_t*>(ids)[i] : reinterpret_cast<const int32_t*>(ids)[i];
  }
  bool learned(int64_t i) const { return (mask[i / 8] >> (i % 8) & 1) != 0; }
};
Result<ShardView> parse_shard(std::span<const std::byte> bytes, std::string_view source);

// The tokens of a shard to be written.
struct ShardContent {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;  // one a token, or empty: a text source
  std::vector<uint64_t> ends, text_bytes;
};
std::string encode_shard(const ShardContent& content, int64_t vocab);

uint64_t hash_bytes(std::span<const std::byte> bytes);

}  // namespace k3::train
