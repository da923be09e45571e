// Prepared sources made of given documents, for tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "k3/base/file.h"
#include "k3/train/data/prepare/source_writer.h"
#include "k3/train/data/token_shards.h"

namespace k3::train {

constexpr int64_t kTestVocab = 100'000;
constexpr int32_t kTestBos = 1, kTestEos = 2, kTestPad = 3;

// An empty folder of this test.
inline std::string test_folder() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string folder = ::testing::TempDir() + "/" + test->test_suite_name() + "." + test->name();
  for (char& c : folder) {
    if (c == ' ') c = '_';
  }
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(make_directories(folder).ok());
  return folder;
}

inline DataManifest test_manifest(int64_t vocab = kTestVocab) {
  DataManifest manifest;
  manifest.vocab = vocab;
  manifest.bos = kTestBos;
  manifest.eos = kTestEos;
  manifest.pad = kTestPad;
  return manifest;
}

inline SourceInfo write_source(const std::string& folder, const std::string& name, const std::vector<DocumentIds>& documents,
                               SourceKind kind, int64_t shard_tokens = 1 << 20, int64_t vocab = kTestVocab) {
  SourceInfo info;
  info.name = name;
  info.kind = kind;
  SourceWriter writer(folder, info, vocab, shard_tokens);
  for (const DocumentIds& document : documents) EXPECT_TRUE(writer.add(document).ok());
  EXPECT_TRUE(writer.finish().ok());
  writer.keep();
  return writer.info();
}

// Documents whose every id but the first and last tells its position in the source: id = 10 + position.
inline std::vector<DocumentIds> text_documents(const std::vector<int64_t>& lengths) {
  std::vector<DocumentIds> documents;
  int32_t position = 0;
  for (const int64_t length : lengths) {
    DocumentIds document;
    for (int64_t i = 0; i < length; ++i, ++position) {
      document.ids.push_back(i == 0 ? kTestBos : i + 1 == length ? kTestEos : 10 + position);
    }
    document.text_bytes = 3 * length;
    documents.push_back(std::move(document));
  }
  return documents;
}

// Conversations: ids tell positions; the last third of each is learned.
inline std::vector<DocumentIds> chat_documents(const std::vector<int64_t>& lengths) {
  std::vector<DocumentIds> documents;
  int32_t position = 0;
  for (const int64_t length : lengths) {
    DocumentIds document;
    for (int64_t i = 0; i < length; ++i, ++position) {
      document.ids.push_back(10 + position);
      document.learned.push_back(i >= length * 2 / 3 ? 1 : 0);
    }
    document.text_bytes = length;
    documents.push_back(std::move(document));
  }
  return documents;
}

inline TokenShards open_source(const std::string& folder, const SourceInfo& info, int64_t vocab = kTestVocab) {
  auto shards = TokenShards::open(folder, test_manifest(vocab), info);
  EXPECT_TRUE(shards.ok()) << shards.error().message;
  return *std::move(shards);
}

}  // namespace k3::train
