// Runs that begin from a model: its loss, its router, what a resumed one is held to, and models that do not fit.
#include "k3/train/run/start_model.h"

#include "k3/format/config_edit.h"
#include "k3/format/npy.h"
#include "k3/model/init.h"
#include "k3/train/run/gradient.h"
#include "k3/train/run/trainer_test.h"
#include "k3/train/run/write_batches.h"

namespace k3::train {
namespace {

namespace fs = std::filesystem;

// Folder "first" holds a finished run, "model" its export.
class StartModelTest : public TrainerTest {
 protected:
  void SetUp() override {
    if (path_exists(model())) return;
    run_all(config(), root() + "/first", 2);
    ASSERT_TRUE(export_run(root() + "/first", model(), -1, false, 2).ok());
    ASSERT_TRUE(write_file(root() + "/run.json", config_json()).ok());
  }

  static std::string model() { return root() + "/model"; }

  // Six steps on all texts, from the model.
  static TrainConfig further(std::vector<std::string> more = {}) {
    std::vector<std::string> set = {"start=model", "phases.0.steps=6", "phases.1.steps=0", "phases.2.steps=0",
                                    "checkpoint_every=2"};
    set.insert(set.end(), more.begin(), more.end());
    return load_train_config(root() + "/run.json", set).value();
  }

  static std::string refusal(const TrainConfig& config, const std::string& folder) {
    ThreadPool pool(1);
    RunOptions options;
    options.folder = root() + "/" + folder;
    const auto trainer = Trainer::create(config, options, pool);
    EXPECT_FALSE(trainer.ok());
    return trainer.ok() ? std::string() : trainer.error().message;
  }

