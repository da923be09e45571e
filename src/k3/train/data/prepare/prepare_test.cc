#include "k3/train/data/prepare/prepare.h"

#include <gtest/gtest.h>

#include "k3/format/tokenizer.h"
#include "k3/train/data/prepared_data_test.h"
#include "k3/train/data/prepare/document_reader.h"
#include "k3/train/tokenizer/learn_tokenizer.h"

namespace k3::train {
namespace {

constexpr const char* kStories = "\n A cat. \n\nIt sat.\n<|endoftext|>\n\n<|endoftext|>\nA dog <|endoftext|> here.\n<|endoftext|>\nA cat. \n\nIt sat.";
constexpr const char* kChat =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi <|open|>\"}, {\"role\": \"assistant\", \"content\": \"Hello.\"}, "
    "{\"role\": \"user\", \"content\": \"Bye\"}, {\"role\": \"assistant\", \"content\": \"See you.\"}], \"source\": \"own\"}\n";

class PrepareTest : public ::testing::Test {
 protected:
  PrepareTest() : folder_(test_folder()), tokenizer_(join_path(folder_, "tokenizer")), out_(join_path(folder_, "out")) {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    tokens.insert(tokens.end(), {" s", " sat", "as", "ass"});
    EXPECT_TRUE(write_tokenizer(tokenizer_, tokens).ok());
  }
  std::string put(const std::string& name, std::string_view text) {
    const std::string path = join_path(folder_, name);
    EXPECT_TRUE(write_file(path, text).ok());
    return path;
  }
  PrepareOptions options(std::vector<std::string> train) const {
    PrepareOptions o;
    o.tokenizer = tokenizer_;
    o.out = out_;
    o.train = std::move(train);
    return o;
  }
  Result<DataManifest> run(const PrepareOptions& o) { return prepare_data(o, pool_); }
  // The documents of a source as text.
  std::vector<std::string> texts(const DataManifest& manifest, const std::string& name, Split split) {
    const Tokenizer tokenizer = *Tokenizer::load(out_);
    const TokenShards shards = *TokenShards::open(out_, manifest, *manifest.find(name, split));
    std::vector<std::string> out;
    for (int64_t d = 0; d < shards.documents(); ++d) {
      std::vector<int32_t> ids(static_cast<size_t>(shards.document_begin(d + 1) - shards.document_begin(d)));
      shards.copy_ids(shards.document_begin(d), ids);
      out.push_back(*tokenizer.decode(ids));
    }
    return out;
  }

