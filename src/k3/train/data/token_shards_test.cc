#include "k3/train/data/token_shards.h"

#include <gtest/gtest.h>

#include <cstring>

#include "k3/train/data/prepared_data_test.h"
#include "k3/train/data/shard_format.h"

namespace k3::train {
namespace {

TEST(TokenShardsTest, GivesBackWhatWasWritten) {
  const std::string folder = test_folder();
  for (const int64_t vocab : {int64_t{50'000}, int64_t{70'000}}) {  // 2 and 4 bytes an id
    for (const int64_t shard_tokens : {1, 5, 12, 1000}) {
      const auto documents = text_documents({5, 2, 7, 3, 11, 2});
      const SourceInfo info = write_source(folder, "a", documents, SourceKind::text, shard_tokens, vocab);
      const TokenShards shards = open_source(folder, info, vocab);
      ASSERT_EQ(shards.tokens(), 30);
      ASSERT_EQ(shards.documents(), 6);
      EXPECT_FALSE(shards.has_mask());
      std::vector<int32_t> all;
      for (size_t d = 0; d < documents.size(); ++d) {
        EXPECT_EQ(shards.document_begin(static_cast<int64_t>(d)), static_cast<int64_t>(all.size()));
        EXPECT_EQ(shards.document_bytes(static_cast<int64_t>(d)), documents[d].text_bytes);
        for (size_t i = 0; i < documents[d].ids.size(); ++i) {
          EXPECT_EQ(shards.document_at(static_cast<int64_t>(all.size() + i)), static_cast<int64_t>(d));
        }
        all.insert(all.end(), documents[d].ids.begin(), documents[d].ids.end());
      }
      EXPECT_EQ(shards.document_begin(6), 30);
      for (int64_t begin = 0; begin <= 30; ++begin) {
        for (int64_t end = begin; end <= 30; ++end) {
          std::vector<int32_t> ids(static_cast<size_t>(end - begin));
          std::vector<uint8_t> mask(ids.size());
          shards.copy_ids(begin, ids);
          shards.copy_mask(begin, mask);
          for (size_t i = 0; i < ids.size(); ++i) {
            ASSERT_EQ(ids[i], all[static_cast<size_t>(begin) + i]);
            ASSERT_EQ(mask[i], ids[i] != kTestBos);
          }
        }
      }
    }
  }
}

TEST(TokenShardsTest, KeepsTheMask) {
  const std::string folder = test_folder();
  const auto documents = chat_documents({9, 4, 30, 1});
  const SourceInfo info = write_source(folder, "chat", documents, SourceKind::chat, 13);
  EXPECT_EQ(info.loss_tokens, 3 + 2 + 10 + 1);
  const TokenShards shards = open_source(folder, info);
  EXPECT_TRUE(shards.has_mask());
  for (int64_t d = 0; d < shards.documents(); ++d) {
    std::vector<uint8_t> mask(documents[static_cast<size_t>(d)].ids.size());
    shards.copy_mask(shards.document_begin(d), mask);
    EXPECT_EQ(mask, documents[static_cast<size_t>(d)].learned);
  }
}

// Every single damaged byte, every cut and every lie of the manifest is found when the source is opened.
TEST(TokenShardsTest, RefusesDamage) {
  const std::string folder = test_folder();
  const SourceInfo info = write_source(folder, "a", chat_documents({9, 4}), SourceKind::chat);
  const std::string path = join_path(folder, info.shards[0].file);
  const std::string good = *read_file(path);
  const auto refused = [&](const std::string& bytes) {
    EXPECT_TRUE(write_file(path, bytes).ok());
    const auto shards = TokenShards::open(folder, test_manifest(), info);
    if (shards.ok()) return std::string();
    EXPECT_NE(shards.error().message.find(path), std::string::npos) << shards.error().message;
    return shards.error().message;
  };
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_NE(refused(bad), "") << "byte " << i;
  }
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(refused(good.substr(0, size)), "") << size;
  EXPECT_NE(refused(good.substr(0, good.size() - 8)).find("cut short"), std::string::npos);
  EXPECT_NE(refused(good + "x"), "");
  EXPECT_EQ(refused(good), "");
  for (SourceInfo lie : {info, info, info}) {
    static int which = 0;
    if (which == 0) lie.shards[0].hash ^= 1;
    if (which == 1) lie.shards[0].tokens += 1;
    if (which == 2) lie.kind = SourceKind::text;
    ++which;
    EXPECT_FALSE(TokenShards::open(folder, test_manifest(), lie).ok());
  }
  std::filesystem::remove(path);
  EXPECT_EQ(TokenShards::open(folder, test_manifest(), info).error().code, Code::not_found);
}

// Headers that are consistent in themselves but cannot be true.
TEST(ShardFormatTest, RefusesLyingHeaders) {
  ShardContent content;
  content.ids = {1, 2, 3, 4};
  content.ends = {1, 4};
  content.text_bytes = {5, 6};
  const auto parse = [](const std::string& bytes) {
    std::vector<uint64_t> aligned(bytes.size() / 8 + 1);
    std::memcpy(aligned.data(), bytes.data(), bytes.size());
    const auto view = parse_shard(std::as_bytes(std::span(aligned)).first(bytes.size()), "s");
    return view.ok() ? std::string("ok") : view.error().message;
  };
  EXPECT_EQ(parse(encode_shard(content, 5)), "ok");
  EXPECT_NE(parse(encode_shard(content, 4)).find("offset 70: id 4 is beyond"), std::string::npos);
  content.ends = {0, 4};
  EXPECT_NE(parse(encode_shard(content, 5)).find("document 0 ends"), std::string::npos);
  content.ends = {4, 4};
  EXPECT_NE(parse(encode_shard(content, 5)).find("document 1 ends"), std::string::npos);
  content.ends = {1, 3};
  EXPECT_NE(parse(encode_shard(content, 5)).find("end at token 3 of 4"), std::string::npos);
  content.ends = {1, 1ULL << 60};
  EXPECT_NE(parse(encode_shard(content, 5)).find("document 1 ends"), std::string::npos);
  for (const int64_t tokens : {int64_t{-1}, int64_t{1} << 41, INT64_MAX}) {
    ShardHeader header;
    header.tokens = tokens;
    header.vocab = 10;
    EXPECT_NE(parse(encode_shard_header(header)).find("offset 16"), std::string::npos);
  }
}

TEST(DataManifestTest, RoundTrip) {
  const std::string folder = test_folder();
  DataManifest manifest = test_manifest();
  manifest.tokenizer_sha256 = "abc";
  manifest.sources.push_back(write_source(folder, "a", text_documents({5, 6, 7}), SourceKind::text, 6));
  manifest.sources.push_back(write_source(folder, "b", chat_documents({5, 6, 7}), SourceKind::chat, 6));
  manifest.sources[1].duplicates = 3;
  const std::string json = manifest_json(manifest);
  const auto back = parse_manifest(json, "m");
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(manifest_json(*back), json);
  EXPECT_EQ(back->find("b", Split::train)->duplicates, 3);
  EXPECT_EQ(back->find("b", Split::valid), nullptr);
  EXPECT_EQ(back->names(Split::train), "a, b");
  EXPECT_EQ(load_manifest(folder).error().code, Code::not_found);
  ASSERT_TRUE(write_file(join_path(folder, kManifestName), json).ok());
  EXPECT_TRUE(load_manifest(folder).ok());
}

TEST(DataManifestTest, RefusesWhatCannotBe) {
  DataManifest manifest = test_manifest();
  SourceInfo info;
  info.name = "a";
  info.tokens = 4;
  info.documents = 2;
  info.shards.push_back({"a.k3t", 4, 2, 100, 7});
  manifest.sources = {info};
  const std::string good = manifest_json(manifest);
  ASSERT_TRUE(parse_manifest(good, "m").ok());
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto result = parse_manifest(text, "m.json");
    EXPECT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().message.substr(0, 6), "m.json");
    return result.ok() ? "" : result.error().message;
  };
  EXPECT_NE(edited("\"vocab\": 100000", "\"vocab\": 0").find("vocab"), std::string::npos);
  EXPECT_NE(edited("\"bos\": 1", "\"bos\": 100000").find("bos"), std::string::npos);
  EXPECT_NE(edited("\"k3 data\"", "\"other\"").find("format"), std::string::npos);
  EXPECT_NE(edited("\"version\": 1", "\"version\": 9").find("version"), std::string::npos);
  EXPECT_NE(edited("\"tokens\": 4", "\"tokens\": 5").find("the shards have 4"), std::string::npos);
  EXPECT_NE(edited("\"a.k3t\"", "\"../a.k3t\"").find("file name"), std::string::npos);
  EXPECT_NE(edited("\"train\"", "\"test\"").find("split"), std::string::npos);
  EXPECT_NE(edited("\"shards\": [", "\"shards\": [1,").find("shards[0]"), std::string::npos);
  EXPECT_NE(edited("\"xxh3\": \"0000000000000007\"", "\"xxh3\": \"7\"").find("xxh3"), std::string::npos);
  EXPECT_FALSE(parse_manifest(good.substr(0, good.size() / 2), "m").ok());
  EXPECT_FALSE(parse_manifest("[]", "m").ok());
  manifest.sources = {info, info};
  EXPECT_NE(parse_manifest(manifest_json(manifest), "m").error().message.find("twice"), std::string::npos);
}

}  // namespace
}  // namespace k3::train
