#include "k3/model/gpu/gpu_weights.h"

#include <gtest/gtest.h>

#include <functional>

#include "k3/model/run/sequence.h"

namespace k3 {
namespace {

Config released(const char* name) { return load_config(std::string(K3_SOURCE_DIR) + "/tests/data/configs/" + name).value(); }

TEST(GpuConfig, ReleasedModelsHaveKernels) {
  for (const char* name : {"k3.json", "kimi-linear-48b.json"}) {
    const Status status = check_gpu_config(released(name));
    EXPECT_TRUE(status.ok()) << name << ": " << status.error().message;
  }
}

TEST(GpuConfig, OtherSizesAreRefusedByName) {
  const auto refused = [](const std::function<void(Config&)>& change, std::string_view name) {
    Config config = released("k3.json");
    change(config);
    const Status status = check_gpu_config(config);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().code, Code::unsupported);
    EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
  };
  refused([](Config& c) { c.kda_head_dim = 256; }, "head_dim");
  refused([](Config& c) { c.short_conv_kernel_size = 9; }, "short_conv_kernel_size");
  refused([](Config& c) { c.kv_lora_rank = 16384; }, "kv_lora_rank");
  refused([](Config& c) { c.q_lora_rank = 1500; }, "q_lora_rank");
  refused([](Config& c) { c.num_experts_per_token = 17; }, "num_experts_per_token");
  refused([](Config& c) { c.num_experts = 1025; }, "num_experts");
  refused([](Config& c) { c.hidden_size = 7172; }, "hidden_size");
  refused([](Config& c) { c.moe_intermediate_size = 3080; }, "moe_intermediate_size");
  refused([](Config& c) { c.routed_expert_hidden_size = 3592; }, "routed_expert_hidden_size");
}

TEST(GpuConfig, SmallModelsOfOtherSizesRun) {
  for (const char* name : {"k3-a", "k3-b", "k3-c", "k3-d", "k3-e", "k3-f", "kl-a", "kl-b", "mix-a", "mix-b"}) {
    const Status status = check_gpu_config(load_config(std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/" + name).value());
    EXPECT_TRUE(status.ok()) << name << ": " << status.error().message;
  }
}

TEST(GpuConfig, LatentsThatNoKernelReadsAreRefused) {
  const Config config = released("kimi-linear-48b.json");
  for (const DType dtype : {DType::f32, DType::f8_e4m3}) {
    const auto pool = SequencePool::create(config, ops::Policy::bf16, 1, 64, {.state = {}, .latent = dtype}, Device{0});
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.error().code, Code::unsupported);
    EXPECT_NE(pool.error().message.find(dtype_name(dtype)), std::string::npos) << pool.error().message;
  }
}

}  // namespace
}  // namespace k3
