#include "k3/plan/sim/sim_engine.h"

#include <algorithm>

#include "k3/cache/tier/host_tier.h"

namespace k3::plan {

// A host tier without memory whose fetches hold up the next step, as they do in the engine.
class TimedTier final : public cache::CacheTier {
 public:
  TimedTier(std::unique_ptr<cache::HostTier> inner, int64_t page_bytes, double bytes_per_second, double seconds,
            SimExecutor& executor)
      : inner_(std::move(inner)),
        page_bytes_(page_bytes),
        bytes_per_second_(bytes_per_second),
        seconds_(seconds),
        executor_(executor) {}

  int64_t blocks_held(std::span<const cache::BlockKey> keys) const override { return inner_->blocks_held(keys); }
  bool holds_checkpoint(const cache::BlockKey& key) const override { return inner_->holds_checkpoint(key); }
  bool touch(bool checkpoint, std::span<const cache::BlockKey> keys) override { return inner_->touch(checkpoint, keys); }
  void put(const cache::TierEntry& entry) override { inner_->put(entry); }
  bool get_page(std::span<const cache::BlockKey> keys, std::span<const int32_t> tokens, std::byte* page) override {
    return fetched(inner_->get_page(keys, tokens, page), 1);
  }
  bool get_checkpoint(const cache::BlockKey& key, std::span<std::byte* const> parts) override {
    return fetched(inner_->get_checkpoint(key, parts), static_cast<int64_t>(parts.size()));
  }
  void clear() override { inner_->clear(); }
  Status flush() override { return {}; }
  cache::TierStats stats() const override { return inner_->stats(); }

  int64_t fetched_bytes() const { return fetched_bytes_; }
  cache::HostTier* inner() { return inner_.get(); }

 private:
  bool fetched(bool there, int64_t pages) {
    if (!there) return false;
    const int64_t bytes = pages * page_bytes_;
    fetched_bytes_ += bytes;
    executor_.delay(seconds_ + (bytes_per_second_ > 0 ? static_cast<double>(bytes) / bytes_per_second_ : 0));
    return true;
  }

