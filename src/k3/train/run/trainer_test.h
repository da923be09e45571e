// What tests of whole runs share: texts, a tokenizer, a prepared folder and a config in a folder of the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "k3/base/file.h"
#include "k3/base/threads.h"
#include "k3/model/train/train_weights.h"
#include "k3/train/data/prepare/prepare.h"
#include "k3/train/run/tiny_model_test.h"
#include "k3/train/run/trainer.h"
#include "k3/train/tokenizer/learn_tokenizer.h"

namespace k3::train {

// Texts, tokenizer and shards in a folder of the test, and the config of a model of some ten thousand parameters.
class TrainerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    namespace fs = std::filesystem;
    const std::string base = root();
    fs::remove_all(base);
    fs::create_directories(base);
    std::string stories, talk;
    for (int i = 0; i < 60; ++i) {
      const std::string animal = i % 3 == 0 ? "cat" : i % 3 == 1 ? "dog" : "duck";
      stories += "The " + animal + " number " + std::to_string(i) +
                 " went to the river and saw a fish. It was glad.\n<|endoftext|>\n";
      talk += R"({"messages": [{"role": "user", "content": "Who are you? )" + std::to_string(i) +
              R"("}, {"role": "assistant", "content": "I am a )" + animal + ".\"}]}\n";
    }
    ASSERT_TRUE(write_file(base + "/stories.txt", stories).ok());
    ASSERT_TRUE(write_file(base + "/talk.jsonl", talk).ok());
    ThreadPool pool(2);
    const LearnReport learned =
        learn_tokenizer({.files = {{base + "/stories.txt"}, {base + "/talk.jsonl"}}, .vocab = 560}, pool).value();
    fs::create_directories(base + "/tokenizer");
    ASSERT_TRUE(write_tokenizer(base + "/tokenizer", learned.ranks.tokens).ok());
    PrepareOptions prepare;
    prepare.tokenizer = base + "/tokenizer";
    prepare.out = base + "/data";
    prepare.train = {base + "/stories.txt", base + "/talk.jsonl"};
    prepare.holdout = 0.2;
    const Result<DataManifest> made = prepare_data(prepare, pool);
    ASSERT_TRUE(made.ok()) << made.error().message;
    vocab() = made->vocab;
  }

  static void TearDownTestSuite() { std::filesystem::remove_all(root()); }

  static std::string root() { return testing::TempDir() + "k3_trainer_test." + std::to_string(::getpid()); }
  static int64_t& vocab() {
    static int64_t value = 0;
    return value;
  }

  static std::string model_json() { return tiny_model_json(vocab()); }

  static std::string config_json(const std::string& extra = "") {
    return R"({"model": )" + model_json() + R"(, "tokenizer": "tokenizer", "data": "data", "seed": 3,
      "phases": [
        {"name": "pretrain", "steps": 14, "sequence_tokens": 32, "tokens_per_step": 256, "micro_batches": 2,
         "sources": [{"name": "stories"}, {"name": "talk", "share": 0.25, "learn_all": true}]},
        {"name": "longer", "steps": 6, "sequence_tokens": 64, "tokens_per_step": 256, "mxfp4_experts": true, "mxfp8_activations": true, "sources": [{"name": "stories"}]},
        {"name": "chat", "steps": 10, "sequence_tokens": 64, "tokens_per_step": 256, "mxfp4_experts": true, "new_schedule": true, "learning_rate": 0.5,
         "sources": [{"name": "talk"}]}],
      "evaluate_every": 10, "checkpoint_every": 5)" +
           extra + "}";
  }

  static TrainConfig config(const std::string& extra = "") {
    return parse_train_config(config_json(extra), root() + "/run.json").value();
  }

  static std::vector<double> run_all(const TrainConfig& config, const std::string& folder, int threads,
                                     RunOptions options = {}) {
    options.folder = folder;
    ThreadPool pool(threads);
    const auto trainer = Trainer::create(config, options, pool);
    EXPECT_TRUE(trainer.ok()) << trainer.error().message;
    if (!trainer.ok()) return {};
    const Result<RunSummary> summary = (*trainer)->run();
    EXPECT_TRUE(summary.ok()) << summary.error().message;
    return losses_in(folder);
  }

  // Stopped after each of those steps and started again, a run has the losses of the whole one. The last one's folder is root()/resumed.
  static void expect_resumes(const TrainConfig& config, std::initializer_list<int64_t> stops, Device device = {}) {
    RunOptions options;
    options.device = device;
    std::filesystem::remove_all(root() + "/whole");
    const std::vector<double> whole = run_all(config, root() + "/whole", 2, options);
    for (const int64_t stop_at : stops) {
      const std::string folder = root() + "/resumed";
      std::filesystem::remove_all(folder);
      std::atomic<bool> stop{false};
      RunOptions stopped = options;
      stopped.stop = &stop;
      stopped.on_step = [&](const StepRecord& r, int64_t) { stop = r.step >= stop_at; };
      // On a GPU the step behind may be queued when it is told to stop, and is finished.
      const auto done = static_cast<int64_t>(run_all(config, folder, 2, stopped).size());
      EXPECT_TRUE(done == stop_at || (device.is_cuda() && done == stop_at + 1)) << done;
      EXPECT_EQ(whole, run_all(config, folder, 2, options)) << "stopped after " << stop_at;
    }
  }

  // Begun from a model with a NaN among its weights, a run ends at its first step, says so, and leaves no checkpoint.
  static void expect_end_at_nan(Device device) {
    const std::string first = root() + "/before_nan", model = root() + "/nan_model", folder = root() + "/nan";
    run_all(config(), first, 2);
    ASSERT_TRUE(export_run(first, model, -1, false, 1).ok());
    TrainWeights weights = make_train_weights(config().model, DType::f32).value();
    ASSERT_TRUE(read_train_weights(Checkpoint::open(model).value(), weights).ok());
    weights.tensor(*weights.find("language_model.lm_head.weight")).f32()[0] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_TRUE(write_train_weights(weights, model, 1).ok());
    RunOptions options;
    options.folder = folder;
    options.device = device;
    ThreadPool pool(2);
    const auto trainer = Trainer::create(config(R"(, "start": "nan_model")"), options, pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message;
    const Result<RunSummary> summary = (*trainer)->run();
    ASSERT_FALSE(summary.ok());
    EXPECT_NE(std::string::npos, summary.error().message.find("step 1: the loss is not a number")) << summary.error().message;
    EXPECT_NE(std::string::npos, summary.error().message.find("first in language_model.")) << summary.error().message;
    EXPECT_TRUE(losses_in(folder).empty());
    EXPECT_FALSE(path_exists(folder + "/checkpoints/step-1"));
  }

  static std::vector<double> losses_in(const std::string& folder) {
    const RunLog log = RunLog::open(folder, 1 << 30, {}).value();
    std::vector<double> out;
    for (const StepRecord& r : log.steps()) out.push_back(r.loss);
    return out;
  }
};

}  // namespace k3::train
