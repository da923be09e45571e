// The prefix rule of cost-model.md 10.5 on the two traces, every policy, through the engine and its cache: an unbounded
// pool, one request at a time in the order of the file.
#include <gtest/gtest.h>

#include "k3/base/file.h"
#include "k3/format/json/json_tree.h"
#include "k3/plan/sim/policies.h"
#include "k3/plan/sim/sim_harness_test.h"

namespace k3::plan {
namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kPages = 800'000;  // more than any of them fills: 170,899 blocks, as many checkpoints of three pages

void expect_golden(const std::string& trace, std::string_view policy, const JsonNode& golden) {
  SCOPED_TRACE(trace + " " + std::string(policy));
  TraceWorkload cut;
  cut.max_output = 1;  // answers are not cached
  const Workload workload = test::workload_of(test::unpacked(trace + ".zst"), cut);
  SimScenario s = test::small_scenario(kPages, std::make_shared<test::RoundClock>(), kBlock);
  s.engine.policy = checkpoint_policy(policy, kBlock).value();
  s.pacing = SimPacing::sequential;
  const SimResult result = simulate(s, workload).value();
  const auto number = [&](const char* name) { return std::stoll(std::string(golden.find(name)->raw)); };
  const SimSummary& sum = result.summary;
  EXPECT_EQ(sum.done, number("requests"));
  EXPECT_EQ(sum.prompt_tokens, number("input_tokens"));
  EXPECT_EQ(sum.matched_tokens, number("mla_hit_tokens"));
  EXPECT_EQ(sum.cached_tokens, number("hit_tokens"));
  EXPECT_EQ(sum.cache.checkpoints, number("checkpoints"));
  EXPECT_EQ(sum.cached_blocks, number("blocks"));
  EXPECT_EQ(sum.by_reason[static_cast<size_t>(cache::HitLimit::kda)], number("matched_clamped"));
  int64_t none = 0, usable = 0;
  for (const SimRecord& r : result.records) {
    none += r.matched == 0 ? 1 : 0;
    usable += r.matched > 0 && r.cached == r.matched ? 1 : 0;
  }
  EXPECT_EQ(none, number("no_match"));
  EXPECT_EQ(usable, number("matched_usable"));
  EXPECT_EQ(sum.cache.evicted_pages, 0);
}

TEST(PrefixGolden, EveryTraceAndPolicy) {
  const std::string text = read_file(std::string(K3_SOURCE_DIR) + "/tests/data/traces/prefix_golden.json").value();
  const JsonNode root = parse_json(text).value();
  int count = 0;
  for (size_t t = 0; t < root.items.size(); ++t) {
    for (size_t p = 0; p < root.items[t].items.size(); ++p, ++count) {
      expect_golden(root.keys[t], root.items[t].keys[p], root.items[t].items[p]);
    }
  }
  EXPECT_EQ(count, 14);
}

}  // namespace
}  // namespace k3::plan
