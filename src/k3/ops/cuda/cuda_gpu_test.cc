// The helpers of GPU tests themselves, and the fill of random models.
#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/tensor/tensor.h"
#include "k3/ops/cuda/roofline_gpu.h"

namespace k3::ops::cuda {
namespace {

TEST(GpuTools, FreshMemoryIsPoisonedAndGuarded) {
  K3_NEEDS_GPU();
  const DeviceArray<float> x(1000);
  EXPECT_TRUE(std::isnan(x.get()[999]));
  EXPECT_TRUE(x.guards_intact());
  gpu_check(cudaMemset(x.data(), 0, x.bytes() + 1), "memset");  // one byte too many
  EXPECT_FALSE(x.guards_intact());
}

TEST(GpuTools, NormalValuesHaveTheirMeanAndDeviation) {
  K3_NEEDS_GPU();
  constexpr int64_t kCount = 1'000'001;
  const DeviceArray<uint16_t> x(kCount);
  ASSERT_TRUE(fill_normal_bf16(x.data(), kCount, 7, 2.0F, nullptr).ok());
  double sum = 0, squares = 0;
  for (const float v : from_bf16(x.get())) sum += v, squares += static_cast<double>(v) * static_cast<double>(v);
  EXPECT_NEAR(sum / kCount, 0, 5 * 2e-3);           // five standard errors
  EXPECT_NEAR(squares / kCount, 4, 5 * 4 * 1.5e-3);
  EXPECT_TRUE(x.guards_intact());
}

// What a stream writes as soon as memory is there stays.
TEST(GpuTools, MemoryIsClearBeforeItIsGiven) {
  K3_NEEDS_GPU();
  constexpr int64_t kBytes = int64_t{1} << 20;
  const Storage from = Storage::pinned(kBytes).value(), back = Storage::pinned(kBytes).value();
  std::memset(from.data(), 0x5A, kBytes);
  const StreamHandle stream = make_stream().value();
  for (int i = 0; i < 200; ++i) {
    const Storage memory = Storage::allocate_on(Device{0}, kBytes).value();
    ASSERT_TRUE(copy_async(memory.data(), from.data(), kBytes, stream.get()).ok());
    ASSERT_TRUE(copy_async(back.data(), memory.data(), kBytes, stream.get()).ok() && synchronize(stream.get()).ok());
    ASSERT_EQ(std::memcmp(back.data(), from.data(), kBytes), 0) << i;
  }
}

}  // namespace
}  // namespace k3::ops::cuda
