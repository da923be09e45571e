// `k3 inspect`, `tokenize`, `detokenize` and `render`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json inspected(const std::string& path) { return json::parse(k3_ok({"inspect", path, "--json"})); }

TEST(Inspect, TheReleasedConfig) {
  const json k3_model = inspected(source_path("tests/data/configs/k3.json"));
  EXPECT_EQ(k3_model.at("parameters"), 2'779'931'837'184);
  EXPECT_EQ(k3_model.at("tensors"), 497'220);
  EXPECT_EQ(k3_model.at("size_bytes"), 1'560'860'324'864);
  EXPECT_LT(std::abs(k3_model.at("active_parameters").get<double>() / 1e9 - 104.19), 0.005);
  EXPECT_EQ(k3_model.at("layers"), 93);
  EXPECT_EQ(k3_model.at("kda_layers"), 69);
  EXPECT_EQ(k3_model.at("mla_layers"), 24);
  int64_t parameters = 0, bytes = 0, tensors = 0;
  for (const auto& [name, component] : k3_model.at("components").items()) {
    parameters += component.at("parameters").get<int64_t>();
    bytes += component.at("size_bytes").get<int64_t>();
    tensors += component.at("tensors").get<int64_t>();
  }
  EXPECT_EQ(parameters, k3_model.at("parameters"));
  EXPECT_EQ(bytes, k3_model.at("size_bytes"));
  EXPECT_EQ(tensors, k3_model.at("tensors"));
  EXPECT_EQ(k3_model.at("shards").at("total"), 0);
}

TEST(Inspect, TheKimiLinearConfig) {
  const json kimi = inspected(source_path("tests/data/configs/kimi-linear-48b.json"));
  EXPECT_EQ(kimi.at("parameters"), 49'122'681'728);
  EXPECT_EQ(kimi.at("tensors"), 20'493);
  EXPECT_EQ(kimi.at("size_bytes"), 98'245'528'576);
}

TEST(Inspect, TheTableNamesWhatAPersonLooksFor) {
  const std::string table = k3_ok({"inspect", source_path("tests/data/configs/k3.json")});
  for (const char* what : {"2,779,931,837,184", "497,220", "1,560,860,324,864", "69 KDA, 24 MLA", "104", "kKKM", "AttnRes",
                           "FLOPs a token", "cache a token", "state a sequence", "config only", "MXFP4"}) {
    EXPECT_THAT(table, HasSubstr(what));
  }
  EXPECT_EQ(count_of(table, "\x1b"), 0u);
}

TEST(Inspect, AWholeCheckpoint) {
  const json mini = inspected(kMini);
  const size_t shards = mini_shards().size();
  EXPECT_EQ(mini.at("shards").at("total"), shards);
  EXPECT_EQ(mini.at("shards").at("present"), shards);
  EXPECT_EQ(mini.at("shards").at("missing"), json::array());
  EXPECT_FALSE(mini.at("shards").contains("damaged"));
  // What the config promises is what the files hold.
  EXPECT_EQ(mini.at("tensors"), mini.at("shards").at("tensors"));
  EXPECT_THAT(k3_ok({"inspect", kMini}), HasSubstr(fmt::format("{} of {} present", shards, shards)));
}

TEST(Inspect, AMissingShardIsNamedAndIsNoFailure) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  const std::vector<std::string> shards = mini_shards();
  fs::remove(model + "/" + shards.back());
  const json found = inspected(model);
  EXPECT_EQ(found.at("shards").at("present"), shards.size() - 1);
  EXPECT_EQ(found.at("shards").at("missing"), json::array({shards.back()}));
  const std::string table = k3_ok({"inspect", model});
  EXPECT_THAT(table, HasSubstr(fmt::format("{} of {} present", shards.size() - 1, shards.size())));
  EXPECT_THAT(table, HasSubstr("missing: " + shards.back()));
}

TEST(Inspect, ATruncatedShardIsDamage) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  const std::vector<std::string> shards = mini_shards();
  ASSERT_GE(shards.size(), 2u);
  const std::string shard = model + "/" + shards[1];
  replace_file(shard, file_text(shard).substr(0, 1'000'000));
  for (const bool as_json : {false, true}) {
    std::vector<std::string> arguments = {"inspect", model};
    if (as_json) arguments.emplace_back("--json");
    const Outcome o = k3(arguments);
    EXPECT_EQ(o.code, 4);
    EXPECT_THAT(o.err, HasSubstr(shards[1]));
    if (as_json) {
      EXPECT_THAT(json::parse(o.out).at("shards").at("damaged").get<std::string>(), HasSubstr(shards[1]));
    } else {
      EXPECT_THAT(o.out, HasSubstr("damaged: "));
    }
  }
  // Also while another shard is missing: what is here is looked at all the same.
  fs::remove(model + "/" + shards.back());
  EXPECT_EQ(k3({"inspect", model}).code, 4);
}

TEST(Tokenize, GoldenVectors) {
  const json vectors = json::parse(file_text(kMini + "/golden/golden.json")).at("tokenizer");
  for (const auto& [text, ids] : vectors.items()) {
    EXPECT_EQ(json::parse(k3_ok({"tokenize", kMini, "--json"}, text)).at("ids"), ids) << text;
    EXPECT_EQ(k3_ok({"tokenize", kMini}, text), join_ids(ids.get<std::vector<int32_t>>(), " ") + "\n") << text;
  }
}

TEST(Tokenize, RoundTripByArgumentFileAndPipe) {
  const Scratch scratch;
  const std::string text =
      "Two  spaces,\ttabs, \xe4\xb8\xad\xe6\x96\x87, \xf0\x9f\x99\x82, 1234567 and 'quotes'.\r\n\r\nEnd ";
  put_file(scratch.path("t.txt"), text);
  const std::string ids = k3_ok({"tokenize", kMini, text});
  EXPECT_EQ(k3_ok({"tokenize", kMini, "-f", scratch.path("t.txt")}), ids);
  EXPECT_EQ(k3_ok({"tokenize", kMini}, text), ids);
  EXPECT_EQ(k3_ok({"detokenize", kMini, ids}), text);
  EXPECT_EQ(k3_ok({"detokenize", kMini}, ids), text);
  const json as_json = json::parse(k3_ok({"tokenize", kMini, "--json", text}));
  EXPECT_EQ(k3_ok({"detokenize", kMini, as_json.at("ids").dump()}), text);
  EXPECT_EQ(as_json.at("count"), as_json.at("ids").size());
  EXPECT_EQ(as_json.at("pieces").size(), as_json.at("ids").size());
  const json back = json::parse(k3_ok({"detokenize", kMini, "--json", ids}));
  EXPECT_EQ(back.at("text"), text);
  EXPECT_EQ(back.at("valid_utf8"), true);
}

TEST(Tokenize, SpecialsOnlyWhenAsked) {
  const std::string text = "a<|end_of_msg|>b";
  EXPECT_EQ(k3_ok({"tokenize", kMini, "--specials", text}), "97 12034 98\n");
  const std::string plain = k3_ok({"tokenize", kMini, text});
  EXPECT_EQ(count_of(plain, "12034"), 0u);
  EXPECT_EQ(k3_ok({"detokenize", kMini, plain}), text);
  EXPECT_EQ(k3_ok({"detokenize", kMini, "97 12034 98"}), text);
  EXPECT_EQ(k3_ok({"detokenize", kMini, "--skip-specials", "97 12034 98"}), "ab");
}

TEST(Tokenize, HalfACharacterIsKeptAsBytes) {
  EXPECT_EQ(k3_ok({"detokenize", kMini, "195"}), "\xc3");
  EXPECT_EQ(json::parse(k3_ok({"detokenize", kMini, "195", "--json"})).at("valid_utf8"), false);
}

TEST(Tokenize, WrongIdsAreRefused) {
  for (const char* ids : {"12288", "-1", "1,x", "99999999999", "1.5"}) {
    const Outcome o = k3({"detokenize", kMini, "--", ids});
    EXPECT_EQ(o.code, 2) << ids;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, testing::AnyOf(HasSubstr("vocabulary"), HasSubstr("is not a token id"))) << ids;
  }
  EXPECT_EQ(k3({"tokenize", kMini}, "\xff").code, 2);
}

TEST(Render, TheGoldenChatPrompt) {
  const json golden = json::parse(file_text(kMini + "/golden/golden.json")).at("prompts");
  const std::string request = json{{"messages", {{{"role", "user"}, {"content", kFrance}}}}}.dump();
  const Scratch scratch;
  put_file(scratch.path("r.json"), request);
  const json rendered = json::parse(k3_ok({"render", kMini, scratch.path("r.json"), "--json"}));
  EXPECT_EQ(rendered.at("ids"), golden.at("chat").at("prompt_ids"));
  const std::string text = k3_ok({"render", kMini, "-"}, request);
  EXPECT_EQ(rendered.at("text"), text);
  EXPECT_EQ(k3_ok({"detokenize", kMini, rendered.at("ids").dump()}), text);
  EXPECT_THAT(text, HasSubstr(kFrance));
}

TEST(Render, EverythingThatARequestMayHold) {
  const char* request = R"({
    "model": "x", "temperature": 0.3, "stream": true,
    "messages": [
      {"role": "system", "content": "Be kind."},
      {"role": "user", "content": [{"type": "text", "text": "How warm is "}, {"type": "text", "text": "it in Rome?"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": 2}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "31 C"}],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells <|end_of_msg|> it",
      "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
    "tool_choice": "auto", "response_format": {"type": "json_object"}, "thinking": {"type": "enabled", "effort": "high"}})";
  const json rendered = json::parse(k3_ok({"render", kMini, "-", "--json"}, request));
  const std::string text = rendered.at("text");
  for (const char* part : {"Be kind.", "How warm is it in Rome?", "weather", "Rome", "31 C", "Answer with one JSON object",
                           "Thinking effort for this conversation: high."}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  // A special token's name in a user's text never becomes that token: as many end tokens as messages.
  const auto ids = rendered.at("ids").get<std::vector<int32_t>>();
  EXPECT_EQ(count_of(text, "<|end_of_msg|>") - 1, static_cast<size_t>(std::count(ids.begin(), ids.end(), 12034)));
}

TEST(Render, WrongRequestsNameThePlace) {
  struct Case {
    const char* request;
    const char* place;
  };
  for (const Case& c :
       {Case{"", "JSON"}, Case{"[]", "object"}, Case{"{}", "messages"},
        Case{R"({"messages": [{"role": "user"}]})", "messages[0]"},
        Case{R"({"messages": [{"role": "king", "content": "x"}]})", "messages[0].role"},
        Case{R"({"messages": [{"role": "user", "content": "x"}], "messages": []})", "messages"},
        Case{R"({"messages": [{"role": "user", "content": "x"}], "tools": 4})", "tools"},
        Case{R"({"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "huge"}})", "thinking"},
        Case{R"({"messages": [{"role": "user", "content": "x"}]} trailing)", "byte"}}) {
    const Outcome o = k3({"render", kMini, "-"}, c.request);
    EXPECT_EQ(o.code, 2) << c.request << "\n" << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, HasSubstr(c.place)) << c.request;
  }
  EXPECT_EQ(k3({"render", kMini, "/no/such/request.json"}).code, 3);
}

}  // namespace
}  // namespace k3::e2e