  std::unique_ptr<cache::HostTier> inner_;
  int64_t page_bytes_, fetched_bytes_ = 0;
  double bytes_per_second_, seconds_;
  SimExecutor& executor_;
};

SimEngine::~SimEngine() = default;

Result<std::unique_ptr<SimEngine>> SimEngine::create(const SimScenario& scenario, const EngineSettings& settings,
                                                     Role role) {
  std::unique_ptr<SimEngine> engine(new SimEngine(scenario, settings, role));
  K3_TRY(engine->open());
  return engine;
}

Status SimEngine::open() {
  executor_ =
      std::make_unique<SimExecutor>(*settings_.clock, scenario_.acceptance, scenario_.seed, settings_.core.step_tokens);
  // When a step has admitted somebody, the next one may find others in the queue.
  if (scenario_.repeats) executor_->set_repeats([this] { return open_class() == classes_.size(); });
  classes_.resize(scenario_.budgets.size() + 1);
  under_way_.resize(classes_.size());
  const auto make_tier = [&](int64_t bytes, double rate, double seconds, cache::CacheTier* next) -> Status {
    if (bytes < settings_.shape.page_bytes) return {};
    K3_TRY_ASSIGN(auto inner, cache::HostTier::create(settings_.shape, bytes, false, next));
    tiers_.insert(tiers_.begin(),
                  std::make_shared<TimedTier>(std::move(inner), settings_.shape.page_bytes, rate, seconds, *executor_));
    return {};
  };
  K3_TRY(make_tier(settings_.remote_bytes, settings_.remote_bytes_per_second, settings_.remote_seconds, nullptr));
  cache::CacheTier* const remote = tiers_.empty() ? nullptr : tiers_.front()->inner();
  K3_TRY(make_tier(settings_.host_bytes, settings_.host_bytes_per_second, 0, remote));
  cache::CacheOptions options;
  options.shape = settings_.shape;
  options.pool_bytes = settings_.pool_bytes;
  options.backed = options.compare_tokens = false;
  options.enabled = settings_.prefix_cache;
  options.policy = settings_.policy;
  options.further_tiers.assign(tiers_.begin(), tiers_.end());
  K3_TRY_ASSIGN(cache_, cache::HybridCache::create(options));
  core_ = std::make_unique<EngineCore>(settings_.core, *cache_, *executor_);
  return {};
}

// The last class is for what no budget names.
size_t SimEngine::class_of(int64_t prompt_tokens) const {
  size_t i = 0;
  while (i < scenario_.budgets.size() && prompt_tokens > scenario_.budgets[i].most_tokens) ++i;
  return i;
}

void SimEngine::gate(int32_t request, int64_t prompt_tokens, double cost) {
  classes_[class_of(prompt_tokens)].push_back({request, cost, next_order_++});
  ++gated_;
}

// The class whose first request may go on; classes_.size(): none may.
size_t SimEngine::open_class() const {
  size_t best = classes_.size();
  if (gated_ == 0 || core_->waiting_count() >= settings_.queue) return best;
  for (size_t i = 0; i < classes_.size(); ++i) {
    if (classes_[i].empty()) continue;
    const Waiting& head = classes_[i].front();
    const bool fits =
        i == scenario_.budgets.size() || under_way_[i] <= 0 || under_way_[i] + head.cost <= scenario_.budgets[i].seconds;
    if (fits && (best == classes_.size() || head.order < classes_[best].front().order)) best = i;
  }
  return best;
}

int32_t SimEngine::pass() {
  const size_t best = open_class();
  if (best == classes_.size()) return -1;
  const Waiting head = classes_[best].front();
  classes_[best].pop_front();
  --gated_;
  under_way_[best] += head.cost;
  return head.request;
}

void SimEngine::settle(int64_t prompt_tokens, double cost) {
  double& sum = under_way_[class_of(prompt_tokens)];
  sum -= cost;
  if (sum < 1e-9) sum = 0;  // what is left of sums of costs
}

std::vector<int32_t> SimEngine::gated() const {
  std::vector<Waiting> all;
  for (const auto& one : classes_) all.insert(all.end(), one.begin(), one.end());
  std::ranges::sort(all, {}, &Waiting::order);
  std::vector<int32_t> out;
  for (const Waiting& waiting : all) out.push_back(waiting.request);
  return out;
}

void SimEngine::count(const Admitted& found) {
  prompt_tokens_ += found.prompt_tokens;
  hit_tokens_ += found.cached_tokens;
}

SimSample SimEngine::state() const {
  const cache::CacheStats c = cache_->stats();
  SimSample s;
  s.queued = gated_ + core_->waiting_count();
  s.running = core_->running_count();
  s.pages = c.pages, s.free = c.pages_free;
  s.running_mla = c.pages_running_mla, s.running_kda = c.pages_running_kda;
  s.cached_mla = c.pages_cached_mla, s.cached_kda = c.pages_cached_kda, s.checkpoints = c.checkpoints;
  s.prompt_tokens = prompt_tokens_, s.hit_tokens = hit_tokens_;
  s.evicted_pages = c.evicted_pages, s.evicted_checkpoints = c.evicted_checkpoints;
  return s;
}

bool SimEngine::step() {
  const SimSample before = state();
  // Where somebody gave way and nothing was computed, the next try finds the room; the engine's thread tries again, too.
  bool computed = core_->step();
  for (int64_t tries = requests(); !computed && tries > 0 && core_->has_work(); --tries) computed = core_->step();
  series_.record(now(), before);
  return computed;
}

void SimEngine::wait(double until) {
  if (until <= now()) return;
  series_.record(until, state());
  executor_->set_now(until);
}

int64_t SimEngine::fetched_bytes() const {
  int64_t sum = 0;
  for (const auto& tier : tiers_) sum += tier->fetched_bytes();
  return sum;
}

}  // namespace k3::plan
