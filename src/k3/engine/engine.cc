#include "k3/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "k3/base/file.h"
#include "k3/base/log.h"
#include "k3/cache/cuda_queue.h"
#include "k3/engine/core.h"
#include "k3/engine/engine_setup.h"
#include "k3/engine/executor.h"

namespace k3 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

}  // namespace

struct Engine::Impl {
  const Model& model;
  EngineOptions options;
  CoreOptions core_options;
  std::unique_ptr<ModelExecutor> executor;
  std::unique_ptr<cache::HybridCache> cache;
  std::unique_ptr<EngineCore> core;

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> commands;
  bool stopping = false;
  bool busy = false;  // the core has work
  EngineStats published;
  Status device_status;
  Clock::time_point last_step = Clock::now();
  std::atomic<bool> draining{false};
  std::atomic<int64_t> waiting{0};
  std::atomic<uint64_t> next_id{1};
  std::atomic<int64_t> rejected{0};
  std::thread thread;

  explicit Impl(const Model& m) : model(m) {}

  void post(std::function<void()> command) {
    {
      const std::lock_guard lock(mutex);
      commands.push_back(std::move(command));
    }
    wake.notify_one();
  }

  template <class T>
  Result<T> call(const std::function<Result<T>()>& work) {
    std::promise<Result<T>> promise;
    auto answer = promise.get_future();
    post([&] { promise.set_value(work()); });
    return answer.get();
  }

  void publish() {
    EngineStats stats = core->stats();
    const std::lock_guard lock(mutex);
    published = std::move(stats);
  }

