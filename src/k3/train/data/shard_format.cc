#include "k3/train/data/shard_format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "k3/base/hash/hash64.h"

namespace k3::train {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are read in place");

constexpr std::string_view kMagic = "k3tokens";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kHasMask = 1;
constexpr size_t kHeaderHashAt = 56;

int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void store(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

Result<ShardHeader> parse_header(std::span<const std::byte> bytes, std::string_view source) {
  if (bytes.size() < kShardHeaderBytes) {
    return fail(Code::corrupt, "{}: {} bytes are less than the header of a shard ({})", source, bytes.size(), kShardHeaderBytes);
  }
  const std::byte* p = bytes.data();
  if (std::memcmp(p, kMagic.data(), kMagic.size()) != 0) return fail(Code::corrupt, "{}: offset 0: this is no shard of ids", source);
  if (const auto version = load<uint32_t>(p + 8); version != kVersion) {
    return fail(Code::unsupported, "{}: offset 8: version {} is unknown here (known: {}); run `k3 prepare` again", source, version,
                kVersion);
  }
  if (load<uint64_t>(p + kHeaderHashAt) != hash_bytes(bytes.first(kHeaderHashAt))) {
    return fail(Code::corrupt, "{}: offset {}: the header does not have its hash; the file is damaged", source, kHeaderHashAt);
  }
  const auto id_bytes = load<uint32_t>(p + 12), flags = load<uint32_t>(p + 40), zero = load<uint32_t>(p + 44);
  const auto tokens = load<uint64_t>(p + 16), documents = load<uint64_t>(p + 24), vocab = load<uint64_t>(p + 32);
  if (id_bytes != 2 && id_bytes != 4) return fail(Code::corrupt, "{}: offset 12: ids of {} bytes", source, id_bytes);
  if (tokens > static_cast<uint64_t>(kMostShardTokens)) return fail(Code::corrupt, "{}: offset 16: {} tokens", source, tokens);
  if (documents > tokens) return fail(Code::corrupt, "{}: offset 24: {} documents of {} tokens", source, documents, tokens);
  const uint64_t most = id_bytes == 2 ? uint64_t{1} << 16 : uint64_t{1} << 31;
  if (vocab == 0 || vocab > most) return fail(Code::corrupt, "{}: offset 32: a vocabulary of {}", source, vocab);
  if (flags > kHasMask || zero != 0) return fail(Code::corrupt, "{}: offset 40: unknown flags", source);
  return ShardHeader{id_bytes, static_cast<int64_t>(tokens), static_cast<int64_t>(documents), static_cast<int64_t>(vocab),
                     flags == kHasMask, load<uint64_t>(p + 48)};
}

Status check_borders(const ShardView& shard, const ShardLayout& layout, std::string_view source) {
  uint64_t before = 0;
  for (int64_t d = 0; d < shard.header.documents; ++d) {
    if (shard.ends[d] <= before || shard.ends[d] > static_cast<uint64_t>(shard.header.tokens)) {
      return fail(Code::corrupt, "{}: offset {}: document {} ends at token {}, after {} of {}", source, layout.ends + 8 * d, d,
                  shard.ends[d], before, shard.header.tokens);
    }
    if (shard.text_bytes[d] > uint64_t{1} << 48) {
      return fail(Code::corrupt, "{}: offset {}: a document of {} bytes", source, layout.text_bytes + 8 * d, shard.text_bytes[d]);
    }
    before = shard.ends[d];
  }
  if (before != static_cast<uint64_t>(shard.header.tokens)) {
    return fail(Code::corrupt, "{}: offset {}: the documents end at token {} of {}", source, layout.ends, before, shard.header.tokens);
  }
  return {};
}

Status check_ids(const ShardView& shard, const ShardLayout& layout, std::string_view source) {
  for (int64_t i = 0; i < shard.header.tokens; ++i) {
    // As unsigned: a negative id is beyond the vocabulary, too.
    if (static_cast<uint32_t>(shard.id(i)) >= static_cast<uint64_t>(shard.header.vocab)) {
      return fail(Code::corrupt, "{}: offset {}: id {} is beyond the vocabulary of {}", source,
                  layout.ids + i * shard.header.id_bytes, shard.id(i), shard.header.vocab);
    }
  }
  return {};
}

}  // namespace

uint64_t hash_bytes(std::span<const std::byte> bytes) {
  Hash64 hash;
  hash.update(bytes);
  return hash.digest();
}

ShardLayout shard_layout(const ShardHeader& header) {
  ShardLayout layout;
  layout.ids = kShardHeaderBytes;
  layout.ends = layout.ids + padded(header.tokens * header.id_bytes);
  layout.text_bytes = layout.ends + 8 * header.documents;
  layout.mask = layout.text_bytes + 8 * header.documents;
  layout.size = layout.mask + (header.has_mask ? padded((header.tokens + 7) / 8) : 0);
  return layout;
}

std::string encode_shard_header(const ShardHeader& header) {
  std::string out(kMagic);
  store(out, kVersion);
  store(out, static_cast<uint32_t>(header.id_bytes));
  store(out, static_cast<uint64_t>(header.tokens));
  store(out, static_cast<uint64_t>(header.documents));
  store(out, static_cast<uint64_t>(header.vocab));
  store(out, header.has_mask ? kHasMask : uint32_t{0});
  store(out, uint32_t{0});
  store(out, header.payload_hash);
  store(out, hash_bytes(std::as_bytes(std::span(out))));
  return out;
}

Result<ShardView> parse_shard(std::span<const std::byte> bytes, std::string_view source) {
  K3_TRY_ASSIGN(const ShardHeader header, parse_header(bytes, source));
  const ShardLayout layout = shard_layout(header);
  if (static_cast<int64_t>(bytes.size()) != layout.size) {
    return fail(Code::corrupt, "{}: the file has {} bytes, its header says {}{}", source, bytes.size(), layout.size,
                static_cast<int64_t>(bytes.size()) < layout.size ? "; it was cut short: run `k3 prepare` again" : "");
  }
  const std::byte* p = bytes.data();
  ShardView shard{header, p + layout.ids, reinterpret_cast<const uint64_t*>(p + layout.ends),
                  reinterpret_cast<const uint64_t*>(p + layout.text_bytes),
                  header.has_mask ? reinterpret_cast<const uint8_t*>(p + layout.mask) : nullptr};
  K3_TRY(check_borders(shard, layout, source));
  K3_TRY(check_ids(shard, layout, source));
  if (hash_bytes(bytes.subspan(kShardHeaderBytes)) != header.payload_hash) {
    return fail(Code::corrupt, "{}: the bytes from offset {} on do not have the hash of the header; the file is damaged", source,
                kShardHeaderBytes);
  }
  return shard;
}

std::string encode_shard(const ShardContent& content, int64_t vocab) {
  ShardHeader header;
  header.id_bytes = vocab <= int64_t{1} << 16 ? 2 : 4;
  header.tokens = static_cast<int64_t>(content.ids.size());
  header.documents = static_cast<int64_t>(content.ends.size());
  header.vocab = vocab;
  header.has_mask = !content.learned.empty();
  const ShardLayout layout = shard_layout(header);
  std::string out(static_cast<size_t>(layout.size), '\0');
  char* ids = out.data() + layout.ids;
  if (header.id_bytes == 2) {
    std::transform(content.ids.begin(), content.ids.end(), reinterpret_cast<uint16_t*>(ids),
                   [](int32_t id) { return static_cast<uint16_t>(id); });
  } else if (!content.ids.empty()) {
    std::memcpy(ids, content.ids.data(), content.ids.size() * sizeof(int32_t));
  }
  if (!content.ends.empty()) {
    std::memcpy(out.data() + layout.ends, content.ends.data(), content.ends.size() * sizeof(uint64_t));
    std::memcpy(out.data() + layout.text_bytes, content.text_bytes.data(), content.text_bytes.size() * sizeof(uint64_t));
  }
  for (size_t i = 0; i < content.learned.size(); ++i) {
    char& byte = out[static_cast<size_t>(layout.mask) + i / 8];
    byte = static_cast<char>(static_cast<uint8_t>(byte) | (content.learned[i] != 0 ? 1U << (i % 8) : 0U));
  }
  header.payload_hash = hash_bytes(std::as_bytes(std::span(out)).subspan(kShardHeaderBytes));
  const std::string head = encode_shard_header(header);
  std::copy(head.begin(), head.end(), out.begin());
  return out;
}

}  // namespace k3::train
