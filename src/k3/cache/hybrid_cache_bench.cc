// Cost of lookups and of a request's bookkeeping, per block, in a cache without memory.
#include <benchmark/benchmark.h>

#include "k3/cache/hybrid_cache.h"

namespace k3::cache {
namespace {

constexpr int64_t kBlock = 512;

struct Filled {
  std::unique_ptr<HybridCache> cache;
  std::vector<std::vector<BlockKey>> prompts;
};

// K3's shape; 2,000 prompts of `blocks` blocks, no two alike.
Filled filled(int64_t blocks) {
  CacheOptions options;
  options.shape = *make_shape({24, 69, 96 * 128 * 128, 3 * 3 * 96 * 128, 576}, {DType::f32, DType::bf16, DType::bf16}, kBlock);
  options.pool_bytes = 100000 * options.shape.page_bytes;
  options.backed = options.compare_tokens = false;
  Filled out{*HybridCache::create(options), {}};
  uint64_t next = 1;
  for (int prompt = 0; prompt < 2000; ++prompt) {
    auto& keys = out.prompts.emplace_back();
    for (int64_t block = 0; block < blocks; ++block, ++next) keys.push_back({next * 0x9E3779B97F4A7C15ULL, next});
    const auto admission = out.cache->admit({keys, {}, blocks * kBlock, {}});
    out.cache->plan_checkpoints(admission->sequence, blocks * kBlock);
    out.cache->commit(admission->sequence, keys, {}, blocks * kBlock);
    out.cache->release(admission->sequence);
  }
  return out;
}

void peek(benchmark::State& state) {
  const Filled one = filled(state.range(0));
  size_t next = 0;
  for (auto _ : state) {
    const auto& keys = one.prompts[next++ % one.prompts.size()];
    benchmark::DoNotOptimize(one.cache->peek({keys, {}, state.range(0) * kBlock + 1, {}}));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));  // blocks
}
BENCHMARK(peek)->Arg(24)->Arg(200);

void request(benchmark::State& state) {
  const Filled one = filled(state.range(0));
  size_t next = 0;
  for (auto _ : state) {
    const auto& keys = one.prompts[next++ % one.prompts.size()];
    const int64_t tokens = state.range(0) * kBlock + 1;
    const auto admission = one.cache->admit({keys, {}, tokens, {}});
    one.cache->plan_checkpoints(admission->sequence, tokens);
    one.cache->commit(admission->sequence, keys, {}, tokens);
    one.cache->release(admission->sequence);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(request)->Arg(24)->Arg(200);

}  // namespace
}  // namespace k3::cache
