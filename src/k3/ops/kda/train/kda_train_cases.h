// Purpose:  input sets of the tests and the bench of kda_train, and a builder that owns the tensors of a case.
// Shapes:   kda_train.h.
// Units:    none.
// Memory:   KdaTrainData<T> owns inputs and gradients in T (float or double); both hold the same FP32 numbers.
// Threads:  none.
// Errors:   none.
// Source:   kernels.md 9, "Input sets every KDA kernel must pass".
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "k3/ops/kda/kda_train.h"
#include "k3/ops/test_util.h"

namespace k3::ops {

struct KdaTrainCase {
  std::string name = "normal";
  int64_t heads = 2, dim = 32, taps = 4;
  std::vector<int64_t> lengths = {40};
  std::optional<float> lower_bound = -5.0F;
  float z_scale = 1, z_offset = 0;  // z = z_offset + z_scale N(0, 1)
  float dt_bias = 0;                // +- this; 0: N(0, 1)
  float key_correlation = 0;
  float beta_offset = 0;
  float state_norm = 1;
  bool zero_rows = false;  // long runs of zero queries and keys
  bool states = true;      // initial states and gradients of final ones
};

inline std::vector<KdaTrainCase> kda_train_input_sets(int64_t heads, int64_t dim, const std::vector<int64_t>& lengths) {
  std::vector<KdaTrainCase> sets;
  for (const bool bounded : {true, false}) {
    const auto add = [&](const std::string& name, auto change) {
      KdaTrainCase c;
      c.heads = heads, c.dim = dim, c.lengths = lengths;
      c.name = name + (bounded ? "" : "/unbounded");
      if (!bounded) c.lower_bound = std::nullopt;
      change(c);
      sets.push_back(c);
    };
    add("normal", [](KdaTrainCase&) {});
    add("keep", [](KdaTrainCase& c) { c.z_scale = 0, c.z_offset = -8; });
    add("drop", [](KdaTrainCase& c) { c.z_scale = 0, c.z_offset = 8; });
    add("wide_gates", [](KdaTrainCase& c) { c.z_scale = 8; });
    add("dt_bias_8", [](KdaTrainCase& c) { c.dt_bias = 8; });
    for (const float correlation : {0.9F, 0.99F, 1.0F}) {
      add("alike_" + std::to_string(correlation), [&](KdaTrainCase& c) { c.key_correlation = correlation; });
      add("alike_keep_" + std::to_string(correlation), [&](KdaTrainCase& c) {
        c.key_correlation = correlation;
        c.z_scale = 0, c.z_offset = -8;
      });
    }
    add("beta_10", [](KdaTrainCase& c) { c.beta_offset = 10; });
    add("zero_rows", [](KdaTrainCase& c) { c.zero_rows = true; });
    add("large_state", [](KdaTrainCase& c) { c.state_norm = 1e3F; });
    add("no_states", [](KdaTrainCase& c) { c.states = false; });
  }
  return sets;
}

template <class T>
struct KdaTrainData {
  static constexpr DType kType = sizeof(T) == 8 ? DType::f64 : DType::f32;
  using Numbers = std::vector<T>;
  KdaTrainCase shape;
  std::vector<int64_t> offsets{0};
  Numbers q, k, v, z, b, gate, taps[3], a_log, dt_bias, norm, initial, final, y, dy, d_final;
  Numbers dq, dk, dv, dz, db, dgate, dtaps[3], da_log, ddt_bias, dnorm, d_initial;

