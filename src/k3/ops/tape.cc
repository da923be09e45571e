#include "k3/ops/tape.h"

#include "k3/ops/elementwise/elementwise.h"

namespace k3::ops {

void Tape::record(std::function<void(const Ctx&)> step) {
  if (!discarding_) steps_.push_back(std::move(step));
}

void Tape::back_to(const Ctx& ctx, size_t mark) {
  while (steps_.size() > mark) {
    const std::function<void(const Ctx&)> step = std::move(steps_.back());
    steps_.pop_back();
    const Workspace::Scope scope(*ctx.workspace);
    step(ctx);
  }
}

void Tape::backward(const Ctx& ctx) {
  Ctx back = ctx;
  back.tape = nullptr;  // what a vjp computes is not recorded
  back_to(back, 0);
  // What is left belongs to inputs that no op made.
  for (const auto& [buffer, grad] : grads_) free_[grad.size() * dtype_bytes(grad.dtype)].push_back(grad.data);
  grads_.clear();
}

Tensor Tape::grad(const Tensor& y) const {
  const auto found = grads_.find(y.data);
  if (found == grads_.end()) return {};
  K3_CHECK(found->second.size() == y.size(), "gradient {} of {}", found->second.shape_text(), y.shape_text());
  Tensor out = y;
  out.data = found->second.data;
  return out;
}

void* Tape::take(int64_t bytes) {
  std::vector<void*>& free = free_[bytes];
  if (free.empty()) return memory_.bytes(bytes);
  void* const out = free.back();
  free.pop_back();
  return out;
}

Tape::Into Tape::into(const Tensor& x) {
  K3_CHECK(x.contiguous(), "the gradient of a strided view {}", x.shape_text());
  if (Tensor known = grad(x)) return {known, false};
  Tensor made = x;
  made.data = take(x.size() * dtype_bytes(x.dtype));
  grads_[x.data] = made;
  return {made, true};
}

void Tape::add(const Ctx& ctx, const Tensor& x, const Tensor& from) {
  const Into to = into(x);
  const Tensor flat_from = from.reshape({1, from.size()}), flat_to = to.grad.reshape({1, from.size()});
  if (to.fresh) {
    ops::copy(ctx, flat_from, flat_to);
  } else {
    ops::add(ctx, flat_from, flat_to);
  }
}

void Tape::done(const Tensor& y) {
  const auto found = grads_.find(y.data);
  if (found == grads_.end()) return;
  free_[found->second.size() * dtype_bytes(found->second.dtype)].push_back(found->second.data);
  grads_.erase(found);
}

void Tape::parameters(const void* base, DType dtype, int64_t elements, const Tensor& grads) {
  ranges_.push_back({static_cast<const std::byte*>(base), dtype, elements, grads});
}

Tensor Tape::parameter_grad(const void* first, int64_t elements) const {
  const auto* at = static_cast<const std::byte*>(first);
  for (const Range& range : ranges_) {
    const int64_t width = dtype_bytes(range.dtype);
    if (at < range.base || at >= range.base + range.elements * width) continue;
    const int64_t index = (at - range.base) / width;
    return range.grads.reshape({range.grads.size()}).slice(index, index + elements);
  }
  return {};
}

Tensor Tape::watched(const void* key, const std::string& what) const {
  const auto found = watched_.find({key, what});
  return found == watched_.end() ? Tensor() : found->second;
}

}  // namespace k3::ops
