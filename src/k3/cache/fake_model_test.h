// Internal to cache tests. A "model" whose latents and states are functions of the token prefix, so that everything that a
// cache hands out can be compared with what it must be.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "k3/cache/block_key.h"
#include "k3/cache/fake_device_test.h"
#include "k3/cache/hybrid_cache.h"

namespace k3::cache::testing {

inline constexpr int64_t kBlock = 16;

// Two MLA and three KDA layers (groups of 2 and 1), pages of 48 tokens.
inline CacheShape tiny_shape() {
  return *make_shape({.mla_layers = 2, .kda_layers = 3, .state_elements = 150, .conv_elements = 9, .latent_width = 4}, {}, kBlock);
}

// Where a test's pools lie; tests that are run for both set it.
enum class Where { host, device };
inline Where& where() {
  static Where now = Where::host;
  return now;
}
inline std::shared_ptr<DeviceQueue> make_queue() {
  if (where() == Where::host) return nullptr;
  return std::make_shared<FakeDevice>();
}
// A suite whose pools lie in host memory, and again on a device.
class OnBoth : public ::testing::TestWithParam<Where> {
 protected:
  void SetUp() override { where() = GetParam(); }
  void TearDown() override { where() = Where::host; }
};
inline std::string where_name(const ::testing::TestParamInfo<Where>& info) { return info.param == Where::host ? "Host" : "Device"; }

inline CacheOptions tiny_options(int64_t pages) {
  CacheOptions options;
  options.shape = tiny_shape();
  options.pool_bytes = pages * options.shape.page_bytes;
  options.poison = true;
  options.identity = "tiny";
  options.queue = make_queue();
  return options;
}

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9ULL;
  return x ^ (x >> 29);
}

// hashes[i]: of the first i tokens.
inline std::vector<uint64_t> prefix_hashes(const std::vector<int32_t>& tokens) {
  std::vector<uint64_t> out{1};
  for (const int32_t token : tokens) out.push_back(mix(out.back(), static_cast<uint64_t>(token) + 7));
  return out;
}

inline void fill(std::byte* bytes, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(seed >> (8 * (i % 7)));
}

inline bool filled(const std::byte* bytes, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; ++i) {
    if (bytes[i] != static_cast<std::byte>(seed >> (8 * (i % 7)))) return false;
  }
  return true;
}

struct FakeRun {
  SequenceId id{};
  std::vector<int32_t> tokens;  // prompt, then what was "generated" or will be
  int64_t prompt_tokens = 0;
  std::vector<BlockKey> keys;
};

class FakeModel {
 public:
  FakeModel(HybridCache& cache, std::string extra = "tiny") : cache_(&cache), shape_(cache.shape()), extra_(std::move(extra)) {}

  std::vector<BlockKey> keys(const std::vector<int32_t>& tokens) const {
    KeyChain chain(shape_.block_tokens, cache_->key_seed(), extra_);
    chain.append(tokens);
    return {chain.keys().begin(), chain.keys().end()};
  }

  Result<FakeRun> admit(const std::vector<int32_t>& prompt, Admission* admission = nullptr, std::vector<int64_t> turn_ends = {}) {
    FakeRun run{.tokens = prompt, .prompt_tokens = static_cast<int64_t>(prompt.size()), .keys = keys(prompt)};
    const CachePrompt asked{run.keys, run.tokens, run.prompt_tokens, turn_ends};
    const Admission peeked = cache_->peek(asked);
    K3_TRY_ASSIGN(const Admission got, cache_->admit(asked));
    peeked_ = peeked;
    if (admission != nullptr) *admission = got;
    run.id = got.sequence;
    EXPECT_EQ(content(run), "");
    return run;
  }
  const Admission& peeked() const { return peeked_; }  // just before the last admit

  // Computes up to `end`; the positions of the checkpoints that were written.
  std::vector<int64_t> step(FakeRun& run, int64_t end, int32_t next_token = 3, bool commit = true) {
    while (static_cast<int64_t>(run.tokens.size()) < end) run.tokens.push_back(next_token);
    EXPECT_EQ(content(run), "");
    const auto hashes = prefix_hashes(run.tokens);
    std::vector<int64_t> written;
    for (const CheckpointWrite& write : cache_->plan_checkpoints(run.id, end)) {
      EXPECT_TRUE(written.empty() || written.back() < write.position);
      EXPECT_EQ(write.position % shape_.block_tokens, 0);
      EXPECT_GT(write.position, cache_->length(run.id));
      EXPECT_LE(write.position, end);
      written.push_back(write.position);
      if (commit) write_states(write.pages, hashes[static_cast<size_t>(write.position)]);
    }
    if (!commit) {
      cache_->abandon(run.id);
      return {};
    }
    const auto table = cache_->block_table(run.id);
    for (int64_t i = cache_->length(run.id); i < end; ++i) {
      for (int64_t layer = 0; layer < shape_.counts.mla_layers; ++layer) {
        write(table[static_cast<size_t>(i / shape_.page_tokens)], row_offset(i, layer), shape_.latent_row_bytes(),
              mix(hashes[static_cast<size_t>(i + 1)], static_cast<uint64_t>(layer)));
      }
    }
    write_states(cache_->state_pages(run.id), hashes[static_cast<size_t>(end)]);
    run.keys = keys(run.tokens);
    cache_->commit(run.id, run.keys, run.tokens, end);
    return written;
  }

