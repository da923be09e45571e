// Purpose:  runs independent tasks of unequal size on the pool.
// Shapes:   count tasks.
// Units:    none.
// Memory:   none.
// Threads:  each worker takes the next task when it is free, so which worker runs a task is not fixed; a task must
//           not depend on it. Without a pool everything runs on the caller as worker 0.
// Errors:   none.
// Source:   -
#pragma once

#include <atomic>
#include <cstdint>

#include "k3/ops/ctx.h"

namespace k3::ops {

inline int worker_count(const Ctx& ctx) { return ctx.pool == nullptr ? 1 : ctx.pool->size(); }

template <class F>  // body(worker, task)
void run_tasks(const Ctx& ctx, int64_t count, const F& body) {
  if (count <= 1 || worker_count(ctx) == 1) {
    for (int64_t i = 0; i < count; ++i) body(0, i);
    return;
  }
  std::atomic<int64_t> next{0};
  ctx.pool->run([&](int worker) {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(worker, i);
  });
}

}  // namespace k3::ops
