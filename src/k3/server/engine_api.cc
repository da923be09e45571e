#include "k3/server/engine_api.h"

namespace k3::server {

EngineApi engine_api(Engine& engine) {
  EngineApi api;
  api.submit = [&engine](Request request) { return engine.submit(std::move(request)); };
  api.cancel = [&engine](RequestId id) { engine.cancel(id); };
  api.retry_after_seconds = [&engine] { return engine.retry_after_seconds(); };
  api.stats = [&engine] { return engine.stats(); };
  api.save_slot = [&engine](int32_t slot, const std::string& file) { return engine.save_slot(slot, file); };
  api.restore_slot = [&engine](int32_t slot, const std::string& file) { return engine.restore_slot(slot, file); };
  api.erase_slot = [&engine](int32_t slot) { return engine.erase_slot(slot); };
  api.fork_slot = [&engine](int32_t slot) { return engine.fork_slot(slot); };
  api.drain = [&engine] { engine.drain(); };
  api.reset_cache = [&engine] { engine.reset_cache(); };
  api.drained = [&engine] { return engine.drained(); };
  api.capacity = [&engine] { return engine.capacity(); };
  return api;
}

}  // namespace k3::server
