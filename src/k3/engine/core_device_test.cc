// What the core does for a GPU: steps of one phase, and an end when the device is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "k3/engine/core_requests_test.h"
#include "k3/engine/tiny_model_test.h"

namespace k3::test {
namespace {

class Failing final : public Executor {
 public:
  explicit Failing(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    if (lost) return fail(Code::device_lost, "waiting for the GPU: an illegal address");
    return model_.step(items);
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return model_.most_rows(); }

  bool lost = false;

 private:
  Executor& model_;
};

TEST(EngineCore, ALostDeviceEndsEveryRequestWithItsError) {
  TinyEngine e(exact(), 40, [](TinyEngine& t) { t.options.max_running = 1; });
  Failing failing(*e.executor);
  EngineCore core(e.options, *e.cache, failing);
  std::vector<Outcome> outs(3);
  for (size_t i = 0; i < 2; ++i) {  // one runs, one waits
    Request r = request(ids(50, i), 10);
    listen(r, outs[i]);
    core.submit(RequestId{i + 1}, std::move(r));
  }
  core.step();
  EXPECT_TRUE(core.device_status().ok());
  failing.lost = true;
  core.step();
  EXPECT_EQ(core.device_status().error().code, Code::device_lost);
  Request late = request(ids(50, 2), 10);
  listen(late, outs[2]);
  core.submit(RequestId{3}, std::move(late));
  core.step();
  for (const Outcome& out : outs) {
    ASSERT_EQ(out.done, 1);
    EXPECT_EQ(out.summary->error->code, Code::device_lost);
    EXPECT_NE(out.summary->error->message.find("illegal address"), std::string::npos);
  }
  EXPECT_FALSE(core.has_work());
  e.cache->clear_quarantine();
  EXPECT_TRUE(e.cache->check().ok());
}

// What a GPU wants of a step: prompts or single tokens, and prompts that reach back only so far together.
class PhaseWatch final : public Executor {
 public:
  explicit PhaseWatch(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    int64_t decodes = 0, prefills = 0, keys = 0;
    for (const StepItem& item : items) {
      const bool decode = item.history >= prompt_size(item);
      ++(decode ? decodes : prefills);
      if (!decode) keys += item.history + item.token_count;
    }
    mixed += decodes > 0 && prefills > 0 ? 1 : 0;
    if (prefills > 1) most_keys = std::max(most_keys, keys);
    shared += prefills > 1 ? 1 : 0;
    return model_.step(items);
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return model_.most_rows(); }

  std::vector<std::vector<int32_t>> prompts;
  int64_t mixed = 0, shared = 0, most_keys = 0;

 private:
  // Of the request that an item belongs to: its tokens lie behind those before it.
  int64_t prompt_size(const StepItem& item) const {
    for (const auto& prompt : prompts) {
      const size_t known = std::min(prompt.size(), static_cast<size_t>(item.history + item.token_count));
      if (std::equal(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(known), item.tokens.data() - item.history)) {
        return static_cast<int64_t>(prompt.size());
      }
    }
    return 0;
  }
  Executor& model_;
};

TEST(EngineCore, PhasesTakeTurnsWhereAStepHasOneOfThem) {
  for (const int64_t keys : {0, 120}) {
    TinyEngine e(exact(), 90, [&](TinyEngine& t) {
      t.options.separate_phases = true;
      t.options.prefill_keys = keys;
      t.options.step_tokens = 32;
    });
    PhaseWatch watch(*e.executor);
    EngineCore core(e.options, *e.cache, watch);
    std::vector<Outcome> outs(6);
    std::vector<Request> plain;
    for (size_t i = 0; i < outs.size(); ++i) {
      plain.push_back(request(ids(i % 2 == 0 ? 200 : 40, i), 12));
      watch.prompts.push_back(plain.back().prompt);
    }
    for (size_t i = 0, step = 0; i < outs.size() || core.has_work(); ++step) {
      ASSERT_LT(step, 1000u);
      if (i < outs.size() && step % 3 == 0) {
        Request r = plain[i];
        listen(r, outs[i]);
        core.submit(RequestId{i + 1}, std::move(r));
        ++i;
      }
      core.step();
    }
    EXPECT_EQ(watch.mixed, 0);
    EXPECT_GT(watch.shared, 0);
    if (keys > 0) {
      EXPECT_LE(watch.most_keys, keys);
    }
    for (size_t i = 0; i < outs.size(); ++i) EXPECT_EQ(outs[i].ids[0], plain_answer(plain[i], 0, exact(), 400)) << i;
  }
}

// Chooses where it may, in doubles, and leaves nothing of those rows.
class Chooser final : public Executor {
 public:
  explicit Chooser(Executor& model) : model_(model) {}
  Result<Tensor> step(std::span<const StepItem> items) override {
    chosen_.clear();
    Result<Tensor> logits = model_.step(items);
    if (!logits.ok()) return logits;
    int64_t row = 0;
    for (const StepItem& item : items) {
      const int64_t count = item.logits == WantLogits::none ? 0 : item.logits == WantLogits::last ? 1 : item.token_count;
      for (int64_t i = 0; i < count; ++i, ++row) {
        const std::span<float> x(logits->row(row), static_cast<size_t>(logits->dim(1)));
        chosen_.push_back({ops::cuda::kNotChosen, 0});
        ++(item.choice ? by_device : by_host);
        if (!item.choice) continue;
        chosen_.back() = {rule(x, *item.choice), flags};
        std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
      }
    }
    if (std::all_of(chosen_.begin(), chosen_.end(), [](const auto& c) { return c.id == ops::cuda::kNotChosen; })) chosen_.clear();
    return logits;
  }
  double now_seconds() const override { return model_.now_seconds(); }
  int64_t most_tokens() const override { return model_.most_tokens(); }
  int64_t most_rows() const override { return model_.most_rows(); }
  bool can_choose() const override { return true; }
  std::span<const ops::cuda::ChosenRow> chosen() const override { return chosen_; }

