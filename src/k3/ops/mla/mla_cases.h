// Purpose:  shapes of the MLA tests and bench, and a builder that owns a paged cache and the inputs of a case.
// Shapes:   mla.h.
// Units:    none.
// Memory:   MlaData owns everything but the output.
// Threads:  none.
// Errors:   none.
// Source:   model.md 3.4. Pages are handed out in a shuffled order and pages, rows and layers have gaps.
#pragma once

#include <string>
#include <vector>

#include "k3/ops/mla/mla.h"
#include "k3/ops/test_util.h"

namespace k3::ops {

struct MlaCase {
  int64_t heads = 2, nope = 20, rope = 12, value = 24, rank = 48;
  std::vector<int64_t> lengths = {5};
  std::vector<int64_t> history = {0};
  int64_t page_tokens = 16;
  DType cache = DType::f32;
  Scheme scheme = Scheme::f32;
  float scale = 1;  // of the queries: large values make the softmax sharp
};

inline const std::vector<MlaCase>& mla_shapes() {
  static const std::vector<MlaCase> kShapes = {
      {.heads = 1},
      {.heads = 3, .nope = 16, .rope = 4, .value = 20, .rank = 24},
      {.heads = 7, .nope = 20, .rope = 12, .value = 24, .rank = 48},
      {.heads = 2, .nope = 5, .rope = 3, .value = 7, .rank = 9},
      {.heads = 2, .nope = 32, .rope = 0, .value = 16, .rank = 32},
      {.heads = 2, .nope = 128, .rope = 64, .value = 128, .rank = 512},
  };
  return kShapes;
}

struct MlaData {
  MlaCase shape;
  std::vector<int64_t> offsets{0};
  std::vector<float> q, kv, norm, weight;
  std::vector<uint16_t> weight16;
  std::vector<std::byte> pool;
  std::vector<std::vector<int32_t>> tables;
  std::vector<PagedKv> caches;

  explicit MlaData(const MlaCase& c, uint64_t seed = 1) : shape(c) {
    for (const int64_t length : c.lengths) offsets.push_back(offsets.back() + length);
    q = random_normal(tokens() * c.heads * (c.nope + c.rope), seed, c.scale);
    kv = random_normal(tokens() * width(), seed + 1);
    norm = random_normal(c.rank, seed + 2, 0.3F);
    for (float& x : norm) x += 1;
    weight = random_normal(c.heads * (c.nope + c.value) * c.rank, seed + 3, 1 / std::sqrt(static_cast<float>(c.rank)));
    for (const float x : weight) weight16.push_back(c.scheme == Scheme::f16 ? float_to_f16(x) : float_to_bf16(x));
    make_cache(seed + 4);
  }
  MlaData(const MlaData&) = delete;
  MlaData& operator=(const MlaData&) = delete;

  int64_t tokens() const { return offsets.back(); }
  int64_t width() const { return shape.rank + shape.rope; }
  int64_t out_size() const { return tokens() * shape.heads * shape.value; }

  MlaArgs args(float* out, MlaForm form) {
    MlaArgs a;
    a.q = Tensor(q.data(), DType::f32, {tokens(), shape.heads, shape.nope + shape.rope});
    a.kv_b.data = shape.scheme == Scheme::f32 ? static_cast<const void*>(weight.data()) : weight16.data();
    a.kv_b.scheme = shape.scheme;
    a.kv_b.rows = shape.heads * (shape.nope + shape.value);
    a.kv_b.cols = shape.rank;
    a.nope = shape.nope;
    a.rope = shape.rope;
    a.value = shape.value;
    a.rank = shape.rank;
    a.offsets = offsets;
    a.history = shape.history;
    a.caches = caches;
    a.out = Tensor(out, DType::f32, {tokens(), shape.heads, shape.value});
    a.form = form;
    return a;
  }

  void append(const Ctx& ctx, float eps = 1e-6F) {
    latent_append(ctx, Tensor(kv.data(), DType::f32, {tokens(), width()}), Tensor(norm.data(), DType::f32, {shape.rank}),
                  eps, offsets, shape.history, caches);
  }

 private:
  // History rows are random; rows that latent_append is to write, and gaps, hold NaN.
  void make_cache(uint64_t seed) {
    const int64_t row = width() + 3, page = row * shape.page_tokens + 5;
    std::vector<int64_t> pages;
    int64_t total = 0;
    for (size_t s = 0; s < shape.lengths.size(); ++s) {
      pages.push_back((shape.history[s] + shape.lengths[s] + shape.page_tokens - 1) / shape.page_tokens);
      total += pages.back();
    }
    std::vector<int32_t> order(static_cast<size_t>(total));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const Rng rng(seed, 5);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.bits(i) % i]);
    pool.assign(static_cast<size_t>(total * page * dtype_bytes(shape.cache)), std::byte{0xFF});
    size_t next = 0;
    for (size_t s = 0; s < shape.lengths.size(); ++s) {
      tables.emplace_back(order.begin() + static_cast<int64_t>(next), order.begin() + static_cast<int64_t>(next) + pages[s]);
      next += static_cast<size_t>(pages[s]);
    }
    for (size_t s = 0; s < shape.lengths.size(); ++s) {
      caches.push_back({pool.data(), shape.cache, width(), shape.page_tokens, page, row, tables[s].data()});
      const std::vector<float> rows = random_normal(shape.history[s] * width(), seed + 10 + s);
      for (int64_t t = 0; t < shape.history[s]; ++t) {
        for (int64_t i = 0; i < width(); ++i) {
          const float x = rows[static_cast<size_t>(t * width() + i)];
          if (shape.cache == DType::f32) {
            caches[s].row_f32(t)[i] = x;
          } else if (shape.cache == DType::f8_e4m3) {
            caches[s].row_f8(t)[i] = float_to_f8_e4m3(x);
          } else {
            caches[s].row_bf16(t)[i] = float_to_bf16(x);
          }
        }
      }
    }
  }
};

}  // namespace k3::ops
