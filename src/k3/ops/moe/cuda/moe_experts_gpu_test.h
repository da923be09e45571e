// Internal to ops/moe. What the tests of both kernel families share: random experts as a checkpoint stores them, their
// packed form on the device, the double reference. Problem: each test's struct of sizes (kind, tokens, experts, topk, width,
// hidden, glu, first, local, count, scale_low, scale_high).
#pragma once

#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/moe/cuda/moe_stream_pack.h"
#include "k3/ops/moe/moe_cases.h"

namespace k3::ops::cuda {

constexpr double kMoeTolerance = 4e-3;  // norm ratio against moe_ref (kernels.md 9)

// A weight in the checkpoint's layout, with its values in FP32.
struct FileWeight {
  std::vector<uint8_t> data, scales;
  std::vector<float> values;
};

inline FileWeight file_weight(MoeWeights kind, int64_t rows, int64_t cols, uint64_t seed, int scale_low, int scale_high) {
  FileWeight w;
  if (kind == MoeWeights::bf16) {
    w.values = random_bf16(rows * cols, seed, 0.05F);
    const std::vector<uint16_t> bits = to_bf16(w.values);
    w.data.resize(bits.size() * 2);
    std::memcpy(w.data.data(), bits.data(), w.data.size());
    return w;
  }
  const Rng rng(seed, 5);
  w.data.resize(static_cast<size_t>(rows * cols / 2));
  w.scales.resize(static_cast<size_t>(rows * cols / 32));
  w.values.resize(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < w.data.size(); ++i) w.data[i] = static_cast<uint8_t>(rng.bits(i));
  for (size_t i = 0; i < w.scales.size(); ++i) {
    w.scales[i] = static_cast<uint8_t>(
        scale_low + static_cast<int>(rng.bits(i + w.data.size()) % static_cast<uint64_t>(scale_high - scale_low + 1)));
  }
  for (size_t i = 0; i < w.values.size(); ++i) {
    const int code = w.data[i / 2] >> (i % 2 * 4) & 15;
    w.values[i] = std::ldexp(mxfp4_value(code), w.scales[i / 32] - 127);
  }
  return w;
}

// w1, w2, w3 of every expert.
template <class Problem>
std::vector<FileWeight> file_weights(const Problem& p, uint64_t seed) {
  std::vector<FileWeight> files;
  for (int e = 0; e < p.experts; ++e) {
    const uint64_t s = seed + 3 * static_cast<uint64_t>(e);
    files.push_back(file_weight(p.kind, p.hidden, p.width, s, p.scale_low, p.scale_high));
    files.push_back(file_weight(p.kind, p.width, p.hidden, s + 1, 118, 124));
    files.push_back(file_weight(p.kind, p.hidden, p.width, s + 2, p.scale_low, p.scale_high));
  }
  return files;
}

struct PackedExperts {
  DeviceArray<uint8_t> w13, w2;
  DeviceArray<float> factors;
  MoeExpertsCuda view;
};

template <class Problem>
PackedExperts pack_experts(const Problem& p, const std::vector<FileWeight>& files, int first, int count) {
  const int64_t bytes13 = moe_packed_bytes(p.kind, 2 * p.hidden, p.width),
                bytes2 = moe_packed_bytes(p.kind, p.width, p.hidden);
  PackedExperts d{
      DeviceArray<uint8_t>(bytes13 * count), DeviceArray<uint8_t>(bytes2 * count), DeviceArray<float>(4 * count), {}};
  for (int e = 0; e < count; ++e) {
    std::vector<DeviceArray<uint8_t>> data, scales;
    for (int m = 0; m < 3; ++m) {
      data.emplace_back(files[static_cast<size_t>((first + e) * 3 + m)].data);
      scales.emplace_back(files[static_cast<size_t>((first + e) * 3 + m)].scales);
    }
    const MoePack args{.kind = p.kind,
                       .width = p.width,
                       .hidden = p.hidden,
                       .w1 = data[0].data(),
                       .w2 = data[1].data(),
                       .w3 = data[2].data(),
                       .s1 = scales[0].data(),
                       .s2 = scales[1].data(),
                       .s3 = scales[2].data(),
                       .w13_packed = d.w13.data() + e * bytes13,
                       .w2_packed = d.w2.data() + e * bytes2,
                       .factors = d.factors.data() + 4 * e};
    EXPECT_EQ(moe_pack_cuda(args, nullptr).code, 0);
    gpu_sync();
  }
  EXPECT_TRUE(d.w13.guards_intact() && d.w2.guards_intact());
  d.view = {
      p.kind, count, p.width, p.hidden, d.w13.data(), d.w2.data(), p.kind == MoeWeights::mxfp4 ? d.factors.data() : nullptr};
  return d;
}

template <class Problem>
int local_experts(const Problem& p) {
  return p.local == 0 ? p.experts : p.local;
}

// Experts that are not local have no weight.
template <class Problem>
std::vector<float> moe_reference(const Problem& p, std::vector<float>& z, Routing& routing,
                                 const std::vector<FileWeight>& files) {
  std::vector<ExpertWeights> views;
  for (int e = 0; e < p.experts; ++e) {
    const auto at = static_cast<size_t>(e) * 3;
    const auto view = [&](size_t m, int64_t rows, int64_t cols) {
      return Weight{files[at + m].values.data(), nullptr, Scheme::f32, rows, cols};
    };
    views.push_back({view(0, p.hidden, p.width), view(1, p.width, p.hidden), view(2, p.hidden, p.width)});
  }
  std::vector<float> out(static_cast<size_t>(p.tokens) * static_cast<size_t>(p.width)), weights = routing.weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (routing.ids[i] < p.first || routing.ids[i] >= p.first + local_experts(p)) weights[i] = 0;
  }
  moe_ref(matrix(z.data(), p.tokens, p.width), Tensor(routing.ids.data(), DType::i32, {p.tokens, p.topk}),
          matrix(weights.data(), p.tokens, p.topk), views, p.glu, true, matrix(out.data(), p.tokens, p.width));
  return out;
}

// The norm of rows that were rounded to BF16 already.
inline std::vector<float> normed_rows(std::span<const float> rows, std::span<const float> gain, double eps) {
  std::vector<float> out(rows.size());
  for (size_t at = 0; at < rows.size(); at += gain.size()) {
    double squares = 0;
    for (size_t i = 0; i < gain.size(); ++i)
      squares += static_cast<double>(rows[at + i]) * static_cast<double>(rows[at + i]);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(gain.size()) + eps);
    for (size_t i = 0; i < gain.size(); ++i) {
      out[at + i] = static_cast<float>(static_cast<double>(rows[at + i]) * scale * static_cast<double>(gain[i]));
    }
  }
  return out;
}

template <class Problem>
std::string name_of(const Problem& p) {
  return fmt::format("{} T {} E {} top {} R {} F {} first {} local {} count {}",
                     p.kind == MoeWeights::bf16 ? "bf16" : "mxfp4", p.tokens, p.experts, p.topk, p.width, p.hidden, p.first,
                     p.local, p.count);
}

inline MoeGlu moe_glu_of(const Glu& g) { return {g.kind == GluKind::situ, g.beta, g.linear_beta.value_or(0.0F)}; }

}  // namespace k3::ops::cuda
