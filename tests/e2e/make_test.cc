// `k3 init` and `k3 convert`.
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Every tensor of a folder: "dtype shape" and bytes, whichever shard holds it.
using Tensors = std::map<std::string, std::pair<std::string, std::string>>;

Tensors tensors_of(const std::string& folder) {
  Tensors tensors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string file = file_text(entry.path().string());
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
    const json header = json::parse(file.substr(8, header_bytes));
    for (const auto& [name, tensor] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = tensor.at("data_offsets")[0].get<size_t>(), end = tensor.at("data_offsets")[1].get<size_t>();
      tensors[name] = {tensor.at("dtype").get<std::string>() + " " + tensor.at("shape").dump(),
                       file.substr(8 + header_bytes + begin, end - begin)};
    }
  }
  return tensors;
}

// Negative zeros of BF16 tensors become zeros: the quantiser has no use for them.
Tensors without_negative_zeros(Tensors tensors) {
  for (auto& [name, tensor] : tensors) {
    auto& [kind, bytes] = tensor;
    if (!kind.starts_with("BF16")) continue;
    for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
      if (bytes[i] == 0 && bytes[i + 1] == '\x80') bytes[i + 1] = 0;
    }
  }
  return tensors;
}

size_t shard_count(const std::string& folder) {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) count += entry.path().extension() == ".safetensors" ? 1 : 0;
  return count;
}

std::string exact_logits(const Scratch& scratch, const std::string& model,
                         const std::string& ids = "12032,72,8213,1452,33") {
  k3_ok({"logits", model, "--ids", ids, "--out", scratch.path("l.npy"), "--policy", "exact", "--deterministic"});
  return file_text(scratch.path("l.npy"));
}

const std::string kMiniConfig = kMini + "/config.json";
// A few hundred kilobytes instead of all of it.
const std::vector<std::string> kSmall = {"--set", "hidden_size=64", "--set", "num_experts=8",
                                         "--set", "vocab_size=256", "--set", "intermediate_size=96",
                                         "--set", "bos_token_id=0", "--set", "eos_token_id=1",
                                         "--set", "pad_token_id=2", "--set", "media_placeholder_token_id=3"};

std::vector<std::string> init(const std::string& config, const std::string& out, std::vector<std::string> more = kSmall) {
  more.insert(more.begin(), {"init", config, out});
  return more;
}

TEST(Init, FewerLayersOfTheSmallModelRun) {
  const Scratch scratch;
  const std::string out = scratch.path("four");
  k3_ok(init(kMiniConfig, out, {"--set", "num_hidden_layers=4"}));
  const json config = json::parse(file_text(out + "/config.json")).at("text_config");
  EXPECT_EQ(config.at("num_hidden_layers"), 4);
  EXPECT_EQ(config.at("linear_attn_config").at("kda_layers"), json({1, 2, 3}));
  EXPECT_EQ(config.at("linear_attn_config").at("full_attn_layers"), json({4}));
  const json looked = json::parse(k3_ok({"inspect", out, "--json"}));
  EXPECT_EQ(looked.at("layers"), 4);
  EXPECT_EQ(looked.at("tensors"), looked.at("shards").at("tensors"));
  EXPECT_EQ(looked.at("tensors"), tensors_of(out).size());
  // The tokenizer came along: it answers, although in noise.
  EXPECT_EQ(k3({"run", out, "-p", "Hello", "-n", "3"}).code, 0);
  exact_logits(scratch, out);
}

TEST(Init, TheReleasedConfigShrunk) {
  const Scratch scratch;
  const std::string out = scratch.path("shrunk"), released = source_path("tests/data/configs/k3.json");
  std::vector<std::string> more = {"--no-vision"};
  for (const char* set : {"bos_token_id=0",
                          "eos_token_id=1",
                          "pad_token_id=2",
                          "media_placeholder_token_id=3",
                          "num_hidden_layers=5",
                          "hidden_size=96",
                          "vocab_size=320",
                          "intermediate_size=128",
                          "num_attention_heads=2",
                          "num_key_value_heads=2",
                          "q_lora_rank=48",
                          "kv_lora_rank=40",
                          "qk_nope_head_dim=24",
                          "qk_rope_head_dim=8",
                          "v_head_dim=16",
                          "num_experts=8",
                          "num_experts_per_token=3",
                          "moe_intermediate_size=32",
                          "routed_expert_hidden_size=64",
                          "linear_attn_config.num_heads=3",
                          "linear_attn_config.head_dim=32"}) {
    more.insert(more.end(), {"--set", set});
  }
  k3_ok(init(released, out, more));
  const json config = json::parse(file_text(out + "/config.json"));
  EXPECT_FALSE(config.contains("vision_config"));
  const json looked = json::parse(k3_ok({"inspect", out, "--json"}));
  EXPECT_EQ(looked.at("layers"), 5);
  EXPECT_EQ(looked.at("tensors"), looked.at("shards").at("tensors"));
  exact_logits(scratch, out, "0,5,319,7");
  const NpyMatrix logits = npy(scratch.path("l.npy"));
  EXPECT_EQ(logits.rows, 4);
  EXPECT_EQ(logits.cols, 320);
  for (const float value : logits.values) ASSERT_TRUE(std::isfinite(value));
}

