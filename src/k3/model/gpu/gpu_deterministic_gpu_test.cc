// --deterministic on a GPU: the bits of a token's logits depend on the token and what came before it, on nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "k3/model/gpu/gpu_model_test_util.h"
#include "k3/model/run/paged_runner.h"

namespace k3 {
namespace {

class GpuDeterministic : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!gpu_present()) GTEST_SKIP() << "no GPU";
    const std::string folder = GetParam() == "random" ? write_random_model(pool_) : std::string(K3_SOURCE_DIR) + "/" + GetParam();
    if (!std::filesystem::exists(folder + "/config.json")) GTEST_SKIP() << folder << " is not here";
    LoadOptions options;
    options.device = Device{0};
    Result<Model> model = Model::load(folder, pool_, options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::make_unique<Model>(*std::move(model));
  }

  Runner runner(int64_t sequences, int64_t ctx_tokens = 1024) {
    RunnerOptions options;
    options.sequences = sequences;
    options.ctx_tokens = ctx_tokens;
    options.deterministic = true;
    Result<Runner> made = Runner::create(*model_, pool_, options);
    K3_CHECK(made.ok(), "{}", made.error().message);
    return *std::move(made);
  }

  // One step; the logits of its sequences, appended to theirs.
  static void step(Runner& runner, std::span<const StepInput> inputs, std::vector<std::vector<float>>& out) {
    Result<Tensor> rows = runner.step(inputs);
    K3_CHECK(rows.ok(), "{}", rows.error().message);
    const float* row = rows->f32();
    for (const StepInput& input : inputs) {
      const size_t count = (input.logits == WantLogits::all ? input.tokens.size() : input.logits == WantLogits::last ? 1 : 0) *
                           static_cast<size_t>(rows->dim(1));
      std::vector<float>& to = out[static_cast<size_t>(input.sequence)];
      to.insert(to.end(), row, row + count);
      row += count;
    }
  }

  static std::vector<float> logits(Runner& runner, const std::vector<int32_t>& ids, size_t piece) {
    std::vector<std::vector<float>> out(static_cast<size_t>(runner.options().sequences));
    for (size_t at = 0; at < ids.size(); at += piece) {
      const StepInput input{0, std::span(ids).subspan(at, std::min(piece, ids.size() - at)), WantLogits::all};
      step(runner, std::span(&input, 1), out);
    }
    return out[0];
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_;
};

TEST_P(GpuDeterministic, ChunksOfEverySizeAndContext) {
  const std::vector<int32_t> ids = random_ids(*model_, 200, 1);
  Runner first = runner(1);
  const std::vector<float> whole = logits(first, ids, 200);
  ASSERT_TRUE(std::all_of(whole.begin(), whole.end(), [](float x) { return std::isfinite(x); }));
  ASSERT_GT(*std::max_element(whole.begin(), whole.end()), 0.1F);
  for (const size_t piece : {200U, 64U, 7U, 1U}) {
    first.reset(0);
    EXPECT_EQ(logits(first, ids, piece), whole) << "pieces of " << piece;
  }
  Runner longer = runner(3, 4096);
  EXPECT_EQ(logits(longer, ids, 33), whole) << "room for more";
}

TEST_P(GpuDeterministic, NeighboursDoNotShow) {
  constexpr size_t kCount = 3;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> alone, together(kCount);
  Runner one = runner(1), many = runner(kCount);
  for (size_t s = 0; s < kCount; ++s) {
    ids.push_back(random_ids(*model_, 40 + 30 * static_cast<int64_t>(s), 10 + s));
    one.reset(0);
    alone.push_back(logits(one, ids.back(), 1000));
  }
  // Steps that mix long chunks, single tokens and sequences that have ended.
  std::vector<size_t> at(kCount, 0);
  for (size_t n = 0;; ++n) {
    std::vector<StepInput> inputs;
    for (size_t i = 0; i < kCount; ++i) {
      const size_t s = kCount - 1 - i, want = (n + s) % 3 == 0 ? 1 : (n + s) % 3 == 1 ? 19 : 3, count = std::min(want, ids[s].size() - at[s]);
      if (count == 0) continue;
      inputs.push_back({static_cast<int32_t>(s), std::span(ids[s]).subspan(at[s], count), WantLogits::all});
      at[s] += count;
    }
    if (inputs.empty()) break;
    step(many, inputs, together);
  }
  for (size_t s = 0; s < kCount; ++s) EXPECT_EQ(together[s], alone[s]) << s;
}

TEST_P(GpuDeterministic, LastRowsAreThoseOfAll) {
  const std::vector<int32_t> ids = random_ids(*model_, 50, 30);
  Runner all = runner(1), last = runner(1);
  const std::vector<float> want = logits(all, ids, 50);
  std::vector<std::vector<float>> got(1);
  const auto vocab = static_cast<int64_t>(want.size() / ids.size());
  for (const auto& [begin, end, rows] : {std::tuple(0, 17, WantLogits::none), std::tuple(17, 49, WantLogits::last), std::tuple(49, 50, WantLogits::last)}) {
    const StepInput input{0, std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), rows};
    step(last, std::span(&input, 1), got);
  }
  EXPECT_EQ(got[0], std::vector<float>(want.end() - vocab * 2, want.end()));
}

