#include "k3/format/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "k3/base/file.h"

namespace k3 {
namespace {

using nlohmann::json;

const std::string kData = K3_SOURCE_DIR "/tests/data/";

std::vector<int64_t> mla_layers(const Config& config) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    if (!config.is_kda(i)) layers.push_back(i + 1);
  }
  return layers;
}

TEST(Config, ReadsEveryFieldOfK3) {
  const auto result = load_config(kData + "configs/k3.json");
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Config& c = *result;
  EXPECT_EQ(c.model_type, "kimi_k3");
  EXPECT_EQ(c.architecture, "KimiK3ForConditionalGeneration");
  EXPECT_TRUE(c.nested);
  EXPECT_EQ(c.vocab_size, 163840);
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.num_hidden_layers, 93);
  EXPECT_EQ(c.num_attention_heads, 96);
  EXPECT_EQ(c.intermediate_size, 33792);
  EXPECT_EQ(c.hidden_act, Activation::situ);
  EXPECT_EQ(c.activation_situ_beta, 4.0);
  EXPECT_EQ(c.activation_situ_linear_beta, 25.0);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.latent_norm_eps, 1e-6);
  EXPECT_EQ(c.q_lora_rank, 1536);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.qk_nope_head_dim, 128);
  EXPECT_EQ(c.qk_rope_head_dim, 64);
  EXPECT_EQ(c.v_head_dim, 128);
  EXPECT_EQ(c.mla_use_output_gate, true);
  EXPECT_EQ(c.first_k_dense_replace, 1);
  EXPECT_EQ(c.moe_layer_freq, 1);
  EXPECT_EQ(c.num_experts, 896);
  EXPECT_EQ(c.num_experts_per_token, 16);
  EXPECT_EQ(c.num_shared_experts, 2);
  EXPECT_EQ(c.moe_intermediate_size, 3072);
  EXPECT_EQ(c.routed_expert_hidden_size, 3584);
  EXPECT_EQ(c.expert_width(), 3584);
  EXPECT_EQ(c.latent_moe_use_norm, true);
  EXPECT_TRUE(c.moe_renormalize);
  EXPECT_EQ(c.routed_scaling_factor, 1.0);
  EXPECT_EQ(c.attn_res_block_size, 12);
  EXPECT_EQ(c.kda_num_heads, 96);
  EXPECT_EQ(c.kda_head_dim, 128);
  EXPECT_EQ(c.kda_width(), 12288);
  EXPECT_EQ(c.short_conv_kernel_size, 4);
  EXPECT_TRUE(c.use_full_rank_gate);
  EXPECT_EQ(c.gate_lower_bound, -5.0);
  EXPECT_TRUE(c.experts_mxfp4);
  EXPECT_EQ(c.initializer_range, 0.02);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  EXPECT_EQ(c.num_nextn_predict_layers, 0);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.bos_token_id, 163584);
  EXPECT_EQ(c.eos_token_id, 163586);
  EXPECT_EQ(c.pad_token_id, 163839);
  EXPECT_EQ(c.media_placeholder_token_id, 163605);
  // 4, 8, ..., 92 and 93: the last layer breaks the pattern (model.md 8, trap 5).
  std::vector<int64_t> mla;
  for (int64_t i = 4; i <= 92; i += 4) mla.push_back(i);
  mla.push_back(93);
  EXPECT_EQ(mla_layers(c), mla);
  EXPECT_FALSE(c.is_moe(0));
  EXPECT_TRUE(c.is_moe(1));
  EXPECT_TRUE(c.is_moe(92));
}

TEST(Config, ReadsTheVisionTowerOfK3) {
  const auto result = load_config(kData + "configs/k3.json");
  ASSERT_TRUE(result.ok()) << result.error().message;
  ASSERT_TRUE(result->vision.has_value());
  const VisionConfig& v = *result->vision;
  EXPECT_EQ(v.patch_size, 14);
  EXPECT_EQ(v.init_pos_emb_height, 64);
  EXPECT_EQ(v.init_pos_emb_width, 64);
  EXPECT_EQ(v.init_pos_emb_time, 4);
  EXPECT_EQ(v.hidden_size, 1024);
  EXPECT_EQ(v.intermediate_size, 4096);
  EXPECT_EQ(v.num_hidden_layers, 27);
  EXPECT_EQ(v.num_attention_heads, 12);
  EXPECT_EQ(v.qkv_hidden_size, 1536);
  EXPECT_EQ(v.merge_height, 2);
  EXPECT_EQ(v.merge_width, 2);
  EXPECT_EQ(v.mm_hidden_size, 1024);
  EXPECT_EQ(v.text_hidden_size, 7168);
  EXPECT_EQ(v.projector_ln_eps, 1e-5);
}

