// Purpose:  shapes and input sets of the KDA tests and bench, and a builder that owns the data of a case.
// Shapes:   kda.h.
// Units:    none.
// Memory:   KdaData owns inputs; states and outputs are the caller's.
// Threads:  none.
// Errors:   none.
// Source:   kernels.md 9, "Input sets every KDA kernel must pass".
#pragma once

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "k3/ops/kda/kda.h"
#include "k3/ops/test_util.h"

namespace k3::ops {

// Of unbounded gates, in the place of z, a_log and dt_bias. alternate: -50 and -0.001 from token to token; one_channel:
// channel 5 at -20, others as they are; mixed: each token and channel one of 0, -0.1, -6 and -60; trained: a_log and dt_bias
// as Kimi-Linear has them (rates 1 to 16, steps 0.001 to 0.1).
enum class Decays { plain, alternate, one_channel, mixed, trained };

struct KdaCase {
  std::string name;
  int64_t heads = 2;
  int64_t dim = 32;
  std::vector<int64_t> lengths = {40};
  std::optional<float> lower_bound = -5.0F;
  float z_scale = 1;  // z = z_offset + z_scale N(0, 1)
  float z_offset = 0;
  float dt_bias = 0;          // +- this, alternating over channels; 0: N(0, 1)
  float key_correlation = 0;  // 1: all keys of a head identical
  float beta_offset = 0;      // beta logits N(0, 1) + this
  float state_norm = 1;       // of each head's initial state; 0: zero state
  float qk_scale = 1;         // small values make the epsilon of the norm visible
  bool zero_rows = false;     // every third q and every fourth k is zero
  Decays decays = Decays::plain;
};

inline std::vector<KdaCase> kda_input_sets(int64_t heads, int64_t dim, const std::vector<int64_t>& lengths) {
  std::vector<KdaCase> sets;
  for (const bool bounded : {true, false}) {
    KdaCase base;
    base.heads = heads;
    base.dim = dim;
    base.lengths = lengths;
    if (!bounded) base.lower_bound = std::nullopt;
    const std::string suffix = bounded ? "" : "/unbounded";
    const auto add = [&](const std::string& name, auto change) {
      KdaCase c = base;
      c.name = name + suffix;
      change(c);
      sets.push_back(c);
    };
    add("normal", [](KdaCase&) {});
    add("keep", [](KdaCase& c) { c.z_scale = 0, c.z_offset = -8; });
    add("drop", [](KdaCase& c) { c.z_scale = 0, c.z_offset = 8; });
    add("wide_gates", [](KdaCase& c) { c.z_scale = 8; });
    add("dt_bias_8", [](KdaCase& c) { c.dt_bias = 8; });
    for (const float correlation : {0.9F, 0.99F, 1.0F}) {
      add("keys_alike_" + std::to_string(correlation), [&](KdaCase& c) { c.key_correlation = correlation; });
      add("keys_alike_keep_" + std::to_string(correlation), [&](KdaCase& c) {
        c.key_correlation = correlation;
        c.z_scale = 0, c.z_offset = -8, c.beta_offset = 10;
      });
    }
    add("beta_10", [](KdaCase& c) { c.beta_offset = 10; });
    add("zero_rows", [](KdaCase& c) { c.zero_rows = true; });
    add("large_state", [](KdaCase& c) { c.state_norm = 1e3F; });
    add("large_state_keep_alike",
        [](KdaCase& c) { c.state_norm = 1e3F, c.z_scale = 0, c.z_offset = -8, c.key_correlation = 1, c.beta_offset = 10; });
    add("tiny_qk", [](KdaCase& c) { c.qk_scale = 1e-4F; });
    if (bounded) continue;
    add("decay_-50", [](KdaCase& c) { c.z_scale = 0, c.z_offset = 50, c.dt_bias = 1; });
    add("alternate_-50", [](KdaCase& c) { c.decays = Decays::alternate; });
    add("one_channel_-20", [](KdaCase& c) { c.decays = Decays::one_channel; });
    add("mixed", [](KdaCase& c) { c.decays = Decays::mixed; });
    add("trained", [](KdaCase& c) { c.decays = Decays::trained; });
  }
  return sets;
}

// Inputs of one case. The conv and SiLU in front of q and k are not modelled; the norm makes their scale irrelevant.
struct KdaData {
  KdaCase shape;
  std::vector<int64_t> offsets{0};
  std::vector<float> q, k, v, z, b, a_log, dt_bias;
  std::vector<std::vector<float>> states;  // initial