TEST(Init, TheSameSeedGivesTheSameBytes) {
  const Scratch scratch;
  k3_ok(init(kMiniConfig, scratch.path("a")));
  std::vector<std::string> again = kSmall;
  again.insert(again.end(), {"-t", "1", "--seed", "0", "--shards", "3"});
  k3_ok(init(kMiniConfig, scratch.path("b"), again));
  EXPECT_EQ(shard_count(scratch.path("a")), 1u);
  EXPECT_EQ(shard_count(scratch.path("b")), 3u);
  EXPECT_TRUE(tensors_of(scratch.path("a")) == tensors_of(scratch.path("b"))) << "threads and shards change no tensor";
  std::vector<std::string> other = kSmall;
  other.insert(other.end(), {"--seed", "1"});
  k3_ok(init(kMiniConfig, scratch.path("c"), other));
  EXPECT_FALSE(tensors_of(scratch.path("a")) == tensors_of(scratch.path("c")));
}

TEST(Init, AnExistingModelIsKeptUnlessForced) {
  const Scratch scratch;
  const std::string out = scratch.path("m");
  k3_ok(init(kMiniConfig, out));
  const Tensors before = tensors_of(out);
  std::vector<std::string> more = kSmall;
  more.insert(more.end(), {"--seed", "5"});
  const Outcome refused = k3(init(kMiniConfig, out, more));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_TRUE(before == tensors_of(out));
  more.emplace_back("--force");
  k3_ok(init(kMiniConfig, out, more));
  EXPECT_FALSE(before == tensors_of(out));
}

TEST(Init, ForceLeavesNoShardOfTheOldModel) {
  const Scratch scratch;
  const std::string out = scratch.path("m");
  std::vector<std::string> three = kSmall, one = kSmall;
  three.insert(three.end(), {"--shards", "3"});
  one.insert(one.end(), {"--shards", "1", "--force"});
  k3_ok(init(kMiniConfig, out, three));
  k3_ok(init(kMiniConfig, out, one));
  EXPECT_EQ(json::parse(k3_ok({"inspect", out, "--json"})).at("shards").at("total"), 1);
  EXPECT_EQ(shard_count(out), 1u);
  exact_logits(scratch, out, "1,2");
}

