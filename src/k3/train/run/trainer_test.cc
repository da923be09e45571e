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
  // Once more there is nothing left to do.
  RunOptions options;
  options.folder = root() + "/one";
  ThreadPool pool(1);
  const auto done = Trainer::create(config(), options, pool);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(one.back(), (*done)->run()->last_loss);
  EXPECT_TRUE(path_exists(root() + "/one/report.html"));
  EXPECT_TRUE(path_exists(root() + "/one/events.out.tfevents.k3"));
}

TEST_F(TrainerTest, ResumedRunsHaveTheLossesOfWholeOnes) {
  expect_resumes(config(), {1, 7, 14, 17, 20, 29});
}

// The field of each phase counts, not that of the phases before it.
TEST_F(TrainerTest, AQuantisedPhaseEndsWithItsLastStep) {
  const auto with = [](const std::string& quantised) {
    const std::string phase = R"({"steps": 3, "sequence_tokens": 32, "tokens_per_step": 64, "sources": [{"name": "stories"}])";
    return parse_train_config(R"({"model": )" + model_json() + R"(, "tokenizer": "tokenizer", "data": "data", "phases": [)" + phase +
                                  R"(, "mxfp4_experts": )" + quantised + "}, " + phase + "}]}",
                              root() + "/run.json")
        .value();
  };
  expect_resumes(with("true"), {2, 3, 4});
  EXPECT_NE(run_all(with("false"), root() + "/plain", 2)[1], losses_in(root() + "/whole")[1]);
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

// What the config names by path is part of it.
TEST_F(TrainerTest, AnotherModelOrOtherDataAreRefused) {
  const std::string folder = root() + "/by_path", data = root() + "/data_by_path", model = root() + "/model.json", exported = root() + "/by_path_model";
  fs::copy(root() + "/data", data);
  ASSERT_TRUE(write_file(model, model_json()).ok());
  std::string json = config_json();
  json.replace(json.find(model_json()), model_json().size(), "\"model.json\"");
  json.replace(json.find(R"("data": "data")"), 14, R"("data": "data_by_path")");
  const auto config = [&] { return parse_train_config(json, root() + "/run.json").value(); };
  std::atomic<bool> stop{false};
  RunOptions options;
  options.folder = folder;
  options.stop = &stop;
  options.on_step = [&](const StepRecord& r, int64_t) { stop = r.step >= 5; };
  EXPECT_EQ(5U, run_all(config(), folder, 1, options).size());
  const auto refusal = [&] {
    ThreadPool pool(1);
    const auto trainer = Trainer::create(config(), options, pool);
    return trainer.ok() ? std::string("none") : trainer.error().message;
  };
  EXPECT_EQ("none", refusal());
  EXPECT_EQ(root() + "/run.json", read_file(folder + "/config_path").value());
  {
    ThreadPool pool(1);
    EXPECT_TRUE(Trainer::create(parse_train_config(json, root() + "/moved.json").value(), options, pool).ok());
  }
  EXPECT_EQ(root() + "/moved.json", read_file(folder + "/config_path").value()) << "what the export's paths are relative to";

  std::string other = model_json();
  other.replace(other.find("\"routed_scaling_factor\": 1"), 26, "\"routed_scaling_factor\": 2");
  ASSERT_TRUE(write_file(model, other).ok());
  EXPECT_NE(std::string::npos, refusal().find("the model's config is another one")) << refusal();
  EXPECT_FALSE(export_run(folder, exported, -1, false, 1).ok());
  ASSERT_TRUE(write_file(model, model_json()).ok());
  EXPECT_TRUE(export_run(folder, exported, -1, false, 1).ok());

  PrepareOptions prepare;
  prepare.tokenizer = root() + "/tokenizer";
  prepare.out = data;
  prepare.train = {root() + "/stories.txt", root() + "/talk.jsonl"};
  prepare.holdout = 0.3;
  prepare.force = true;
  ThreadPool pool(1);
  ASSERT_TRUE(prepare_data(prepare, pool).ok());
  EXPECT_NE(std::string::npos, refusal().find("data_by_path holds other data")) << refusal();
}

// Found before the first step: when the last sample fails, the last checkpoint is not written yet.
TEST_F(TrainerTest, SamplesThatCannotBeAskedForAreRefused) {
  const auto refusal = [](const std::string& tokenizer) {
    std::string json = config_json(R"(, "sample": {"chat": "Who are you?", "tokens": 2})");
    json.replace(json.find(R"("tokenizer": "tokenizer")"), 24, R"("tokenizer": ")" + tokenizer + "\"");
    RunOptions options;
    options.folder = root() + "/never_asked";
    ThreadPool pool(1);
    const auto trainer = Trainer::create(parse_train_config(json, root() + "/run.json").value(), options, pool);
    return trainer.ok() ? std::string("none") : trainer.error().message;
  };
  EXPECT_EQ("none", refusal("tokenizer"));
  fs::copy(root() + "/tokenizer", root() + "/no_chat");
  fs::remove(root() + "/no_chat/chat_format.json");
  EXPECT_NE(std::string::npos, refusal("no_chat").find("sample.chat: ")) << refusal("no_chat");
  // A special token beyond the model's vocabulary.
  fs::copy(root() + "/tokenizer", root() + "/far");
  std::string specials = read_file(root() + "/far/tokenizer_config.json").value();
  const std::string id = "\"" + std::to_string(vocab() - 256 + 5) + "\": {";  // <|sep|>
  ASSERT_NE(std::string::npos, specials.find(id)) << specials;
  specials.replace(specials.find(id), id.size(), "\"100000\": {");
  ASSERT_TRUE(write_file(root() + "/far/tokenizer_config.json", specials).ok());
  EXPECT_NE(std::string::npos, refusal("far").find("id 100000, but the model's vocabulary has")) << refusal("far");
}

