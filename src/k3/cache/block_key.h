// Purpose:  chained keys of token blocks: the key of block i certifies every token up to its end.
// Shapes:   keys [floor(tokens / block_tokens)].
// Units:    tokens.
// Memory:   by value; 16 bytes a key.
// Threads:  pure functions; a KeyChain belongs to one thread.
// Errors:   none.
// Source:   serving.md 3.1. XXH3-128 over (previous key, token ids of the block), seeded; the first link also takes the extra
//           keys: checkpoint hash, cache dtypes and policy, cache_salt, image hashes. A key is not proof against an
//           adversary: token ids are compared on a hit where a token store is on.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace k3::cache {

struct BlockKey {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockKey&) const = default;
};
struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return static_cast<size_t>(key.low); }
};

class KeyChain {
 public:
  KeyChain(int64_t block_tokens, uint64_t seed, std::string_view extra);

  void append(std::span<const int32_t> tokens);
  int64_t tokens() const { return tokens_; }
  std::span<const BlockKey> keys() const { return keys_; }  // of complete blocks

 private:
  int64_t block_tokens_, tokens_ = 0;
  uint64_t seed_;
  std::vector<BlockKey> keys_;
  std::vector<int32_t> link_;  // the previous key (4 words), then the block that is not complete
};

}  // namespace k3::cache
