// Internal to ops/kda/train. A case of kda_train_cases.h on the device, for the test and the bench.
#pragma once

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/kda/train/kda_train_cases.h"

namespace k3::ops::cuda {

// Ctx of the first GPU with its own workspace.
struct TrainGpu {
  OpStateHandle state{new_op_state()};
  Workspace workspace{Device{0}};
  Ctx ctx;
  TrainGpu() { ctx = {.device = Device{0}, .gpu = state.get(), .workspace = &workspace}; }
};

// Inputs rounded to BF16 in `host`, so that a reference may be given the same numbers.
struct KdaTrainOnGpu {
  KdaTrainData<float>& host;
  bool b_f32;
  std::vector<DeviceArray<uint16_t>> rows;  // q, k, v, z, gate, dy; y, dq, dk, dv, dz, dgate
  DeviceArray<uint16_t> b, db;
  DeviceArray<float> b_numbers, db_numbers;
  std::vector<DeviceArray<float>> parameters, sums;  // taps, a_log, dt_bias, norm, and their gradients
  DeviceArray<float> initial, final, d_final, d_initial;
  DeviceArray<int32_t> offsets;

  explicit KdaTrainOnGpu(KdaTrainData<float>& data, bool b_in_f32 = false) : host(data), b_f32(b_in_f32) {
    for (std::vector<float>* x : {&host.q, &host.k, &host.v, &host.z, &host.gate, &host.dy}) {
      for (float& value : *x) value = round_to_bf16(value);
      rows.emplace_back(to_bf16(*x));
    }
    for (int i = 0; i < 6; ++i) rows.emplace_back(static_cast<int64_t>(host.q.size()));
    for (float& value : host.b) value = round_to_bf16(value);
    b = DeviceArray<uint16_t>(to_bf16(host.b)), b_numbers = DeviceArray<float>(host.b);
    db = DeviceArray<uint16_t>(b.size()), db_numbers = DeviceArray<float>(b.size());
    for (auto* x : {&host.taps[0], &host.taps[1], &host.taps[2], &host.a_log, &host.dt_bias, &host.norm}) {
      parameters.emplace_back(*x);
      sums.emplace_back(std::vector<float>(x->size(), 0.0F));
    }
    initial = DeviceArray<float>(host.initial), d_final = DeviceArray<float>(host.d_final);
    final = DeviceArray<float>(initial.size()), d_initial = DeviceArray<float>(initial.size());
    offsets = DeviceArray<int32_t>(std::vector<int32_t>(host.offsets.begin(), host.offsets.end()));
  }

  Tensor row_tensor(size_t i) const { return {rows[i].data(), DType::bf16, {host.tokens(), host.width()}}; }
  Tensor logits(const DeviceArray<uint16_t>& x, const DeviceArray<float>& wide) const {
    if (b_f32) return {wide.data(), DType::f32, {host.tokens(), host.shape.heads}};
    return {x.data(), DType::bf16, {host.tokens(), host.shape.heads}};
  }
  Tensor state(const DeviceArray<float>& x) const {
    if (!host.shape.states) return {};
    return {x.data(), DType::f32, {host.sequences(), host.shape.heads, host.shape.dim, host.shape.dim}};
  }
  static Tensor like(const DeviceArray<float>& x, const Tensor& shape) {
    Tensor t = shape;
    t.data = x.data();
    return t;
  }

  KdaTrainArgs args() const {
    KdaTrainArgs a = host.args();
    a.q_in = row_tensor(0), a.k_in = row_tensor(1), a.v_in = row_tensor(2), a.z = row_tensor(3), a.gate = row_tensor(4);
    a.b = logits(b, b_numbers);
    for (size_t part = 0; part < 3; ++part) a.taps[part] = like(parameters[part], a.taps[part]);
    a.a_log = like(parameters[3], a.a_log), a.dt_bias = like(parameters[4], a.dt_bias), a.norm = like(parameters[5], a.norm);
    a.device_offsets = offsets.data();
    a.initial = state(initial), a.final = state(final);
    return a;
  }
  Tensor dy() const { return row_tensor(5); }
  Tensor y() const { return row_tensor(6); }
  KdaTrainGrads grads() const {
    KdaTrainGrads g = host.grads();
    g.dq_in = row_tensor(7), g.dk_in = row_tensor(8), g.dv_in = row_tensor(9), g.dz = row_tensor(10), g.dgate = row_tensor(11);
    g.db = logits(db, db_numbers);
    for (size_t part = 0; part < 3; ++part) g.dtaps[part] = like(sums[part], g.dtaps[part]);
    g.da_log = like(sums[3], g.da_log), g.ddt_bias = like(sums[4], g.ddt_bias), g.dnorm = like(sums[5], g.dnorm);
    g.d_initial = state(d_initial), g.d_final = state(d_final);
    return g;
  }

  // Results to the host's arrays.
  void fetch() {
    std::vector<float>* to[6] = {&host.y, &host.dq, &host.dk, &host.dv, &host.dz, &host.dgate};
    for (size_t i = 0; i < 6; ++i) *to[i] = from_bf16(rows[6 + i].get());
    host.db = b_f32 ? db_numbers.get() : from_bf16(db.get());
    std::vector<float>* parameter[6] = {&host.dtaps[0], &host.dtaps[1], &host.dtaps[2], &host.da_log, &host.ddt_bias, &host.dnorm};
    for (size_t i = 0; i < 6; ++i) *parameter[i] = sums[i].get();
    host.final = final.get(), host.d_initial = d_initial.get();
  }
  bool guards_intact() const {
    bool intact = final.guards_intact() && d_initial.guards_intact() && db.guards_intact() && db_numbers.guards_intact();
    for (const auto& x : rows) intact = intact && x.guards_intact();
    for (const auto& x : sums) intact = intact && x.guards_intact();
    return intact;
  }
};

inline void train_step(const Ctx& ctx, const KdaTrainOnGpu& data) {
  const Workspace::Scope scope(*ctx.workspace);
  KdaTrainSaved saved;
  ops::kda_train_forward(ctx, data.args(), data.y(), &saved);
  ops::kda_train_vjp(ctx, data.args(), saved, data.dy(), data.grads());
}

}  // namespace k3::ops::cuda
