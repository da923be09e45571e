// Edits by bare name and dotted path, layer trimming, vision and packing.
#include "k3/format/config_edit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace k3 {
namespace {

using nlohmann::json;

constexpr const char* kNested = R"({"model_type":"kimi_k3","image_placeholder":"x","vision_config":{"patch_size":14},
 "text_config":{"hidden_size":64,"num_hidden_layers":5,"linear_attn_config":{"num_heads":3,"full_attn_layers":[4,5],
 "kda_layers":[1,2,3]}}})";

json edited(const std::vector<std::string>& assignments) {
  const auto out = edit_config(kNested, assignments);
  EXPECT_TRUE(out.ok());
  return json::parse(*out);
}

TEST(ConfigEdit, FindsFieldsByNameAndPath) {
  const json j = edited({"hidden_size=96", "num_heads=2", "linear_attn_config.head_dim=32", "text_config.hidden_act=situ",
                         "vision_config.patch_size=16", "text_config.new_field=[1,2]", "gate_lower_bound=-3"});
  EXPECT_EQ(j["text_config"]["hidden_size"], 96);
  EXPECT_EQ(j["text_config"]["linear_attn_config"]["num_heads"], 2);
  EXPECT_EQ(j["text_config"]["linear_attn_config"]["head_dim"], 32);
  EXPECT_EQ(j["text_config"]["hidden_act"], "situ");
  EXPECT_EQ(j["vision_config"]["patch_size"], 16);
  EXPECT_EQ(j["text_config"]["linear_attn_config"]["gate_lower_bound"], -3);
  EXPECT_EQ(j["text_config"]["new_field"], json::parse("[1,2]"));
}

TEST(ConfigEdit, ChangesItemsOfListsByTheirNumber) {
  const json j = edited({"text_config.linear_attn_config.kda_layers.1=9"});
  EXPECT_EQ(j["text_config"]["linear_attn_config"]["kda_layers"], json::parse("[1,9,3]"));
  constexpr const char* kPhases = R"({"phases":[{"steps":3},{"steps":4}]})";
  EXPECT_EQ(json::parse(edit_config(kPhases, std::vector<std::string>{"phases.1.steps=7"}).value())["phases"][1]["steps"], 7);
  for (const std::string bad : {"phases.2.steps=1", "phases.x=1", "phases.-1=1", "phases..steps=1", "phases.0x.steps=1"}) {
    const auto out = edit_config(kPhases, std::vector<std::string>{bad});
    ASSERT_FALSE(out.ok()) << bad;
    EXPECT_NE(out.error().message.find("none of the 2 items"), std::string::npos) << out.error().message;
  }
}

TEST(ConfigEdit, AddsTheNamesThatAreGiven) {
  constexpr std::string_view kMay[] = {"start"};
  const json j = json::parse(edit_config(kNested, std::vector<std::string>{"start=a/b"}, kMay).value());
  EXPECT_EQ(j["start"], "a/b");
  EXPECT_FALSE(edit_config(kNested, std::vector<std::string>{"strat=a/b"}, kMay).ok());
}

TEST(ConfigEdit, ChangesAFieldWhereverItStands) {
  constexpr const char* kTwice = R"({"bos_token_id":7,"text_config":{"bos_token_id":7}})";
  const json j = json::parse(edit_config(kTwice, std::vector<std::string>{"bos_token_id=1"}).value());
  EXPECT_EQ(j["bos_token_id"], 1);
  EXPECT_EQ(j["text_config"]["bos_token_id"], 1);
}

TEST(ConfigEdit, RefusesAMistypedName) {
  const auto out = edit_config(kNested, std::vector<std::string>{"hiden_size=96"});
  ASSERT_FALSE(out.ok());
  EXPECT_NE(out.error().message.find("'hiden_size'"), std::string::npos);
}

TEST(ConfigEdit, LoweringLayersTrimsBothLists) {
  const json j = edited({"num_hidden_layers=2"});
  EXPECT_EQ(j["text_config"]["linear_attn_config"]["full_attn_layers"], json::array());
  EXPECT_EQ(j["text_config"]["linear_attn_config"]["kda_layers"], json::parse("[1,2]"));
}

TEST(ConfigEdit, RefusesWhatIsNotAnAssignment) {
  for (const std::string bad : {"hidden_size", "=3", "text_config.hidden_size.x=1", "a..b=1"}) {
    const auto out = edit_config(kNested, std::vector<std::string>{bad});
    ASSERT_FALSE(out.ok()) << bad;
    EXPECT_EQ(out.error().code, Code::invalid_argument);
  }
  EXPECT_EQ(edit_config("[1]", {}).error().code, Code::corrupt);
}

TEST(ConfigEdit, TheDtypeUnderWhicheverName) {
  EXPECT_EQ(json::parse(set_dtype(kNested, "float32").value())["text_config"]["dtype"], "float32");
  const json both = json::parse(set_dtype(R"({"dtype":"a","text_config":{"dtype":"a","torch_dtype":"b"}})", "float16").value());
  EXPECT_EQ(both, json::parse(R"({"dtype":"float16","text_config":{"dtype":"float16","torch_dtype":"float16"}})"));
  EXPECT_EQ(json::parse(set_dtype(R"({"torch_dtype":"b"})", "c").value()), json::parse(R"({"torch_dtype":"c"})"));
}

// What writes a config goes down its levels by recursion: no depth that is given may end the program.
TEST(ConfigEdit, NothingIsNestedDeeply) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(edited({"text_config.new_field=" + deep})["text_config"]["new_field"], deep) << "a text";
  EXPECT_EQ(edit_config("{\"a\": " + deep + "}", std::vector<std::string>{"a=1"}).error().code, Code::corrupt);
  EXPECT_EQ(remove_vision("{\"a\": " + deep + "}").error().code, Code::corrupt);
  std::string path = "text_config";
  for (int level = 0; level < 100'000; ++level) path += ".a";
  EXPECT_EQ(edit_config(kNested, std::vector<std::string>{path + "=1"}).error().code, Code::invalid_argument);
  EXPECT_EQ(edited({"text_config.new_field=[[[1]]]"})["text_config"]["new_field"], json::parse("[[[1]]]"));
}

TEST(ConfigEdit, VisionAndPacking) {
  const json plain = json::parse(remove_vision(kNested).value());
  EXPECT_FALSE(plain.contains("vision_config"));
  const std::string packed = set_expert_packing(kNested, true).value();
  EXPECT_EQ(json::parse(packed)["text_config"]["quantization_config"]["format"], "mxfp4-pack-quantized");
  EXPECT_FALSE(json::parse(set_expert_packing(packed, false).value())["text_config"].contains("quantization_config"));
}

}  // namespace
}  // namespace k3
