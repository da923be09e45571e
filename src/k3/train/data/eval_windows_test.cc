#include "k3/train/data/eval_windows.h"

#include <gtest/gtest.h>

#include <set>

#include "k3/train/data/prepared_data_test.h"

namespace k3::train {
namespace {

// Every token but the first of a document is a target once; no window holds two documents or more than `window` inputs.
void check_cover(const TokenShards& source, int64_t window, int64_t rows) {
  const EvalWindows eval = *EvalWindows::create(source, kTestPad, window);
  std::vector<int32_t> ids(static_cast<size_t>(source.tokens()));
  source.copy_ids(0, ids);
  std::multiset<int32_t> want, got;
  int64_t bytes = 0, windows = 0;
  for (int64_t d = 0; d < source.documents(); ++d) {
    const int64_t begin = source.document_begin(d), end = source.document_begin(d + 1);
    for (int64_t p = begin + 1; p < end; ++p) want.insert(ids[static_cast<size_t>(p)]);
    bytes += source.document_bytes(d);
    windows += (end - begin - 1 + window - 1) / window;
  }
  EXPECT_EQ(eval.text_bytes(), bytes);
  EXPECT_EQ(eval.windows(), windows);
  EXPECT_EQ(eval.documents(), source.documents());
  EXPECT_EQ(eval.predicted_tokens(), static_cast<int64_t>(want.size()));
  int64_t loss = 0, segments = 0;
  for (int64_t row = 0; row < eval.rows(); row += rows) {
    PackedBatch batch;
    eval.fill(row, rows, batch);
    loss += batch.loss_tokens;
    for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
      const auto begin = static_cast<size_t>(batch.offsets[s]), end = static_cast<size_t>(batch.offsets[s + 1]);
      if (batch.tokens[begin] == kTestPad) continue;
      ++segments;
      EXPECT_LE(static_cast<int64_t>(end - begin), window);
      for (size_t i = begin; i < end; ++i) {
        EXPECT_TRUE(i == begin || batch.tokens[i] != kTestBos);
        EXPECT_NE(batch.targets[i], -1);
        EXPECT_TRUE(i + 1 == end || batch.targets[i] == batch.tokens[i + 1]);
        got.insert(batch.targets[i]);
      }
    }
  }
  EXPECT_EQ(segments, windows);
  EXPECT_EQ(loss, eval.predicted_tokens());
  EXPECT_EQ(got, want);
}

TEST(EvalWindowsTest, EveryTokenIsPredictedOnce) {
  const std::string folder = test_folder();
  const TokenShards source =
      open_source(folder, write_source(folder, "a", text_documents({2, 3, 9, 8, 10, 33, 2, 4, 17}), SourceKind::text, 20));
  for (const int64_t window : {2, 3, 8, 16, 1024}) {
    for (const int64_t rows : {1, 3}) check_cover(source, window, rows);
  }
}

TEST(EvalWindowsTest, OfConversationsTheAssistant) {
  const std::string folder = test_folder();
  const TokenShards source = open_source(folder, write_source(folder, "c", chat_documents({9, 30, 6}), SourceKind::chat));
  const EvalWindows eval = *EvalWindows::create(source, kTestPad, 16);
  PackedBatch batch;
  eval.fill(0, eval.rows() + 1, batch);
  EXPECT_EQ(eval.predicted_tokens(), 3 + 10 + 2);
  EXPECT_EQ(batch.loss_tokens, 15);
  EXPECT_EQ(eval.text_bytes(), 45);
}

TEST(EvalWindowsTest, ASampleIsOfWholeDocumentsAndTheSameEveryTime) {
  const std::string folder = test_folder();
  const TokenShards source = open_source(
      folder, write_source(folder, "a", text_documents(std::vector<int64_t>(100, 11)), SourceKind::text));
  const EvalWindows eval = *EvalWindows::create(source, kTestPad, 16, 205);
  EXPECT_EQ(eval.documents(), 20);
  EXPECT_EQ(eval.predicted_tokens(), 200);
  EXPECT_EQ(eval.text_bytes(), 20 * 33);
  EXPECT_EQ(EvalWindows::create(source, kTestPad, 16, 1)->documents(), 1);  // never none
  PackedBatch first, second;
  eval.fill(0, eval.rows(), first);
  EvalWindows::create(source, kTestPad, 16, 205)->fill(0, eval.rows(), second);
  EXPECT_EQ(first.tokens, second.tokens);
}

TEST(EvalWindowsTest, RefusesNothingToEvaluate) {
  const std::string folder = test_folder();
  const TokenShards none = open_source(folder, write_source(folder, "none", {}, SourceKind::text));
  EXPECT_NE(EvalWindows::create(none, kTestPad).error().message.find("none"), std::string::npos);
  const TokenShards a = open_source(folder, write_source(folder, "a", text_documents({5}), SourceKind::text));
  EXPECT_FALSE(EvalWindows::create(a, kTestPad, 1).ok());
  EXPECT_FALSE(EvalWindows::create(a, kTestPad, INT64_MAX).ok());
}

}  // namespace
}  // namespace k3::train
