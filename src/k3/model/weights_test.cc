// The loader against checkpoints that do not fit their config, and the random checkpoints of init.
#include "k3/model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "k3/base/file.h"
#include "k3/model/checkpoint_test_util.h"
#include "k3/model/convert.h"
#include "k3/model/init.h"
#include "k3/model/model.h"
#include "k3/model/params.h"
#include "k3/model/run/sequence.h"
#include "k3/model/summary.h"

namespace k3 {
namespace {

std::string source(const std::string& relative) { return std::string(K3_SOURCE_DIR) + "/" + relative; }

std::string scratch(const std::string& name) {
  const std::string folder = testing::TempDir() + "k3_model_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// Loads a copy of an oracle model after `change`.
Error load_error(const std::string& model, const std::function<void(Tensors&)>& change) {
  const std::string from = source("tests/data/oracle-models/" + model), folder = scratch("broken");
  Tensors tensors = read_all(from);
  change(tensors);
  write_all(tensors, folder);
  std::filesystem::copy_file(from + "/config.json", folder + "/config.json");
  ThreadPool pool(2);
  auto loaded = Model::load(folder, pool);
  EXPECT_FALSE(loaded.ok());
  return loaded.ok() ? Error{} : std::move(loaded).take_error();
}

const std::string kLayer = "language_model.model.layers.";

void resize(Stored& stored, DType dtype, std::vector<int64_t> dims) {
  stored.spec.dtype = dtype;
  stored.spec.dims = std::move(dims);
  stored.bytes.resize(static_cast<size_t>(stored.spec.size_bytes()));
}

TEST(Weights, WhatDoesNotFitTheConfigIsNamed) {
  struct Case {
    const char* model;
    std::string tensor;
    std::function<void(Tensors&)> change;
    Code code;
    std::string says;
  };
  const std::string expert = kLayer + "1.block_sparse_moe.experts.3.w1.weight";
  const Case cases[] = {
      {"k3-a", kLayer + "0.self_attn.q_proj.weight", [](Tensors& t) { t.erase(kLayer + "0.self_attn.q_proj.weight"); },
       Code::not_found, "q_proj"},
      {"k3-a", kLayer + "0.self_attn.q_proj.weight",
       [](Tensors& t) {
         resize(t.at(kLayer + "0.self_attn.q_proj.weight"), DType::bf16, {95, 64});
       },
       Code::corrupt, "[95, 64], the config asks for [96, 64]"},
      {"k3-a", kLayer + "0.input_layernorm.weight",
       [](Tensors& t) { resize(t.at(kLayer + "0.input_layernorm.weight"), DType::u8, {64}); }, Code::unsupported, "U8"},
      {"k3-a", kLayer + "0.self_attn.o_proj.weight",
       [](Tensors& t) {
         resize(t.at(kLayer + "0.self_attn.o_proj.weight"), DType::i32, {64, 96});
       },
       Code::unsupported, "I32"},
      {"k3-a", kLayer + "0.self_attn.A_log",
       [](Tensors& t) { t.at(kLayer + "0.self_attn.A_log").bytes[4 * 3 + 3] = std::byte{0x3F}; }, Code::corrupt,
       "entry 3 beyond the 3 heads"},
      {"k3-a", kLayer + "0.self_attn.A_log", [](Tensors& t) { resize(t.at(kLayer + "0.self_attn.A_log"), DType::f32, {7}); },
       Code::corrupt, "A_log is per head"},
      {"k3-a", kLayer + "0.self_attn.A_log",
       [](Tensors& t) {
         resize(t.at(kLayer + "0.self_attn.A_log"), DType::f32, {3, 32});
       },
       Code::corrupt, "A_log is per head"},
      {"k3-a", expert, [=](Tensors& t) { t.at(expert + "_scale").bytes[5] = std::byte{253}; }, Code::corrupt, "253"},
      {"k3-a", expert, [=](Tensors& t) { t.erase(expert + "_scale"); }, Code::not_found, "w1.weight_scale"},
      {"k3-a", expert,
       [=](Tensors& t) {
         resize(t.at(expert + "_scale"), DType::u8, {32, 2});
       },
       Code::corrupt, "[32, 2]"},
      {"k3-a", "language_model.lm_head.weight", [](Tensors& t) { t.erase("language_model.lm_head.weight"); },
       Code::not_found, "lm_head"},
      {"kl-a", "model.layers.1.block_sparse_moe.experts.0.w2.weight",
       [](Tensors& t) { t.erase("model.layers.1.block_sparse_moe.experts.0.w2.weight"); }, Code::not_found, "experts.0.w2"},
  };
  for (const Case& c : cases) {
    const Error error = load_error(c.model, c.change);
    EXPECT_EQ(code_name(error.code), code_name(c.code)) << error.message;
    EXPECT_NE(error.message.find(c.tensor), std::string::npos) << error.message;
    EXPECT_NE(error.message.find(c.says), std::string::npos) << error.message;
  }
}

TEST(Weights, MoreThanMemoryIsRefusedWithTheNumbers) {
  const std::string folder = scratch("large");
  std::filesystem::copy_file(source("tests/data/configs/k3.json"), folder + "/config.json");
  ASSERT_TRUE(write_file(folder + "/model.safetensors.index.json",
                         R"({"metadata":{},"weight_map":{"x":"model-00001-of-000001.safetensors"}})")
                  .ok());
  ThreadPool pool(1);
  const auto loaded = load_weights(Checkpoint::open(folder).value(), load_config(folder).value(), pool, {});
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, Code::exhausted) << loaded.error().message;
  EXPECT_NE(loaded.error().message.find("1.42 TiB"), std::string::npos) << loaded.error().message;
  // A model would go on from there with a plan; this one has no weights to plan with.
  const auto model = Model::load(folder, pool);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, Code::not_found) << model.error().message;
}

TEST(Weights, ExtraTensorsAreTolerated) {
  const std::string from = source("tests/data/oracle-models/k3-a"), folder = scratch("extra");
  Tensors tensors = read_all(from);
  const std::string extra = kLayer + "3.self_attn.indexer.wq_b.weight";
  tensors[extra] = {{extra, DType::bf16, {2, 2}}, std::vector<std::byte>(8)};
  write_all(tensors, folder);
  std::filesystem::copy_file(from + "/config.json", folder + "/config.json");
  ThreadPool pool(1);
  EXPECT_TRUE(Model::load(folder, pool).ok());
}

TEST(Init, ShardsAreEvenAndNeverSplitAnExpert) {
  Config config = load_config(source("tests/data/oracle-models/k3-b")).value();
  std::vector<ParamTensor> tensors;
  int64_t total = 0, largest = 0;
  for_each_tensor(config, [&](const ParamTensor& t) {
    tensors.push_back(t);
    total += t.size_bytes();
    largest = std::max(largest, t.size_bytes());
  });
  for (const int64_t shards : {1, 2, 5, 17}) {
    const auto plan = shard_plan(tensors, shards);
    ASSERT_EQ(static_cast<int64_t>(plan.size()), shards);
    size_t next = 0;
    std::map<std::string, size_t> shard_of_expert;
    for (size_t s = 0; s < plan.size(); ++s) {
      ASSERT_FALSE(plan[s].empty());
      int64_t size = 0;
      for (const TensorSpec& spec : plan[s]) {
        EXPECT_EQ(spec.name, tensors[next].name);  // checkpoint order
        size += spec.size_bytes();
        if (const size_t at = spec.name.find(".w"); tensors[next].expert >= 0) {
          const auto [it, fresh] = shard_of_expert.emplace(spec.name.substr(0, at), s);
          EXPECT_EQ(it->second, s) << spec.name;
        }
        ++next;
      }
      EXPECT_LE(size, total / shards + 6 * largest);
    }
    EXPECT_EQ(next, tensors.size());
  }
}

TEST(Init, SameSeedSameBytesWhateverThreadsAndShards) {
  const Config config = load_config(source("tests/data/oracle-models/k3-a")).value();
  const auto make = [&](const std::string& name, uint64_t seed, int64_t shards, int threads) {
    const std::string folder = scratch(name);
    ThreadPool pool(threads);
    EXPECT_TRUE(write_random_checkpoint(config, folder, seed, shards, pool, {}).ok());
    return read_all(folder);
  };
  const Tensors a = make("a", 1, 1, 1), b = make("b", 1, 3, 2), c = make("c", 2, 1, 1);
  ASSERT_EQ(a.size(), b.size());
  int64_t different = 0;
  for (const auto& [name, stored] : a) {
    EXPECT_EQ(stored.bytes, b.at(name).bytes) << name;
    different += stored.bytes != c.at(name).bytes ? 1 : 0;
  }
  EXPECT_GT(different, static_cast<int64_t>(a.size()) / 2);
}

// A few lines of JSON can ask for any number of tensors; nothing may be enumerated or allocated for them.
TEST(Weights, AbsurdSizesAreRefusedBeforeAnythingIsCounted) {
  const std::string folder = source("tests/data/oracle-models/k3-a");
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  ThreadPool pool(1);
  const Config good = load_config(source("models/k3-mini/config.json")).value();
  const auto refused = [&](const std::function<void(Config&)>& change) {
    Config config = good;
    change(config);
    EXPECT_EQ(check_sizes(config).error().code, Code::unsupported);
    EXPECT_EQ(load_weights(checkpoint, config, pool, {}).error().code, Code::unsupported);
    EXPECT_EQ(write_random_checkpoint(config, scratch("absurd"), 0, 1, pool, {}).error().code, Code::unsupported);
    EXPECT_EQ(convert_checkpoint(checkpoint, config, scratch("absurd"), {}, {}).error().code, Code::unsupported);
  };
  ASSERT_TRUE(check_sizes(good).ok());
  refused([](Config& c) { c.num_experts = 1 << 24; });
  refused([](Config& c) { c.kda_num_heads = c.kda_head_dim = 1 << 24; });
  refused([](Config& c) { c.hidden_size = c.intermediate_size = c.kv_lora_rank = 1 << 24; });
}

TEST(Weights, CacheOfAWrappedSizeIsRefused) {
  const Config config = load_config(source("models/k3-mini/config.json")).value();
  for (const int64_t tokens : {int64_t{1} << 61, int64_t{1} << 62, (int64_t{1} << 60) + 1}) {
    const auto pool = SequencePool::create(config, ops::Policy::bf16, 1, tokens);
    ASSERT_FALSE(pool.ok()) << tokens;
    EXPECT_EQ(pool.error().code, Code::exhausted);
  }
}

TEST(Convert, TensorsThatDoNotFitTheConfigAreRefused) {
  const std::string folder = source("models/k3-mini");
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  Config config = load_config(folder).value();
  config.intermediate_size += 32;
  const auto report = convert_checkpoint(checkpoint, config, scratch("unfit"), {}, {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::corrupt);
  EXPECT_NE(report.error().message.find("the config asks for"), std::string::npos) << report.error().message;
}

TEST(Convert, ValuesBeyondF16AreRefused) {
  const std::string from = source("tests/data/oracle-models/k3-a"), folder = scratch("beyond_f16");
  Tensors tensors = read_all(from);
  const auto it = std::find_if(tensors.begin(), tensors.end(), [](const auto& t) {
    return t.first.ends_with("mlp.gate_proj.weight") && t.second.spec.dtype == DType::bf16;
  });
  ASSERT_NE(it, tensors.end());
  const uint16_t large = float_to_bf16(131072.0F);
  std::memcpy(it->second.bytes.data() + 2, &large, 2);
  write_all(tensors, folder);
  std::filesystem::copy_file(from + "/config.json", folder + "/config.json");
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  Config config = load_config(folder).value();
  resolve_by_tensors(checkpoint, config);
  ConvertOptions options;
  options.trunk = DType::f16;
  const auto report = convert_checkpoint(checkpoint, config, scratch("f16"), options, {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::invalid_argument);
  EXPECT_NE(report.error().message.find("131072"), std::string::npos) << report.error().message;
}

}  // namespace
}  // namespace k3
