// Internal to ops/mla. Inputs of the GPU tests: a pool of pages that is NaN wherever no token lies, and double references.
#pragma once

#include <algorithm>
#include <thread>

#include "k3/base/rng.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/mla/cuda/mla_cuda.h"

namespace k3::ops::cuda {

inline constexpr int64_t kRow = 576, kRank = 512;

// fn(i) for i of [0, count) on all cores.
template <class Fn>
void parallel_rows(int64_t count, const Fn& fn) {
  const int threads = static_cast<int>(std::max(1U, std::min(16U, std::thread::hardware_concurrency())));
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      for (int64_t i = t; i < count; i += threads) fn(i);
    });
  }
  for (std::thread& t : pool) t.join();
}

struct PagedCase {
  std::vector<int> lengths = {};
  int64_t page_tokens = 64, row_gap = 0, page_gap = 0;
};

// Latent rows of all requests and the pool they lie in.
class PagedData {
 public:
  PagedData(const PagedCase& c, uint64_t seed, float growth = 0) : shape_(c), row_stride_(kRow + c.row_gap) {
    page_stride_ = row_stride_ * c.page_tokens + c.page_gap;
    int64_t most = 1;
    for (const int n : c.lengths) most = std::max(most, pages_of(n));
    table_stride_ = most + 3;
    std::vector<int32_t> order;
    for (const int n : c.lengths) {
      for (int64_t i = 0; i < pages_of(n); ++i) order.push_back(static_cast<int32_t>(order.size()));
    }
    pages_ = static_cast<int64_t>(order.size()) + 1;  // the last belongs to nobody
    const Rng rng(seed, 3);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.bits(i) % i]);
    std::vector<int32_t> table(static_cast<size_t>(table_stride_) * c.lengths.size(), 0x3FFFFFF);  // never to be followed
    std::vector<uint16_t> pool(static_cast<size_t>(pages_ * page_stride_), 0xFFFF);
    size_t next = 0;
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      rows_.push_back(random_bf16(c.lengths[s] * kRow, seed + 100 + s));
      for (int64_t t = 0; t < c.lengths[s]; ++t) {
        if (t % c.page_tokens == 0)
          table[s * static_cast<size_t>(table_stride_) + static_cast<size_t>(t / c.page_tokens)] = order[next++];
        const int64_t page = order[next - 1];
        for (int64_t i = 0; i < kRow; ++i) {
          float& x = rows_[s][static_cast<size_t>(t * kRow + i)];
          x = round_to_bf16(x * (1 + growth * static_cast<float>(t)));
          pool[static_cast<size_t>(page * page_stride_ + t % c.page_tokens * row_stride_ + i)] = float_to_bf16(x);
        }
      }
    }
    pool_ = DeviceArray<uint16_t>(pool);
    table_ = DeviceArray<int32_t>(table);
    lengths_ = DeviceArray<int32_t>(std::vector<int32_t>(c.lengths.begin(), c.lengths.end()));
  }

  LatentPages pages() const {
    return {pool_.data(), page_stride_, row_stride_, pages_, shape_.page_tokens, table_.data(), table_stride_};
  }
  const int32_t* lengths() const { return lengths_.data(); }
  const std::vector<float>& rows(size_t request) const { return rows_[request]; }
  int64_t requests() const { return static_cast<int64_t>(shape_.lengths.size()); }
  int length(size_t request) const { return shape_.lengths[request]; }
  // Where a token's row begins in the pool.
  std::vector<uint16_t> pool() const { return pool_.get(); }
  std::vector<int32_t> table() const { return table_.get(); }
  bool guards_intact() const { return pool_.guards_intact(); }

 private:
  int64_t pages_of(int length) const { return (length + shape_.page_tokens - 1) / shape_.page_tokens; }
  PagedCase shape_;
  int64_t row_stride_ = 0, page_stride_ = 0, pages_ = 0, table_stride_ = 0;
  std::vector<std::vector<float>> rows_;
  DeviceArray<uint16_t> pool_;
  DeviceArray<int32_t> table_, lengths_;
};

// One query row over `visible` keys of width `width`, values the first `values` of the rows at `value_of`. Double
// throughout.
template <class Key, class Value>
double attend_ref(const float* query, int64_t width, int64_t visible, int64_t values, const Key& key_of,
                  const Value& value_of, float* out) {
  std::vector<double> p(static_cast<size_t>(std::max<int64_t>(visible, 0)));
  double top = -INFINITY, sum = 0;
  for (int64_t j = 0; j < visible; ++j) {
    double score = 0;
    for (int64_t i = 0; i < width; ++i) score += static_cast<double>(query[i]) * static_cast<double>(key_of(j, i));
    p[static_cast<size_t>(j)] = score / std::sqrt(192.0);
    top = std::max(top, p[static_cast<size_t>(j)]);
  }
  std::vector<double> mixed(static_cast<size_t>(values));
  for (int64_t j = 0; j < visible; ++j) {
    const double w = std::exp(p[static_cast<size_t>(j)] - top);
    sum += w;
    for (int64_t i = 0; i < values; ++i) mixed[static_cast<size_t>(i)] += w * static_cast<double>(value_of(j, i));
  }
  for (int64_t i = 0; i < values; ++i) out[i] = static_cast<float>(sum > 0 ? mixed[static_cast<size_t>(i)] / sum : 0);
  return sum > 0 ? top + std::log(sum) : -INFINITY;
}

}  // namespace k3::ops::cuda
