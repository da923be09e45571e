// Owners of device memory, pinned memory, streams and events on a GPU.
#include <gtest/gtest.h>

#include <utility>

#include "k3/tensor/device.h"

namespace k3 {
namespace {

const Device kGpu{Device::Kind::cuda, 0};

#define K3_NEEDS_DEVICE() \
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU"

TEST(DeviceGpu, BytesGoThereAndBack) {
  K3_NEEDS_DEVICE();
  constexpr int64_t kBytes = 1'000'003;
  Result<DeviceStorage> there = DeviceStorage::allocate(kGpu, kBytes);
  Result<PinnedStorage> from = PinnedStorage::allocate(kBytes), to = PinnedStorage::allocate(kBytes);
  Result<StreamHandle> stream = StreamHandle::create(kGpu);
  ASSERT_TRUE(there.ok() && from.ok() && to.ok() && stream.ok());
  EXPECT_EQ(there->size_bytes(), kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(there->data()) % 256, 0U);
  for (int64_t i = 0; i < kBytes; ++i)
    from->bytes()[static_cast<size_t>(i)] = static_cast<std::byte>(i * 7), to->bytes()[static_cast<size_t>(i)] = {};
  const DeviceStorage moved = std::move(*there);
  ASSERT_TRUE(copy_async(moved.data(), from->data(), kBytes, *stream).ok());
  ASSERT_TRUE(copy_async(to->data(), moved.data(), kBytes, *stream).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_TRUE(std::equal(from->bytes().begin(), from->bytes().end(), to->bytes().begin()));
}

TEST(DeviceGpu, TooMuchIsExhaustedAndSaysHowMuchIsFree) {
  K3_NEEDS_DEVICE();
  const Result<DeviceMemory> memory = device_memory(kGpu);
  ASSERT_TRUE(memory.ok());
  EXPECT_GT(memory->free_bytes, 0);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
  const Result<DeviceStorage> storage = DeviceStorage::allocate(kGpu, memory->total_bytes * 2);
  ASSERT_FALSE(storage.ok());
  EXPECT_EQ(storage.error().code, Code::exhausted);
  EXPECT_NE(storage.error().message.find("free"), std::string::npos) << storage.error().message;
  EXPECT_TRUE(DeviceStorage::allocate(kGpu, 1).ok()) << "the error stayed";
}

TEST(DeviceGpu, NothingIsNothingAndOthersAreNotThere) {
  K3_NEEDS_DEVICE();
  Result<DeviceStorage> none = DeviceStorage::allocate(kGpu, 0);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->data(), nullptr);
  EXPECT_EQ(DeviceStorage::allocate({Device::Kind::cuda, 999}, 1).error().code, Code::unavailable);
  EXPECT_EQ(DeviceStorage::allocate({}, 1).error().code, Code::unsupported);
}

TEST(DeviceGpu, EventsOrderStreamsAndMeasure) {
  K3_NEEDS_DEVICE();
  constexpr int64_t kBytes = int64_t{64} << 20;
  Result<StreamHandle> first = StreamHandle::create(kGpu), second = StreamHandle::create(kGpu);
  Result<Event> begin = Event::create(kGpu), end = Event::create(kGpu);
  Result<DeviceStorage> there = DeviceStorage::allocate(kGpu, kBytes);
  Result<PinnedStorage> here = PinnedStorage::allocate(kBytes), back = PinnedStorage::allocate(kBytes);
  ASSERT_TRUE(first.ok() && second.ok() && begin.ok() && end.ok() && there.ok() && here.ok() && back.ok());
  std::fill(here->bytes().begin(), here->bytes().end(), std::byte{42});
  std::fill(back->bytes().begin(), back->bytes().end(), std::byte{0});
  ASSERT_TRUE(begin->record(*first).ok());
  ASSERT_TRUE(copy_async(there->data(), here->data(), kBytes, *first).ok());
  ASSERT_TRUE(end->record(*first).ok());
  ASSERT_TRUE(second->wait(*end).ok());
  ASSERT_TRUE(copy_async(back->data(), there->data(), kBytes, *second).ok());
  ASSERT_TRUE(second->synchronize().ok());
  EXPECT_EQ(back->bytes().back(), std::byte{42});
  EXPECT_EQ(back->bytes().front(), std::byte{42});
  EXPECT_TRUE(*end->done());
  Result<double> seconds = end->seconds_since(*begin);
  ASSERT_TRUE(seconds.ok());
  EXPECT_GT(*seconds, 0);
}

TEST(DeviceGpu, PinnedCopiesHaveARate) {
  K3_NEEDS_DEVICE();
  const Result<CopyRates> rates = measure_pinned_copies(kGpu, int64_t{64} << 20);
  ASSERT_TRUE(rates.ok());
  EXPECT_GT(rates->to_device_gbps, 0);
  EXPECT_GT(rates->to_host_gbps, 0);
  fmt::print("pinned copies: {:.1f} GB/s to the device, {:.1f} GB/s to the host\n", rates->to_device_gbps,
             rates->to_host_gbps);
}

}  // namespace
}  // namespace k3
