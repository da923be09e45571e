// Purpose:  what a forward leaves for its backward: the steps to take back, the gradients on their way, sums for the router
//           and the clip.
// Shapes:   a gradient has the shape and dtype of its activation; those of parameters are FP32 (FP64 in double precision).
// Units:    gradients are of the loss that cross_entropy sums.
// Memory:   activations stay in the workspace, which retains while a tape records; gradients come from a pool of the tape and
//           go back as soon as their activation's producer has used them. Gradients of parameters belong to the caller.
// Threads:  one thread at a time; the work inside ops is parallel.
// Errors:   K3_CHECK on shapes.
// Source:   architecture 4. Activations are known by the address of their first element, which is unique because nothing is
//           given back in a forward that retains. An op that overwrites its output takes the gradient there and calls `done`: whatever
//           the buffer held before has no gradient from there on. An op that adds to its output, or changes it in place, leaves the
//           gradient where it is, changed or not. So in-place sums (the residual stream) need no special care.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "k3/ops/ctx.h"

namespace k3::ops {

class Tape {
 public:
  explicit Tape(Device device = {}) : device_(device), memory_(device) {}

  // ---- forward ----
  // `step` takes back the op just done. Nothing is recorded inside a region whose forward will be repeated.
  void record(std::function<void(const Ctx&)> step);
  bool recording() const { return !discarding_; }

  // ---- backward ----
  // Takes back all steps, the last one first.
  void backward(const Ctx& ctx);
  // The gradient of what `y` holds, or nothing if nothing depends on it.
  Tensor grad(const Tensor& y) const;
  // Where to put a gradient of `x`: `fresh` memory is to be written, other to be added to.
  struct Into {
    Tensor grad;
    bool fresh = false;
  };
  Into into(const Tensor& x);
  // `from` is a gradient of `x`; added, or copied when it is the first.
  void add(const Ctx& ctx, const Tensor& x, const Tensor& from);
  void done(const Tensor& y);  // the content of y was made by the op that is being taken back

  // ---- parameters ----
  // Parameters at [base, base + elements) of this dtype have gradients at the same places of `grads`.
  void parameters(const void* base, DType dtype, int64_t elements, const Tensor& grads);
  // Of a parameter that begins there, to be added to; empty when it is not trained.
  Tensor parameter_grad(const void* first, int64_t elements) const;

  // ---- what a step reports besides the loss ----
  // Sums under the address of a parameter: per-head maximum of attention logits (kv_b), histograms and loads (router bias).
  void watch(const void* key, const std::string& what, const Tensor& sums) { watched_[{key, what}] = sums; }
  Tensor watched(const void* key, const std::string& what) const;

  // ---- regions ----
  bool recompute = false;  // regions keep their input alone and are computed again in the backward
  bool repeating() const { return repeating_; }  // reports were made the first time
  const uint8_t* valid = nullptr;  // [T] of the batch: 0 for padding, which reports leave out; null: none

 private:
  template <class Body>
  friend void region(const Ctx& ctx, const Tensor& out, const Body& body);

  void back_to(const Ctx& ctx, size_t mark);
  void* take(int64_t bytes);

  struct Range {
    const std::byte* base;
    DType dtype;
    int64_t elements;
    Tensor grads;
  };
  Device device_;
  std::vector<std::function<void(const Ctx&)>> steps_;
  std::unordered_map<const void*, Tensor> grads_;
  std::vector<Range> ranges_;
  std::map<std::pair<const void*, std::string>, Tensor> watched_;
  Workspace memory_;
  std::unordered_map<int64_t, std::vector<void*>> free_;  // by size
  bool discarding_ = false, repeating_ = false;
};

// body(ctx, out) computes `out`, overwriting it, from buffers that nobody changes later. With Tape::recompute it is a region: its
// intermediate values are dropped, and computed again when its gradient is wanted.
template <class Body>
void region(const Ctx& ctx, const Tensor& out, const Body& body) {
  Tape* const tape = ctx.tape;
  if (tape == nullptr || !tape->recompute || !tape->recording()) return body(ctx, out);
  {
    ctx.workspace->retain(false);
    const Workspace::Scope scope(*ctx.workspace);
    tape->discarding_ = true;
    body(ctx, out);
    tape->discarding_ = false;
  }
  ctx.workspace->retain(true);
  tape->record([body, out, tape](const Ctx& back) {
    if (!tape->grad(out)) return;
    const Workspace::Scope scope(*back.workspace);
    const size_t mark = tape->steps_.size();
    const Tensor again = back.workspace->tensor_like(out);
    Ctx forward = back;
    forward.tape = tape;
    back.workspace->retain(true);
    tape->repeating_ = true;
    body(forward, again);
    tape->repeating_ = false;
    back.workspace->retain(false);
    // The gradient of `out` is that of its second self.
    tape->grads_[again.data] = tape->grads_[out.data];
    tape->grads_.erase(out.data);
    tape->back_to(back, mark);
  });
}

// Scratch whose content a backward wants as it is: another buffer for every use in training, `reused` otherwise.
inline Tensor fresh(const Ctx& ctx, const Tensor& reused) { return ctx.tape != nullptr ? ctx.workspace->tensor_like(reused) : reused; }

}  // namespace k3::ops
