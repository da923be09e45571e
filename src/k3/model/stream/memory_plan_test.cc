// The memory plan on the real configs: what is promised is never more than the limit, more memory never means more bytes read,
// and what cannot work is refused with its arithmetic.
#include "k3/model/stream/memory_plan.h"

#include <gtest/gtest.h>

#include "k3/model/summary.h"

namespace k3 {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Config config_of(const std::string& relative) { return load_config(std::string(K3_SOURCE_DIR) + "/" + relative).value(); }
Config k3_config() { return config_of("tests/data/configs/k3.json"); }

PlanRequest request(int64_t limit, int64_t ctx = 8192) {
  PlanRequest r;
  r.limit_bytes = limit;
  r.ctx_tokens = ctx;
  r.threads = 2;
  return r;
}

// The least limit that is not refused, to a MiB.
int64_t least_limit(const Config& config, const ModelBytes& bytes, int64_t ctx) {
  int64_t low = 0, high = int64_t{4} << 40;
  while (high - low > (1 << 20)) {
    const int64_t middle = low + (high - low) / 2;
    (plan_memory(config, bytes, request(middle, ctx)).ok() ? high : low) = middle;
  }
  return high;
}

TEST(MemoryPlan, SizesOfTheReleasedModelAreThoseOfItsSummary) {
  const Config config = k3_config();
  const ModelBytes bytes = model_bytes(config);
  const ModelSummary summary = summarise(config);
  EXPECT_EQ(bytes.experts, 92 * 896);
  EXPECT_EQ(bytes.expert_read, 17'547'264);
  EXPECT_EQ(bytes.experts * bytes.expert_read, summary.components.at(Component::routed_experts).size_bytes);
  int64_t trunk = 0;
  for (const int64_t layer : bytes.layer_read) trunk += layer;
  int64_t expected = 0;
  for (const auto& [component, totals] : summary.components) {
    switch (component) {
      case Component::routed_experts:
      case Component::embedding:
      case Component::lm_head:
      case Component::vision_tower:
      case Component::projector: break;
      default: expected += totals.size_bytes;
    }
  }
  EXPECT_NEAR(static_cast<double>(trunk), static_cast<double>(expected), 1e5);  // the final norm and its site
  EXPECT_EQ(bytes.lm_head, 2'348'810'240);
}

TEST(MemoryPlan, PromisesHoldAtEverySize) {
  for (const char* name : {"tests/data/configs/k3.json", "tests/data/configs/kimi-linear-48b.json", "models/k3-mini/config.json"}) {
    const Config config = config_of(name);
    const ModelBytes bytes = model_bytes(config);
    const int64_t least = least_limit(config, bytes, 8192);
    int64_t read_before = INT64_MAX, slots_before = -1;
    for (int64_t limit = least; limit < 3000 * kGiB; limit += limit / 7) {
      const auto plan = plan_memory(config, bytes, request(limit));
      ASSERT_TRUE(plan.ok()) << name << " " << limit << " " << plan.error().message;
      EXPECT_LE(plan->total_bytes(), limit) << name;
      if (plan->everything) break;
      EXPECT_GE(plan->expert_slots, std::min(bytes.experts, bytes.topk)) << name;
      if (plan->chunk_tokens == 512) {  // shorter chunks make room by other means
        EXPECT_LE(plan->streamed_read_bytes, read_before) << name << " " << limit;
        read_before = plan->streamed_read_bytes;
        if (plan->streamed_read_bytes == 0) {
          EXPECT_GE(plan->expert_slots, slots_before) << name;
          slots_before = plan->expert_slots;
        }
      }
      int64_t sum = 0;
      for (const PlanLine& line : plan_lines(*plan)) sum += line.what == "total" ? 0 : line.bytes;
      EXPECT_EQ(sum, plan->total_bytes()) << name;  // the table leaves nothing out
    }
    EXPECT_TRUE(plan_memory(config, bytes, request(3000 * kGiB))->everything) << name;
  }
}

TEST(MemoryPlan, TrunkComesBeforeExperts) {
  const Config config = k3_config();
  const ModelBytes bytes = model_bytes(config);
  int64_t trunk = bytes.lm_head;
  for (const int64_t layer : bytes.layer_arena) trunk += layer;
  const MemoryPlan roomy = plan_memory(config, bytes, request(trunk + 16 * kGiB)).value();
  EXPECT_EQ(roomy.streamed_layers(), 0);
  EXPECT_EQ(roomy.streamed_read_bytes, 0);
  EXPECT_GT(roomy.expert_slots, 400);
  const MemoryPlan tight = plan_memory(config, bytes, request(64 * kGiB)).value();
  EXPECT_GT(tight.streamed_layers(), 30);
  EXPECT_LT(tight.expert_slots, 4 * bytes.topk);
  EXPECT_EQ(tight.lm_head_resident_rows, 0);
  // Streamed layers are spread: no two gaps differ by much.
  int64_t longest = 0, run = 0;
  for (const bool streamed : tight.layer_streamed) {
    run = streamed ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  EXPECT_LE(longest, 93 / (93 - tight.streamed_layers()) + 2);
}

TEST(MemoryPlan, LmHeadIsCutWhereThatIsEnough) {
  const Config config = k3_config();
  const ModelBytes bytes = model_bytes(config);
  int64_t trunk = 0;
  for (const int64_t layer : bytes.layer_arena) trunk += layer;
  // One GiB short of a resident lm_head.
  const MemoryPlan fits = plan_memory(config, bytes, request(trunk + bytes.lm_head + 8 * kGiB)).value();
  const int64_t need = fits.total_bytes() - fits.expert_slots * fits.expert_slot_bytes + 32 * bytes.expert_slot;
  const MemoryPlan cut = plan_memory(config, bytes, request(need - kGiB)).value();
  EXPECT_EQ(cut.streamed_layers(), 0);
  EXPECT_GT(cut.lm_head_resident_rows, 0);
  EXPECT_LT(cut.streamed_read_bytes, kGiB + (int64_t{64} << 20));
}

TEST(MemoryPlan, RefusalShowsTheArithmetic) {
  const Config config = k3_config();
  const ModelBytes bytes = model_bytes(config);
  const auto small = plan_memory(config, bytes, request(2 * kGiB));
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().code, Code::exhausted);
  for (const char* part : {"2.00 GiB", "trunk buffers", "recurrent state", "experts in flight", " = "}) {
    EXPECT_NE(small.error().message.find(part), std::string::npos) << small.error().message;
  }
  // With a very long context the latents dominate, and the message says which option lowers them.
  const auto long_context = plan_memory(config, bytes, request(16 * kGiB, 1 << 20));
  ASSERT_FALSE(long_context.ok());
  EXPECT_NE(long_context.error().message.find("--ctx"), std::string::npos) << long_context.error().message;
}

TEST(MemoryPlan, AutoUnderAControlGroupIsTheSamePlanAsThatSize) {
  // Model::load makes the limit of `auto` from available_memory_bytes(), whose control-group part has its own test
  // (base/memory_test.cc); from there on the plan is this function.
  const Config config = config_of("models/k3-mini/config.json");
  const ModelBytes bytes = model_bytes(config);
  int64_t limit = plan_memory(config, bytes, request(3000 * kGiB))->total_bytes();
  while (plan_memory(config, bytes, request(limit))->everything) limit -= limit / 32;
  const MemoryPlan plan = plan_memory(config, bytes, request(limit)).value();
  EXPECT_FALSE(plan.everything);
  EXPECT_LE(plan.total_bytes(), limit);
}

TEST(MemoryPlan, ScratchShrinksWithTheChunk) {
  const Config config = k3_config();
  const ModelBytes bytes = model_bytes(config);
  const int64_t least = least_limit(config, bytes, 4096);
  const MemoryPlan plan = plan_memory(config, bytes, request(least, 4096)).value();
  EXPECT_EQ(plan.chunk_tokens, 16);
  EXPECT_LT(least, 7 * kGiB);  // two buffers for the dense layer, and little else
}

}  // namespace
}  // namespace k3