  std::string folder_, tokenizer_, out_;
  ThreadPool pool_{2};
};

TEST_F(PrepareTest, TextDocuments) {
  const auto manifest = run(options({put("my stories.txt", kStories)}));
  ASSERT_TRUE(manifest.ok()) << manifest.error().message;
  EXPECT_EQ(manifest_json(*load_manifest(out_)), manifest_json(*manifest));
  const SourceInfo* info = manifest->find("my-stories", Split::train);
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->documents, 2);
  EXPECT_EQ(info->duplicates, 1);
  EXPECT_EQ(info->empty, 1);
  EXPECT_EQ(info->text_bytes, 15 + 26);
  EXPECT_EQ(texts(*manifest, "my-stories", Split::train),
            (std::vector<std::string>{"[BOS]A cat. \n\nIt sat.[EOS]", "[BOS]A dog <|endoftext|> here.[EOS]"}));
}

TEST_F(PrepareTest, AByteOrderMarkIsNoPartOfAConversation) {
  const auto plain = run(options({put("talk.jsonl", kChat)}));
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  const auto expected = texts(*plain, "talk", Split::train);
  PrepareOptions o = options({put("talk.jsonl", "\xEF\xBB\xBF" + std::string(kChat))});
  o.force = true;
  const auto marked = run(o);
  ASSERT_TRUE(marked.ok()) << marked.error().message;
  EXPECT_EQ(texts(*marked, "talk", Split::train), expected);
}

// Ids and mask against what the chat format says, written out.
TEST_F(PrepareTest, Conversations) {
  const auto manifest = run(options({put("talk.jsonl", kChat)}));
  ASSERT_TRUE(manifest.ok()) << manifest.error().message;
  const Tokenizer tokenizer = *Tokenizer::load(out_);
  std::vector<int32_t> want;
  std::vector<uint8_t> learned;
  const auto text = [&](std::string_view part, uint8_t mask) {
    EXPECT_TRUE(tokenizer.encode(part, want).ok());
    learned.resize(want.size(), mask);
  };
  const auto special = [&](std::string_view name, uint8_t mask) {
    want.push_back(*tokenizer.special(name));
    learned.push_back(mask);
  };
  const auto open = [&](std::string_view role) {
    special("<|open|>", 0);
    for (const std::string_view part : {std::string_view("message"), std::string_view(" role"), std::string_view("=\""), role, std::string_view("\"")}) text(part, 0);
    special("<|sep|>", 0);
  };
  const auto close = [&](std::string_view tag, uint8_t mask) {
    special("<|close|>", mask);
    text(tag, mask);
    special("<|sep|>", mask);
  };
  const auto user = [&](std::string_view content) {
    open("user");
    text(content, 0);
    close("message", 0);
    special("<|end_of_msg|>", 0);
  };
  const auto assistant = [&](std::string_view content) {
    open("assistant");
    special("<|open|>", 0);
    text("response", 0);
    special("<|sep|>", 0);
    text(content, 1);
    close("response", 1);
    close("message", 1);
    special("<|end_of_msg|>", 1);
  };
  user("Hi <|open|>");
  assistant("Hello.");
  user("Bye");
  assistant("See you.");
  const TokenShards shards = *TokenShards::open(out_, *manifest, *manifest->find("talk", Split::train));
  std::vector<int32_t> ids(static_cast<size_t>(shards.tokens()));
  std::vector<uint8_t> mask(ids.size());
  shards.copy_ids(0, ids);
  shards.copy_mask(0, mask);
  EXPECT_EQ(ids, want);
  EXPECT_EQ(mask, learned);
  EXPECT_EQ(shards.document_bytes(0), 14);
  EXPECT_EQ(manifest->end_of_message, *tokenizer.special("<|end_of_msg|>"));
}

TEST_F(PrepareTest, HeldOutFilesComeFirst) {
  PrepareOptions o = options({put("a.txt", "one\n<|endoftext|>\ntwo\n<|endoftext|>\nthree")});
  o.valid = {put("v.txt", "two\n<|endoftext|>\nfour")};
  const auto manifest = run(o);
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(texts(*manifest, "v", Split::valid).size(), 2U);
  EXPECT_EQ(texts(*manifest, "a", Split::train), (std::vector<std::string>{"[BOS]one[EOS]", "[BOS]three[EOS]"}));
}

TEST_F(PrepareTest, HoldOutByHash) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "story " + std::to_string(i) + "\n<|endoftext|>\n";
  PrepareOptions o = options({put("a.txt", text)});
  o.holdout = 0.1;
  o.shard_tokens = 1000;
  const auto manifest = run(o);
  ASSERT_TRUE(manifest.ok());
  const auto held = texts(*manifest, "a", Split::valid), kept = texts(*manifest, "a", Split::train);
  EXPECT_EQ(held.size() + kept.size(), 1000U);
  EXPECT_GT(manifest->find("a", Split::train)->shards.size(), 5U);
  EXPECT_NEAR(static_cast<double>(held.size()), 100, 40);  // 4 standard deviations
  o.force = true;
  EXPECT_EQ(manifest_json(*run(o)), manifest_json(*manifest));
}