  // Loss of a model on the first batch of a config.
  static double loss_of(const std::string& folder, const TrainConfig& config) {
    const std::string path = root() + "/batches.npy";
    EXPECT_TRUE(write_batches(config, path).ok());
    const NpyMatrix all = read_npy(path).value();
    std::vector<int32_t> tokens, targets;
    std::vector<int64_t> offsets;
    for (size_t i = 0; i < static_cast<size_t>(all.cols); ++i) {
      tokens.push_back(static_cast<int32_t>(all.row(0)[i]));
      targets.push_back(static_cast<int32_t>(all.row(1)[i]));
      if (all.row(2)[i] == 1) offsets.push_back(static_cast<int64_t>(i));
    }
    offsets.push_back(all.cols);
    TrainWeights weights = make_train_weights(config.model, DType::f32).value();
    EXPECT_TRUE(read_train_weights(Checkpoint::open(folder).value(), weights).ok());
    const Storage memory = Storage::allocate(weights.elements * 4).value();
    ThreadPool pool(2);
    Gradient gradient(weights, Tensor(memory.data(), DType::f32, {weights.elements}), pool);
    const ops::CrossEntropy loss = gradient.loss({tokens, targets, offsets});
    return loss.nats / static_cast<double>(loss.tokens);
  }
};

TEST_F(StartModelTest, TheFirstLossIsTheModels) {
  const TrainConfig plain = further();
  const std::vector<double> losses = run_all(plain, root() + "/plain", 2);
  ASSERT_EQ(6U, losses.size());
  const double own = loss_of(model(), plain);
  // One sum over the batch against those of two micro-batches, in FP32.
  EXPECT_NEAR(own, losses[0], 1e-5);
  EXPECT_LT(losses[0], 0.9 * losses_in(root() + "/first")[0]) << "that of drawn weights";
  EXPECT_LT(losses[5], losses[0]);
  // Exported experts lie on the grid that quantised steps read them from: the model is the same to begin with.
  EXPECT_EQ(losses[0], run_all(further({"phases.0.mxfp4_experts=true"}), root() + "/quantised", 2)[0]);
}

TEST_F(StartModelTest, ResumesWithTheSameLosses) {
  expect_resumes(further(), {1, 3});
  EXPECT_TRUE(export_run(root() + "/resumed", root() + "/second", -1, false, 1).ok());
  EXPECT_LT(loss_of(root() + "/second", further()), loss_of(model(), further()));
}

TEST_F(StartModelTest, AnotherModelIsRefusedWhenItGoesOn) {
  const std::string other = root() + "/changing";
  ASSERT_TRUE(export_run(root() + "/first", other, -1, false, 2).ok());
  const TrainConfig config = further({"start=changing"});
  run_all(config, root() + "/held", 1);
  const std::string hash =
      parse_train_config(read_file(root() + "/held/train.json").value(), root() + "/run.json").value().start_sha256;
  EXPECT_EQ(64U, hash.size());
  EXPECT_EQ(hash, start_sha256(Checkpoint::open(model()).value()).value());
  // Other files, the same tensors.
  fs::remove_all(other);
  ASSERT_TRUE(export_run(root() + "/first", other, -1, false, 1).ok());
  ThreadPool pool(1);
  RunOptions options;
  options.folder = root() + "/held";
  EXPECT_TRUE(Trainer::create(config, options, pool).ok());
  // Other tensors.
  fs::remove_all(other);
  ASSERT_TRUE(export_run(root() + "/held", other, -1, false, 2).ok());
  const std::string message = refusal(config, "held");
  EXPECT_NE(std::string::npos, message.find("begun from the model of hash " + hash)) << message;
  EXPECT_NE(std::string::npos, refusal(further({"start_sha256=" + std::string(64, '0')}), "named").find("another model"));
  EXPECT_NE(std::string::npos, refusal(TrainerTest::config(), "held").find("not from drawn weights"));
}

TEST_F(StartModelTest, TheRoutersBiasComesAlong) {
  TrainConfig config = further();
  TrainWeights trained = make_train_weights(config.model, DType::f32).value(),
               started = make_train_weights(config.model, DType::f32).value();
  ASSERT_TRUE(Checkpoints(root() + "/first/checkpoints").load_weights(30, trained).ok());
  ASSERT_TRUE(read_start(config, started).ok());
  int64_t biases = 0;
  for (const TrainTensor& t : trained.tensors) {
    if (t.family->id != ParamId::router_bias) continue;
    const Tensor a = trained.tensor(t), b = started.tensor(t);
    bool balanced = false;
    for (int64_t e = 0; e < t.count; ++e) {
      EXPECT_EQ(a.f32()[e], b.f32()[e]) << t.name;
      balanced |= a.f32()[e] != 0;
    }
    EXPECT_TRUE(balanced) << t.name;
    ++biases;
  }
  EXPECT_EQ(2, biases);
}

TEST_F(StartModelTest, WhatDoesNotFitIsNamed) {
  const auto with = [&](const std::string& change) { return further({"model." + change}); };
  std::string message = refusal(with("text_config.hidden_size=64"), "never");
  EXPECT_NE(std::string::npos, message.find("hidden_size is 64 in this config, 32 in that model")) << message;
  message = refusal(with("text_config.linear_attn_config.gate_lower_bound=-4"), "never");
  EXPECT_NE(std::string::npos, message.find("gate_lower_bound is -4 in this config, -5 in that model")) << message;
  // A config that says what its tensors are not.
  const std::string lying = root() + "/lying";
  fs::copy(model(), lying);
  const std::string wider =
      edit_config(read_file(lying + "/config.json").value(), std::vector<std::string>{"moe_intermediate_size=64"}).value();
  ASSERT_TRUE(write_file(lying + "/config.json", wider).ok());
  message = refusal(further({"model.text_config.moe_intermediate_size=64", "start=lying"}), "never");
  EXPECT_NE(std::string::npos, message.find("model.layers.1.block_sparse_moe.")) << message;
  EXPECT_NE(std::string::npos, refusal(further({"start=nowhere"}), "never").find("nowhere"));
  ASSERT_TRUE(write_file(lying + "/tiktoken.model", "IQ== 0\n").ok());
  ASSERT_TRUE(write_file(lying + "/config.json", read_file(model() + "/config.json").value()).ok());
  EXPECT_NE(std::string::npos, refusal(further({"start=lying"}), "never").find("tokenizer"));
  const auto parsed = parse_train_config(config_json(R"(, "start_sha256": "00")"), root() + "/run.json");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(std::string::npos, parsed.error().message.find("start names none")) << parsed.error().message;
}

TEST_F(StartModelTest, DifferencesThatMatter) {
  const Config config = further().model;
  const auto difference = [&](const std::string& json) {
    Config other = parse_config(json, "other").value();
    settle_random(other);
    return first_difference(config, other);
  };
  const auto edited = [&](std::vector<std::string> set) { return difference(edit_config(model_json(), set).value()); };
  EXPECT_EQ("", edited({}));
  EXPECT_EQ("", edited({"initializer_range=0.5", "max_position_embeddings=77"}));
  EXPECT_EQ("", difference(set_expert_packing(model_json(), false).value())) << "experts in BF16 are as good a start";
  EXPECT_EQ("num_experts is 4 in this config, 8 in that model", edited({"num_experts=8"}));
  EXPECT_EQ("q_lora_rank is 16 in this config, absent in that model", edited({"q_lora_rank=null"}));
  EXPECT_EQ("linear_attn_config.full_attn_layers is [3] in this config, [2] in that model",
            edited({"linear_attn_config.full_attn_layers=[2]", "linear_attn_config.kda_layers=[1,3]"}));
  EXPECT_EQ("mla_use_output_gate is true in this config, false in that model", edited({"mla_use_output_gate=false"}));
}

}  // namespace
}  // namespace k3::train
