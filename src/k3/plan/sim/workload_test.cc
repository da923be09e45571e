#include "k3/plan/sim/workload.h"

#include <gmock/gmock.h>

#include "k3/plan/sim/policies.h"
#include "k3/plan/sim/recording.h"
#include "k3/plan/sim/sim_harness_test.h"

namespace k3::plan {
namespace {

using testing::HasSubstr;

std::vector<cache::BlockKey> keys(const Workload& w, int32_t index, int64_t block, int64_t tokens) {
  return block_keys(w, index, block, tokens);
}

TEST(SimWorkload, EqualPrefixesHaveEqualKeysWhateverTheBlocks) {
  // The second prompt shares 2 blocks of 512, the third 1.
  const Workload w = test::workload_of(R"({"timestamp":0,"input_length":1600,"output_length":5,"hash_ids":[1,2,3,4]}
{"timestamp":0,"input_length":1500,"output_length":5,"hash_ids":[1,2,9]}
{"timestamp":0,"input_length":1024,"output_length":5,"hash_ids":[1,8]}
)");
  for (const int64_t block : {64, 128, 512}) {
    const auto a = keys(w, 0, block, 1600), b = keys(w, 1, block, 1500), c = keys(w, 2, block, 1024);
    ASSERT_EQ(a.size(), static_cast<size_t>(1600 / block));
    size_t shared = 0;
    while (shared < std::min(a.size(), b.size()) && a[shared] == b[shared]) ++shared;
    EXPECT_EQ(shared, static_cast<size_t>(1024 / block));
    EXPECT_TRUE(a[static_cast<size_t>(512 / block) - 1] == c[static_cast<size_t>(512 / block) - 1]);
    EXPECT_FALSE(a[static_cast<size_t>(1024 / block) - 1] == c[static_cast<size_t>(1024 / block) - 1]);
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < i; ++j) ASSERT_FALSE(a[i] == a[j]);
    }
  }
}

constexpr const char* kSession =
    R"({"timestamp":0,"input_length":700,"output_length":400,"hash_ids":[1,2],"session":3,"turn":0,"turn_end":1100}
{"timestamp":9,"input_length":1300,"output_length":10,"hash_ids":[1,5,6],"session":3,"turn":1,"turn_end":1310}
)";

TEST(SimWorkload, TheNextTurnSaysWhatTheAnswerWas) {
  const Workload w = test::workload_of(kSession);
  EXPECT_EQ(w.requests[0].next, 1);
  EXPECT_EQ(w.requests[1].previous, 0);
  EXPECT_EQ(continued_tokens(w, 0), 0);
  EXPECT_EQ(continued_tokens(w, 1), 1100);
  EXPECT_EQ(w.requests[1].chain, 0);
  EXPECT_TRUE(keys(w, 0, 512, 1100)[1] == keys(w, 1, 512, 1300)[1]);
  // A replay puts another text there: nothing but the first block is the same, and nobody meets the answer.
  const Workload replayed = test::workload_of(kSession, {}, false);
  EXPECT_EQ(continued_tokens(replayed, 1), 512);
  EXPECT_EQ(replayed.requests[1].chain, 1);  // nobody goes on with an idle sequence that ends in another answer
  EXPECT_TRUE(keys(replayed, 0, 512, 1100)[0] == keys(replayed, 1, 512, 1300)[0]);
  EXPECT_FALSE(keys(replayed, 0, 512, 1100)[1] == keys(replayed, 1, 512, 1300)[1]);
}

TEST(SimWorkload, ScaledLengthsKeepTheirBlocks) {
  TraceWorkload cut;
  cut.scale = 0.25;
  const Workload w = test::workload_of(kSession, cut);
  EXPECT_EQ(w.requests[0].input_tokens, 175);
  EXPECT_EQ(w.requests[1].input_tokens, 325);
  EXPECT_TRUE(keys(w, 0, 64, 175)[1] == keys(w, 1, 64, 325)[1]);
}

TEST(SimWorkload, PoliciesByName) {
  const auto policy = [](std::string_view name) { return checkpoint_policy(name, 512).value(); };
  EXPECT_TRUE(policy("serve").turn_ends);
  EXPECT_EQ(policy("every").every_tokens, 512);
  EXPECT_FALSE(policy("end").second_sighting);
  EXPECT_EQ(policy("end+2048").every_tokens, 2048);
  EXPECT_TRUE(policy("end+second+32768").second_sighting);
  EXPECT_EQ(policy("end+second+32768").every_tokens, 32768);
  for (const char* name : {"", "end+", "end+second+", "second", "end+0", "end+-512", "end+x", "End", "end+second+second",
                           "end+99999999999999999999"}) {
    EXPECT_FALSE(checkpoint_policy(name, 512).ok()) << name;
  }
  EXPECT_THAT(checkpoint_policy("end+1000", 512).error().message, HasSubstr("1000 is no multiple of the 512"));
  EXPECT_EQ(policy_names("all", 512)->size(), 8u);
  EXPECT_EQ(*policy_names("end,serve", 512), (std::vector<std::string>{"end", "serve"}));
  EXPECT_FALSE(policy_names("end,", 512).ok());
}

TEST(SimWorkload, RecordingsNameWhatIsWrong) {
  const Workload w = test::workload_of(kSession);
  const auto good = parse_recording(
      R"({"requests":[{"index":1,"input_tokens":1300,"start_s":2.5,"first_token_s":null,"end_s":4},{"index":0,"input_tokens":700,"start_s":1}]})",
      w);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ((*good)[1].start_seconds, 2.5);
  EXPECT_EQ((*good)[1].first_token_seconds, -1);
  EXPECT_EQ((*good)[0].end_seconds, -1);
  const auto message = [&](const char* json) { return parse_recording(json, w).error().message; };
  EXPECT_THAT(message("[]"), HasSubstr("no list \"requests\""));
  EXPECT_THAT(message(R"({"requests":[{"index":7,"start_s":1}]})"), HasSubstr("requests[0]: index"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"input_tokens":5,"start_s":1}]})"), HasSubstr("the same cuts"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"input_tokens":700,"start_s":1},{"index":0,"input_tokens":700,"start_s":1}]})"),
              HasSubstr("requests[1]: index: 0 comes twice"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"input_tokens":700,"start_s":"x"}]})"), HasSubstr("start_s"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"start_s":1}]})"), HasSubstr("requests[0]: input_tokens: no number"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"input_tokens":700,"arrival_s":1}]})"), HasSubstr("k3 sim wrote this"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"input_tokens":700,"start_s":3,"first_token_s":2}]})"),
              HasSubstr("first_token_s: 2 is before start_s, 3"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"input_tokens":700,"start_s":1,"first_token_s":3,"end_s":2}]})"),
              HasSubstr("end_s: 2 is before 3"));
  EXPECT_THAT(message(R"({"requests":[{"index":0,"input_tokens":700,"start_s":1e300}]})"),
              HasSubstr("requests[0]: start_s: 1e300 is above"));
}

}  // namespace
}  // namespace k3::plan
