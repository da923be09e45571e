// Internal to ops/sampling. The arithmetic of sampling on the GPU, one text for host and device: FP32 operations that IEEE
// defines (fma, division, conversion), and masses as integers, whose sums do not depend on their order. So the GPU chooses
// bit for bit what the host would choose. No CUDA header, no Result.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define K3_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define K3_HOST_DEVICE inline
#endif

namespace k3::ops::cuda {

struct SampleRow {  // parameters of one row, in device memory; validated on the host (SamplingParams)
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  double uniform = 0;  // Rng(seed, stream).uniform(counter)
};

// What was chosen from a row on the device.
struct ChosenRow {
  int32_t id = -1;
  uint32_t flags = 0;
};
constexpr int32_t kNotChosen = -2;  // the id of a row whose logits came to the host in its place

constexpr uint32_t kSampleNotFinite = 1;  // a NaN or an infinity among the logits
constexpr uint32_t kSampleBroken = 2;     // NaN or +infinity: the id is -1
constexpr uint32_t kSampleNoToken = 4;    // every logit is -infinity or masked: the id is -1

// e^x for x <= 0, within 2 ulp; 0 below -32, where the mass is 0.
K3_HOST_DEVICE float sample_exp(float x) {
  union {
    float value;
    uint32_t bits;
  } whole, power;
  constexpr float kWhole = 12582912.0F;  // 1.5 * 2^23: what is added to it becomes whole, and lies in its low bits
  whole.value = fmaf(x, 1.44269504F, kWhole);
  const float n = whole.value - kWhole;
  float f = fmaf(n, -0.693145752F, x);  // ln 2 in two parts; the first times n is exact
  f = fmaf(n, -1.42860677e-6F, f);
  float p = 1.0F / 720;
  p = fmaf(p, f, 1.0F / 120);
  p = fmaf(p, f, 1.0F / 24);
  p = fmaf(p, f, 1.0F / 6);
  p = fmaf(p, f, 0.5F);
  p = fmaf(p, f, 1);
  p = fmaf(p, f, 1);
  power.value = p;  // near 1: the exponent has room
  power.bits += whole.bits << 23;
  return x >= -32.0F ? power.value : 0;
}

// Weight of a logit against the best one of its row, and its integer mass: sums of 2^18 masses stay below 2^63.
K3_HOST_DEVICE float sample_inverse(float temperature) { return 1.0F / (temperature > 1e-30F ? temperature : 1e-30F); }
K3_HOST_DEVICE float sample_weight(float logit, float best, float inverse) { return sample_exp((logit - best) * inverse); }
// floor(weight * 2^44) for weights in [0, 1], by shifts: conversions to 64 bits are slow on the GPU.
K3_HOST_DEVICE uint64_t sample_mass(float weight) {
  union {
    float value;
    uint32_t bits;
  } w;
  w.value = weight;
  const int32_t up = static_cast<int32_t>(w.bits >> 23) - 106;  // the weight is m * 2^(up - 44), m < 2^24
  const int32_t left = up > 0 ? up : 0, right = up < -31 ? 31 : up < 0 ? -up : 0;
  return static_cast<uint64_t>(((w.bits & 0x7FFFFF) | 0x800000) >> right) * (1U << left);
}

// Mass that the smallest set of top_p must reach; at least 1, so that the set is never empty.
K3_HOST_DEVICE uint64_t sample_target(float top_p, uint64_t total) {
  const auto target = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(total));
  return target == 0 ? 1 : target > total ? total : target;
}
K3_HOST_DEVICE uint64_t sample_point(double uniform, uint64_t total) {
  const auto point = static_cast<uint64_t>(uniform * static_cast<double>(total));
  return point < total ? point : total - 1;
}

}  // namespace k3::ops::cuda
