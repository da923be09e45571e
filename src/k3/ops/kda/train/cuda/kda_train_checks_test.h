// Internal to ops/kda/train. Forward and vjp of kda_train against the reference in double on the same BF16 inputs: what the
// tests on a GPU and on the emulated one (tests/emulator) share.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "k3/ops/kda/train/cuda/kda_train_cuda.h"
#include "k3/ops/kda/train/cuda/kda_train_gpu_data.h"

namespace k3::ops::cuda {

struct TrainTolerance {  // kda_train_cuda.h
  double y, final, d_qk, d_v, gates, parameters;
};
inline constexpr TrainTolerance kTrainFast = {6e-3, 5e-3, 8e-3, 8e-3, 2e-2, 1e-2},
                                kTrainNarrow = {6e-3, 5e-3, 1.2e-2, 8e-3, 2e-2, 1.5e-2},
                                kTrainAlike = {1.5e-2, 2e-2, 1.5e-2, 3e-2, 2e-2, 2e-2},
                                kTrainPlain = {3e-3, 1e-5, 3e-3, 3e-3, 3e-3, 1e-5};

inline double train_ratio(const std::vector<float>& x, const std::vector<double>& ref) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (static_cast<double>(x[i]) - ref[i]) * (static_cast<double>(x[i]) - ref[i]);
    norm += ref[i] * ref[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

inline double sum_of_sizes(KdaTrainData<double>& ref) {  // of the terms of da_log, bounded gates: dz (z + dt_bias)
  double sum = 0;
  const auto width = static_cast<size_t>(ref.width());
  for (size_t i = 0; i < ref.dz.size(); ++i) sum += std::abs(ref.dz[i] * (ref.z[i] + ref.dt_bias[i % width]));
  return sum;
}

// run(KdaTrainOnGpu): forward and vjp, and waits; false: it could not.
template <class Run>
void check_train(const KdaTrainCase& c, const TrainTolerance& most, bool b_f32, const Run& run) {
  SCOPED_TRACE(fmt::format("{} H {} D {} K {}, {} sequences", c.name, c.heads, c.dim, c.taps, c.lengths.size()));
  KdaTrainData<float> data(c);
  KdaTrainOnGpu device(data, b_f32);
  KdaTrainData<double> ref(c);
  for (size_t i = 0; i < 6; ++i)
    std::copy(data.inputs()[i].value->begin(), data.inputs()[i].value->end(), ref.inputs()[i].value->begin());
  std::copy(data.dy.begin(), data.dy.end(), ref.dy.begin());
  kda_train_forward_ref(ref.args(), ref.rows(ref.y));
  kda_train_vjp_ref(ref.args(), ref.rows(ref.dy), ref.grads());
  ASSERT_TRUE(run(device));
  device.fetch();
  EXPECT_TRUE(device.guards_intact());
  EXPECT_LE(train_ratio(data.y, ref.y), most.y) << "y";
  EXPECT_LE(train_ratio(data.dq, ref.dq), most.d_qk) << "dq";
  EXPECT_LE(train_ratio(data.dk, ref.dk), most.d_qk) << "dk";
  EXPECT_LE(train_ratio(data.dv, ref.dv), most.d_v) << "dv";
  EXPECT_LE(train_ratio(data.dz, ref.dz), most.gates) << "dz";
  EXPECT_LE(train_ratio(data.db, ref.db), most.gates) << "db";
  EXPECT_LE(train_ratio(data.dgate, ref.dgate), most.gates) << "dgate";
  EXPECT_LE(train_ratio(data.dnorm, ref.dnorm), most.gates) << "dnorm";
  EXPECT_LE(train_ratio(data.ddt_bias, ref.ddt_bias), most.parameters) << "ddt_bias";
  for (int part = 0; part < 3; ++part)
    EXPECT_LE(train_ratio(data.dtaps[part], ref.dtaps[part]), most.parameters) << "taps " << part;
  if (c.lower_bound) {
    for (size_t h = 0; h < data.da_log.size(); ++h)
      EXPECT_NEAR(static_cast<double>(data.da_log[h]), ref.da_log[h], 1e-2 * sum_of_sizes(ref));
  }
  if (!c.states) return;
  EXPECT_LE(train_ratio(data.final, ref.final), most.final) << "final";
  EXPECT_LE(train_ratio(data.d_initial, ref.d_initial), most.d_qk) << "d_initial";
}

inline const TrainTolerance& tolerance_of(const KdaTrainCase& c) {
  return c.key_correlation > 0.5F ? kTrainAlike : c.dim < 128 ? kTrainNarrow : kTrainFast;
}

}  // namespace k3::ops::cuda