  void loop() {
    // Of this thread; a device that cannot be had says so in the first step.
    (void)set_current_device(model.device()).ok();
    std::deque<std::function<void()>> todo;
    bool idle_step = false;
    Clock::time_point published_at{};
    for (;;) {
      {
        std::unique_lock lock(mutex);
        const auto ready = [&] { return stopping || !commands.empty(); };
        busy = core->has_work();
        if (!busy) {
          wake.wait(lock, ready);
        } else if (idle_step) {
          wake.wait_for(lock, std::chrono::milliseconds(5), ready);  // all wait for pages, or for their deadline
        }
        todo.swap(commands);
        if (stopping && todo.empty()) break;
        if (!busy) last_step = Clock::now();  // ages count from when there was something to do
        busy = true;
      }
      for (const auto& command : todo) command();
      const bool commanded = !todo.empty();
      todo.clear();
      if (core->has_work()) {
        idle_step = !core->step();
        const std::lock_guard lock(mutex);
        if (!idle_step) last_step = Clock::now();
        if (device_status.ok()) device_status = core->device_status();
      }
      const auto now = Clock::now();
      if (commanded || !core->has_work() || seconds_between(published_at, now) > 0.02) {
        published_at = now;
        publish();
      }
    }
    core->stop_all(EndReason::interrupted);
    // What could not be written back is computed again.
    if (const Status status = cache->flush(); !status.ok()) log_warn("prefix cache: {}", status.error().message);
    publish();
  }
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, ThreadPool& pool, const EngineOptions& wanted) {
  auto impl = std::make_unique<Impl>(model);
  EngineOptions& o = impl->options;
  o = wanted;
  K3_TRY(check_engine_options(model, o));
  K3_TRY_ASSIGN(const cache::CacheShape shape, cache::make_shape(layer_counts(model.config()), o.dtypes, o.block_tokens));
  K3_TRY(size_pool(model, shape, o));
  if (model.plan()) o.step_tokens = std::min(o.step_tokens, model.plan()->chunk_tokens);
  const ComputeMode mode{o.policy, o.isa, o.deterministic, o.int8_activations};
  const ExecutorLimits limits{o.step_tokens, o.max_running, o.ctx_tokens};
  K3_TRY_ASSIGN(impl->executor, ModelExecutor::create(model, pool, mode, shape, limits));
  std::shared_ptr<cache::CudaQueue> queue;
  if (model.device().is_cuda()) {
    K3_TRY(impl->executor->rehearse());
    K3_TRY(size_gpu_pool(model, shape, impl->executor->scratch_bytes(), o));
    K3_TRY_ASSIGN(queue, cache::CudaQueue::create(model.device()));
  }
  cache::CacheOptions c;
  c.shape = shape;
  c.pool_bytes = o.pool_bytes;
  c.enabled = o.prefix_cache;
  c.poison = o.poison;
  c.policy = o.checkpoints;
  c.host_bytes = o.host_bytes;
  c.disk_folder = o.disk_folder;
  c.disk_bytes = o.disk_bytes;
  c.identity = engine_identity(model, o);
  c.queue = queue;
  K3_TRY_ASSIGN(impl->cache, cache::HybridCache::create(c));
  if (queue != nullptr) K3_TRY(queue->follow(impl->executor->stream()));
  impl->executor->use(*impl->cache);
  impl->executor->lose_device_at(o.lose_device_at);
  CoreOptions& k = impl->core_options;
  k.schedule = o.schedule;
  k.ctx_tokens = o.ctx_tokens;
  k.step_tokens = o.step_tokens;
  k.max_running = std::min(o.max_running, impl->executor->most_rows());
  k.deadline_seconds = o.deadline_seconds;
  k.keep_idle = o.keep_idle;
  k.separate_phases = model.device().is_cuda();
  if (model.device().is_cuda()) k.prefill_keys = o.ctx_tokens + kFurtherKeys;
  k.vocab = model.config().vocab_size;
  k.block_tokens = o.block_tokens;
  k.key_seed = impl->cache->key_seed();
  k.identity = c.identity;
  impl->core = std::make_unique<EngineCore>(k, *impl->cache, *impl->executor);
  impl->publish();
  impl->thread = std::thread([raw = impl.get()] { raw->loop(); });
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::~Engine() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

Result<RequestId> Engine::submit(Request request) {
  Impl& impl = *impl_;
  const auto refuse = [&](Error error) {
    ++impl.rejected;
    return error;
  };
  if (Status status = device_status(); !status.ok()) return refuse(std::move(status).take_error());
  if (impl.draining) return refuse(fail(Code::unavailable, "the server is stopping and takes no new requests"));
  if (Status status = check_request(impl.core_options, request); !status.ok()) return refuse(std::move(status).take_error());
  if (impl.waiting.fetch_add(1) >= impl.options.max_queued) {
    --impl.waiting;
    return refuse(fail(Code::exhausted, "{} requests are waiting already; try again later", impl.options.max_queued));
  }
  const RequestId id{impl.next_id.fetch_add(1)};
  // A request waits until it is admitted, or ends before that.
  auto counted = std::make_shared<bool>(true);
  const auto uncount = [&impl, counted] {
    if (std::exchange(*counted, false)) --impl.waiting;
  };
  RequestCallbacks& callbacks = request.callbacks;
  callbacks.on_admitted = [uncount, next = std::move(callbacks.on_admitted)](const Admitted& admitted) {
    uncount();
    if (next) next(admitted);
  };
  callbacks.on_done = [uncount, next = std::move(callbacks.on_done)](const RequestSummary& summary) {
    uncount();
    if (next) next(summary);
  };
  auto held = std::make_shared<Request>(std::move(request));
  impl.post([&impl, id, held] { impl.core->submit(id, std::move(*held)); });
  return id;
}

void Engine::cancel(RequestId id) {
  impl_->post([this, id] { impl_->core->cancel(id); });
}

double Engine::retry_after_seconds() const {
  const EngineStats s = stats();
  const double mean = s.requests_done > 0 ? s.e2e.sum / static_cast<double>(s.requests_done) : 1;
  const double turns = static_cast<double>(s.waiting + 1) / static_cast<double>(std::max<int64_t>(1, options().max_running));
  return std::clamp(mean * turns, 1.0, 60.0);
}

namespace {

// A file of the slot folder; names are names, not paths.
Result<std::string> slot_path(const EngineOptions& options, const std::string& file) {
  if (options.slot_save_path.empty()) {
    return fail(Code::unsupported, "this server keeps no slot files; start it with --slot-save-path FOLDER");
  }
  if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos || file.find('\0') != std::string::npos) {
    return fail(Code::invalid_argument, "filename: a plain file name without a slash is needed");
  }
  constexpr size_t kLongestName = 240;  // file systems take 255 bytes; a name in the making has an ending
  if (file.size() > kLongestName) {
    return fail(Code::invalid_argument, "filename: {} bytes; at most {}", file.size(), kLongestName);
  }
  return options.slot_save_path + "/" + file;
}

// Clients know the names of files, not where they lie here.
Result<SlotResult> without_folder(const EngineOptions& options, Result<SlotResult> result) {
  if (result.ok()) return result;
  Error error = std::move(result).take_error();
  const std::string folder = options.slot_save_path + "/";
  for (size_t at = 0; (at = error.message.find(folder, at)) != std::string::npos;) error.message.erase(at, folder.size());
  return error;
}

}  // namespace

