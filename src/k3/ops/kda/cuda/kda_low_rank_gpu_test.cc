// Decode that applies the second factors of z and the gate itself, bit for bit against decode that is given the products. Factors
// and inputs are such that every sum is a number BF16 has.
#include <gtest/gtest.h>

#include "k3/base/rng.h"
#include "k3/ops/kda/cuda/kda_decode_gpu_buffers.h"

namespace k3::ops::cuda {
namespace {

std::vector<float> steps_of(int64_t count, uint64_t seed, int most, float unit) {  // multiples of unit in [-most, most]
  const Rng rng(seed, 1);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = unit * static_cast<float>(static_cast<int>(rng.bits(i) % static_cast<uint64_t>(2 * most + 1)) - most);
  }
  return x;
}

// [requests, width]: in [requests, 128] times w [width, 128], transposed.
std::vector<float> product(const std::vector<float>& in, const std::vector<float>& w, int64_t requests, int64_t width) {
  std::vector<float> out(static_cast<size_t>(requests * width));
  for (int64_t r = 0; r < requests; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      float sum = 0;
      for (int64_t i = 0; i < 128; ++i) sum += in[static_cast<size_t>(r * 128 + i)] * w[static_cast<size_t>(c * 128 + i)];
      out[static_cast<size_t>(r * width + c)] = sum;
    }
  }
  return out;
}

void check(int64_t requests, int64_t heads, bool state_bf16, bool low_gate) {
  SCOPED_TRACE(fmt::format("B {} H {} bf16 {} gate {}", requests, heads, state_bf16, low_gate));
  ASSERT_TRUE(kda_decode_takes_low(requests * heads, state_bf16, device_info()));
  const int64_t width = heads * 128;
  std::vector<float> in[2], w[2], y[2];
  for (size_t i = 0; i < 2; ++i) {
    in[i] = steps_of(requests * 128, 10 + i, 1, 1), w[i] = steps_of(width * 128, 20 + i, 1, 0.25F);
    y[i] = product(in[i], w[i], requests, width);
    for (const float v : y[i]) ASSERT_EQ(v, round_to_bf16(v));
  }
  const DeviceArray<uint16_t> d_in[2] = {DeviceArray<uint16_t>(to_bf16(in[0])), DeviceArray<uint16_t>(to_bf16(in[1]))},
                              d_w[2] = {DeviceArray<uint16_t>(to_bf16(w[0])), DeviceArray<uint16_t>(to_bf16(w[1]))},
                              d_y[2] = {DeviceArray<uint16_t>(to_bf16(y[0])), DeviceArray<uint16_t>(to_bf16(y[1]))};
  const auto run = [&](bool low) {
    const StepBuffers buffers(requests, heads, requests, state_bf16, 1, 0);
    KdaDecodeArgs a = buffers.decode(0);
    a.rows.z = d_y[0].data(), a.rows.z_stride = width;
    a.rows.gate = d_y[1].data(), a.rows.gate_stride = width;
    if (low) {
      a.rows.z = nullptr;
      a.low.z_w = d_w[0].data(), a.low.z_in = d_in[0].data(), a.low.z_stride = 128;
      if (low_gate) {
        a.rows.gate = nullptr;
        a.low.gate_w = d_w[1].data(), a.low.gate_in = d_in[1].data(), a.low.gate_stride = 128;
      }
    }
    EXPECT_TRUE(kda_decode_cuda(a, nullptr).ok());
    gpu_sync();
    std::vector<uint16_t> out(static_cast<size_t>(requests * width));
    std::vector<uint8_t> state(static_cast<size_t>(requests * width * 128 * (state_bf16 ? 2 : 4)));
    gpu_check(cudaMemcpy(out.data(), a.rows.out, out.size() * 2, cudaMemcpyDeviceToHost), "out");
    gpu_check(cudaMemcpy(state.data(), a.slots.state, state.size(), cudaMemcpyDeviceToHost), "state");
    return std::pair(out, state);
  };
  const auto want = run(false), got = run(true);
  EXPECT_EQ(got.first, want.first);
  EXPECT_EQ(got.second, want.second);
}

TEST(KdaLowRankGpu, SanitizeOneHead) {
  K3_NEEDS_GPU();
  check(1, 1, false, true);
}

TEST(KdaLowRankGpu, SameBitsAsGivenProducts) {
  K3_NEEDS_GPU();
  for (const bool state_bf16 : {false, true}) {
    for (const bool low_gate : {false, true}) {
      check(1, 32, state_bf16, low_gate);
      check(3, 12, state_bf16, low_gate);
    }
  }
}

}  // namespace
}  // namespace k3::ops::cuda