  explicit KdaTrainData(const KdaTrainCase& c, uint64_t seed = 1) : shape(c) {
    for (const int64_t length : c.lengths) offsets.push_back(offsets.back() + length);
    const int64_t n = tokens() * width(), state = sequences() * width() * c.dim;
    uint64_t next = seed * 100;
    const auto normal = [&](int64_t count, float scale, float offset) {
      Numbers x;
      for (const float value : random_normal(count, next++, scale)) x.push_back(static_cast<T>(value + offset));
      return x;
    };
    q = normal(n, 1, 0), k = normal(n, 1, 0), v = normal(n, 1, 0), gate = normal(n, 1, 0), dy = normal(n, 1, 0);
    z = normal(n, c.z_scale, c.z_offset);
    b = normal(tokens() * c.heads, 1, c.beta_offset);
    for (Numbers& t : taps) t = normal(width() * c.taps, 0.5F, 0.2F);
    a_log = normal(c.heads, c.z_offset == 0 ? 0.5F : 0.0F, 0);
    dt_bias = normal(width(), c.z_offset == 0 ? 1.0F : 0.0F, 0);
    for (size_t i = 0; c.dt_bias != 0 && i < dt_bias.size(); ++i) dt_bias[i] = static_cast<T>(i % 2 == 0 ? c.dt_bias : -c.dt_bias);
    norm = normal(c.dim, 0.2F, 1);
    shape_keys(normal(width(), 1, 0));
    if (c.states) {
      initial = normal(state, c.state_norm / static_cast<float>(c.dim), 0);
      d_final = normal(state, 1 / static_cast<float>(c.dim), 0);
      final.assign(initial.size(), poison());
      d_initial = final;
    }
    y.assign(q.size(), poison());
    dq = dk = dv = dz = dgate = y;
    db.assign(b.size(), poison());
    for (int part = 0; part < 3; ++part) dtaps[part].assign(taps[part].size(), 0);
    da_log.assign(a_log.size(), 0);
    ddt_bias.assign(dt_bias.size(), 0);
    dnorm.assign(norm.size(), 0);
  }

  static T poison() { return std::numeric_limits<T>::quiet_NaN(); }
  int64_t tokens() const { return offsets.back(); }
  int64_t width() const { return shape.heads * shape.dim; }
  int64_t sequences() const { return static_cast<int64_t>(shape.lengths.size()); }

  static Tensor view(Numbers& x, std::initializer_list<int64_t> dims) { return x.empty() && dims.size() == 4 ? Tensor() : Tensor(x.data(), kType, dims); }
  Tensor rows(Numbers& x) const { return view(x, {tokens(), width()}); }
  Tensor state(Numbers& x) const { return view(x, {sequences(), shape.heads, shape.dim, shape.dim}); }

  KdaTrainArgs args() {
    KdaTrainArgs a;
    a.q_in = rows(q), a.k_in = rows(k), a.v_in = rows(v), a.z = rows(z), a.gate = rows(gate);
    a.b = view(b, {tokens(), shape.heads});
    for (int part = 0; part < 3; ++part) a.taps[part] = view(taps[part], {width(), shape.taps});
    a.a_log = view(a_log, {shape.heads}), a.dt_bias = view(dt_bias, {width()}), a.norm = view(norm, {shape.dim});
    a.lower_bound = shape.lower_bound;
    a.offsets = offsets;
    a.initial = state(initial), a.final = state(final);
    return a;
  }
  KdaTrainGrads grads() {
    KdaTrainGrads g;
    g.dq_in = rows(dq), g.dk_in = rows(dk), g.dv_in = rows(dv), g.dz = rows(dz), g.dgate = rows(dgate);
    g.db = view(db, {tokens(), shape.heads});
    for (int part = 0; part < 3; ++part) g.dtaps[part] = view(dtaps[part], {width(), shape.taps});
    g.da_log = view(da_log, {shape.heads}), g.ddt_bias = view(ddt_bias, {width()}), g.dnorm = view(dnorm, {shape.dim});
    g.d_initial = state(d_initial), g.d_final = state(d_final);
    return g;
  }

  struct Named {
    const char* name;
    Numbers* value;
    Numbers* gradient;
  };
  std::vector<Named> inputs() {
    return {{"q", &q, &dq}, {"k", &k, &dk}, {"v", &v, &dv}, {"z", &z, &dz}, {"b", &b, &db}, {"gate", &gate, &dgate},
            {"q taps", &taps[0], &dtaps[0]}, {"k taps", &taps[1], &dtaps[1]}, {"v taps", &taps[2], &dtaps[2]}, {"a_log", &a_log, &da_log},
            {"dt_bias", &dt_bias, &ddt_bias}, {"norm", &norm, &dnorm}, {"initial", &initial, &d_initial}};
  }

 private:
  void shape_keys(const Numbers& common) {
    const auto w = static_cast<size_t>(width());
    const T same = static_cast<T>(shape.key_correlation), own = std::sqrt(1 - same * same);
    for (size_t i = 0; same > 0 && i < k.size(); ++i) k[i] = static_cast<T>(static_cast<float>(same * common[i % w] + own * k[i]));
    for (size_t i = 0; shape.zero_rows && i < k.size(); ++i) {
      if (i / w % 16 >= 7) q[i] = 0;
      if (i / w % 16 < 8) k[i] = 0;
    }
  }
};

}  // namespace k3::ops