  // What is wrong with the content of a sequence; empty when all is as it must be.
  std::string content(const FakeRun& run) const {
    if (cache_->pool() == nullptr) return "";
    const int64_t length = cache_->length(run.id);
    const auto hashes = prefix_hashes(run.tokens);
    const auto table = cache_->block_table(run.id);
    const std::byte* page = nullptr;
    for (int64_t i = 0; i < length; ++i) {
      if (i % shape_.page_tokens == 0) page = read(table[static_cast<size_t>(i / shape_.page_tokens)]);
      for (int64_t layer = 0; layer < shape_.counts.mla_layers; ++layer) {
        if (!filled(page + row_offset(i, layer), shape_.latent_row_bytes(), mix(hashes[static_cast<size_t>(i + 1)], static_cast<uint64_t>(layer)))) {
          return fmt::format("latent {} of layer {} of a sequence of {} tokens", i, layer, length);
        }
      }
    }
    const auto states = cache_->state_pages(run.id);
    int64_t layer = 0;
    for (size_t g = 0; g < states.size(); ++g) {
      page = read(states[g]);
      for (int64_t in_group = 0; in_group < shape_.group_layers[g]; ++in_group, ++layer) {
        const std::byte* at = page + in_group * shape_.layer_stride;
        const uint64_t seed = length == 0 ? 0 : state_seed(hashes[static_cast<size_t>(length)], layer);
        if (!filled(at, state_bytes(), seed) || !filled(at + shape_.conv_offset, conv_bytes(), length == 0 ? 0 : seed + 1)) {
          return fmt::format("state of layer {} after {} tokens", layer, length);
        }
      }
    }
    return "";
  }

 private:
  static uint64_t state_seed(uint64_t hash, int64_t layer) { return mix(hash, static_cast<uint64_t>(layer) + 1000) | 1; }
  int64_t state_bytes() const { return shape_.counts.state_elements * dtype_bytes(shape_.dtypes.state); }
  int64_t conv_bytes() const { return shape_.counts.conv_elements * dtype_bytes(shape_.dtypes.conv); }
  const std::byte* read(int32_t page) const { return cache_->memory().read(std::span(&page, 1)).value().front(); }
  void write(int32_t page, int64_t offset, int64_t bytes, uint64_t seed) {
    if (cache_->pool() == nullptr) return;
    std::byte* const image = cache_->memory().open(std::span(&page, 1)).value().front();
    fill(image + offset, bytes, seed);
    cache_->memory().store(0, offset, bytes);
  }
  int64_t row_offset(int64_t token, int64_t layer) const {
    return layer * shape_.latent_layer_bytes() + token % shape_.page_tokens * shape_.latent_row_bytes();
  }
  void write_states(std::span<const int32_t> pages, uint64_t hash) {
    int64_t layer = 0;
    for (size_t g = 0; g < pages.size(); ++g) {
      for (int64_t in_group = 0; in_group < shape_.group_layers[g]; ++in_group, ++layer) {
        const int64_t at = in_group * shape_.layer_stride;
        write(pages[g], at, state_bytes(), state_seed(hash, layer));
        write(pages[g], at + shape_.conv_offset, conv_bytes(), state_seed(hash, layer) + 1);
      }
    }
  }

  HybridCache* cache_;
  CacheShape shape_;
  std::string extra_;
  Admission peeked_;
};

inline std::vector<int32_t> text(int64_t length, int32_t token) { return std::vector<int32_t>(static_cast<size_t>(length), token); }

inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A sequence from admission to release: prompt in one step, answer token by token.
inline Admission serve(HybridCache& cache, const std::vector<int32_t>& prompt, int64_t answer = 0, std::vector<int64_t> turn_ends = {}) {
  FakeModel model(cache);
  Admission admission;
  auto run = model.admit(prompt, &admission, std::move(turn_ends));
  EXPECT_TRUE(run.ok()) << run.error().message;
  if (!run.ok()) return admission;
  model.step(*run, run->prompt_tokens);
  for (int64_t i = 1; i <= answer; ++i) {
    EXPECT_TRUE(cache.grow(run->id, run->prompt_tokens + i).ok());
    model.step(*run, run->prompt_tokens + i);
  }
  cache.release(run->id);
  const Status status = cache.check();
  EXPECT_TRUE(status.ok()) << status.error().message;
  return admission;
}

}  // namespace k3::cache::testing
