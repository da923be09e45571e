// Damaged model folders: every command that opens one says which file and what is wrong with it, with the documented exit
// code, and never crashes or goes on with half a model.
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The file that is damaged: one with an expert and an attention layer in it.
const std::string kShardName = mini_shard_of("language_model.model.layers.2.block_sparse_moe.experts.0.w1.weight_packed");
const std::string kShard = "/" + kShardName;

uint64_t header_bytes_of(const std::string& shard) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, shard.data(), sizeof(bytes));
  return bytes;
}

std::string with_header(const std::string& shard, const std::function<void(json&)>& edit) {
  const uint64_t size = header_bytes_of(shard);
  json header = json::parse(shard.substr(8, size));
  edit(header);
  std::string text = header.dump();
  const uint64_t length = text.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));
  return prefix + text + shard.substr(8 + size);
}

// The first tensor of the header whose name contains `part`.
json& tensor_of(json& header, const std::string& part) {
  for (auto& [name, tensor] : header.items()) {
    if (name.find(part) != std::string::npos) return tensor;
  }
  throw std::runtime_error("no tensor " + part);
}

struct Fault {
  const char* name;
  std::function<void(const std::string& model)> damage;
  int code;
  std::vector<std::string> says;  // in the message
};

// Damages one shard by a function of its bytes.
std::function<void(const std::string&)> shard(std::function<std::string(std::string)> edit) {
  return
      [edit = std::move(edit)](const std::string& model) { replace_file(model + kShard, edit(file_text(model + kShard))); };
}

std::function<void(const std::string&)> file(const char* name, std::string text) {
  return [name, text = std::move(text)](const std::string& model) { replace_file(model + "/" + name, text); };
}

std::function<void(const std::string&)> removed(const char* name) {
  return [name](const std::string& model) { fs::remove(model + "/" + name); };
}

// A file that cannot be read as one. Permissions would not stop the super-user.
std::function<void(const std::string&)> folder_instead(const char* name) {
  return [name](const std::string& model) {
    fs::remove(model + "/" + name);
    fs::create_directory(model + "/" + name);
  };
}

std::function<void(const std::string&)> config(std::function<void(json&)> edit) {
  return [edit = std::move(edit)](const std::string& model) {
    json root = json::parse(file_text(model + "/config.json"));
    edit(root);
    replace_file(model + "/config.json", root.dump());
  };
}

const std::string kIndexName = "model.safetensors.index.json";

