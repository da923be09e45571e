// Purpose:  what the server asks of the engine, as functions: the engine itself, or a script of tokens in tests.
// Shapes:   none.
// Units:    as engine.h.
// Memory:   the engine outlives the server.
// Threads:  every function may be called from any thread; slot functions may block between two steps.
// Errors:   as engine.h.
// Source:   engine.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "k3/engine/engine.h"

namespace k3::server {

struct EngineApi {
  std::function<Result<RequestId>(Request)> submit;
  std::function<void(RequestId)> cancel;
  std::function<double()> retry_after_seconds;
  std::function<EngineStats()> stats;
  std::function<Result<SlotResult>(int32_t, const std::string&)> save_slot, restore_slot;
  std::function<Result<SlotResult>(int32_t)> erase_slot, fork_slot;
  std::function<void()> drain, reset_cache;
  std::function<bool()> drained;
  std::function<std::vector<CapacityLine>()> capacity;
};

EngineApi engine_api(Engine& engine);

}  // namespace k3::server