// A part of few documents may be none. Asked for by name, it is missed.
TEST_F(TrainerTest, AHeldOutPartWithoutDocumentsHindersNothing) {
  ThreadPool pool(1);
  ASSERT_TRUE(write_file(root() + "/single.txt", "The only cat of this file went to the river and saw a fish.").ok());
  PrepareOptions prepare;
  prepare.tokenizer = root() + "/tokenizer";
  prepare.out = root() + "/single";
  prepare.train = {root() + "/single.txt"};
  prepare.holdout = 1e-9;
  ASSERT_EQ(0, prepare_data(prepare, pool)->find("single", Split::valid)->documents);
  const auto config = [](const std::string& extra) {
    return parse_train_config(R"({"model": )" + model_json() + R"(, "tokenizer": "tokenizer", "data": "single", "phases": [{"steps": 2, "sequence_tokens": 16,
      "tokens_per_step": 32, "sources": [{"name": "single"}]}])" + extra + "}", root() + "/run.json").value();
  };
  EXPECT_EQ(2U, run_all(config(""), root() + "/single_run", 1).size());
  RunOptions options;
  options.folder = root() + "/single_named";
  const auto named = Trainer::create(config(R"(, "evaluate_sources": ["single"])"), options, pool);
  ASSERT_FALSE(named.ok());
  EXPECT_NE(std::string::npos, named.error().message.find("no documents to evaluate on")) << named.error().message;
}

// A model without its tokenizer answers nobody.
TEST_F(TrainerTest, AnExportWantsItsTokenizer) {
  const std::string folder = root() + "/moved", tokenizer = root() + "/tokenizer_to_move", out = root() + "/moved_model";
  fs::copy(root() + "/tokenizer", tokenizer);
  // As of a released checkpoint, whose sentences are literals of a Python file.
  ASSERT_TRUE(write_file(tokenizer + "/encoding_k3.py", "# none\n").ok());
  std::string json = config_json();
  json.replace(json.find(R"("tokenizer": "tokenizer")"), 24, R"("tokenizer": "tokenizer_to_move")");
  RunOptions options;
  options.stop_after_seconds = 1e-9;
  run_all(parse_train_config(json, root() + "/run.json").value(), folder, 1, options);
  ASSERT_TRUE(export_run(folder, out, -1, false, 1).ok());
  EXPECT_EQ("# none\n", read_file(out + "/encoding_k3.py").value());
  fs::remove_all(out);
  fs::remove_all(tokenizer);
  const Status missing = export_run(folder, out, -1, false, 1);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(Code::not_found, missing.error().code);
  EXPECT_NE(std::string::npos, missing.error().message.find("tokenizer_to_move")) << missing.error().message;
  EXPECT_FALSE(path_exists(out + "/config.json"));
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
