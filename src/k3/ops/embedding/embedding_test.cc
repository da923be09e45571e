#include "k3/ops/embedding/embedding.h"

#include <gtest/gtest.h>

#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

TEST(Embedding, CopiesRowsExactlyInEveryScheme) {
  const std::vector<float> values = random_normal(5 * 7, 3);
  std::vector<uint16_t> packed(values.size());
  const std::vector<int32_t> ids = {4, 0, 4, 2};
  for (const auto& [scheme, dtype] :
       {std::pair{Scheme::f32, DType::f32}, {Scheme::bf16, DType::bf16}, {Scheme::f16, DType::f16}}) {
    const void* data = values.data();
    if (scheme != Scheme::f32) {
      convert_from_float(values.data(), dtype, 35, packed.data());
      data = packed.data();
    }
    std::vector<float> want(values);
    if (scheme != Scheme::f32) convert_to_float(data, dtype, 35, want.data());
    Guarded out(4 * 7);
    embedding(Ctx(), Weight{data, nullptr, scheme, 5, 7}, ids, Tensor(out.data(), DType::f32, {4, 7}));
    EXPECT_TRUE(out.intact());
    for (size_t t = 0; t < 4; ++t) {
      for (size_t i = 0; i < 7; ++i) EXPECT_EQ(out.data()[t * 7 + i], want[static_cast<size_t>(ids[t]) * 7 + i]);
    }
  }
}

TEST(Embedding, NoIds) {
  float table = 1, out = 2;
  embedding(Ctx(), Weight{&table, nullptr, Scheme::f32, 1, 1}, {}, Tensor(&out, DType::f32, {0, 1}));
  EXPECT_EQ(out, 2);
}

}  // namespace
}  // namespace k3::ops