Result<SlotResult> Engine::save_slot(int32_t slot, const std::string& file) {
  K3_TRY_ASSIGN(const std::string path, slot_path(impl_->options, file));
  return without_folder(impl_->options, impl_->call<SlotResult>([&] { return impl_->core->save_slot(slot, path); }));
}

Result<SlotResult> Engine::restore_slot(int32_t slot, const std::string& file) {
  K3_TRY_ASSIGN(const std::string path, slot_path(impl_->options, file));
  return without_folder(impl_->options, impl_->call<SlotResult>([&] { return impl_->core->restore_slot(slot, path); }));
}

Result<SlotResult> Engine::erase_slot(int32_t slot) {
  return impl_->call<SlotResult>([&] { return impl_->core->erase_slot(slot); });
}

Result<SlotResult> Engine::fork_slot(int32_t slot) {
  return impl_->call<SlotResult>([&] { return impl_->core->fork_slot(slot); });
}

Status Engine::device_status() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->device_status;
}

int64_t Engine::scratch_bytes() const { return impl_->executor->scratch_bytes(); }

void Engine::drain() { impl_->draining = true; }

bool Engine::drained() const {
  const std::lock_guard lock(impl_->mutex);
  return !impl_->busy && impl_->commands.empty();
}

void Engine::reset_cache() {
  (void)impl_->call<SlotResult>([&]() -> Result<SlotResult> {
    impl_->core->release_all_idle();
    impl_->cache->reset();
    return SlotResult{};
  });
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStats stats = impl_->published;
  stats.waiting = std::max(stats.waiting, impl_->waiting.load());
  stats.requests_rejected = impl_->rejected;
  if (impl_->busy) stats.last_step_age_seconds = seconds_between(impl_->last_step, Clock::now());
  return stats;
}

const EngineOptions& Engine::options() const { return impl_->options; }
const cache::CacheShape& Engine::cache_shape() const { return impl_->cache->shape(); }
const Model& Engine::model() const { return impl_->model; }

std::vector<CapacityLine> Engine::capacity() const {
  const cache::CacheShape& shape = impl_->cache->shape();
  std::vector<CapacityLine> lines;
  std::vector<int64_t> sizes;
  for (int64_t ctx = 1024; ctx < impl_->options.ctx_tokens; ctx *= 4) sizes.push_back(ctx);
  sizes.push_back(impl_->options.ctx_tokens);
  for (const int64_t ctx : sizes) {
    const int64_t fit = impl_->cache->page_count() / (shape.pages_for(ctx) + shape.groups());
    lines.push_back({ctx, std::min(fit, impl_->core_options.max_running)});
  }
  return lines;
}

}  // namespace k3