  int64_t by_device = 0, by_host = 0;
  uint32_t flags = 0;  // of every row that it chooses from

 private:
  // As sampling.h: the best top_k, of these the fewest that hold top_p, of these the heavy ones.
  static int32_t rule(std::span<const float> x, const ops::cuda::SampleRow& p) {
    std::vector<int32_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
    if (p.temperature == 0) return order[0];
    if (p.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(p.top_k)));
    const auto weight = [&](int32_t id) {
      return std::exp(static_cast<double>(x[static_cast<size_t>(id)] - x[static_cast<size_t>(order[0])]) / static_cast<double>(p.temperature));
    };
    const auto total = [&] { return std::accumulate(order.begin(), order.end(), 0.0, [&](double sum, int32_t id) { return sum + weight(id); }); };
    const double wanted = static_cast<double>(p.top_p) * total();
    size_t kept = 0;
    for (double sum = 0; kept < order.size() && sum < wanted; ++kept) sum += weight(order[kept]);
    order.resize(kept);
    std::erase_if(order, [&, best = order[0]](int32_t id) { return id != best && weight(id) < static_cast<double>(p.min_p); });
    const double point = p.uniform * total();
    std::vector<int32_t> ascending = order;
    std::sort(ascending.begin(), ascending.end());
    double sum = 0;
    for (const int32_t id : ascending) {
      if ((sum += weight(id)) > point) return id;
    }
    return ascending.back();
  }

  Executor& model_;
  std::vector<ops::cuda::ChosenRow> chosen_;
};

TEST(EngineCore, TokensChosenOnTheDeviceAreThoseOfTheHost) {
  TinyEngine e(exact(), 120, [](TinyEngine& t) { t.options.max_running = 9; });
  Chooser chooser(*e.executor);
  EngineCore core(e.options, *e.cache, chooser);
  std::vector<Request> plain(7, request({}, 20));
  for (size_t i = 0; i < plain.size(); ++i) {
    plain[i].prompt = ids(30 + 9 * i, i);
    plain[i].sampling.temperature = i == 0 ? 0.0F : 0.9F;
    plain[i].sampling.seed = 40 + i;
  }
  plain[2].sampling.top_k = 5;
  plain[3].sampling.top_p = 0.7F;
  plain[3].sampling.min_p = 0.05F;
  // These the host chooses: what is told of the logits, a penalty, and the first token of several choices.
  plain[4].logprobs = 1;
  plain[5].sampling.presence_penalty = 1;
  plain[6].choices = 3;
  std::vector<Outcome> outs(plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    Request r = plain[i];
    listen(r, outs[i]);
    core.submit(RequestId{i + 1}, std::move(r));
  }
  for (int i = 0; core.has_work(); ++i) {
    ASSERT_LT(i, 1000);
    core.step();
  }
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_FALSE(outs[i].summary->error.has_value()) << i;
    for (int32_t c = 0; c < plain[i].choices; ++c) EXPECT_EQ(outs[i].ids[static_cast<size_t>(c)], plain_answer(plain[i], c, exact(), 400)) << i << " " << c;
  }
  EXPECT_EQ(chooser.by_device, 4 * 20 + 3 * 19);
  EXPECT_EQ(chooser.by_host, 2 * 20 + 1);
}

TEST(EngineCore, ABrokenRowOnTheDeviceIsItsRequestsFault) {
  for (const uint32_t flags : {ops::cuda::kSampleNotFinite | ops::cuda::kSampleBroken, ops::cuda::kSampleNoToken}) {
    TinyEngine e(exact(), 40);
    Chooser chooser(*e.executor);
    chooser.flags = flags;
    EngineCore core(e.options, *e.cache, chooser);
    Outcome out;
    Request r = request(ids(30), 5);
    listen(r, out);
    core.submit(RequestId{1}, std::move(r));
    core.step();
    ASSERT_EQ(out.done, 1);
    EXPECT_EQ(out.summary->error->code, Code::internal);
    EXPECT_EQ(core.stats().nonfinite, flags == ops::cuda::kSampleNoToken ? 0 : 1);
    e.cache->clear_quarantine();
    EXPECT_TRUE(e.cache->check().ok());
  }
}

}  // namespace
}  // namespace k3::test
