// The plan of a GPU on the real configs, without one: what is promised fits both limits, more memory never means fewer experts on
// the GPU, and what cannot work is refused with its arithmetic and the names of both options.
#include "k3/model/gpu/gpu_plan.h"

#include <gtest/gtest.h>

namespace k3 {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30, kMuch = int64_t{1} << 50;

Config config_of(const std::string& relative) { return load_config(std::string(K3_SOURCE_DIR) + "/" + relative).value(); }

GpuPlanRequest request(int64_t vram, int64_t ram, int64_t ctx = 8192) {
  GpuPlanRequest r;
  r.run.limit_bytes = vram;
  r.run.ctx_tokens = ctx;
  r.ram_bytes = ram;
  return r;
}

const char* const kConfigs[] = {"tests/data/configs/k3.json", "tests/data/configs/kimi-linear-48b.json"};

TEST(GpuPlan, PromisesHoldAtEverySize) {
  for (const char* name : kConfigs) {
    const Config config = config_of(name);
    const GpuModelBytes bytes = gpu_model_bytes(config, 512);
    int64_t before = -1;
    for (int64_t vram = 2 * kGiB; vram < 4096 * kGiB; vram += vram / 7) {
      const Result<GpuPlan> plan = plan_gpu(config, bytes, request(vram, kMuch));
      if (!plan.ok()) {
        EXPECT_EQ(plan.error().code, Code::exhausted);
        EXPECT_EQ(before, -1) << name << " " << vram;
        continue;
      }
      EXPECT_LE(plan->device_bytes(), vram) << name;
      const int64_t all = plan->layers * plan->experts, on_gpu = plan->everything ? all : plan->store.slots;
      EXPECT_GE(on_gpu, before) << name << " " << vram;
      before = on_gpu;
      if (plan->everything) continue;
      EXPECT_EQ(plan->whole_layers, 0);
      EXPECT_EQ(plan->store.host_bytes(), all * plan->expert_bytes);
      // Nothing worth a slot is left over.
      EXPECT_GT(plan->device_bytes() + plan->expert_bytes + plan->layers * plan->experts * 4 + 8192, vram) << name;
      int64_t slots = 0;
      for (int64_t l = 0; l < plan->store.layers; ++l) {
        EXPECT_EQ(plan->store.first_slot(l), slots);
        EXPECT_LE(plan->store.slots_of(l), plan->experts);
        slots += plan->store.slots_of(l);
      }
      EXPECT_EQ(slots, plan->store.slots);
    }
    EXPECT_EQ(before, bytes.layers * bytes.experts) << name;
  }
}

TEST(GpuPlan, HostMemoryDecidesHowManyLayersAreWhole) {
  const Config config = config_of("tests/data/configs/kimi-linear-48b.json");
  const GpuModelBytes bytes = gpu_model_bytes(config, 512);
  const int64_t layer = bytes.experts * bytes.expert;
  int64_t refused = 0, most = 0;
  for (int64_t ram = 0; ram < 100 * kGiB; ram += kGiB) {
    const Result<GpuPlan> plan = plan_gpu(config, bytes, request(60 * kGiB, ram));
    if (!plan.ok()) {
      ++refused;
      EXPECT_EQ(most, 0) << ram;  // more is never refused
      for (const char* word : {"--ram", "--vram", "60.0 GiB", "pinned"}) {
        EXPECT_NE(plan.error().message.find(word), std::string::npos) << plan.error().message;
      }
      continue;
    }
    EXPECT_LE(plan->host_bytes(), ram);
    EXPECT_LE(plan->device_bytes(), 60 * kGiB);
    EXPECT_EQ(plan->whole_layers + plan->store.layers, bytes.layers);
    // No layer more is whole than has to be.
    if (plan->whole_layers > 0) {
      EXPECT_GT(plan->host_bytes() + layer, ram);
    }
    most = std::max(most, plan->whole_layers);
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(most, 0);
}

TEST(GpuPlan, TooLittleForTheTrunkIsSaidWithTheSum) {
  const Config config = config_of("tests/data/configs/k3.json");
  const Result<GpuPlan> plan = plan_gpu(config, gpu_model_bytes(config, 512), request(8 * kGiB, kMuch));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Code::exhausted);
  for (const char* word : {"--vram 8.00 GiB", "trunk", "latents", "scratch", "="}) {
    EXPECT_NE(plan.error().message.find(word), std::string::npos) << plan.error().message;
  }
}

TEST(GpuPlan, LinesAddUp) {
  const Config config = config_of("tests/data/configs/kimi-linear-48b.json");
  const GpuModelBytes bytes = gpu_model_bytes(config, 512);
  for (const int64_t vram : {30 * kGiB, 200 * kGiB}) {
    const GpuPlan plan = plan_gpu(config, bytes, request(vram, kMuch)).value();
    int64_t sum = 0;
    for (const PlanLine& line : plan_lines(plan)) {
      if (line.what == "total on the GPU") {
        // Tables of the store are not worth a line.
        EXPECT_GE(line.bytes, sum);
        EXPECT_LT(line.bytes - sum, int64_t{64} << 20);
        sum = 0;
      } else if (line.what == "total in host memory") {
        EXPECT_EQ(line.bytes, sum);
      } else {
        sum += line.bytes;
      }
    }
    const MemoryPlan steps = plan.steps();
    EXPECT_EQ(steps.chunk_tokens, plan.chunk_tokens);
    EXPECT_EQ(steps.scratch_bytes, plan.scratch_bytes);
  }
}

TEST(GpuPlan, DenseModelsHaveNothingToPutElsewhere) {
  Config config = config_of("tests/data/configs/kimi-linear-48b.json");
  config.first_k_dense_replace = config.num_hidden_layers;
  config.num_experts = 0;
  const GpuModelBytes bytes = gpu_model_bytes(config, 512);
  EXPECT_EQ(bytes.layers, 0);
  EXPECT_TRUE(plan_gpu(config, bytes, request(100 * kGiB, 0)).value().everything);
  EXPECT_FALSE(plan_gpu(config, bytes, request(kGiB, kMuch)).ok());
}

}  // namespace
}  // namespace k3
