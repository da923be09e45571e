#include <cmath>
#include <vector>

#include "k3/ops/mla/mla.h"

namespace k3::ops {
namespace {

double weight_at(const Weight& w, int64_t row, int64_t column) {
  const int64_t i = row * w.cols + column;
  if (w.scheme == Scheme::f32) return static_cast<const float*>(w.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(w.data)[i];
  return w.scheme == Scheme::f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

double latent_at(const PagedKv& cache, int64_t token, int64_t i) {
  if (cache.dtype == DType::f8_e4m3) return f8_e4m3_to_float(cache.row_f8(token)[i]);
  return cache.dtype == DType::f32 ? cache.row_f32(token)[i] : bf16_to_float(cache.row_bf16(token)[i]);
}

struct Expanded {
  std::vector<double> keys, values;  // [tokens, nope + rope], [tokens, value]
};

// Keys and values of one head for the first `tokens` cached tokens.
Expanded expand(const MlaArgs& args, const PagedKv& cache, int64_t head, int64_t tokens) {
  Expanded out;
  for (int64_t p = 0; p < tokens; ++p) {
    for (int64_t row = 0; row < args.nope + args.value; ++row) {
      double sum = 0;
      for (int64_t r = 0; r < args.rank; ++r) {
        sum += weight_at(args.kv_b, head * (args.nope + args.value) + row, r) * latent_at(cache, p, r);
      }
      (row < args.nope ? out.keys : out.values).push_back(sum);
    }
    for (int64_t i = 0; i < args.rope; ++i) out.keys.push_back(latent_at(cache, p, args.rank + i));
  }
  return out;
}

void attend(const MlaArgs& args, const Expanded& kv, const float* q, int64_t visible, float* out) {
  const int64_t key = args.nope + args.rope;
  std::vector<double> p;
  double top = -INFINITY, sum = 0;
  for (int64_t j = 0; j < visible; ++j) {
    double score = 0;
    for (int64_t i = 0; i < key; ++i) score += static_cast<double>(q[i]) * kv.keys[static_cast<size_t>(j * key + i)];
    p.push_back(score / std::sqrt(static_cast<double>(key)));
    top = std::max(top, p.back());
  }
  for (double& x : p) sum += x = std::exp(x - top);
  for (int64_t i = 0; i < args.value; ++i) {
    double mixed = 0;
    for (int64_t j = 0; j < visible; ++j) {
      mixed += p[static_cast<size_t>(j)] / sum * kv.values[static_cast<size_t>(j * args.value + i)];
    }
    out[i] = static_cast<float>(mixed);
  }
}

}  // namespace

void mla_ref(const MlaArgs& args) noexcept {
  const int64_t heads = args.q.dim(1), key = args.nope + args.rope;
  for (size_t s = 0; s < args.caches.size(); ++s) {
    const int64_t first = args.offsets[s], length = args.offsets[s + 1] - first;
    if (length == 0) continue;
    for (int64_t h = 0; h < heads; ++h) {
      const Expanded kv = expand(args, args.caches[s], h, args.history[s] + length);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t row = (first + i) * heads + h;
        attend(args, kv, args.q.f32() + row * key, args.history[s] + i + 1, args.out.f32() + row * args.value);
      }
    }
  }
}

}  // namespace k3::ops
