// Purpose:  what the ops keep on one GPU between steps: measured products, and the first launch of a step that failed.
// Shapes:   none.
// Units:    none.
// Memory:   owns cuBLASLt's workspace; belongs to whoever makes the Ctx.
// Threads:  one Ctx, one thread.
// Errors:   create: those of GemmPlans; without cuBLASLt every product runs on the row kernel. take_error: see dispatch.h.
// Source:   none.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/gemm/cuda/gemm_plans.h"
#include "k3/tensor/tensor.h"

namespace k3::ops::cuda {

class OpState {
 public:
  OpState();
  void note(CudaStatus status, const char* what) {
    if (trace_) trace(what);
    if (profile_) mark(what);
    if (!status.ok() && first_.ok()) {
      first_ = status;
      what_ = what;
    }
  }
  void note(Status status) {
    if (!status.ok() && host_error_.ok()) host_error_ = std::move(status);
  }
  // K3_TRACE=gpu: every op is waited for and named on stderr, so that one that hangs or faults is known. No graphs then.
  bool tracing() const { return trace_ || on_routes != nullptr; }
  Status take_error() {
    const CudaStatus status = std::exchange(first_, {});
    K3_TRY(std::exchange(host_error_, Status()));
    return to_status(status, what_);
  }
  // Device memory that is zero at first and that its users leave as they want to find it. Grows, never while a graph is captured:
  // a step runs before it is.
  Result<void*> zeroed(int64_t bytes);
  // Between the two every note leaves an event on the stream; then the time up to each is that of its op.
  Status start_profile(Stream stream);
  struct Profiled {
    const char* what;
    int64_t count;
    double seconds;
  };
  Result<std::vector<Profiled>> take_profile();  // the longest first; waits
  // Scratch of cuBLASLt for the products of training: one, they follow each other on a stream.
  Result<void*> product_workspace(int64_t bytes);
  // Zero between launches, of all that have a site in front; null: no memory. First asked for before a graph is captured.
  uint32_t* site_counter();
  uint32_t* claim_counter();  // likewise, of kernels whose blocks take work as they finish
  // Who wants to see what each router chooses (ids [T, topk] on the device, once the kernel has run); no graphs then.
  std::function<void(const Tensor& ids)> on_routes;

  GemmPlans* plans() { return plans_ ? &*plans_ : nullptr; }
  const std::string& without_plans() const { return without_plans_; }  // why there are none

 private:
  void trace(const char* what);
  void mark(const char* what);

  bool trace_ = false, profile_ = false;
  Stream profiled_ = nullptr;
  std::vector<std::pair<const char*, EventHandle>> marks_;
  std::optional<GemmPlans> plans_;
  Storage product_workspace_;
  Storage counter_;
  std::vector<Storage> zeroed_;  // the last is in use; those before may be named in graphs
  std::string without_plans_;
  CudaStatus first_;
  Status host_error_;
  const char* what_ = "";
};

}  // namespace k3::ops::cuda
