// A whole small run: from texts to an export, with stops, kills of the process's memory, damaged files and hostile configs.
#include "k3/train/run/trainer_test.h"

#include <fstream>

#include "k3/format/npy.h"
#include "k3/model/model.h"
#include "k3/train/run/gradient.h"
#include "k3/train/run/quantised_experts.h"
#include "k3/train/run/write_batches.h"

namespace k3::train {
namespace {

namespace fs = std::filesystem;

TEST_F(TrainerTest, LearnsAndIsTheSameWhateverTheThreads) {
  const std::vector<double> one = run_all(config(), root() + "/one", 1), three = run_all(config(), root() + "/three", 3);
  ASSERT_EQ(30U, one.size());
  EXPECT_LT(one[19], 0.8 * one[0]);
  EXPECT_EQ(one, three);
  EXPECT_TRUE(path_exists(root() + "/one/report.html"));
  EXPECT_TRUE(path_exists(root() + "/one/events.out.tfevents.k3"));
}

TEST_F(TrainerTest, ResumedRunsHaveTheLossesOfWholeOnes) {
  expect_resumes(config(), {1, 7, 14, 17, 20, 29});
}

// As after a kill: lines in the log that no checkpoint knows, half a line, an unfinished checkpoint.
TEST_F(TrainerTest, WhatWasLoggedAfterTheCheckpointIsDoneAgain) {
  const std::string folder = root() + "/killed";
  const std::vector<double> whole = run_all(config(), folder, 2);
  fs::remove_all(folder + "/checkpoints/step-30");
  fs::remove_all(folder + "/checkpoints/step-20");
  fs::create_directories(folder + "/checkpoints/.unfinished");
  std::ofstream(folder + "/log.jsonl", std::ios::app) << R"({"type": "step", "step": 31, "lo)";
  ThreadPool pool(2);
  RunOptions options;
  options.folder = folder;
  const auto trainer = Trainer::create(config(), options, pool);
  // Only the last and the best are kept, so there is nothing to go on from, and the run begins anew.
  ASSERT_TRUE(trainer.ok()) << trainer.error().message;
  ASSERT_TRUE((*trainer)->run().ok());
  EXPECT_EQ(whole, losses_in(folder));
}

TEST_F(TrainerTest, ExportedExpertsAreTheTrainedOnesAndTheModelRuns) {
  const std::string folder = root() + "/exported", model_folder = root() + "/model";
  run_all(config(), folder, 2);
  ASSERT_TRUE(export_run(folder, model_folder, -1, false, 2).ok());
  ThreadPool pool(2);
  const Model model = Model::load(model_folder, pool).value();
  TrainWeights trained = make_train_weights(config().model, DType::f32).value(),
               stored = make_train_weights(config().model, DType::f32).value();
  ASSERT_TRUE(Checkpoints(folder + "/checkpoints").load_weights(30, trained).ok());
  ASSERT_TRUE(read_train_weights(Checkpoint::open(model_folder).value(), stored).ok());
  const Storage memory = Storage::allocate(trained.elements * 4).value();
  const Tensor grads(memory.data(), DType::f32, {trained.elements});
  Gradient gradient(trained, grads, pool);
  QuantisedExperts quantised = QuantisedExperts::create(trained).value();
  quantised.attach(gradient.tape(), grads);
  quantised.refresh(gradient.ctx());
  for (size_t l = 1; l < 3; ++l) {
    for (size_t e = 0; e < 4; ++e) {
      const ops::Weight &a = trained.set.layers[l].moe.experts[e].w2, &b = stored.set.layers[l].moe.experts[e].w2;
      EXPECT_EQ(0, std::memcmp(a.data, b.data, static_cast<size_t>(a.rows * a.cols * 4))) << l << ", " << e;
    }
  }
}

TEST_F(TrainerTest, DamagedCheckpointsAreNamed) {
  const std::string folder = root() + "/damaged";
  run_all(config(), folder, 2);
  const std::string shard = folder + "/checkpoints/step-30/model-00002-of-000003.safetensors";
  ASSERT_TRUE(path_exists(shard));
  fs::resize_file(shard, fs::file_size(shard) / 2);
  ThreadPool pool(1);
  RunOptions options;
  options.folder = folder;
  const auto trainer = Trainer::create(config(), options, pool);
  ASSERT_FALSE(trainer.ok());
  EXPECT_NE(std::string::npos, trainer.error().message.find("model-00002")) << trainer.error().message;
}

TEST_F(TrainerTest, AnotherConfigIsRefused) {
  const std::string folder = root() + "/other";
  run_all(config(), folder, 1);
  ThreadPool pool(1);
  RunOptions options;
  options.folder = folder;
  const auto trainer = Trainer::create(config(R"(, "recompute": true)"), options, pool);
  ASSERT_FALSE(trainer.ok());
  EXPECT_EQ(Code::invalid_argument, trainer.error().code);
}

TEST_F(TrainerTest, NumbersThatAreNoneEndTheRun) { expect_end_at_nan({}); }

TEST_F(TrainerTest, BatchesCanBeLookedAt) {
  const std::string path = root() + "/batches.npy";
  ASSERT_TRUE(write_batches(config(), path).ok());
  const NpyMatrix all = read_npy(path).value();
  ASSERT_EQ(90, all.rows);
  ASSERT_EQ(256, all.cols);
  for (int64_t step = 0; step < 30; ++step) {
    const int64_t sequence = step < 14 ? 32 : 64;
    const std::span<const float> tokens = all.row(3 * step), targets = all.row(3 * step + 1), begins = all.row(3 * step + 2);
    for (size_t i = 0; i + 1 < 256; ++i) {
      EXPECT_TRUE(tokens[i] >= 0 && tokens[i] < static_cast<float>(vocab()));
      if (static_cast<int64_t>(i) % sequence == 0) {
        EXPECT_EQ(1, begins[i]);
      }
      if (targets[i] >= 0 && begins[i + 1] == 0) {
        EXPECT_EQ(tokens[i + 1], targets[i]);
      }
    }
  }
}

TEST_F(TrainerTest, ConfigsSayWhatIsWrong) {
  const auto message = [&](std::string from, const std::string& to) {
    std::string json = config_json();
    json.replace(json.find(from), from.size(), to);
    const auto parsed = parse_train_config(json, "run.json");
    EXPECT_FALSE(parsed.ok()) << to;
    return parsed.ok() ? std::string() : parsed.error().message;
  };
  EXPECT_NE(std::string::npos, message(R"("seed": 3)", R"("sed": 3)").find("sed is not a field"));
  EXPECT_NE(std::string::npos, message(R"("tokens_per_step": 256)", R"("tokens_per_step": 250)").find("not a multiple"));
  EXPECT_NE(std::string::npos, message(R"("steps": 14)", R"("steps": -1)").find("phases[0].steps"));
  EXPECT_NE(std::string::npos, message(R"("steps": 14)", R"("steps": "many")").find("phases[0].steps"));
  EXPECT_NE(std::string::npos, message(R"("data": "data", )", "").find("data is missing"));
  EXPECT_NE(std::string::npos, message(R"("hidden_size": 32)", R"("hidden_size": -3)").find("hidden_size"));
  std::string json = config_json();
  json.replace(json.find(R"("name": "stories")"), 17, R"("name": "nowhere")");
  RunOptions options;
  options.folder = root() + "/never";
  ThreadPool pool(1);
  const auto trainer = Trainer::create(parse_train_config(json, root() + "/run.json").value(), options, pool);
  ASSERT_FALSE(trainer.ok());
  EXPECT_NE(std::string::npos, trainer.error().message.find("no source 'nowhere'")) << trainer.error().message;
}

}  // namespace
}  // namespace k3::train