std::vector<Fault> weight_faults() {
  return {
      {"shard of no bytes", shard([](std::string) { return std::string(); }), 4, {kShardName}},
      {"cut in the length", shard([](std::string s) { return s.substr(0, 5); }), 4, {kShardName}},
      {"cut after the length", shard([](std::string s) { return s.substr(0, 8); }), 4, {kShardName, "header"}},
      {"cut in the header", shard([](std::string s) { return s.substr(0, 300); }), 4, {kShardName, "header"}},
      {"cut at the data",
       shard([](std::string s) { return s.substr(0, 8 + header_bytes_of(s)); }),
       4,
       {kShardName, "tensor"}},
      {"cut in the middle of the data",
       shard([](std::string s) { return s.substr(0, s.size() / 2); }),
       4,
       {kShardName, "tensor"}},
      {"last byte cut", shard([](std::string s) { return s.substr(0, s.size() - 1); }), 4, {kShardName, "tensor"}},
      {"header length of 2^63",
       shard([](std::string s) { return s.replace(0, 8, std::string("\0\0\0\0\0\0\0\x80", 8)); }),
       4,
       {kShardName, "header"}},
      {"header of zero bytes",
       shard([](std::string s) { return std::string(8, '\0') + s.substr(8); }),
       4,
       {kShardName, "header"}},
      {"header that is no JSON", shard([](std::string s) { return s.replace(8, 1, "x"); }), 4, {kShardName}},
      {"header with bad UTF-8",
       shard([](std::string s) { return s.replace(s.find("language_model", 8), 2, "\xff\xfe"); }),
       4,
       {kShardName, "UTF-8"}},
      {"offset past the end",
       shard([](const std::string& s) {
         return with_header(
             s, [](json& h) { tensor_of(h, "experts.0.w1.weight_packed")["data_offsets"][1] = 1'000'000'000'000; });
       }),
       4,
       {kShardName, "experts.0.w1.weight_packed"}},
      {"overlapping tensors",
       shard([](const std::string& s) {
         return with_header(s, [](json& h) {
           tensor_of(h, "experts.0.w1.weight_packed")["data_offsets"] =
               tensor_of(h, "experts.0.w3.weight_packed")["data_offsets"];
         });
       }),
       4,
       {kShardName}},
      {"shape against size",
       shard([](const std::string& s) {
         return with_header(s, [](json& h) { tensor_of(h, "experts.0.w1.weight_packed")["shape"][0] = 7; });
       }),
       4,
       {kShardName, "experts.0.w1.weight_packed"}},
      {"unknown dtype",
       shard([](const std::string& s) {
         return with_header(s, [](json& h) { tensor_of(h, "self_attn.q_proj.weight")["dtype"] = "Q9"; });
       }),
       5,
       {kShardName, "Q9"}},
      {"tensor that the shard lacks",
       shard([](const std::string& s) {
         return with_header(s, [](json& h) {
           for (auto it = h.begin(); it != h.end(); ++it) {
             if (it.key().find("experts.0.w1.weight_scale") != std::string::npos) {
               const json tensor = *it;
               h.erase(it);
               h["something.else"] = tensor;
               return;
             }
           }
         });
       }),
       4,
       {"experts.0.w1.weight_scale", kShardName}},
      {"scale byte of 255",
       shard([](std::string s) {
         const json header = json::parse(s.substr(8, header_bytes_of(s)));
         for (const auto& [name, tensor] : header.items()) {
           if (name.find("experts.0.w1.weight_scale") == std::string::npos) continue;
           s[8 + header_bytes_of(s) + tensor["data_offsets"][0].get<size_t>() + 3] = '\xff';
           return s;
         }
         return s;
       }),
       4,
       {"experts.0.w1.weight_scale", "255"}},
      {"shard missing", removed(kShardName.c_str()), 3, {kShardName, "1 of " + std::to_string(mini_shards().size())}},
      {"shard is a folder", folder_instead(kShardName.c_str()), 2, {kShardName, "not a regular file"}},
      {"shard is a dangling link",
       [](const std::string& model) {
         fs::remove(model + kShard);
         fs::create_symlink("gone", model + kShard);
       },
       3,
       {kShardName}},
      {"shard is a Git LFS pointer",
       file(kShardName.c_str(), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
       5,
       {kShardName, "git lfs pull"}},
      {"shard is a web page",
       file(kShardName.c_str(), "<html><body>404 not found</body></html>\n"),
       5,
       {kShardName, "web page"}},
      {"shard is a GGUF file", file(kShardName.c_str(), "GGUF\x03" + std::string(200, '\0')), 5, {kShardName, "GGUF"}},
      {"shard is a PyTorch file",
       file(kShardName.c_str(), "PK\x03\x04" + std::string(200, '\0')),
       5,
       {kShardName, "PyTorch"}},
      {"index of no bytes", file(kIndexName.c_str(), ""), 4, {kIndexName}},
      {"index cut short", file(kIndexName.c_str(), R"({"weight_map": {"a": "model-0)"), 4, {kIndexName}},
      {"index without a map", file(kIndexName.c_str(), R"({"metadata": {}})"), 4, {kIndexName, "weight_map"}},
      {"index that points outside",
       file(kIndexName.c_str(), R"({"weight_map": {"a": "../../etc/passwd"}})"),
       4,
       {kIndexName, "passwd"}},
      {"index of another model",
       file(kIndexName.c_str(), json{{"weight_map", {{"a", kShardName}}}}.dump()),
       3,
       {kIndexName, "tensor"}},
      {"index missing", removed(kIndexName.c_str()), 3, {std::to_string(mini_shards().size()) + " safetensors files", kIndexName}},
      {"index is a folder", folder_instead(kIndexName.c_str()), 2, {kIndexName}},
  };
}

std::vector<Fault> config_faults() {
  const json text = json::parse(file_text(kMini + "/config.json")).at("text_config");
  const int64_t hidden = text.at("hidden_size"), layers = text.at("num_hidden_layers"), experts = text.at("num_experts");
  return {
      {"config missing", removed("config.json"), 3, {"config.json"}},
      {"config of no bytes", file("config.json", ""), 4, {"config.json"}},
      {"config is a folder", folder_instead("config.json"), 2, {"config.json"}},
      {"config cut short", file("config.json", R"({"text_config": {"hidden)"), 4, {"config.json"}},
      {"config is a list", file("config.json", "[]"), 4, {"config.json", "object"}},
      {"config that nests too deeply", file("config.json", std::string(100'000, '[')), 4, {"config.json"}},
      {"hidden_size missing",
       config([](json& c) { c["text_config"].erase("hidden_size"); }),
       3,
       {"config.json", "hidden_size"}},
      {"hidden_size is text",
       config([](json& c) { c["text_config"]["hidden_size"] = "wide"; }),
       4,
       {"config.json", "hidden_size"}},
      {"hidden_size differs from the weights",
       config([](json& c) { c["text_config"]["hidden_size"] = 512; }),
       4,
       {"tensor", std::to_string(hidden)}},
      {"layer in both lists",
       config([](json& c) {
         json& lists = c["text_config"]["linear_attn_config"];
         lists["kda_layers"].push_back(lists["full_attn_layers"][0]);
       }),
       4,
       {"config.json", "layer"}},
      {"layer in no list",
       config([](json& c) {
         json& kda = c["text_config"]["linear_attn_config"]["kda_layers"];
         kda.erase(kda.size() - 1);
       }),
       4,
       {"config.json", "layer"}},
      {"a layer more than the weights have",
       config([layers](json& c) {
         c["text_config"]["num_hidden_layers"] = layers + 1;
         c["text_config"]["linear_attn_config"]["kda_layers"].push_back(layers + 1);
       }),
       3,
       {"layers." + std::to_string(layers) + "."}},
      {"more experts than the weights have", config([experts](json& c) { c["text_config"]["num_experts"] = 2 * experts; }), 4, {"tensor"}},
      {"top-k over experts",
       config([experts](json& c) { c["text_config"]["num_experts_per_token"] = experts + 1; }),
       4,
       {"config.json", "num_experts_per_token"}},
  };
}

// Replaces one line (from zero) of the tokenizer file.
std::function<void(const std::string&)> tokenizer_line(int number, std::string line) {
  return [number, line = std::move(line)](const std::string& model) {
    std::string text = file_text(model + "/tiktoken.model");
    size_t begin = 0;
    for (int i = 0; i < number; ++i) begin = text.find('\n', begin) + 1;
    replace_file(model + "/tiktoken.model", text.replace(begin, text.find('\n', begin) - begin, line));
  };
}

std::vector<Fault> text_faults() {
  return {
      {"tokenizer missing", removed("tiktoken.model"), 3, {"tiktoken.model"}},
      {"tokenizer of no bytes", file("tiktoken.model", ""), 4, {"tiktoken.model"}},
      {"tokenizer is a folder", folder_instead("tiktoken.model"), 2, {"tiktoken.model"}},
      {"tokenizer with a line that is no base64", tokenizer_line(5, "!!!! 5"), 4, {"tiktoken.model", "6"}},
      {"tokenizer with a rank twice", tokenizer_line(5, "BQ== 4"), 4, {"tiktoken.model", "rank"}},
      {"tokenizer with a rank that is no number", tokenizer_line(5, "BQ== five"), 4, {"tiktoken.model"}},
      {"tokenizer cut in a line",
       [](const std::string& model) {
         const std::string text = file_text(model + "/tiktoken.model");
         replace_file(model + "/tiktoken.model", text.substr(0, text.size() / 2 - 3));
       },
       4,
       {"tiktoken.model"}},
      {"tokenizer config broken", file("tokenizer_config.json", "{"), 4, {"tokenizer_config.json"}},
      {"tokenizer config is a list", file("tokenizer_config.json", "[1]"), 4, {"tokenizer_config.json"}},
  };
}

std::vector<Fault> chat_faults() {
  return {
      {"chat format broken", file("chat_format.json", "{"), 4, {"chat_format.json"}},
      {"chat format of another kind",
       file("chat_format.json", R"({"format": "smoke signals"})"),
       4,
       {"chat_format.json", "smoke"}},
      {"chat format is a list", file("chat_format.json", "[]"), 4, {"chat_format.json"}},
      {"chat format with a number for a sentence",
       file("chat_format.json", R"({"format": "xtml", "constants": {"effort_before": 3}})"),
       4,
       {"chat_format.json", "effort_before"}},
      {"chat format is a folder", folder_instead("chat_format.json"), 2, {"chat_format.json"}},
      {"generation config broken", file("generation_config.json", "{"), 4, {"generation_config.json"}},
      {"generation config with a wrong type",
       file("generation_config.json", R"({"temperature": "hot"})"),
       4,
       {"generation_config.json", "temperature"}},
      {"generation config with an impossible value",
       file("generation_config.json", R"({"top_p": -3})"),
       4,
       {"generation_config.json", "top_p"}},
  };
}

void expect_refusal(const Fault& fault, const Outcome& o, const char* command) {
  const std::string where =
      std::string(fault.name) + ", " + command + ": exit code " + std::to_string(o.code) + "\n" + o.err;
  EXPECT_EQ(o.signal, 0) << where;
  EXPECT_FALSE(o.timed_out) << where;
  EXPECT_EQ(o.code, fault.code) << where;
  EXPECT_EQ(o.out, "") << where;
  EXPECT_EQ(o.err.rfind("k3: error: ", 0), 0u) << where;
  EXPECT_EQ(count_of(o.err, "\n"), 1u) << where;
  EXPECT_LT(o.err.size(), 2000u) << where;
  for (const std::string& part : fault.says) EXPECT_THAT(o.err, HasSubstr(part)) << where;
}

void expect_all_refused(const std::vector<Fault>& faults,
                        const std::function<std::vector<std::string>(const Scratch&, const std::string&)>& command) {
  for (const Fault& fault : faults) {
    const Scratch scratch;
    const std::string model = scratch.linked_mini();
    fault.damage(model);
    const std::vector<std::string> arguments = command(scratch, model);
    expect_refusal(fault, k3(arguments), arguments.front().c_str());
    // Nothing that looks like a result was left behind.
    EXPECT_FALSE(fs::exists(scratch.path("out.npy"))) << fault.name;
    EXPECT_FALSE(fs::exists(scratch.path("out/config.json"))) << fault.name;
  }
}

std::vector<std::string> logits(const Scratch& scratch, const std::string& model) {
  return {"logits", model, "--ids", "1,2", "--out", scratch.path("out.npy")};
}
std::vector<std::string> run(const Scratch&, const std::string& model) { return {"run", model, "-p", "hi", "-n", "1"}; }

TEST(Fault, DamagedWeightsStopLogits) { expect_all_refused(weight_faults(), logits); }
TEST(Fault, DamagedWeightsStopRun) { expect_all_refused(weight_faults(), run); }
TEST(Fault, DamagedConfigsStopLogits) { expect_all_refused(config_faults(), logits); }
TEST(Fault, DamagedTokenizersStopTokenize) {
  expect_all_refused(text_faults(), [](const Scratch&, const std::string& model) {
    return std::vector<std::string>{"tokenize", model, "hello"};
  });
}
TEST(Fault, DamagedTokenizersStopRun) { expect_all_refused(text_faults(), run); }
TEST(Fault, DamagedChatFilesStopRun) { expect_all_refused(chat_faults(), run); }

TEST(Fault, ConvertNeverMakesAWholeModelOfADamagedOne) {
  for (const Fault& fault : weight_faults()) {
    if (std::string(fault.name) == "scale byte of 255" || std::string(fault.name) == "index of another model")
      continue;  // bytes pass through
    const Scratch scratch;
    const std::string model = scratch.linked_mini();
    fault.damage(model);
    const Outcome o = k3({"convert", model, scratch.path("out"), "--shards", "2"});
    EXPECT_EQ(o.signal, 0) << fault.name;
    EXPECT_NE(o.code, 0) << fault.name;
    EXPECT_FALSE(fs::exists(scratch.path("out/config.json"))) << fault.name;
  }
}

// A tokenizer or chat file is no concern of a command that does not read it.
TEST(Fault, CommandsOpenOnlyWhatTheyNeed) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  for (const char* name : {"tiktoken.model", "tokenizer_config.json", "chat_format.json", "generation_config.json"}) {
    fs::remove(model + "/" + name);
  }
  EXPECT_EQ(k3({"inspect", model}).code, 0);
  EXPECT_EQ(k3(logits(scratch, model)).code, 0);
  EXPECT_EQ(k3({"bench", model, "--prefill", "4", "--decode", "1", "-r", "1"}).code, 0);
  const std::string words = scratch.linked_mini("words");
  fs::remove(words + kShard);
  EXPECT_EQ(k3({"tokenize", words, "a"}).code, 0);
  EXPECT_EQ(k3({"render", words, "-"}, R"({"messages": [{"role": "user", "content": "x"}]})").code, 0);
}

TEST(Fault, AMissingSentenceStopsOnlyTheRequestThatNeedsIt) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  replace_file(model + "/chat_format.json", R"({"format": "xtml", "constants": {}, "thinking_default": "disabled"})");
  EXPECT_EQ(k3({"run", model, "-p", kFrance, "--temperature", "0"}).out, france_line());
  const Outcome o = k3({"run", model, "-p", kFrance, "--effort", "low"});
  EXPECT_EQ(o.code, 3) << o.err;
  EXPECT_THAT(o.err, HasSubstr("effort_before"));
}

// The file shrinks while it is being read: an error, not a signal (reads, not mappings).
TEST(Fault, AShardCutWhileTheModelRuns) {
  const Scratch scratch;
  const std::string model = scratch.linked_mini();
  const std::string bytes = file_text(model + kShard);
  for (const int delay_ms : {0, 5, 10, 20, 40}) {
    replace_file(model + kShard, bytes);
    Process process(k3_spawn({"run", model, "-p", kFrance, "--temperature", "0"}));
    process.close_stdin();
    process.pause(delay_ms / 1000.0);
    fs::resize_file(model + kShard, bytes.size() / 3);
    const Outcome o = process.finish();
    EXPECT_EQ(o.signal, 0) << delay_ms;
    EXPECT_THAT(o.code, testing::AnyOf(0, 4)) << o.err;  // 0: it was loaded before
    if (o.code == 4) {
      EXPECT_THAT(o.err, HasSubstr(kShardName));
    }
  }
}

}  // namespace
}  // namespace k3::e2e