TEST_F(PrepareTest, NeverReplacesUnasked) {
  PrepareOptions o = options({put("a.txt", "one")});
  ASSERT_TRUE(run(o).ok());
  o.train = {put("b.txt", "two")};
  EXPECT_NE(run(o).error().message.find("--force"), std::string::npos);
  o.force = true;
  ASSERT_TRUE(run(o).ok());
  EXPECT_FALSE(path_exists(join_path(out_, "a-00000.k3t")));
  EXPECT_EQ(load_manifest(out_)->names(Split::train), "b");
}

// "a" held out and "a.valid" trained on would write the same files.
TEST_F(PrepareTest, NoTwoSourcesShareShards) {
  const std::string a = put("a.txt", kStories), named_valid = put("a.valid.txt", "Other words.");
  PrepareOptions both = options({a, named_valid});
  EXPECT_TRUE(run(both).ok());
  both.force = true;
  both.holdout = 0.2;
  const auto shared = run(both);
  ASSERT_FALSE(shared.ok());
  EXPECT_EQ(shared.error().code, Code::invalid_argument);
  EXPECT_NE(shared.error().message.find("a.valid-00000.k3t"), std::string::npos) << shared.error().message;
  EXPECT_TRUE(path_exists(join_path(out_, kManifestName))) << "what was there is gone";
  PrepareOptions held = options({named_valid});
  held.force = true;
  held.valid = {a};
  EXPECT_FALSE(run(held).ok());
}

TEST_F(PrepareTest, AFailureLeavesNoShards) {
  PrepareOptions o = options({put("a.txt", "one\n<|endoftext|>\ntwo"), put("bad.jsonl", std::string(kChat) + "{}\n")});
  o.shard_tokens = 1;
  const auto result = run(o);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("bad.jsonl: line 2: "), std::string::npos) << result.error().message;
  EXPECT_FALSE(path_exists(join_path(out_, "a-00000.k3t")));
  EXPECT_FALSE(path_exists(join_path(out_, kManifestName)));
}

TEST_F(PrepareTest, NamesWhatIsWrong) {
  const auto message = [&](PrepareOptions o) {
    const auto result = run(o);
    EXPECT_FALSE(result.ok());
    return result.ok() ? "" : result.error().message;
  };
  const std::string good = put("a.txt", "one");
  EXPECT_NE(message(options({})).find("no files"), std::string::npos);
  EXPECT_NE(message(options({good, put("a.jsonl", kChat)})).find("rename"), std::string::npos);
  EXPECT_NE(message(options({"/no/file.txt"})).find("/no/file.txt"), std::string::npos);
  EXPECT_NE(message(options({put("bad.txt", "fine\n\xC0\x80")})).find("byte c0 at offset 5"), std::string::npos);
  PrepareOptions o = options({good});
  o.holdout = 0.9;
  EXPECT_NE(message(o).find("0.5"), std::string::npos);
  o = options({good});
  o.tokenizer = join_path(tokenizer_, "tiktoken.model");  // names no special tokens
  EXPECT_NE(message(o).find("[BOS]"), std::string::npos);
  for (const char* line : {"[]", "{\"messages\": []}", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "not json",
                           "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"partial\": true}]}"}) {
    EXPECT_NE(message(options({put("bad.jsonl", line)})).find("bad.jsonl: line 1: "), std::string::npos) << line;
  }
}

TEST_F(PrepareTest, ReaderKeepsLinesAndOffsets) {
  DocumentReader reader = *DocumentReader::open(put("r.txt", "one\ntwo\n<|endoftext|>\r\n three\n\n\n<|endoftext|>\n"));
  Document document;
  ASSERT_TRUE(*reader.next(document));
  EXPECT_EQ(document.text, "one\ntwo");
  ASSERT_TRUE(*reader.next(document));
  EXPECT_EQ(document.text, "three");
  EXPECT_EQ(document.line, 4);
  EXPECT_EQ(document.offset, 23);
  EXPECT_FALSE(*reader.next(document));
}

}  // namespace
}  // namespace k3::train
