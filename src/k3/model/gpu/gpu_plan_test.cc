// The plan of a GPU on the real configs, without one: what is promised fits both limits, more memory never means fewer experts on
// the GPU, and what cannot work is refused with its arithmetic and the names of both options.
#include "k3/model/gpu/gpu_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/mla/cuda/mla_parts.h"

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

GpuPlanRequest serving(int64_t vram, int64_t pool, int64_t least = kGiB / 2, int64_t most = 8 * kGiB) {
  GpuPlanRequest r = request(vram, kMuch, 32768);
  r.run.sequences = 32;
  r.run.chunk_tokens = 2048;
  r.run.logit_rows = 32;
  r.run.prompt_keys = 32768 + 8192;
  r.pool = {pool, least, most, 0};
  return r;
}

TEST(GpuPlan, PoolOfAServingEngineIsPartOfTheSum) {
  const Config config = config_of("tests/data/configs/kimi-linear-48b.json");
  const GpuModelBytes bytes = gpu_model_bytes(config, 2048);
  for (const int64_t asked : {int64_t{0}, 3 * kGiB}) {
    int64_t before = 0, plans = 0;
    for (int64_t vram = 2 * kGiB; vram < 400 * kGiB; vram += vram / 9) {
      const Result<GpuPlan> made = plan_gpu(config, bytes, serving(vram, asked));
      if (!made.ok()) {
        EXPECT_EQ(plans, 0) << vram;
        continue;
      }
      ++plans;
      const GpuPlan& plan = *made;
      EXPECT_TRUE(plan.pooled);
      EXPECT_LE(plan.device_bytes(), vram);
      EXPECT_EQ(plan.state_bytes, 0);
      if (asked > 0) {
        EXPECT_EQ(plan.latent_bytes, asked);
      } else if (plan.everything) {
        EXPECT_EQ(plan.device_bytes(), vram);  // the pool has what is left
        EXPECT_GE(plan.latent_bytes, kGiB / 2);
      } else {
        EXPECT_GE(plan.latent_bytes, std::max(before, kGiB / 2));
        EXPECT_LE(plan.latent_bytes, 8 * kGiB);
        // No more than its share, beyond what it must have.
        EXPECT_LE(plan.latent_bytes, std::max(kGiB / 2, (plan.store.slots + 1) * plan.expert_bytes)) << vram;
        before = plan.latent_bytes;
      }
      EXPECT_EQ(plan.steps().latent_bytes, plan.latent_bytes);
      EXPECT_TRUE(plan.steps().pooled);
    }
    EXPECT_GT(plans, 10);
  }
}

TEST(GpuPlan, PoolThatDoesNotFitIsRefusedWithTheSum) {
  const Config config = config_of("tests/data/configs/kimi-linear-48b.json");
  const GpuModelBytes bytes = gpu_model_bytes(config, 2048);
  const Result<GpuPlan> plan = plan_gpu(config, bytes, serving(24 * kGiB, 22 * kGiB));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Code::exhausted);
  for (const char* word : {"--vram 24.0 GiB", "trunk", "pool 22.0 GiB", "scratch", "=", "--pool-bytes", "--max-running"}) {
    EXPECT_NE(plan.error().message.find(word), std::string::npos) << plan.error().message;
  }
}

TEST(GpuPlan, HostTierOfTheCacheCountsAgainstRam) {
  const Config config = config_of("tests/data/configs/kimi-linear-48b.json");
  const GpuModelBytes bytes = gpu_model_bytes(config, 2048);
  GpuPlanRequest r = serving(24 * kGiB, 0);
  const GpuPlan without = plan_gpu(config, bytes, r).value();
  r.ram_bytes = without.host_bytes();
  EXPECT_EQ(plan_gpu(config, bytes, r).value().host_bytes(), without.host_bytes());
  r.pool.host_bytes = 2 * kGiB;
  const Result<GpuPlan> refused = plan_gpu(config, bytes, r);
  if (refused.ok()) {
    EXPECT_GT(refused->whole_layers, 0);
  } else {
    EXPECT_NE(refused.error().message.find("--host-bytes"), std::string::npos) << refused.error().message;
  }
  r.ram_bytes += 2 * kGiB;
  const GpuPlan with = plan_gpu(config, bytes, r).value();
  EXPECT_EQ(with.whole_layers, 0);
  EXPECT_EQ(with.host_bytes(), without.host_bytes() + 2 * kGiB);
}

// Keys and values of a prompt are expanded in parts.
TEST(GpuPlan, ScratchDoesNotGrowWithTheContext) {
  for (const char* name : kConfigs) {
    const Config config = config_of(name);
    const int64_t part = ops::cuda::mla_part_keys(config.num_attention_heads);
    const auto scratch = [&](int64_t keys) { return gpu_scratch_bytes(config, 2048, 32, keys, 32); };
    EXPECT_LE(scratch(part / 2), scratch(part));
    EXPECT_LE(scratch(part), scratch(part + 1));
    EXPECT_EQ(scratch(part + 1), scratch(int64_t{1} << 20));
    // Beyond one part: a float for every value of the step, and the sums.
    const int64_t between = 2048 * config.num_attention_heads * (config.v_head_dim + 1) * 4;
    EXPECT_LE(scratch(int64_t{1} << 20), scratch(part) + between + between / 16 + 1);
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
