#include "k3/ops/matmul/matmul.h"

#include <gtest/gtest.h>

#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

struct Case {
  int64_t rows, depth, cols;
};
constexpr Case kCases[] = {{0, 3, 4},    {1, 1, 1},    {3, 0, 5},     {4, 8, 8},      {14, 33, 32},  {15, 7, 31},
                           {64, 257, 48}, {85, 512, 130}, {128, 1000, 96}, {300, 64, 257}};

Tensor stored(std::vector<float>& data, int64_t rows, int64_t cols, Op op) {
  return op == Op::plain ? matrix(data.data(), rows, cols) : matrix(data.data(), cols, rows);
}

// Every form against sums in double, within the bound of the header; the same bits from one thread and three.
TEST(Matmul, EveryFormAgreesWithTheReference) {
  for (const Isa isa : test_isas()) {
    if (isa > Isa::avx512) continue;
    for (const Case& c : kCases) {
      for (const Op op_a : {Op::plain, Op::transposed}) {
        for (const Op op_b : {Op::plain, Op::transposed}) {
          for (const bool accumulate : {false, true}) {
            std::vector<float> a = random_normal(c.rows * c.depth, 1), b = random_normal(c.depth * c.cols, 2);
            const std::vector<float> before = random_normal(c.rows * c.cols, 3);
            std::vector<float> results[2];
            for (const int threads : {1, 3}) {
              TestRun run(isa, threads);
              Guarded out(c.rows * c.cols);
              if (accumulate) std::copy(before.begin(), before.end(), out.data());
              matmul(run.ctx, stored(a, c.rows, c.depth, op_a), op_a, stored(b, c.depth, c.cols, op_b), op_b,
                     matrix(out.data(), c.rows, c.cols), accumulate);
              EXPECT_TRUE(out.intact());
              results[threads / 2].assign(out.data(), out.data() + out.size());
            }
            EXPECT_EQ(0, compare_bytes(results[0].data(), results[1].data(), results[0].size() * 4));
            for (int64_t i = 0; i < c.rows; ++i) {
              for (int64_t j = 0; j < c.cols; ++j) {
                double sum = accumulate ? before[static_cast<size_t>(i * c.cols + j)] : 0, size = std::abs(sum);
                for (int64_t k = 0; k < c.depth; ++k) {
                  const double x = a[static_cast<size_t>(op_a == Op::plain ? i * c.depth + k : k * c.rows + i)];
                  const double y = b[static_cast<size_t>(op_b == Op::plain ? k * c.cols + j : j * c.depth + k)];
                  sum += x * y;
                  size += std::abs(x * y);
                }
                const double got = results[0][static_cast<size_t>(i * c.cols + j)];
                ASSERT_LE(std::abs(got - sum), static_cast<double>(c.depth + 1) * 0x1p-24 * size)
                    << c.rows << " x " << c.depth << " x " << c.cols << " at " << i << ", " << j;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