// A pool of pages of both kinds on the GPU, all KDA layers in one page.
TEST_P(GpuDeterministic, CheckpointsOnPagesGoOnAsTheSequenceDid) {
  const Config& c = model_->config();
  const auto mla = static_cast<int64_t>(std::count(c.attention.begin(), c.attention.end(), AttentionKind::mla));
  const int64_t kda = c.num_hidden_layers - mla;
  PagedLayout layout;
  layout.page_tokens = 16;
  layout.conv = layout.latent = DType::bf16;
  layout.conv_offset = c.kda_num_heads * c.kda_head_dim * c.kda_head_dim * 4;
  const int64_t stride = (layout.conv_offset + 3 * (c.short_conv_kernel_size - 1) * c.kda_width() * 2 + 255) / 256 * 256;
  const int64_t latent = layout.page_tokens * (c.kv_lora_rank + c.qk_rope_head_dim) * 2;
  layout.page_bytes = (std::max(mla * latent, kda * stride) + 255) / 256 * 256;
  layout.layers = place_layers(c, std::vector<int64_t>{kda}, latent, stride);
  const Storage pool = Storage::allocate_on(model_->device(), 32 * layout.page_bytes).value();
  layout.pool = pool.data();
  ComputeMode mode;
  mode.deterministic = true;
  PagedRunner runner = PagedRunner::create(*model_, pool_, mode, layout).value();

  const std::vector<int32_t> ids = random_ids(*model_, 60, 40);
  Runner plain = this->runner(1);
  const std::vector<float> want = logits(plain, ids, 60);
  const std::vector<int32_t> table = {9, 3, 30, 4}, states = {7}, other_table = {5}, other_states = {6};
  const std::vector<int64_t> positions = {1, 16, 37, 60};
  const std::vector<std::vector<int32_t>> copies = {{20}, {11}, {12}, {25}};
  std::vector<PagedExport> exports;
  for (size_t i = 0; i < positions.size(); ++i) exports.push_back({positions[i], copies[i]});
  const PagedInput inputs[] = {
      {std::span(ids).first(5), 0, other_table, other_states, {}, WantLogits::none},
      {ids, 0, table, states, exports, WantLogits::all},
  };
  const Result<Tensor> step = runner.step(inputs);
  ASSERT_TRUE(step.ok()) << step.error().message;
  const Tensor whole = *step;
  EXPECT_EQ(std::vector<float>(whole.f32(), whole.f32() + whole.size()), want);
  for (size_t i = 0; i + 1 < positions.size(); ++i) {
    const auto p = static_cast<size_t>(positions[i]);
    const PagedInput rest{std::span(ids).subspan(p), positions[i], table, copies[i], {}, WantLogits::all};
    const Tensor rows = runner.step(std::span(&rest, 1)).value();
    EXPECT_EQ(std::vector<float>(rows.f32(), rows.f32() + rows.size()),
              std::vector<float>(want.begin() + positions[i] * c.vocab_size, want.end()))
        << "position " << p;
  }
}

// Under compute-sanitizer: a chunk, single tokens (launched, captured, replayed) and single tokens of two sequences.
// A test each: racecheck takes long.
class SanitizeSteps : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(SanitizeSteps, WholeModel) {
  if (!gpu_present()) GTEST_SKIP() << "no GPU";
  const auto [name, deterministic] = GetParam();
  ThreadPool pool(2);
  LoadOptions load;
  load.device = Device{0};
  const Model model = Model::load(std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/" + name, pool, load).value();
  const std::vector<int32_t> ids = random_ids(model, 16, 3);
  RunnerOptions options;
  options.sequences = 2;
  options.ctx_tokens = 128;
  options.chunk_tokens = 32;
  options.deterministic = deterministic;
  Runner runner = Runner::create(model, pool, options).value();
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 11}, {11, 12}, {12, 13}, {13, 14}}) {
    const std::span<const int32_t> some = std::span(ids).subspan(begin, end - begin);
    const StepInput inputs[] = {{0, some, WantLogits::last}, {1, some, WantLogits::last}};
    const bool both = begin == 0 || begin == 13;
    const Result<Tensor> step = runner.step(std::span(inputs, both ? 2 : 1));
    ASSERT_TRUE(step.ok()) << step.error().message;
    const Tensor logits = *step;
    EXPECT_TRUE(std::all_of(logits.f32(), logits.f32() + logits.size(), [](float x) { return std::isfinite(x); }));
    EXPECT_GT(*std::max_element(logits.f32(), logits.f32() + logits.size()), 0.1F);
  }
}
INSTANTIATE_TEST_SUITE_P(All, SanitizeSteps, testing::Combine(testing::Values("k3-e", "k3-c"), testing::Bool()));

INSTANTIATE_TEST_SUITE_P(Models, GpuDeterministic,
                         testing::Values("random", "tests/data/oracle-models/k3-e", "tests/data/oracle-models/kl-b", "models/k3-mini"));

}  // namespace
}  // namespace k3
