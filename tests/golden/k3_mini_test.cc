// The trained model of the repository against a float64 forward of its stored weights (tools/oracle/golden.py).
// exact: logits within 2e-4 absolute (FP32 sums of a few hundred terms on logits up to about 20), greedy texts equal,
// validation loss within 1e-4. Nothing here depends on what the model says. bf16: argmax equal where the golden top-2 gap exceeds 0.25, loss within 0.02.
#include "golden_data.h"

namespace k3::golden {
namespace {

constexpr const char* kModel = "models/k3-mini";
constexpr double kExact = 2e-4;  // of logits

const nlohmann::json& golden() {
  static const nlohmann::json value = read_json(std::string(kModel) + "/golden/golden.json");
  return value;
}

std::vector<int32_t> sequence_of(const std::string& name) {
  std::vector<int32_t> ids = ids_of(golden()["prompts"][name]["prompt_ids"]);
  for (const int32_t id : ids_of(golden()["prompts"][name]["greedy_ids"])) ids.push_back(id);
  return ids;
}

double mean_nll(const std::vector<float>& logits, const std::vector<int32_t>& ids) {
  const size_t vocab = logits.size() / (ids.size() - 1);
  double total = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    const std::span<const float> row(logits.data() + t * vocab, vocab);
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) sum += std::exp(x - top);
    total += top + std::log(sum) - row[static_cast<size_t>(ids[t + 1])];
  }
  return total / static_cast<double>(ids.size() - 1);
}

TEST(K3Mini, ExactLogitsMatchEveryGoldenRow) {
  for (const char* name : {"prose", "chat"}) {
    const NpyMatrix expected = read_npy(source_path(std::string(kModel) + "/golden/logits_" + name + ".npy")).value();
    std::vector<int32_t> ids = sequence_of(name);
    ids.resize(static_cast<size_t>(expected.rows));
    for (const bool deterministic : {false, true}) {
      const std::vector<float> got = whole_logits(model_of(kModel), ids, {.deterministic = deterministic});
      const double worst = largest_difference(got, expected.values);
      EXPECT_LT(worst, kExact) << name;
      RecordProperty(std::string("worst_") + name + (deterministic ? "_deterministic" : ""), std::to_string(worst));
    }
  }
}

// Every prompt, every position: the eight largest logits and the log-sum-exp.
TEST(K3Mini, ExactTopEightOfAllPrompts) {
  for (const auto& [name, prompt] : golden()["prompts"].items()) {
    const std::vector<int32_t> ids = sequence_of(name);
    const std::vector<float> got = whole_logits(model_of(kModel), ids, {});
    const size_t vocab = got.size() / ids.size();
    for (size_t t = 0; t < ids.size(); ++t) {
      for (size_t j = 0; j < 8; ++j) {
        const auto id = prompt["top8_ids"][t][j].get<size_t>();
        EXPECT_NEAR(got[t * vocab + id], prompt["top8_logits"][t][j].get<double>(), kExact) << name << " " << t;
      }
    }
  }
}

TEST(K3Mini, GreedyTextsAreTheGoldenOnes) {
  for (const auto& [name, prompt] : golden()["prompts"].items()) {
    std::vector<int32_t> expected = ids_of(prompt["greedy_ids"]);
    // Up to the first choice between two logits that are nearer to each other than their tolerance.
    const size_t first = prompt["prompt_ids"].size() - 1;
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto& top = prompt["top8_logits"][first + i];
      if (top[0].get<double>() - top[1].get<double>() < 2 * kExact) expected.resize(i);
    }
    EXPECT_GE(expected.size(), 8u) << name << ": hardly a golden text (choose other prompts in tools/oracle/golden.py)";
    for (const bool deterministic : {false, true}) {
      EXPECT_EQ(greedy(model_of(kModel), ids_of(prompt["prompt_ids"]), static_cast<int64_t>(expected.size()),
                       {.deterministic = deterministic}),
                expected)
          << name;
    }
  }
}

TEST(K3Mini, ValidationLoss) {
  const std::vector<int32_t> ids = ids_of(golden()["val_ids"]);
  const std::vector<int32_t> fed(ids.begin(), ids.end() - 1);
  const double expected = golden()["val_mean_nll"].get<double>();
  EXPECT_NEAR(mean_nll(whole_logits(model_of(kModel), fed, {}), ids), expected, 1e-4);
  EXPECT_NEAR(mean_nll(whole_logits(model_of(kModel), fed, {.policy = ops::Policy::bf16}), ids), expected, 0.02);
}

TEST(K3Mini, Bf16ArgmaxWhereTheGapIsClear) {
  int compared = 0;
  for (const auto& [name, prompt] : golden()["prompts"].items()) {
    const std::vector<int32_t> ids = sequence_of(name);
    for (const bool deterministic : {false, true}) {
      const std::vector<float> got =
          whole_logits(model_of(kModel), ids, {.policy = ops::Policy::bf16, .deterministic = deterministic});
      const size_t vocab = got.size() / ids.size();
      for (size_t t = 0; t < ids.size(); ++t) {
        const auto& top = prompt["top8_logits"][t];
        if (top[0].get<double>() - top[1].get<double>() <= 0.25) continue;
        ++compared;
        EXPECT_EQ(argmax_of(std::span(got).subspan(t * vocab, vocab)), prompt["top8_ids"][t][0].get<int32_t>())
            << name << " " << t;
      }
    }
  }
  EXPECT_GT(compared, 200);
}