TEST(Config, ReadsEveryFieldOfKimiLinear) {
  const auto result = load_config(kData + "configs/kimi-linear-48b.json");
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Config& c = *result;
  EXPECT_EQ(c.model_type, "kimi_linear");
  EXPECT_EQ(c.architecture, "KimiLinearForCausalLM");
  EXPECT_FALSE(c.nested);
  EXPECT_EQ(c.vocab_size, 163840);
  EXPECT_EQ(c.hidden_size, 2304);
  EXPECT_EQ(c.num_hidden_layers, 27);
  EXPECT_EQ(c.num_attention_heads, 32);
  EXPECT_EQ(c.intermediate_size, 9216);
  EXPECT_EQ(c.hidden_act, Activation::silu);
  EXPECT_EQ(c.activation_situ_beta, 1.0);
  EXPECT_FALSE(c.activation_situ_linear_beta.has_value());
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_FALSE(c.q_lora_rank.has_value());
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.qk_nope_head_dim, 128);
  EXPECT_EQ(c.qk_rope_head_dim, 64);
  EXPECT_EQ(c.v_head_dim, 128);
  EXPECT_FALSE(c.mla_use_output_gate.has_value());
  EXPECT_EQ(c.first_k_dense_replace, 1);
  EXPECT_EQ(c.num_experts, 256);
  EXPECT_EQ(c.num_experts_per_token, 8);
  EXPECT_EQ(c.num_shared_experts, 1);
  EXPECT_EQ(c.moe_intermediate_size, 1024);
  EXPECT_FALSE(c.routed_expert_hidden_size.has_value());
  EXPECT_EQ(c.expert_width(), 2304);
  EXPECT_FALSE(c.latent_moe_use_norm.has_value());
  EXPECT_EQ(c.routed_scaling_factor, 2.446);
  EXPECT_FALSE(c.attn_res_block_size.has_value());
  EXPECT_EQ(c.kda_num_heads, 32);
  EXPECT_EQ(c.kda_head_dim, 128);
  EXPECT_FALSE(c.use_full_rank_gate);
  EXPECT_FALSE(c.gate_lower_bound.has_value());
  EXPECT_FALSE(c.experts_mxfp4);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  EXPECT_EQ(c.bos_token_id, 163584);
  EXPECT_EQ(c.eos_token_id, 163586);
  EXPECT_EQ(c.pad_token_id, 163839);
  EXPECT_FALSE(c.media_placeholder_token_id.has_value());
  EXPECT_FALSE(c.vision.has_value());
  EXPECT_EQ(mla_layers(c), (std::vector<int64_t>{4, 8, 12, 16, 20, 24, 27}));
}

TEST(Config, ReadsEveryModelOfTheRepository) {
  std::vector<std::string> folders = {K3_SOURCE_DIR "/models/k3-mini"};
  for (const auto& entry : std::filesystem::directory_iterator(kData + "oracle-models")) {
    if (entry.is_directory()) folders.push_back(entry.path().string());
  }
  ASSERT_EQ(folders.size(), 11u);
  for (const std::string& folder : folders) {
    const auto config = load_config(folder);
    ASSERT_TRUE(config.ok()) << config.error().message;
    // The file read a second way.
    const json raw = json::parse(*read_file(folder + "/config.json"));
    const json& text = raw.contains("text_config") ? raw["text_config"] : raw;
    EXPECT_EQ(config->nested, raw.contains("text_config")) << folder;
    EXPECT_EQ(config->hidden_size, text["hidden_size"]) << folder;
    EXPECT_EQ(config->q_lora_rank.has_value(), !text["q_lora_rank"].is_null()) << folder;
    EXPECT_EQ(config->attn_res_block_size.has_value(), text.contains("attn_res_block_size")) << folder;
    EXPECT_EQ(config->experts_mxfp4, text.contains("quantization_config")) << folder;
    EXPECT_EQ(mla_layers(*config), text["linear_attn_config"]["full_attn_layers"].get<std::vector<int64_t>>()) << folder;
  }
}

