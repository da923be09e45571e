// Purpose:  a pool of worker threads with static partition; the only threads that CPU ops use.
// Threads:  run() is called from one thread at a time (the owner); workers spin a little, then park.
//           The caller takes part as worker 0, so a pool of 1 starts no thread. A part that no worker has begun is taken
//           by whoever is free, so a worker number says which part it is, not which thread runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace k3 {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; works with fewer when the system grants no more
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls body(worker) once for every worker in [0, size()) and waits for all. Bodies must not wait for each other.
  void run(const std::function<void(int worker)>& body);

  // Splits [0, count) into at most size() contiguous ranges of whole `grain`s and calls body(begin, end) on
  // each. Runs inline when only one range results. The split depends on the thread count, so a body must not
  // let the range borders change its results.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Hardware threads this process may use (affinity mask respected), at least 1.
int available_threads();

}  // namespace k3
