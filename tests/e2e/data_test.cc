// k3 train-tokenizer and k3 prepare on the demo texts of the repository, and what they say when something is wrong.
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using Json = nlohmann::json;

std::string demo(const std::string& name) { return source_path("data/demo/" + name); }

class DataCommandsTest : public ::testing::Test {
 protected:
  static constexpr const char* kFiles[] = {"little-stories.txt.zst", "storybooks.txt.zst", "talk.jsonl.zst"};

  std::vector<std::string> with_demo(std::vector<std::string> arguments) const {
    for (const char* name : kFiles) arguments.push_back(demo(name));
    return arguments;
  }
  std::string tokenizer() const {
    const std::string folder = scratch_.path("tokenizer");
    if (!fs::exists(folder)) k3_ok(with_demo({"train-tokenizer", "--vocab", "2048", "--out", folder}));
    return folder;
  }

  Scratch scratch_;
};

TEST_F(DataCommandsTest, FromTextToShards) {
  const Json learned = Json::parse(
      k3_ok(with_demo({"train-tokenizer", "--vocab", "3072", "--out", scratch_.path("t"), "--json"})));
  EXPECT_EQ(learned["ranks"], 3072 - 256);
  EXPECT_GT(learned["bytes_per_token"].get<double>(), 3.5);
  const std::string text = "Once upon a time there was a little cat.";
  const Json pieces = Json::parse(k3_ok({"tokenize", scratch_.path("t"), text, "--json"}));
  EXPECT_LE(pieces["count"], 10);  // plain words are one token each
  EXPECT_EQ(k3_ok({"detokenize", scratch_.path("t"), join_ids(pieces["ids"].get<std::vector<int32_t>>())}), text);

  const Json manifest = Json::parse(k3_ok(
      with_demo({"prepare", "--tokenizer", scratch_.path("t"), "--out", scratch_.path("d"), "--holdout", "0.02", "--json"})));
  EXPECT_EQ(manifest, Json::parse(file_text(scratch_.path("d") + "/manifest.json")));
  EXPECT_EQ(manifest["vocab"], 3072);
  EXPECT_EQ(manifest["bos"], 3072 - 256);
  ASSERT_EQ(manifest["sources"].size(), 6U);
  for (const Json& source : manifest["sources"]) {
    EXPECT_GT(source["documents"], 0) << source;
    for (const Json& shard : source["shards"]) {
      EXPECT_EQ(fs::file_size(scratch_.path("d") + "/" + shard["file"].get<std::string>()), shard["bytes"].get<uint64_t>());
    }
  }
  // The folder is a tokenizer folder, too: nothing else is needed to train.
  EXPECT_EQ(k3_ok({"tokenize", scratch_.path("d"), text}), k3_ok({"tokenize", scratch_.path("t"), text}));
}

TEST_F(DataCommandsTest, TheSameWhateverTheThreads) {
  k3_ok(with_demo({"train-tokenizer", "--vocab", "2048", "--out", scratch_.path("one"), "-t", "1"}));
  k3_ok(with_demo({"train-tokenizer", "--vocab", "2048", "--out", scratch_.path("three"), "-t", "3"}));
  EXPECT_EQ(file_text(scratch_.path("one/tiktoken.model")), file_text(scratch_.path("three/tiktoken.model")));
  for (const char* threads : {"1", "3"}) {
    k3_ok(with_demo({"prepare", "--tokenizer", scratch_.path("one"), "--out", scratch_.path(std::string("d") + threads), "-t", threads}));
  }
  EXPECT_EQ(file_text(scratch_.path("d1/manifest.json")), file_text(scratch_.path("d3/manifest.json")));
}

TEST_F(DataCommandsTest, TheHeldOutTextIsNotTrainedOn) {
  put_file(scratch_.path("a.txt"), "One story.\n<|endoftext|>\nAnother story.\n<|endoftext|>\nOne story.\n");
  put_file(scratch_.path("v.txt"), "Another story.\n");
  const std::string out = k3_ok({"prepare", "--tokenizer", tokenizer(), "--out", scratch_.path("d"), scratch_.path("a.txt"), "--valid",
                                 scratch_.path("v.txt")});
  EXPECT_THAT(out, ::testing::HasSubstr("duplicates"));
  const Json sources = Json::parse(file_text(scratch_.path("d/manifest.json")))["sources"];
  EXPECT_EQ(sources[0]["name"], "v");
  EXPECT_EQ(sources[1]["documents"], 1);
  EXPECT_EQ(sources[1]["duplicates"], 2);
}

TEST_F(DataCommandsTest, WrongInputIsNamed) {
  using ::testing::HasSubstr;
  const std::string out = scratch_.path("out"), model = tokenizer();
  const auto refused = [&](const std::string& file, int code) {
    const Outcome outcome = k3({"prepare", "--tokenizer", model, "--out", out, file});
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_FALSE(fs::exists(out + "/manifest.json"));
    return outcome.err;
  };
  const std::string packed = file_text(demo("storybooks.txt.zst"));
  put_file(scratch_.path("cut.txt.zst"), packed.substr(0, packed.size() / 2));
  EXPECT_THAT(refused(scratch_.path("cut.txt.zst"), 4), HasSubstr("cut.txt.zst: the zstd data ends in the middle"));
  put_file(scratch_.path("bad.txt"), "good\nbad \xFF\n");
  EXPECT_THAT(refused(scratch_.path("bad.txt"), 4), HasSubstr("bad.txt: not UTF-8: byte ff at offset 9"));
  put_file(scratch_.path("bad.jsonl"), "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  EXPECT_THAT(refused(scratch_.path("bad.jsonl"), 4), HasSubstr("bad.jsonl: line 1"));
  EXPECT_THAT(refused(scratch_.path("none.txt"), 3), HasSubstr("none.txt"));
  put_file(scratch_.path("table.csv"), "1,2\n");
  EXPECT_THAT(refused(scratch_.path("table.csv"), 5), HasSubstr(".jsonl"));

  EXPECT_THAT(k3({"train-tokenizer", "--vocab", "2048", "--out", model, demo(kFiles[0])}).err, HasSubstr("--force"));
  EXPECT_THAT(k3({"train-tokenizer", "--vocab", "2048", "--out", out, demo(kFiles[0]) + "=many"}).err, HasSubstr("FILE=WEIGHT"));
  EXPECT_THAT(k3({"train-tokenizer", "--vocab", "100000", "--out", out, demo(kFiles[0])}).err, HasSubstr("are wanted"));
  EXPECT_EQ(k3({"train-tokenizer", "--vocab", "100", "--out", out, demo(kFiles[0])}).code, 2);
}

}  // namespace
}  // namespace k3::e2e
