// The ten random checkpoints of tests/data/oracle-models: both families and mixtures, every layer kind, against a
// float64 forward written independently (tools/oracle/k3_numpy_ref.py).
// Tolerance (README there): 2e-3 absolute on every logit (their RMS is 2.0; the oracle itself run in float32 is off
// by up to 3.3e-4), equal argmax wherever the golden top-2 gap exceeds 0.01.
#include "golden_data.h"

namespace k3::golden {
namespace {

constexpr double kTolerance = 2e-3;
constexpr double kGap = 0.01;

class OracleModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::string("tests/data/oracle-models/") + GetParam();
    golden_ = read_json(folder_ + "/golden.json");
    ids_ = ids_of(golden_["ids"]);
    logits_ = read_npy(source_path(folder_ + "/golden_logits.npy")).value();
  }

  void expect_close(const std::vector<float>& got, const char* how) const {
    EXPECT_LT(largest_difference(got, logits_.values), kTolerance) << how;
    const auto vocab = static_cast<size_t>(logits_.cols);
    for (size_t t = 0; t < ids_.size(); ++t) {
      if (golden_["top2_gap"][t].get<double>() <= kGap) continue;
      EXPECT_EQ(argmax_of(std::span(got).subspan(t * vocab, vocab)), golden_["argmax"][t].get<int32_t>())
          << how << " position " << t;
    }
  }

  std::string folder_;
  nlohmann::json golden_;
  std::vector<int32_t> ids_;
  NpyMatrix logits_;
};

TEST_P(OracleModel, WholePrompt) {
  for (int isa = 0; isa <= static_cast<int>(ops::detect_isa()); ++isa) {
    expect_close(whole_logits(model_of(folder_), ids_, {.isa = static_cast<ops::Isa>(isa)}),
                 std::string(ops::isa_name(static_cast<ops::Isa>(isa))).c_str());
  }
}

TEST_P(OracleModel, UnevenChunksAndTokenByToken) {
  expect_close(all_logits(model_of(folder_), ids_, {}, {5, 1, 17, 2, 16}), "uneven");
  expect_close(all_logits(model_of(folder_), ids_, {}, {1}), "token by token");
}

TEST_P(OracleModel, Deterministic) {
  const RunSetup setup{.deterministic = true};
  const std::vector<float> whole = whole_logits(model_of(folder_), ids_, setup);
  expect_close(whole, "deterministic");
  EXPECT_EQ(whole, all_logits(model_of(folder_), ids_, setup, {1}));
  EXPECT_EQ(whole, all_logits(model_of(folder_), ids_, setup, {3, 16, 7}));
}

TEST_P(OracleModel, FreeRunningGreedy) {
  const auto prompt = golden_["prompt"].get<size_t>();
  const std::vector<int32_t> start(ids_.begin(), ids_.begin() + static_cast<int64_t>(prompt));
  const std::vector<int32_t> expected(ids_.begin() + static_cast<int64_t>(prompt), ids_.end());
  EXPECT_EQ(greedy(model_of(folder_), start, static_cast<int64_t>(expected.size()), {}), expected);
}

INSTANTIATE_TEST_SUITE_P(All, OracleModel,
                         testing::Values("k3-a", "k3-b", "k3-c", "k3-d", "k3-e", "k3-f", "kl-a", "kl-b", "mix-a", "mix-b"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace k3::golden