TEST(Config, MixturesAreReadByThePresenceOfEachField) {
  const auto a = load_config(kData + "oracle-models/mix-a");
  ASSERT_TRUE(a.ok()) << a.error().message;
  EXPECT_FALSE(a->nested);
  EXPECT_EQ(a->attn_res_block_size, 3);
  EXPECT_EQ(a->hidden_act, Activation::situ);
  EXPECT_FALSE(a->activation_situ_linear_beta.has_value());
  EXPECT_TRUE(a->use_full_rank_gate);
  EXPECT_FALSE(a->gate_lower_bound.has_value());
  EXPECT_EQ(a->routed_expert_hidden_size, 40);
  const auto b = load_config(kData + "oracle-models/mix-b");
  ASSERT_TRUE(b.ok()) << b.error().message;
  EXPECT_TRUE(b->nested);
  EXPECT_FALSE(b->attn_res_block_size.has_value());
  EXPECT_EQ(b->gate_lower_bound, -3.0);
  EXPECT_FALSE(b->moe_renormalize);
  EXPECT_EQ(b->num_shared_experts, 0);
}

json small(bool nested) {
  const std::string folder = nested ? "oracle-models/k3-a" : "oracle-models/kl-a";
  return json::parse(*read_file(kData + folder + "/config.json"));
}

TEST(Config, AcceptsWhatTheReleasedFilesVary) {
  json flat = small(false);
  flat["hidden_size"] = 72.0;                                  // integral, written as a fraction
  flat["eos_token_id"] = {1, 2};                               // several ids: the first
  flat["an_unknown_field"] = {{"nested", {1, nullptr, "x"}}};  // unknown
  flat["attn_res_block_size"] = nullptr;                       // null is absent
  flat["linear_attn_config"]["gate_lower_bound"] = nullptr;
  flat.erase("num_nextn_predict_layers");
  flat.erase("num_key_value_heads");
  const auto config = parse_config(flat.dump(), "test");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->hidden_size, 72);
  EXPECT_EQ(config->eos_token_id, 1);
  EXPECT_FALSE(config->attn_res_block_size.has_value());
  EXPECT_FALSE(config->gate_lower_bound.has_value());
}

TEST(Config, QuantizationIsFoundAtEitherLevel) {
  json nested = small(true);
  nested["quantization_config"] = nested["text_config"]["quantization_config"];
  nested["text_config"].erase("quantization_config");
  const auto top = parse_config(nested.dump(), "test");
  ASSERT_TRUE(top.ok()) << top.error().message;
  EXPECT_TRUE(top->experts_mxfp4);
  nested.erase("quantization_config");
  const auto none = parse_config(nested.dump(), "test");
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_FALSE(none->experts_mxfp4);
}

TEST(Config, ADenseModelNeedsNoExperts) {
  json flat = small(false);
  for (const char* field : {"num_experts", "num_experts_per_token", "moe_intermediate_size", "first_k_dense_replace"})
    flat.erase(field);
  const auto config = parse_config(flat.dump(), "test");
  ASSERT_TRUE(config.ok()) << config.error().message;
  for (int64_t i = 0; i < config->num_hidden_layers; ++i) EXPECT_FALSE(config->is_moe(i));
}

struct BadConfig {
  const char* what;
  bool nested;
  std::function<void(json&)> spoil;
  Code code;
  const char* field;  // both must stand in the message
  const char* fact;
};

void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.what; }

json& kda(json& j) { return j["linear_attn_config"]; }
json& text(json& j) { return j["text_config"]; }

