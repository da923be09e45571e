#include "k3/train/tokenizer/learn_tokenizer.h"

#include <gtest/gtest.h>

#include "k3/base/file.h"
#include "k3/format/chat/chat.h"
#include "k3/train/data/prepared_data_test.h"

namespace k3::train {
namespace {

constexpr const char* kStories =
    "Once there was a cat. The cat sat on the mat.\n<|endoftext|>\nOnce there was a dog. The dog sat on the log.\n<|endoftext|>\n";
constexpr const char* kChat =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Where is the cat?\"}, {\"role\": \"assistant\", \"content\": \"On the "
    "mat.\"}]}\n";

std::string put(const std::string& folder, const std::string& name, std::string_view text) {
  const std::string path = join_path(folder, name);
  EXPECT_TRUE(write_file(path, text).ok());
  return path;
}

TEST(LearnTokenizerTest, WritesAFolderThatLoads) {
  const std::string folder = test_folder();
  ThreadPool pool(2);
  const LearnOptions options{.files = {{put(folder, "s.txt", kStories), 2}, {put(folder, "c.jsonl", kChat), 1}}, .vocab = 256 + 280};
  const auto report = learn_tokenizer(options, pool);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->documents, 3);
  EXPECT_EQ(report->ranks.tokens.size(), 280U);
  EXPECT_GT(report->bytes_per_token, 1.5);
  const std::string out = join_path(folder, "tokenizer");
  ASSERT_TRUE(write_tokenizer(out, report->ranks.tokens).ok());
  const auto tokenizer = Tokenizer::load(out);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), 536);
  const auto format = ChatFormat::load(out, *tokenizer);
  ASSERT_TRUE(format.ok()) << format.error().message;
  EXPECT_FALSE(format->thinking_of({}).enabled);
}

TEST(LearnTokenizerTest, ThreadsAndFileOrderDoNotMatter) {
  const std::string folder = test_folder();
  const WeightedFile s{put(folder, "s.txt", kStories), 2}, c{put(folder, "c.jsonl", kChat), 0.5};
  ThreadPool one(1), three(3);
  const auto first = learn_tokenizer({.files = {s, c}, .vocab = 535}, one);
  const auto second = learn_tokenizer({.files = {c, s}, .vocab = 535}, three);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->ranks.tokens, second->ranks.tokens);
}

TEST(LearnTokenizerTest, WeightsCount) {
  const std::string folder = test_folder();
  const std::string a = put(folder, "a.txt", "xy xy xy"), b = put(folder, "b.txt", "zw zw");
  ThreadPool pool(1);
  const auto first_rank = [&](double weight_a, double weight_b) {
    return learn_tokenizer({.files = {{a, weight_a}, {b, weight_b}}, .vocab = 513, .least_count = 1}, pool)->ranks.tokens[256];
  };
  EXPECT_EQ(first_rank(1, 1), "xy");
  EXPECT_EQ(first_rank(1, 2), "zw");
  EXPECT_EQ(first_rank(0.5, 1), "zw");
}

TEST(LearnTokenizerTest, NamesWhatIsWrong) {
  const std::string folder = test_folder();
  ThreadPool pool(2);
  const auto message = [&](const LearnOptions& options) {
    const auto report = learn_tokenizer(options, pool);
    EXPECT_FALSE(report.ok());
    return report.ok() ? "" : report.error().message;
  };
  const std::string good = put(folder, "s.txt", kStories);
  EXPECT_NE(message({.files = {{good}}, .vocab = 100'000}).find("give"), std::string::npos);
  EXPECT_NE(message({.files = {{good}}, .vocab = 511}).find("512"), std::string::npos);
  EXPECT_NE(message({.files = {}, .vocab = 600}).find("no files"), std::string::npos);
  EXPECT_NE(message({.files = {{good, -1}}, .vocab = 600}).find("weight"), std::string::npos);
  EXPECT_NE(message({.files = {{good, 1e-9}}, .vocab = 600}).find("weight"), std::string::npos);
  EXPECT_NE(message({.files = {{"/no/such.txt"}}, .vocab = 600}).find("/no/such.txt"), std::string::npos);
  EXPECT_NE(message({.files = {{"file.pdf"}}, .vocab = 600}).find(".jsonl"), std::string::npos);
  EXPECT_NE(message({.files = {{put(folder, "bad.txt", "ab\xFFz")}}, .vocab = 600}).find("ff at offset 2"), std::string::npos);
  const std::string bad = message({.files = {{put(folder, "bad.jsonl", std::string(kChat) + "{\"messages\": 3}\n")}}, .vocab = 600});
  EXPECT_NE(bad.find("bad.jsonl: line 2"), std::string::npos) << bad;
}

}  // namespace
}  // namespace k3::train
