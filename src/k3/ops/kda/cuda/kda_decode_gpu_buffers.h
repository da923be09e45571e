// Internal to ops/kda. Device buffers of the decode, verify and commit benches: `copies` separate sets of states to rotate
// among.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/kda/cuda/kda_decode_cuda.h"
#include "k3/ops/kda/cuda/kda_verify_cuda.h"

namespace k3::ops::cuda {

constexpr int64_t kStateElements = 128 * 128;

class StepBuffers {
 public:
  // rows: tokens of one call. max_tokens 0: no windows.
  StepBuffers(int64_t batch, int64_t heads, int64_t rows, bool state_bf16, int64_t copies, int max_tokens)
      : batch_(batch),
        heads_(heads),
        rows_(rows),
        width_(heads * 128),
        copies_(copies),
        max_tokens_(max_tokens),
        state_bf16_(state_bf16),
        wide_(5 * width_ + (heads + 7) / 8 * 8),
        sets_(max_tokens == 0 ? 1 : 2),
        x_(sets_ * copies * rows * wide_),
        out_(copies * rows * width_),
        taps_(width_ * 12),
        small_(width_ * 2),
        state_(copies * batch * width_ * 128 * (state_bf16 ? 1 : 2)),
        conv_(copies * batch * 9 * width_),
        u_(copies * batch * width_ * max_tokens) {
    fill(x_.data(), x_.size(), 1);
    fill(state_.data(), state_.size(), 0.05F);
    fill(conv_.data(), conv_.size(), 1);
    taps_.set(random_normal(taps_.size(), 1, 0.5F));
    small_.set(random_normal(small_.size(), 2, 0.5F));
    if (max_tokens > 0) {
      const std::vector<float> host(static_cast<size_t>(u_.size()), 0.08F);
      u_.set(host);
    }
    std::vector<int32_t> slots(static_cast<size_t>(batch));  // the same for every layer
    std::iota(slots.begin(), slots.end(), 0);
    slots_ = DeviceArray<int32_t>(slots);
  }

  KdaDecodeArgs decode(int64_t i) const {
    KdaDecodeArgs a{};
    a.weights = weights(), a.rows = rows(i), a.slots = slots(i);
    a.batch = static_cast<int32_t>(batch_);
    return a;
  }
  KdaWeights weights() const {
    KdaWeights w{};
    for (int64_t part = 0; part < 3; ++part) w.taps[part] = taps_.data() + part * width_ * 4;
    w.a_log = small_.data(), w.norm = small_.data(), w.dt_bias = small_.data() + width_;
    w.lower_bound = -5, w.norm_eps = 1e-5F, w.heads = static_cast<int32_t>(heads_);
    return w;
  }
  KdaRows rows(int64_t i) const {
    KdaRows r{};
    const uint16_t* x = x_of(i);
    for (int64_t part = 0; part < 3; ++part) r.x[part] = x + part * width_, r.x_stride[part] = wide_;
    r.z = x + 3 * width_, r.gate = x + 4 * width_, r.beta = x + 5 * width_;
    r.z_stride = r.gate_stride = r.beta_stride = wide_;
    r.out = out_.data() + i % copies_ * rows_ * width_, r.out_stride = width_;
    return r;
  }
  // Of windows: the rows of the call of the same copy before, which first_rows (of the device) names.
  KdaCommit commit(int64_t i, const int32_t* accepted, const int32_t* first_rows) const {
    KdaCommit c{};
    const uint16_t* x = x_of(i + copies_);
    for (int64_t part = 0; part < 3; ++part) c.x[part] = x + part * width_, c.x_stride[part] = wide_;
    c.z = x + 3 * width_, c.z_stride = wide_;
    c.accepted = accepted, c.first_rows = first_rows;
    return c;
  }
  KdaSlots slots(int64_t i) const {
    KdaSlots s{};
    const int64_t first = i % copies_ * batch_;
    s.state_stride = width_ * 128, s.state_bf16 = state_bf16_ ? 1 : 0;
    s.state = state_.data() + first * s.state_stride * (state_bf16_ ? 1 : 2);
    s.conv_stride = 9 * width_, s.conv = conv_.data() + first * s.conv_stride, s.conv_bf16 = 1;
    s.slots = slots_.data();
    return s;
  }
  KdaWindow window(int64_t i) const {
    KdaWindow w{};
    const int64_t first = i % copies_ * batch_;
    w.u_stride = width_ * max_tokens_, w.u = u_.data() + first * w.u_stride;
    w.max_tokens = max_tokens_;
    return w;
  }

 private:
  const uint16_t* x_of(int64_t i) const { return x_.data() + i % (sets_ * copies_) * rows_ * wide_; }
  static void fill(uint16_t* x, int64_t count, float scale) {
    gpu_check(fill_normal_bf16(x, count, 5, scale, nullptr).code, "fill");
  }

  int64_t batch_, heads_, rows_, width_, copies_;
  int max_tokens_;
  bool state_bf16_;
  int64_t wide_, sets_;  // sets of rows a copy, which windows take in turn
  DeviceArray<uint16_t> x_, out_;
  DeviceArray<float> taps_, small_;
  DeviceArray<uint16_t> state_, conv_;
  DeviceArray<float> u_;
  DeviceArray<int32_t> slots_;
};

}  // namespace k3::ops::cuda
