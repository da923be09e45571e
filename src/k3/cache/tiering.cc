// Between the pool and its tiers.
#include "k3/cache/state.h"

namespace k3::cache {

Status HybridCache::Impl::open_tiers() { return {}; }
void HybridCache::Impl::write_back_page(int32_t) {}
void HybridCache::Impl::write_back_checkpoint(int32_t) {}
void HybridCache::Impl::write_back_all() {}
void HybridCache::Impl::fetch(const CachePrompt&, int64_t, Admission*) {}

}  // namespace k3::cache
