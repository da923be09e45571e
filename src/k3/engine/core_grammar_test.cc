// Structured output in the engine's core: what limits of a request do to a text that its grammar ends.
#include <gtest/gtest.h>

#include "k3/engine/core_requests_test.h"
#include "k3/engine/tiny_model_test.h"
#include "k3/format/grammar/grammar_test_util.h"

namespace k3::test {
namespace {

// Every token of the byte vocabulary is as likely as any other.
class EvenModel final : public Executor {
 public:
  Result<Tensor> step(std::span<const StepItem> items) override {
    int64_t rows = 0;
    for (const StepItem& item : items) rows += item.logits == WantLogits::last ? 1 : 0;
    logits_.assign(static_cast<size_t>(rows * vocab()), 0.0F);
    return Tensor(logits_.data(), DType::f32, {rows, vocab()});
  }
  double now_seconds() const override { return 1; }
  int64_t most_tokens() const override { return 64; }
  int64_t most_rows() const override { return 4; }
  static int64_t vocab() { return byte_vocabulary().vocab_size(); }

 private:
  std::vector<float> logits_;
};

Outcome answer_of(const Request& wanted) {
  TinyEngine e(exact(), 20);
  EvenModel model;
  e.options.vocab = EvenModel::vocab();
  EngineCore core(e.options, *e.cache, model);
  Outcome out;
  Request r = wanted;
  listen(r, out);
  core.submit(RequestId{1}, std::move(r));
  for (int i = 0; core.has_work() && i < 100; ++i) core.step();
  return out;
}

Request at_least_30_tokens_of(const char* pattern) {
  Request r = request({65, 66}, 40);
  r.stop_ids = {kByteEnd};
  r.grammar = Grammar::regex(byte_trie(), pattern).value();
  r.min_tokens = 30;
  return r;
}

TEST(EngineCoreGrammar, ACompleteTextEndsBeforeMinTokens) {
  const Outcome out = answer_of(at_least_30_tokens_of("ab"));
  ASSERT_TRUE(out.summary);
  EXPECT_FALSE(out.summary->error) << out.summary->error->message;
  EXPECT_EQ(out.ids[0], (std::vector<int32_t>{'a', 'b', kByteEnd}));
  EXPECT_EQ(out.ends[0], EndReason::stop_token);
}

TEST(EngineCoreGrammar, MinTokensHoldWhereTheTextMayGoOn) {
  const Outcome out = answer_of(at_least_30_tokens_of("a*"));
  EXPECT_GE(out.ids[0].size(), 30u);
  EXPECT_EQ(std::vector<int32_t>(out.ids[0].begin(), out.ids[0].begin() + 30), std::vector<int32_t>(30, 'a'));
}

TEST(EngineCoreGrammar, MinTokensThatLeaveNoTokenAreTheRequestsFault) {
  Request r = request({65, 66}, 40);
  for (int32_t id = 0; id < EvenModel::vocab(); ++id) r.stop_ids.push_back(id);
  r.min_tokens = 3;
  const Outcome out = answer_of(r);
  ASSERT_TRUE(out.summary && out.summary->error);
  EXPECT_EQ(out.summary->error->code, Code::invalid_argument);
  EXPECT_EQ(out.summary->error->message.substr(0, 12), "min_tokens: ");
}

}  // namespace
}  // namespace k3::test
