// Configs and options that ask for more than any machine has: refused at once, by name, with nothing written.
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// What each command says of k3-mini with a changed config; none may take long or much memory.
void refused(const std::function<void(json&)>& change, const std::string& fact) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  json config = json::parse(file_text(kMini + "/config.json"));
  change(config["text_config"]);
  fs::remove(model + "/config.json");
  put_file(model + "/config.json", config.dump());
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", model},
                                                    {"run", model, "-p", "x", "-n", "1"},
                                                    {"init", model, scratch.path("out")},
                                                    {"convert", model, scratch.path("out"), "--trunk", "f32"}}) {
    Spawn spawn = k3_spawn(arguments);
    spawn.timeout_seconds = 20;
    const Outcome o = run_process(spawn);
    EXPECT_FALSE(o.timed_out) << arguments[0];
    EXPECT_EQ(o.signal, 0) << arguments[0];
    EXPECT_TRUE(o.code == 4 || o.code == 5) << arguments[0] << " gave " << o.code << "\n" << o.err;
    EXPECT_THAT(o.err, HasSubstr(fact)) << arguments[0];
    EXPECT_FALSE(fs::exists(scratch.path("out") + "/config.json")) << arguments[0];
  }
}

TEST(Limits, ConfigsOfAbsurdSizes) {
  refused([](json& c) { c["hidden_size"] = 1 << 30; }, "hidden_size is 1073741824");
  refused([](json& c) { c["num_experts"] = 0x7FFFFFFF; }, "num_experts is 2147483647");
  refused([](json& c) { c["num_experts"] = 1 << 24; }, "tensors");
  refused([](json& c) { c["linear_attn_config"]["num_heads"] = c["linear_attn_config"]["head_dim"] = 1 << 24; },
          "parameters");
}

TEST(Limits, NumbersOfOptions) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"perplexity", kMini, "--ids", "5", "--window", "2305843009213693951"},
        {"bench", kMini, "--decode", "9223372036854775807"},
        {"bench", kMini, "--depth", "9223372036854775807"},
        {"run", kMini, "-p", "x", "--top-k", "-1"},
        {"run", kMini, "-p", "x", "-n", "1", "--seed", "18446744073709551616"},
        {"train", "none.json", "-o", "none", "-t", "0"},
        {"train", "none.json", "-o", "none", "-t", "100000"},
        {"export", "none", "none", "--step", "-1"},
        {"export", "none", "none", "--shards", "0"},
        {"export", "none", "none", "--shards", "100000"},
        {"run", kMini, "-p", "x", "-n", "0"}}) {
    const Outcome o = k3(arguments);
    EXPECT_EQ(o.code, 2) << arguments.back() << "\n" << o.err;
    EXPECT_LT(o.err.size(), 200u) << o.err;  // limits are written as people write them
  }
}

// A chunk is as long as the prompt at most; one beyond any memory is no wish for that much memory.
TEST(Limits, AChunkLongerThanThePromptIsThePrompt) {
  const Scratch scratch;
  k3_ok({"logits", kMini, "--ids", "1,2,3", "--chunk", "2147483647", "--out", scratch.path("a.npy")});
  k3_ok({"logits", kMini, "--ids", "1,2,3", "--out", scratch.path("b.npy")});
  EXPECT_EQ(file_text(scratch.path("a.npy")), file_text(scratch.path("b.npy")));
}

TEST(Chat, EachTurnDrawsAnewAndTheSeedDecidesAll) {
  const std::string input = "Tell me about a city.\n/reset\nTell me about a city.\n";
  const std::vector<std::string> arguments = {"chat", kMini, "--temperature", "1", "--seed", "5", "-n", "12"};
  const std::string first = k3_ok(arguments, input);
  EXPECT_EQ(first, k3_ok(arguments, input));
  const size_t half = first.size() / 2;
  EXPECT_NE(first.substr(0, half), first.substr(half)) << first;
}

}  // namespace
}  // namespace k3::e2e
