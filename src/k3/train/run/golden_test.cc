// Fifty steps of training in FP64 against PyTorch's (tools/oracle/train_golden.py): forward, backward, Per-Head Muon with Newton-Schulz in
// FP64, AdamW, clip, clip of attention and quantile balancing, all in one number a step.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "k3/base/file.h"
#include "k3/format/config_edit.h"
#include "k3/model/init.h"
#include "k3/train/run/gradient.h"
#include "k3/train/run/optimizer.h"
#include "k3/train/schedule.h"

namespace k3::train {
namespace {

struct Golden {
  nlohmann::json json;
  Golden() {
    std::ifstream file(std::string(K3_SOURCE_DIR) + "/tests/data/train-golden.json");
    json = nlohmann::json::parse(file);
  }
  int64_t whole(const char* key) const { return json[key].get<int64_t>(); }
  double real(const char* key) const { return json[key].get<double>(); }
};

// The generator's own tokens.
std::vector<int32_t> step_tokens(int64_t step, int64_t count, int64_t vocab) {
  std::vector<int32_t> out;
  uint64_t x = 1000003ULL * static_cast<uint64_t>(step + 1);
  for (int64_t i = 0; i < count; ++i) {
    x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    out.push_back(static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(vocab)));
  }
  return out;
}

struct Trace {
  std::vector<double> losses, norms;
};

Trace train(const Golden& golden, DType dtype, MatrixOptimizer matrices, int64_t steps) {
  ThreadPool pool(2);
  const std::string path = std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/k3-f/config.json";
  const std::vector<std::string> set = {"num_hidden_layers=4", "rms_norm_eps=7.62939453125e-06", "routed_scaling_factor=1.75"};
  const std::string json = edit_config(read_file(path).value(), set).value();
  Config config = parse_config(json, path).value();
  config.vision.reset();
  settle_random(config);
  const std::string folder = testing::TempDir() + "k3_train_golden." + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(write_random_checkpoint(config, folder, 5, 1, pool, {}).ok());  // `k3 init --seed 5`
  TrainWeights weights = make_train_weights(config, dtype).value();
  EXPECT_TRUE(read_train_weights(Checkpoint::open(folder).value(), weights).ok());
  const Storage memory = Storage::allocate(weights.elements * dtype_bytes(dtype)).value();
  const Tensor grads(memory.data(), dtype, {weights.elements});
  Recipe recipe;
  recipe.matrices = matrices;
  recipe.matrix_rate = golden.real("matrix_rate");
  recipe.vector_rate = golden.real("vector_rate");
  recipe.embedding_rate = golden.real("embedding_rate");
  recipe.weight_decay = golden.real("weight_decay");
  recipe.clip = golden.real("clip");
  recipe.qk_clip = golden.real("qk_clip");
  if (matrices == MatrixOptimizer::adamw) recipe.balancing = Balancing::none;
  Gradient gradient(weights, grads, pool);
  Optimizer optimizer = Optimizer::create(weights, recipe).value();
  optimizer.watch(gradient.tape());
  const double factor = matrices == MatrixOptimizer::adamw ? 0.1 : 1.0;
  const LearningRate rate{.peak = 1, .minimum = golden.real("minimum_rate"), .total_steps = golden.whole("steps"), .warmup_share = 0.01};
  const int64_t rows = golden.whole("rows"), length = golden.whole("length");
  Trace out;
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<int32_t> ids = step_tokens(step, rows * (length + 1), config.vocab_size);
    std::vector<int32_t> tokens, targets;
    std::vector<int64_t> offsets = {0};
    for (int64_t r = 0; r < rows; ++r) {
      const auto begin = ids.begin() + r * (length + 1);
      tokens.insert(tokens.end(), begin, begin + length);
      targets.insert(targets.end(), begin + 1, begin + length + 1);
      offsets.push_back((r + 1) * length);
    }
    const double count = static_cast<double>(rows * length);
    out.losses.push_back(gradient.add({tokens, targets, offsets}, 1.0 / count).nats / count);
    out.norms.push_back(optimizer.step(gradient.ctx(), grads, factor * learning_rate(rate, step), step + 1).value().gradient_norm);
  }
  return out;
}

void expect_near(const std::vector<double>& got, const nlohmann::json& wanted, double tolerance) {
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = wanted[i].get<double>();
    EXPECT_NEAR(got[i], want, tolerance * std::abs(want)) << "step " << i + 1;
  }
}

TEST(TrainGolden, FiftyStepsInFp64ArePyTorchs) {
  const Golden golden;
  const Trace run = train(golden, DType::f64, MatrixOptimizer::muon_per_head, golden.whole("steps"));
  expect_near(run.losses, golden.json["muon_losses"], 1e-8);
  // Its matrices by AdamW, too: another twenty say the same of the other update.
  const Trace adamw = train(golden, DType::f64, MatrixOptimizer::adamw, 20);
  expect_near(adamw.losses, golden.json["adamw_losses"], 1e-8);
}

TEST(TrainGolden, TwentyStepsInFp32AreNearThem) {
  const Golden golden;
  expect_near(train(golden, DType::f32, MatrixOptimizer::adamw, 20).losses, golden.json["adamw_losses"], 1e-4);
}

}  // namespace
}  // namespace k3::train
