// The lossy options from the command line: convert and back, inspect, an answer, labels and quality in bench.
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

double nats(const std::string& model, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"perplexity", model, "-f", source_path("README.md"), "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return json::parse(k3_ok(arguments)).at("nats_per_token").get<double>();
}

TEST(Int8, ConvertShrinksTheTrunkAndSaysSo) {
  const Scratch scratch;
  const std::string out = scratch.path("m");
  k3_ok({"convert", kMini, out, "--trunk", "int8"});
  EXPECT_EQ(json::parse(file_text(out + "/config.json")).at("trunk_quantization").at("format"), "mxint8");
  const json before = json::parse(k3_ok({"inspect", kMini, "--json"})),
             after = json::parse(k3_ok({"inspect", out, "--json"}));
  EXPECT_EQ(before.at("trunk_int8"), false);
  EXPECT_EQ(after.at("trunk_int8"), true);
  EXPECT_EQ(after.at("parameters"), before.at("parameters"));
  EXPECT_EQ(after.at("tensors"), after.at("shards").at("tensors"));
  for (const char* component : {"KDA attention", "MLA attention", "shared experts", "lm_head"}) {
    const double was = before.at("components").at(component).at("size_bytes").get<double>();
    EXPECT_LT(after.at("components").at(component).at("size_bytes").get<double>(), 0.75 * was) << component;
  }
  for (const char* component : {"routed experts", "router", "token embedding"}) {
    EXPECT_EQ(after.at("components").at(component), before.at("components").at(component)) << component;
  }
  EXPECT_THAT(k3_ok({"inspect", out}), HasSubstr("MXINT8"));
  // A random model of that config is in the released layout again.
  k3_ok({"init", out, scratch.path("random"), "--set", "num_hidden_layers=2"});
  EXPECT_FALSE(json::parse(file_text(scratch.path("random") + "/config.json")).contains("trunk_quantization"));
}

// Rounding of one part in 128 a group is noise of about the size that BF16 inputs make, not another model: a broken scale
// or order of columns costs nats.
TEST(Int8, TheModelStaysTheModel) {
  const Scratch scratch;
  const std::string out = scratch.path("m"), back = scratch.path("back");
  k3_ok({"convert", kMini, out, "--trunk", "int8"});
  k3_ok({"convert", out, back, "--trunk", "bf16"});
  const double exact = nats(kMini, {"--policy", "exact"});
  EXPECT_NEAR(nats(out, {"--policy", "exact"}), exact, 0.02);
  for (const char* isa : {"avx2", "auto"}) {
    EXPECT_NEAR(nats(kMini, {"--act", "int8", "--cpu-isa", isa}), exact, 0.05) << isa;
    EXPECT_NEAR(nats(out, {"--act", "int8", "--cpu-isa", isa}), exact, 0.05) << isa;
  }
  // The same numbers in BF16; the kernels sum them in other orders.
  EXPECT_NEAR(nats(out, {"--policy", "exact"}), nats(back, {"--policy", "exact"}), 1e-5);
  const auto logits = [&](const char* name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"logits",           out,     "--ids", "12032,72,8213,1452,33", "--out",
                                          scratch.path(name), "--act", "int8",  "--deterministic"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    k3_ok(arguments);
    return file_text(scratch.path(name));
  };
  EXPECT_EQ(logits("a.npy", {"-t", "1"}), logits("b.npy", {"-t", "2", "--chunk", "1"}));
  EXPECT_EQ(k3({"run", out, "-p", "What is the capital of France?", "--temperature", "0", "--act", "int8"}).code, 0);
}

TEST(Int8, BenchLabelsWhatIsLossy) {
  const Scratch scratch;
  const std::string out = scratch.path("m");
  k3_ok({"convert", kMini, out, "--trunk", "int8"});
  const auto bench = [&](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"bench", model,           "-p",     "8",        "-n", "2", "-r", "1", "-t",
                                          "2",     "--no-ceilings", "--json", "--quality"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json::parse(k3_ok(arguments));
  };
  const json plain = bench(kMini, {}), trunk = bench(out, {}), both = bench(out, {"--act", "int8"});
  EXPECT_EQ(plain.at("results")[0].at("settings"), "bf16");
  EXPECT_EQ(trunk.at("results")[0].at("settings"), "bf16, int8 trunk");
  EXPECT_EQ(both.at("results")[0].at("settings"), "bf16, int8 trunk, int8 act");
  EXPECT_EQ(both.at("lossy"), "int8 trunk, int8 act");
  EXPECT_LT(trunk.at("active_bytes"), plain.at("active_bytes"));
  EXPECT_NE(trunk.at("results")[0].at("nats_per_token"), both.at("results")[0].at("nats_per_token"));
  EXPECT_EQ(k3({"bench", kMini, "--act", "int4"}).code, 2);
}

// The config says that matrices may be in 8 bits; none is.
TEST(Int8, AMarkedTrunkOfBf16IsNotCalledLossy) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  json config = json::parse(file_text(kMini + "/config.json"));
  config["trunk_quantization"] = {{"format", "mxint8"}, {"group_size", 32}};
  fs::remove(model + "/config.json");
  put_file(model + "/config.json", config.dump());
  const json bench = json::parse(
      k3_ok({"bench", model, "-p", "8", "-n", "0", "-r", "1", "-t", "1", "--no-ceilings", "--json"}));
  EXPECT_EQ(bench.at("lossy"), "");
  EXPECT_EQ(bench.at("results")[0].at("settings"), "bf16");
  const json looked = json::parse(k3_ok({"inspect", model, "--json"}));
  EXPECT_EQ(looked.at("trunk_int8"), false);
  EXPECT_EQ(looked.at("tensors"), looked.at("shards").at("tensors"));
}

}  // namespace
}  // namespace k3::e2e