TEST(Init, AnInterruptLeavesNoHalfWrittenFile) {
  const Scratch scratch;
  const std::string out = scratch.path("m");
  // One dense layer of 1.5 GB: in the middle of it for as long as the test needs.
  Process process(k3_spawn(init(kMiniConfig, out, {"--set", "intermediate_size=600000", "--shards", "1"})));
  const auto unfinished = [&] {
    size_t count = 0;
    std::error_code none_yet;
    for (const auto& entry : fs::directory_iterator(out, none_yet)) {
      count += entry.path().string().find(".tmp-") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  while (unfinished() == 0 && !process.gone()) process.pause(0.02);
  ASSERT_EQ(unfinished(), 1u);
  process.send(SIGINT);
  const Outcome o = process.finish();
  EXPECT_EQ(o.signal, SIGINT) << o.code << o.err;
  EXPECT_EQ(unfinished(), 0u);
  EXPECT_FALSE(fs::exists(out + "/config.json"));
}

TEST(Init, ImpossibleValuesNameTheField) {
  const Scratch scratch;
  struct Case {
    const char* set;
    const char* field;
  };
  for (const Case& c :
       {Case{"num_experts_per_token=999", "num_experts_per_token"}, Case{"num_attention_heads=0", "num_attention_heads"},
        Case{"hidden_size=-4", "hidden_size"}, Case{"hidden_size=wide", "hidden_size"}, Case{"num_hidden_layers=12", "12"},
        Case{"num_hidden_layers=0", "num_hidden_layers"}, Case{"moe_intermediate_size=33", "moe_intermediate_size"},
        Case{"linear_attn_config.full_attn_layers=[1,2,3,4]", "layer 1"}, Case{"hidden_act=tanh", "hidden_act"},
        Case{"nonsense", "nonsense"}, Case{"=3", "=3"}, Case{"hidden_size.deeper=3", "deeper"},
        Case{"vocab_size=99999999999999", "vocab_size"}}) {
    const Outcome o = k3({"init", kMiniConfig, scratch.path("m"), "--set", c.set});
    EXPECT_THAT(o.code, testing::AnyOf(2, 5)) << c.set << "\n" << o.err;  // never 4: the file is as it should be
    EXPECT_THAT(o.err, HasSubstr(c.field)) << c.set;
    EXPECT_FALSE(fs::exists(scratch.path("m/config.json"))) << c.set;
  }
}

// The stored bytes may choose the scale of a group one step higher than its values need (largest code 3 in place of 6), as
// the quantiser does for weights just above a step. Packing again takes the smallest scale, so values come back exactly,
// and bytes from the second time on.
TEST(Convert, UnpackingAndPackingExpertsKeepsEveryValue) {
  const Scratch scratch;
  const std::string wide = scratch.path("wide"), packed = scratch.path("packed");
  k3_ok({"convert", kMini, wide, "--experts", "bf16"});
  EXPECT_FALSE(json::parse(file_text(wide + "/config.json")).at("text_config").contains("quantization_config"));
  EXPECT_GT(json::parse(k3_ok({"inspect", wide, "--json"})).at("size_bytes"),
            json::parse(k3_ok({"inspect", kMini, "--json"})).at("size_bytes"));
  k3_ok({"convert", wide, packed, "--experts", "mxfp4"});
  k3_ok({"convert", packed, scratch.path("wide2"), "--experts", "bf16"});
  EXPECT_TRUE(without_negative_zeros(tensors_of(scratch.path("wide2"))) == without_negative_zeros(tensors_of(wide)))
      << "some value changed";
  k3_ok({"convert", scratch.path("wide2"), scratch.path("packed2"), "--experts", "mxfp4"});
  EXPECT_TRUE(tensors_of(scratch.path("packed2")) == tensors_of(packed));
  EXPECT_EQ(json::parse(file_text(packed + "/config.json"))["text_config"]["quantization_config"]["format"],
            "mxfp4-pack-quantized");

  const std::string logits = exact_logits(scratch, kMini);
  EXPECT_TRUE(logits == exact_logits(scratch, packed));
  // BF16 experts go through another kernel, which sums in another order: float32 tolerance of the golden files.
  exact_logits(scratch, wide);
  put_file(scratch.path("mini.npy"), logits);
  EXPECT_LE(largest_difference(npy(scratch.path("l.npy")), npy(scratch.path("mini.npy"))), 2e-4);
  EXPECT_EQ(k3_ok({"run", wide, "-p", kFrance, "--temperature", "0"}), france_line());
}

TEST(Convert, TheTrunkInOtherDtypes) {
  const Scratch scratch;
  const std::string logits = exact_logits(scratch, kMini);
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const std::string out = scratch.path(dtype);
    k3_ok({"convert", kMini, out, "--trunk", dtype});
    const Tensors tensors = tensors_of(out);
    const std::string expected = dtype == std::string("f32") ? "F32 " : dtype == std::string("f16") ? "F16 " : "BF16 ";
    EXPECT_THAT(tensors.at("language_model.model.embed_tokens.weight").first, testing::StartsWith(expected));
    EXPECT_THAT(tensors.at("language_model.model.layers.0.self_attn.A_log").first, testing::StartsWith("F32 "))
        << "small F32 parameters keep their dtype";
    if (dtype == std::string("bf16")) {
      EXPECT_TRUE(tensors == tensors_of(kMini));
    }
    if (dtype != std::string("f16")) {
      EXPECT_TRUE(logits == exact_logits(scratch, out)) << dtype;
    } else {
      // BF16 values of trained weights lie within F16's range but for the smallest, which lose bits.
      exact_logits(scratch, out);
      put_file(scratch.path("mini.npy"), logits);
      EXPECT_LT(largest_difference(npy(scratch.path("l.npy")), npy(scratch.path("mini.npy"))), 1e-2);
    }
    fs::remove_all(out);
  }
}

// The config that was given is written, not one that lies beside the weights; one without a dtype gets it.
TEST(Convert, TheConfigIsTheOneThatWasGiven) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini(), out = scratch.path("out");
  json config = json::parse(file_text(kMiniConfig));
  config.erase("dtype");
  config["text_config"].erase("dtype");
  config["text_config"]["routed_scaling_factor"] = 2.5;
  put_file(model + "/other.json", config.dump());
  fs::remove(model + "/config.json");
  k3_ok({"convert", model + "/other.json", out, "--trunk", "f16"});
  const json written = json::parse(file_text(out + "/config.json"));
  EXPECT_EQ(written["text_config"]["routed_scaling_factor"], 2.5);
  EXPECT_EQ(written["text_config"]["dtype"], "float16");
}

