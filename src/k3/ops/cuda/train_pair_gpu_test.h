// Internal to ops. An op of training on both devices: the same BF16 inputs as FP32 for the CPU, tapes and gradients of both, compared by
// norm ratio.
#pragma once

#include <gtest/gtest.h>

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/tape.h"
#include "k3/ops/train_step.h"
#include "k3/ops/weight.h"

namespace k3::ops::cuda {

struct Twin {
  Tensor host, device;
  Weight host_weight() const { return {host.data, nullptr, Scheme::f32, host.dim(0), host.dim(1)}; }
  Weight device_weight() const { return {device.data, nullptr, Scheme::bf16, device.dim(0), device.dim(1)}; }
};

class TrainPair {
 public:
  TrainPair() {
    host.pool = &pool_;
    host.workspace = &host_memory_;
    host.isa = detect_isa();
    device.device = Device{0};
    device.gpu = state_.get();
    device.workspace = &device_memory_;
    device.step = &step;
    for (Ctx* ctx : {&host, &device}) ctx->training = true;
    host.tape = &host_tape;
    device.tape = &device_tape;
    host_memory_.retain(true);
    device_memory_.retain(true);
  }

  Ctx host, device;
  TrainStep step;
  Tape host_tape, device_tape{Device{0}};

  Twin activation(std::initializer_list<int64_t> dims, uint64_t seed, float scale = 1) { return put(dims, seed, scale, DType::bf16); }
  Twin numbers(std::initializer_list<int64_t> dims, uint64_t seed, float scale = 1) { return put(dims, seed, scale, DType::f32); }
  Twin empty(std::initializer_list<int64_t> dims, DType dtype = DType::bf16) {
    Twin t{host_memory_.tensor(dims), device_memory_.tensor(dims, dtype)};
    gpu_check(cudaMemset(t.device.data, 0xFF, static_cast<size_t>(t.device.size() * dtype_bytes(dtype))), "poison");
    return t;
  }
  // Parameters: gradients begin with ones, to be added to.
  Twin matrix(int64_t rows, int64_t cols, uint64_t seed, float scale) { return trained(put({rows, cols}, seed, scale, DType::bf16)); }
  Twin vector(int64_t size, uint64_t seed, float scale = 1) { return trained(put({size}, seed, scale, DType::f32)); }
  Twin parameter_grads(const Twin& t) {
    return {host_tape.parameter_grad(t.host.data, t.host.size()), device_tape.parameter_grad(t.device.data, t.device.size())};
  }
  Twin grads(const Twin& t) { return {host_tape.grad(t.host), device_tape.grad(t.device)}; }

  void seed(const Twin& y, uint64_t seed) {  // its gradient
    const std::vector<float> values = random_bf16(y.host.size(), seed);
    std::copy(values.begin(), values.end(), host_tape.into(y.host).grad.f32());
    fill(device_tape.into(y.device).grad, values);
  }
  void backward() {
    host.tape = device.tape = nullptr;
    host_tape.backward(host);
    device_tape.backward(device);
    finish();
  }
  // Keeps the gradient of `t` past the end of the backward: an op of nothing, taken back last.
  void keep(const Twin& t, Twin* grad) {
    host_tape.record([=, this](const Ctx&) {
      const Tensor g = host_tape.grad(t.host);
      if (g) grad->host = copy_of(g);
    });
    device_tape.record([=, this](const Ctx&) {
      gpu_sync();
      const Tensor g = device_tape.grad(t.device);
      if (g) grad->device = copy_of(g);
    });
  }
  void finish() {
    const Status status = take_error(state_.get());
    EXPECT_TRUE(status.ok()) << status.error().message;
    gpu_sync();
  }

  std::vector<float> on_host(const Tensor& t) const {
    std::vector<std::byte> bytes(static_cast<size_t>(t.size() * dtype_bytes(t.dtype)));
    gpu_check(cudaMemcpy(bytes.data(), t.data, bytes.size(), cudaMemcpyDefault), "copy");
    std::vector<float> out(static_cast<size_t>(t.size()));
    convert_to_float(bytes.data(), t.dtype, t.size(), out.data());
    return out;
  }
  void expect(const char* what, const Twin& t, double tolerance) const {
    ASSERT_TRUE(t.host && t.device) << what;
    const double ratio = norm_ratio(on_host(t.device), on_host(t.host));
    EXPECT_LE(ratio, tolerance) << what;
    fmt::print("  {} {:.2e}\n", what, ratio);
  }

  void fill(const Tensor& to, const std::vector<float>& values) const {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(to.dtype)));
    convert_from_float(values.data(), to.dtype, to.size(), bytes.data());
    gpu_check(cudaMemcpy(to.data, bytes.data(), bytes.size(), cudaMemcpyDefault), "copy");
  }
  template <class T>
  const T* upload(std::span<const T> values) {
    void* const to = device_memory_.bytes(static_cast<int64_t>(values.size_bytes()));
    gpu_check(cudaMemcpy(to, values.data(), values.size_bytes(), cudaMemcpyHostToDevice), "copy");
    return static_cast<const T*>(to);
  }

 private:
  Twin put(std::initializer_list<int64_t> dims, uint64_t seed, float scale, DType dtype) {
    Twin t = empty(dims, dtype);
    const std::vector<float> values = random_bf16(t.host.size(), seed, scale);
    std::copy(values.begin(), values.end(), t.host.f32());
    fill(t.device, values);
    return t;
  }
  Twin trained(const Twin& t) {
    const Tensor h = host_memory_.tensor({t.host.size()}), d = device_memory_.tensor({t.host.size()});
    const std::vector<float> ones(static_cast<size_t>(t.host.size()), 1.0F);
    std::copy(ones.begin(), ones.end(), h.f32());
    fill(d, ones);
    host_tape.parameters(t.host.data, DType::f32, t.host.size(), h);
    device_tape.parameters(t.device.data, t.device.dtype, t.device.size(), d);
    return t;
  }
  Tensor copy_of(const Tensor& g) const {
    kept_.push_back(on_host(g));
    Tensor out = g;
    out.dtype = DType::f32;
    out.data = kept_.back().data();
    return out;
  }

  ThreadPool pool_{2};
  OpStateHandle state_{new_op_state()};
  Workspace host_memory_, device_memory_{Device{0}};
  mutable std::vector<std::vector<float>> kept_;
};

}  // namespace k3::ops::cuda
