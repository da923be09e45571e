// Purpose:  a pool of worker threads with static partition; the only threads that CPU ops use.
// Threads:  run() is called from one thread at a time (the owner). The caller takes part as worker 0, so a pool of 1 starts
//           no thread. A part that no worker has begun is taken by whoever is free, so a worker number says which part it
//           is, not which thread runs it.
//           Between regions workers spin for as long as waking them would cost, then sleep. They do not spin at all where
//           there are more threads than CPUs, and hardly where they notice that others want their CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace k3 {

// Refers to a callable that outlives the call. Unlike std::function it never allocates.
template <class... Args>
class BodyRef {
 public:
  template <class Body>
  requires(!std::is_same_v<std::remove_cvref_t<Body>, BodyRef>)
      BodyRef(const Body& body)  // NOLINT: implicit, so that a lambda can be passed
      : object_(&body), call_([](const void* object, Args... args) { (*static_cast<const Body*>(object))(args...); }) {}
  void operator()(Args... args) const { call_(object_, args...); }

 private:
  const void* object_;
  void (*call_)(const void*, Args...);
};

class ThreadPool {
 public:
  // threads >= 1; works with fewer when the system grants no more. cpus (numa_plan.h, worker_cpus): the thread of worker i
  // may run on cpus[i] only; none given, or an empty list: wherever this process may. What the system refuses is a warning.
  // Worker 0 is left where it is: the caller's thread is not ours, and threads that it starts would inherit its mask.
  explicit ThreadPool(int threads, std::span<const std::vector<int>> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls body(worker) once for every worker in [0, size()) and waits for all. Bodies must not wait for each other.
  void run(BodyRef<int> body);

  // Splits [0, count) into at most size() contiguous ranges of whole `grain`s and calls body(begin, end) on
  // each. Runs inline when only one range results. The split depends on the thread count, so a body must not
  // let the range borders change its results.
  void parallel_for(int64_t count, int64_t grain, BodyRef<int64_t, int64_t> body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Hardware threads this process may use, at least 1: those of its affinity mask, but no more than the CPU time that its
// control groups grant (a container of 2 CPUs on a machine of 64 has 2).
int available_threads();

}  // namespace k3
