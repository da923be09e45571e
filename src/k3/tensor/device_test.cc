#include "k3/tensor/device.h"

#include <gtest/gtest.h>

#include "k3/tensor/tensor.h"

namespace k3 {
namespace {

TEST(Device, NamesAreRead) {
  EXPECT_EQ(parse_device("cpu").value(), Device{});
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "CUDA", "cuda:99999999999"}) {
    const Result<Device> device = parse_device(wrong);
    ASSERT_FALSE(device.ok()) << wrong;
    EXPECT_EQ(device.error().code, Code::invalid_argument) << wrong;
    EXPECT_NE(device.error().message.find("cuda:1"), std::string::npos) << device.error().message;
  }
  EXPECT_EQ(device_name(Device{}), "cpu");
  EXPECT_EQ(device_name(Device{3}), "cuda:3");
}

// Without a GPU, or without CUDA in the program, the error says what works instead.
TEST(Device, MissingOnesAreNamed) {
  const Result<Device> device = parse_device("cuda:63");
  ASSERT_FALSE(device.ok());
  EXPECT_TRUE(device.error().code == Code::unavailable || device.error().code == Code::unsupported);
  const std::string& message = device.error().message;
  EXPECT_TRUE(message.find("cuda:63") != std::string::npos || message.find("--device cpu works") != std::string::npos) << message;
}

TEST(Device, MemoryOfTheProcessorIsAllocatedWithoutOne) {
  EXPECT_EQ(Storage::allocate_on(Device{}, 100)->bytes()[99], std::byte{0});
  EXPECT_EQ(Storage::allocate_on(Device{0}, 0)->size_bytes(), 0);
}

}  // namespace
}  // namespace k3
