#include "k3/ops/cuda/op_state.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "k3/ops/cuda/dispatch.h"

namespace k3::ops::cuda {

OpState::OpState() {
  const char* trace = std::getenv("K3_TRACE");
  trace_ = trace != nullptr && std::string_view(trace) == "gpu";
  Result<GemmPlans> plans = GemmPlans::create();
  if (plans.ok()) {
    plans_.emplace(*std::move(plans));
  } else {
    without_plans_ = plans.error().message;
  }
}

Result<void*> OpState::zeroed(int64_t bytes) {
  if (zeroed_.empty() || zeroed_.back().size_bytes() < bytes) {
    int device = 0;
    cudaGetDevice(&device);
    K3_TRY_ASSIGN(Storage storage, Storage::allocate_on(Device{device}, bytes));
    zeroed_.push_back(std::move(storage));
  }
  return static_cast<void*>(zeroed_.back().data());
}

void OpState::mark(const char* what) {
  Result<EventHandle> event = make_event();
  if (event.ok() && record(*event, profiled_).ok()) marks_.emplace_back(what, *std::move(event));
}

Status OpState::start_profile(Stream stream) {
  profiled_ = stream;
  profile_ = true;
  marks_.clear();
  mark("");
  return {};
}

Result<std::vector<OpState::Profiled>> OpState::take_profile() {
  profile_ = false;
  std::map<std::string_view, Profiled> sums;
  for (size_t i = 1; i < marks_.size(); ++i) {
    K3_TRY_ASSIGN(const double seconds, seconds_between(marks_[i - 1].second, marks_[i].second));
    Profiled& sum = sums.try_emplace(marks_[i].first, Profiled{marks_[i].first, 0, 0}).first->second;
    ++sum.count;
    sum.seconds += seconds;
  }
  marks_.clear();
  std::vector<Profiled> out;
  for (const auto& [what, sum] : sums) out.push_back(sum);
  std::sort(out.begin(), out.end(), [](const Profiled& a, const Profiled& b) { return a.seconds > b.seconds; });
  return out;
}

Result<void*> OpState::product_workspace(int64_t bytes) {
  if (product_workspace_.size_bytes() < bytes) {
    int device = 0;
    cudaGetDevice(&device);
    K3_TRY_ASSIGN(product_workspace_, Storage::allocate_on(Device{device}, bytes));
  }
  return static_cast<void*>(product_workspace_.data());
}

uint32_t* OpState::site_counter() {
  if (counter_.size_bytes() == 0) {
    int device = 0;
    cudaGetDevice(&device);
    Result<Storage> storage = Storage::allocate_on(Device{device}, 512);
    if (!storage.ok()) return nullptr;
    counter_ = *std::move(storage);
  }
  return reinterpret_cast<uint32_t*>(counter_.data());
}

uint32_t* OpState::claim_counter() { return site_counter() == nullptr ? nullptr : site_counter() + 32; }

void OpState::trace(const char* what) {
  std::fprintf(stderr, "%s", what);
  std::fflush(stderr);
  const cudaError_t error = cudaDeviceSynchronize();
  std::fprintf(stderr, error == cudaSuccess ? " done\n" : ": %s\n", cudaGetErrorString(error));
}

Status check_device(bool hopper) {
  if (hopper && plain_device()) {
    return fail(Code::unsupported, "experts in host memory (--vram) are for Hopper GPUs; this one has compute capability {}.{}",
                device_info().capability / 10, device_info().capability % 10);
  }
  const int capability = device_info().capability;
  if (capability >= 80) return {};
  return fail(Code::unsupported, "this GPU has compute capability {}.{}; the kernels need 8.0 (Ampere) or later, --device cpu runs everywhere",
              capability / 10, capability % 10);
}

bool tracing(const OpState* state) { return state->tracing(); }
void watch_routes(OpState* state, std::function<void(const Tensor&)> watch) { state->on_routes = std::move(watch); }
OpState* new_op_state() { return new OpState; }
void delete_op_state(OpState* state) { delete state; }
Status take_error(OpState* state) { return state->take_error(); }

Status prepare_product(OpState* state, const Weight& w, DType out, int64_t tokens, Stream stream) {
  if (state->plans() == nullptr || w.scheme != Scheme::bf16) return {};
  return state->plans()->prepare({.tokens = tokens, .rows = w.rows, .in = w.cols, .out = out}, stream);
}

}  // namespace k3::ops::cuda