// One result for every way of feeding: within 1e-4 in exact (FP32 sums in another order), to the bit in deterministic.
class Splits : public testing::TestWithParam<std::tuple<ops::Policy, bool>> {};

TEST_P(Splits, ChunksOfEverySize) {
  const auto [policy, deterministic] = GetParam();
  const RunSetup setup{.policy = policy, .deterministic = deterministic};
  std::vector<int32_t> ids = ids_of(golden()["val_ids"]);
  ids.resize(150);
  const std::vector<float> whole = whole_logits(model_of(kModel), ids, setup);
  for (const int64_t chunk : {1, 7, 16, 64}) {
    const std::vector<float> got = all_logits(model_of(kModel), ids, setup, {chunk});
    if (deterministic) {
      EXPECT_EQ(got, whole) << chunk;
    } else {
      EXPECT_LT(largest_difference(got, whole), 1e-4) << chunk;
    }
  }
  if (!deterministic) return;
  for (const int threads : {1, 3}) {
    RunSetup other = setup;
    other.threads = threads;
    EXPECT_EQ(whole_logits(model_of(kModel), ids, other), whole) << threads << " threads";
  }
}

TEST_P(Splits, SeveralSequencesInABatch) {
  const auto [policy, deterministic] = GetParam();
  const RunSetup setup{.policy = policy, .deterministic = deterministic};
  const Model& model = model_of(kModel);
  const std::vector<std::string> names = {"prose", "zh", "code", "chat"};
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> alone, together(names.size());
  for (const std::string& name : names) {
    ids.push_back(sequence_of(name));
    alone.push_back(whole_logits(model, ids.back(), setup));
  }
  // Steps that mix long chunks, single tokens and sequences that have ended.
  Runner runner = make_runner(model, setup, static_cast<int64_t>(names.size()));
  std::vector<size_t> at(names.size(), 0);
  for (size_t step = 0;; ++step) {
    std::vector<StepInput> inputs;
    for (size_t s = 0; s < names.size(); ++s) {
      const size_t want = (step + s) % 3 == 0 ? 1 : (step + s) % 3 == 1 ? 19 : 3;
      const size_t count = std::min(want, ids[s].size() - at[s]);
      if (count == 0) continue;
      inputs.push_back({static_cast<int32_t>(s), std::span(ids[s]).subspan(at[s], count), StepInput::Logits::all});
      at[s] += count;
    }
    if (inputs.empty()) break;
    const Tensor logits = runner.step(inputs).value();
    const float* from = logits.f32();
    for (const StepInput& input : inputs) {
      std::vector<float>& to = together[static_cast<size_t>(input.sequence)];
      const auto count = static_cast<int64_t>(input.tokens.size()) * logits.dim(1);
      to.insert(to.end(), from, from + count);
      from += count;
    }
  }
  for (size_t s = 0; s < names.size(); ++s) {
    if (deterministic) {
      EXPECT_EQ(together[s], alone[s]) << names[s];
    } else {
      EXPECT_LT(largest_difference(together[s], alone[s]), 1e-4) << names[s];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Splits,
                         testing::Values(std::tuple(ops::Policy::exact, false), std::tuple(ops::Policy::exact, true),
                                         std::tuple(ops::Policy::bf16, true)));

TEST(K3Mini, EveryInstructionSetAgrees) {
  const std::vector<int32_t> ids = sequence_of("prose");
  const std::vector<float> best = whole_logits(model_of(kModel), ids, {});
  for (int isa = 0; isa < static_cast<int>(ops::detect_isa()); ++isa) {
    EXPECT_LT(largest_difference(whole_logits(model_of(kModel), ids, {.isa = static_cast<ops::Isa>(isa)}), best), 2e-4)
        << ops::isa_name(static_cast<ops::Isa>(isa));
  }
}

TEST(K3Mini, BadStepsAreErrorsAndChangeNothing) {
  Runner runner = make_runner(model_of(kModel), {}, 1, 8);
  const std::vector<int32_t> good = {12032, 5, 6}, bad = {12032, 12288}, negative = {-1}, many(9, 5);
  ASSERT_TRUE(runner.feed(0, good).ok());
  EXPECT_EQ(runner.feed(0, bad).error().code, Code::invalid_argument);
  EXPECT_EQ(runner.feed(0, negative).error().code, Code::invalid_argument);
  EXPECT_EQ(runner.feed(0, many).error().code, Code::exhausted);
  EXPECT_EQ(runner.feed(1, good).error().code, Code::invalid_argument);
  EXPECT_EQ(runner.feed(-1, good).error().code, Code::invalid_argument);
  const StepInput twice[] = {{0, good}, {0, good}};
  EXPECT_EQ(runner.step(twice).error().code, Code::invalid_argument);
  EXPECT_EQ(runner.length(0), 3);
}

}  // namespace
}  // namespace k3::golden