TEST(Convert, ReShardingChangesNoByte) {
  const Scratch scratch;
  const std::string out = scratch.path("three");
  k3_ok({"convert", kMini, out, "--shards", "3"});
  EXPECT_EQ(shard_count(out), 3u);
  EXPECT_TRUE(tensors_of(out) == tensors_of(kMini));
  EXPECT_TRUE(exact_logits(scratch, out) == exact_logits(scratch, kMini));
  EXPECT_EQ(file_text(out + "/tiktoken.model"), file_text(kMini + "/tiktoken.model"));
  EXPECT_EQ(file_text(out + "/chat_format.json"), file_text(kMini + "/chat_format.json"));
  EXPECT_EQ(json::parse(file_text(out + "/config.json")), json::parse(file_text(kMiniConfig)));
}

TEST(Convert, TheModelItselfIsNoTarget) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  for (const std::string& out : {model, model + "/", model + "/../model", model + "/."}) {
    for (const bool force : {false, true}) {
      std::vector<std::string> arguments = {"convert", model, out, "--experts", "bf16"};
      if (force) arguments.emplace_back("--force");
      const Outcome o = k3(arguments);
      EXPECT_EQ(o.code, 2) << out;
    }
  }
  fs::create_directory_symlink(model, scratch.path("alias"));
  EXPECT_EQ(k3({"convert", model, scratch.path("alias"), "--force"}).code, 2);
  EXPECT_EQ(k3({"convert", model + "/config.json", scratch.path("alias"), "--force"}).code, 2);
  EXPECT_TRUE(fs::is_symlink(model + "/" + mini_shards().front()));
}

TEST(Convert, AnExistingModelIsKeptUnlessForced) {
  const Scratch scratch;
  const std::string model = scratch.path("m");
  k3_ok(init(kMiniConfig, model));
  EXPECT_EQ(k3({"convert", kMini, model}).code, 2);
  EXPECT_EQ(tensors_of(model).at("language_model.model.embed_tokens.weight").first, "BF16 [256,64]");
}

// I8 alone could be any scheme: the loader would not read what convert passed on.
TEST(Convert, EightBitsWithoutTheMarkerAreRefused) {
  const Scratch scratch;
  const std::string model = scratch.path("m");
  k3_ok({"convert", kMini, model, "--trunk", "int8"});
  json config = json::parse(file_text(model + "/config.json"));
  config.erase("trunk_quantization");
  put_file(model + "/config.json", config.dump());
  for (const char* trunk : {"keep", "bf16", "int8"}) {
    const Outcome o = k3({"convert", model, scratch.path("out"), "--trunk", trunk});
    EXPECT_EQ(o.code, 4) << trunk << o.err;
    EXPECT_THAT(o.err, HasSubstr("trunk_quantization"));
    EXPECT_FALSE(fs::exists(scratch.path("out/config.json")));
  }
}

TEST(Convert, WrongOptionsAndAMissingShard) {
  const Scratch scratch;
  EXPECT_EQ(k3({"convert", kMini, scratch.path("x"), "--experts", "int8"}).code, 2);
  EXPECT_EQ(k3({"convert", kMini, scratch.path("x"), "--trunk", "f8"}).code, 2);
  EXPECT_EQ(k3({"convert", kMini, scratch.path("x"), "--shards", "0"}).code, 2);
  const std::string model = scratch.linked_mini();
  fs::remove(model + "/" + mini_shards().back());
  const Outcome o = k3({"convert", model, scratch.path("y")});
  EXPECT_EQ(o.code, 3) << o.err;
  EXPECT_THAT(o.err, HasSubstr(mini_shards().back()));
  EXPECT_FALSE(fs::exists(scratch.path("y/config.json"))) << "half a model must not look like a whole one";
}

}  // namespace
}  // namespace k3::e2e
