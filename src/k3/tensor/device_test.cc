// Names of devices, and what the device functions answer where there is no GPU.
#include "k3/tensor/device.h"

#include <gtest/gtest.h>

namespace k3 {
namespace {

TEST(Device, NamesComeBack) {
  for (const char* text : {"cpu", "cuda:0", "cuda:17"}) {
    const Result<Device> device = Device::parse(text);
    ASSERT_TRUE(device.ok()) << text;
    EXPECT_EQ(device->text(), text);
  }
  EXPECT_EQ(*Device::parse("cuda"), (Device{Device::Kind::cuda, 0}));
  EXPECT_EQ(*Device::parse("cpu"), Device{});
}

TEST(Device, OtherNamesAreRefused) {
  for (const char* text :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:-0", "cuda:1 ", "cuda: 1", "cuda:99999999999", "cpu:0", "CUDA"}) {
    const Result<Device> device = Device::parse(text);
    ASSERT_FALSE(device.ok()) << text;
    EXPECT_EQ(device.error().code, Code::invalid_argument);
  }
}

TEST(Device, WithoutAGpuEverythingAnswers) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  const Device device{Device::Kind::cuda, 0};
  EXPECT_FALSE(device_memory(device).ok());
  EXPECT_FALSE(DeviceStorage::allocate(device, 1).ok());
  EXPECT_FALSE(PinnedStorage::allocate(1).ok());
  EXPECT_FALSE(StreamHandle::create(device).ok());
  EXPECT_FALSE(Event::create(device).ok());
  EXPECT_FALSE(measure_pinned_copies(device).ok());
}

}  // namespace
}  // namespace k3