  explicit KdaData(const KdaCase& c, uint64_t seed = 1) : shape(c) {
    for (const int64_t length : c.lengths) offsets.push_back(offsets.back() + length);
    const int64_t rows = tokens() * c.heads, n = rows * c.dim;
    q = random_normal(n, seed, c.qk_scale);
    k = random_normal(n, seed + 1, c.qk_scale);
    v = random_normal(n, seed + 2);
    z = random_normal(n, seed + 3, c.z_scale);
    for (float& x : z) x += c.z_offset;
    b = random_normal(rows, seed + 4);
    for (float& x : b) x += c.beta_offset;
    a_log = random_normal(c.heads, seed + 5, c.z_offset == 0 ? 0.5F : 0.0F);
    dt_bias = random_normal(c.heads * c.dim, seed + 6, c.z_offset == 0 ? 1.0F : 0.0F);
    for (size_t i = 0; c.dt_bias != 0 && i < dt_bias.size(); ++i) dt_bias[i] = i % 2 == 0 ? c.dt_bias : -c.dt_bias;
    shape_keys(seed);
    shape_decays(seed);
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      const float scale = c.state_norm / static_cast<float>(c.dim);
      states.push_back(random_normal(c.heads * c.dim * c.dim, seed + 100 + s, scale));
    }
  }

  int64_t tokens() const { return offsets.back(); }

  KdaArgs args(std::vector<void*>& state_pointers, float* out, KdaForm form) {
    KdaArgs args;
    const int64_t t = tokens(), h = shape.heads, d = shape.dim;
    args.q = Tensor(q.data(), DType::f32, {t, h, d});
    args.k = Tensor(k.data(), DType::f32, {t, h, d});
    args.v = Tensor(v.data(), DType::f32, {t, h, d});
    args.z = Tensor(z.data(), DType::f32, {t, h, d});
    args.b = Tensor(b.data(), DType::f32, {t, h});
    args.a_log = Tensor(a_log.data(), DType::f32, {h});
    args.dt_bias = Tensor(dt_bias.data(), DType::f32, {h, d});
    args.lower_bound = shape.lower_bound;
    args.offsets = offsets;
    args.states = state_pointers;
    args.out = Tensor(out, DType::f32, {t, h, d});
    args.form = form;
    return args;
  }

 private:
  void shape_decays(uint64_t seed) {
    constexpr float kMilli = -6.907F, kTenth = -2.252F, kNone = -30;  // softplus of them: 0.001, 0.1, 1e-13
    const auto width = static_cast<size_t>(shape.heads * shape.dim);
    if (shape.decays == Decays::plain) return;
    if (shape.decays == Decays::trained) {
      for (size_t h = 0; h < a_log.size(); ++h)
        a_log[h] = std::log(1 + 15 * (static_cast<float>(h) + 0.5F) / static_cast<float>(a_log.size()));
      for (float& x : dt_bias) x = std::log(std::expm1(std::pow(10.0F, std::fmod(x + 100, 2.0F) - 3)));
      return;
    }
    if (shape.decays != Decays::one_channel) {
      for (float& x : a_log) x = 0;
      for (float& x : dt_bias) x = 0;
    }
    const std::vector<float> pick = random_normal(static_cast<int64_t>(z.size()), seed + 8);
    for (size_t i = 0; i < z.size(); ++i) {
      const size_t channel = i % static_cast<size_t>(shape.dim);
      switch (shape.decays) {
        case Decays::alternate: z[i] = i / width % 2 == 0 ? 50 : kMilli; break;
        case Decays::one_channel: z[i] = channel == 5 ? 20 - dt_bias[i % width] : z[i]; break;
        default: z[i] = pick[i] < -0.7F ? kNone : pick[i] < 0 ? kTenth : pick[i] < 0.7F ? 6.0F : 60.0F; break;
      }
    }
    for (size_t h = 0; shape.decays == Decays::one_channel && h < a_log.size(); ++h) a_log[h] = 0;
  }

  void shape_keys(uint64_t seed) {
    const int64_t width = shape.heads * shape.dim;
    if (shape.key_correlation > 0) {
      const std::vector<float> common = random_normal(width, seed + 7, shape.qk_scale);
      const float own = std::sqrt(1 - shape.key_correlation * shape.key_correlation);
      for (size_t i = 0; i < k.size(); ++i) {
        k[i] = shape.key_correlation * common[i % static_cast<size_t>(width)] + own * k[i];
      }
    }
    for (size_t i = 0; shape.zero_rows && i < k.size(); ++i) {
      const auto row = i / static_cast<size_t>(shape.dim);
      if (row % 3 == 0) q[i] = 0;
      if (row % 4 == 0) k[i] = 0;
    }
  }
};

}  // namespace k3::ops