const BadConfig kBadConfigs[] = {
    {"no vocab_size", false, [](json& j) { j.erase("vocab_size"); }, Code::not_found, "vocab_size", "missing"},
    {"null hidden_size", false, [](json& j) { j["hidden_size"] = nullptr; }, Code::not_found, "hidden_size", "missing"},
    {"no eps", false, [](json& j) { j.erase("rms_norm_eps"); }, Code::not_found, "rms_norm_eps", "missing"},
    {"hidden_size a string", false, [](json& j) { j["hidden_size"] = "72"; }, Code::corrupt, "hidden_size",
     "the string \"72\""},
    {"hidden_size a fraction", false, [](json& j) { j["hidden_size"] = 72.5; }, Code::corrupt, "hidden_size", "72.5"},
    {"hidden_size zero", true, [](json& j) { text(j)["hidden_size"] = 0; }, Code::corrupt, "text_config.hidden_size",
     "is 0"},
    {"negative width", false, [](json& j) { j["v_head_dim"] = -16; }, Code::corrupt, "v_head_dim", "is -16"},
    {"absurd width", false, [](json& j) { j["intermediate_size"] = 5000000000; }, Code::corrupt, "intermediate_size",
     "5000000000"},
    {"absurd number", false, [](json& j) { j["kv_lora_rank"] = 1e300; }, Code::corrupt, "kv_lora_rank", "1e+300"},
    {"eps zero", false, [](json& j) { j["rms_norm_eps"] = 0; }, Code::corrupt, "rms_norm_eps", "above zero"},
    {"activation", false, [](json& j) { j["hidden_act"] = "gelu"; }, Code::unsupported, "hidden_act", "gelu"},
    {"router", false, [](json& j) { j["moe_router_activation_func"] = "softmax"; }, Code::unsupported,
     "moe_router_activation_func", "softmax"},
    {"kv heads", false, [](json& j) { j["num_key_value_heads"] = 1; }, Code::unsupported, "num_key_value_heads",
     "num_attention_heads is 3"},
    {"expert groups", false, [](json& j) { j["num_expert_group"] = 8; }, Code::unsupported, "num_expert_group", "is 8"},
    {"topk group", false, [](json& j) { j["topk_group"] = 4; }, Code::unsupported, "topk_group", "is 4"},
    {"rotation", false, [](json& j) { j["mla_use_nope"] = false; }, Code::unsupported, "mla_use_nope", "false"},
    {"top-k over experts", false, [](json& j) { j["num_experts_per_token"] = 13; }, Code::corrupt, "num_experts_per_token",
     "num_experts is 12"},
    {"dense layers over layers", false, [](json& j) { j["first_k_dense_replace"] = 8; }, Code::corrupt,
     "first_k_dense_replace", "num_hidden_layers is 7"},
    {"no experts in an MoE", false, [](json& j) { j.erase("num_experts"); }, Code::not_found, "num_experts", "missing"},
    {"moe_layer_freq 0", false, [](json& j) { j["moe_layer_freq"] = 0; }, Code::corrupt, "moe_layer_freq", "is 0"},
    {"no layer lists", false, [](json& j) { j.erase("linear_attn_config"); }, Code::not_found, "linear_attn_config",
     "missing"},
    {"layer in both lists", false,
     [](json& j) {
       kda(j)["full_attn_layers"] = {3, 4, 7};
     },
     Code::corrupt, "linear_attn_config.full_attn_layers", "layer 3, which is already in kda_layers"},
    {"layer twice in a list", false, [](json& j) { kda(j)["kda_layers"] = {1, 2, 3, 5, 6, 6}; }, Code::corrupt,
     "linear_attn_config.kda_layers", "layer 6"},
    {"layer in no list", true,
     [](json& j) {
       kda(text(j))["kda_layers"] = {1, 3};
     },
     Code::corrupt, "text_config.linear_attn_config.kda_layers", "leave out layer 2"},
    {"layer beyond the count", false,
     [](json& j) {
       kda(j)["full_attn_layers"] = {4, 7, 8};
     },
     Code::corrupt, "linear_attn_config.full_attn_layers", "layer 8"},
    {"layer zero", false, [](json& j) { kda(j)["kda_layers"] = {0, 1, 2, 3, 5, 6}; }, Code::corrupt,
     "linear_attn_config.kda_layers", "layer 0"},
    {"layer a string", false, [](json& j) { kda(j)["kda_layers"][1] = "2"; }, Code::corrupt,
     "linear_attn_config.kda_layers[1]", "the string"},
    {"layers not an array", false, [](json& j) { kda(j)["kda_layers"] = 5; }, Code::corrupt, "linear_attn_config.kda_layers",
     "must be an array"},
    {"conv kernel", false, [](json& j) { kda(j)["short_conv_kernel_size"] = 1; }, Code::corrupt, "short_conv_kernel_size",
     "is 1"},
    {"gate bound too low", true, [](json& j) { kda(text(j))["gate_lower_bound"] = -5.5; }, Code::unsupported,
     "gate_lower_bound", "-5.5"},
    {"gate bound positive", true, [](json& j) { kda(text(j))["gate_lower_bound"] = 1; }, Code::unsupported,
     "gate_lower_bound", "below 0"},
    {"another quantization", true, [](json& j) { text(j)["quantization_config"]["format"] = "nvfp4-pack-quantized"; },
     Code::unsupported, "text_config.quantization_config.format", "nvfp4-pack-quantized"},
    {"quantization without format", false,
     [](json& j) {
       j["quantization_config"] = {{"quant_method", "fp8"}};
     },
     Code::unsupported, "quantization_config.format", "fp8"},
    {"group size", true,
     [](json& j) { text(j)["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 16; },
     Code::unsupported, "quantization_config.config_groups.group_0.weights.group_size", "is 16"},
    {"packed width", true, [](json& j) { text(j)["routed_expert_hidden_size"] = 40; }, Code::corrupt,
     "routed_expert_hidden_size", "multiple of 32"},
    {"packed intermediate", true, [](json& j) { text(j)["moe_intermediate_size"] = 33; }, Code::corrupt,
     "moe_intermediate_size", "multiple of 32"},
    {"token id over vocab", false, [](json& j) { j["eos_token_id"] = 200; }, Code::corrupt, "eos_token_id",
     "vocab_size is 200"},
    {"tie contradiction", true, [](json& j) { j["tie_word_embeddings"] = true; }, Code::corrupt,
     "text_config.tie_word_embeddings", "top level says true"},
    {"vision width", true,
     [](json& j) {
       j["vision_config"] = {{"text_hidden_size", 7168}};
     },
     Code::corrupt, "vision_config.text_hidden_size", "hidden_size is 64"},
    {"vision merge", true,
     [](json& j) {
       j["vision_config"] = {{"merge_kernel_size", {2}}};
     },
     Code::corrupt, "vision_config.merge_kernel_size", "two"},
    {"vision norm", true,
     [](json& j) {
       j["vision_config"] = {{"norm_type", "layernorm"}};
     },
     Code::unsupported, "vision_config.norm_type", "layernorm"},
    {"text_config a list", true, [](json& j) { j["text_config"] = json::array(); }, Code::corrupt, "text_config",
     "an object"},
};

class MalformedConfig : public testing::TestWithParam<BadConfig> {};

TEST_P(MalformedConfig, IsRefusedByName) {
  const BadConfig& bad = GetParam();
  json config = small(bad.nested);
  bad.spoil(config);
  const auto result = parse_config(config.dump(), "some/config.json");
  ASSERT_FALSE(result.ok());
  const Error& error = result.error();
  EXPECT_EQ(error.code, bad.code) << error.message;
  EXPECT_EQ(error.message.find("some/config.json: "), 0u) << error.message;
  EXPECT_NE(error.message.find(bad.field), std::string::npos) << error.message;
  EXPECT_NE(error.message.find(bad.fact), std::string::npos) << error.message;
}

INSTANTIATE_TEST_SUITE_P(All, MalformedConfig, testing::ValuesIn(kBadConfigs));

void expect_text_refused(const std::string& text, const char* fact) {
  const auto result = parse_config(text, "some/config.json");
  ASSERT_FALSE(result.ok()) << text.substr(0, 80);
  EXPECT_EQ(result.error().code, Code::corrupt);
  EXPECT_EQ(result.error().message.find("some/config.json: "), 0u);
  EXPECT_NE(result.error().message.find(fact), std::string::npos) << result.error().message;
}

TEST(Config, RefusesWhatIsNotStrictJson) {
  expect_text_refused("", "not valid JSON");
  expect_text_refused("{\"hidden_size\": 5,}", "line 1, column");
  expect_text_refused("[1, 2]", "must be a JSON object");
  expect_text_refused("{\"a\": NaN}", "not valid JSON");
  expect_text_refused("{\"a\": 1e999}", "not valid JSON");
  expect_text_refused("{\"a\": \"\xff\"}", "not valid JSON");
  expect_text_refused("{\"a\": {\"b\": 1, \"b\": 2}}", "a.b appears twice");
  expect_text_refused(std::string(100, '[') + std::string(100, ']'), "levels deep");
  expect_text_refused(std::string((16u << 20) + 1, ' '), "16 MiB");
}

TEST(Config, MissingFilesAreNamed) {
  const auto none = load_config("/nonexistent/model");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::not_found);
  EXPECT_NE(none.error().message.find("/nonexistent/model"), std::string::npos);
  const auto folder = load_config(K3_SOURCE_DIR "/tests");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().code, Code::not_found);
  EXPECT_NE(folder.error().message.find("config.json"), std::string::npos);
  const auto weights = load_config(kData + "oracle-models/k3-a/model-00001-of-000001.safetensors");
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace k3
