#include "k3/cache/block_key.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "k3/base/check.h"

namespace k3::cache {

namespace {

constexpr size_t kKeyWords = sizeof(BlockKey) / sizeof(int32_t);

BlockKey hash(const void* data, size_t bytes, uint64_t seed) {
  const XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, seed);
  return {h.low64, h.high64};
}

}  // namespace

KeyChain::KeyChain(int64_t block_tokens, uint64_t seed, std::string_view extra) : block_tokens_(block_tokens), seed_(seed) {
  K3_CHECK(block_tokens > 0, "blocks of {} tokens", block_tokens);
  const BlockKey root = hash(extra.data(), extra.size(), seed);
  link_.reserve(kKeyWords + static_cast<size_t>(block_tokens));
  link_.resize(kKeyWords);
  std::memcpy(link_.data(), &root, sizeof root);
}

void KeyChain::append(std::span<const int32_t> tokens) {
  tokens_ += static_cast<int64_t>(tokens.size());
  const size_t full = kKeyWords + static_cast<size_t>(block_tokens_);
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), full - link_.size());
    link_.insert(link_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
    tokens = tokens.subspan(count);
    if (link_.size() < full) return;
    keys_.push_back(hash(link_.data(), full * sizeof(int32_t), seed_));
    std::memcpy(link_.data(), &keys_.back(), sizeof(BlockKey));
    link_.resize(kKeyWords);
  }
}

}  // namespace k3::cache
