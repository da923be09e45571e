#include "k3/train/data/packed_batches.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "k3/train/data/prepared_data_test.h"

namespace k3::train {
namespace {

// Documents of which every id tells its position, [BOS] and [EOS], too: packing looks at borders, not at ids.
std::vector<DocumentIds> numbered_documents(const std::vector<int64_t>& lengths) {
  std::vector<DocumentIds> documents = text_documents(lengths);
  int32_t position = 0;
  for (DocumentIds& document : documents) {
    for (int32_t& id : document.ids) id = 10 + position++;
  }
  return documents;
}

// What a batch may claim, checked against the sources token by token.
class BatchChecker {
 public:
  explicit BatchChecker(const TokenShards& source) : source_(source), ids_(static_cast<size_t>(source.tokens())), mask_(ids_.size()) {
    source.copy_ids(0, ids_);
    source.copy_mask(0, mask_);
  }

  // `seen` counts how often each position was an input.
  void check(const PackedBatch& batch, bool learn_all, std::map<int64_t, int>* seen = nullptr) const {
    const int64_t size = batch.sequences * batch.seq_tokens;
    ASSERT_EQ(static_cast<int64_t>(batch.tokens.size()), size);
    ASSERT_EQ(batch.offsets.front(), 0);
    ASSERT_EQ(batch.offsets.back(), size);
    int64_t loss = 0, padding = 0;
    for (int64_t row = 0; row < batch.sequences; ++row) {
      ASSERT_TRUE(std::binary_search(batch.offsets.begin(), batch.offsets.end(), row * batch.seq_tokens));
    }
    for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
      ASSERT_LT(batch.offsets[s], batch.offsets[s + 1]);
      check_segment(batch, batch.offsets[s], batch.offsets[s + 1], learn_all, &loss, &padding, seen);
    }
    EXPECT_EQ(batch.loss_tokens, loss);
    EXPECT_EQ(batch.padding_tokens, padding);
  }

 private:
  void check_segment(const PackedBatch& batch, int64_t begin, int64_t end, bool learn_all, int64_t* loss, int64_t* padding,
                     std::map<int64_t, int>* seen) const {
    const auto at = static_cast<size_t>(begin);
    if (batch.tokens[at] == kTestPad) {
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_EQ(batch.tokens[static_cast<size_t>(i)], kTestPad);
        ASSERT_EQ(batch.targets[static_cast<size_t>(i)], -1);
        ++*padding;
      }
      return;
    }
    const int64_t position = batch.tokens[at] - 10;
    const int64_t document = source_.document_at(position), document_end = source_.document_begin(document + 1);
    ASSERT_LE(position + end - begin, document_end) << "a segment crosses a document border";
    for (int64_t i = 0; i < end - begin; ++i) {
      const int64_t p = position + i;
      if (seen != nullptr) ++(*seen)[p];
      ASSERT_EQ(batch.tokens[at + static_cast<size_t>(i)], ids_[static_cast<size_t>(p)]);
      const bool learned = p + 1 < document_end && (learn_all || mask_[static_cast<size_t>(p + 1)] != 0);
      ASSERT_EQ(batch.targets[at + static_cast<size_t>(i)], learned ? ids_[static_cast<size_t>(p + 1)] : -1);
      *loss += learned ? 1 : 0;
    }
  }

  const TokenShards& source_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> mask_;
};

std::vector<int64_t> random_lengths(uint64_t seed, int count, int64_t most) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(2 + static_cast<int64_t>(random() % static_cast<uint64_t>(most - 1)));
  return lengths;
}

PackOptions options_for(std::vector<MixtureEntry> mixture, int64_t seq_tokens, int64_t sequences) {
  PackOptions o;
  o.mixture = std::move(mixture);
  o.seq_tokens = seq_tokens;
  o.tokens_per_step = seq_tokens * sequences;
  o.pad = kTestPad;
  o.seed = 7;
  return o;
}

bool same(const PackedBatch& a, const PackedBatch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.offsets == b.offsets && a.loss_tokens == b.loss_tokens;
}

TEST(PackedBatchesTest, TextWindowsComeOnceAnEpoch) {
  const std::string folder = test_folder();
  for (const int64_t length : {2, 7, 16, 64}) {
    const SourceInfo info = write_source(folder, "a", numbered_documents(random_lengths(3, 40, 60)), SourceKind::text, 100);
    const TokenShards source = open_source(folder, info);
    const BatchChecker checker(source);
    const PackedBatches batches = *PackedBatches::create(options_for({{.source = &source}}, length, 1));
    const int64_t windows = source.tokens() / length;
    std::vector<int64_t> first_of_epoch;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::map<int64_t, int> seen;
      PackedBatch batch;
      for (int64_t step = 0; step < windows; ++step) {
        batches.fill(epoch * windows + step, 0, batch);
        ASSERT_NO_FATAL_FAILURE(checker.check(batch, false, &seen));
        EXPECT_EQ(batch.padding_tokens, 0);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), windows * length);
      for (const auto& [position, times] : seen) EXPECT_EQ(times, 1) << position;
      EXPECT_DOUBLE_EQ(batches.epochs_before(windows * (epoch + 1))[0], static_cast<double>(epoch + 1));
    }
  }
}

TEST(PackedBatchesTest, ASourceShorterThanASequence) {
  const std::string folder = test_folder();
  const TokenShards source = open_source(folder, write_source(folder, "a", numbered_documents({5, 4}), SourceKind::text));
  const PackedBatches batches = *PackedBatches::create(options_for({{.source = &source}}, 16, 2));
  PackedBatch batch;
  batches.fill(3, 0, batch);
  BatchChecker(source).check(batch, false);
  EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 5, 9, 16, 21, 25, 32}));
  EXPECT_EQ(batch.padding_tokens, 14);
  EXPECT_EQ(batch.loss_tokens, 14);
}

TEST(PackedBatchesTest, ConversationsStayWholeAndComeOnceAnEpoch) {
  const std::string folder = test_folder();
  for (const int64_t length : {8, 32, 100}) {
    const TokenShards source =
        open_source(folder, write_source(folder, "c", chat_documents(random_lengths(5, 60, 40)), SourceKind::chat, 100));
    const BatchChecker checker(source);
    for (const bool learn_all : {false, true}) {
      const PackedBatches batches =
          *PackedBatches::create(options_for({{.source = &source, .learn_all = learn_all}}, length, 1));
      int64_t sequences = 0;
      while (batches.epochs_before(sequences)[0] < 1) ++sequences;
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        std::map<int64_t, int> seen;
        int64_t segments = 0;
        PackedBatch batch;
        for (int64_t step = 0; step < sequences; ++step) {
          batches.fill(epoch * sequences + step, 0, batch);
          ASSERT_NO_FATAL_FAILURE(checker.check(batch, learn_all, &seen));
          segments += static_cast<int64_t>(batch.offsets.size()) - 1 - (batch.padding_tokens > 0 ? 1 : 0);
        }
        EXPECT_EQ(static_cast<int64_t>(seen.size()), source.tokens());
        for (const auto& [position, times] : seen) EXPECT_EQ(times, 1) << position;
        int64_t pieces = 0;
        for (int64_t d = 0; d < source.documents(); ++d) {
          pieces += (source.document_begin(d + 1) - source.document_begin(d) + length - 1) / length;
        }
        EXPECT_EQ(segments, pieces);
      }
      // Best fit wastes little: no two sequences could be put into one.
      EXPECT_LE(sequences, 2 * (source.tokens() / length + 1));
    }
  }
}

TEST(PackedBatchesTest, RanksAndMicroBatchesDivideTheSameStep) {
  const std::string folder = test_folder();
  const TokenShards text = open_source(folder, write_source(folder, "a", numbered_documents(random_lengths(1, 90, 50)), SourceKind::text));
  const TokenShards chat = open_source(folder, write_source(folder, "c", chat_documents(random_lengths(2, 90, 20)), SourceKind::chat));
  PackOptions whole = options_for({{.source = &text}, {.source = &chat, .share = 0.3}}, 24, 24);
  const PackedBatches one = *PackedBatches::create(whole);
  for (const int64_t world : {1, 2, 3}) {
    for (const int64_t micros : {1, 2, 4}) {
      for (const int64_t step : {0, 1, 17}) {
        PackedBatch all, part;
        one.fill(step, 0, all);
        std::vector<int32_t> tokens, targets;
        for (int64_t rank = 0; rank < world; ++rank) {
          PackOptions o = whole;
          o.rank = rank;
          o.world = world;
          o.micro_batches = micros;
          const PackedBatches batches = *PackedBatches::create(o);
          EXPECT_EQ(batches.sequences(), 24 / world / micros);
          for (int64_t micro = 0; micro < micros; ++micro) {
            batches.fill(step, micro, part);
            tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
            targets.insert(targets.end(), part.targets.begin(), part.targets.end());
          }
        }
        EXPECT_EQ(tokens, all.tokens);
        EXPECT_EQ(targets, all.targets);
      }
    }
  }
}

// A run that is resumed anywhere, from files opened anew, goes on as the one that was never stopped.
TEST(PackedBatchesTest, ResumesFromTheStepNumberAlone) {
  const std::string folder = test_folder();
  const SourceInfo a = write_source(folder, "a", numbered_documents(random_lengths(1, 50, 50)), SourceKind::text);
  const SourceInfo c = write_source(folder, "c", chat_documents(random_lengths(2, 50, 20)), SourceKind::chat);
  constexpr int64_t kSteps = 60;
  std::vector<PackedBatch> straight(kSteps);
  {
    const TokenShards text = open_source(folder, a), chat = open_source(folder, c);
    const PackedBatches batches =
        *PackedBatches::create(options_for({{.source = &text, .weight = 2}, {.source = &chat}}, 32, 3));
    for (int64_t step = 0; step < kSteps; ++step) batches.fill(step, 0, straight[static_cast<size_t>(step)]);
  }
  std::mt19937_64 random(9);
  for (int trial = 0; trial < 20; ++trial) {
    const TokenShards text = open_source(folder, a), chat = open_source(folder, c);
    const PackedBatches batches =
        *PackedBatches::create(options_for({{.source = &text, .weight = 2}, {.source = &chat}}, 32, 3));
    PackedBatch batch;
    for (auto step = static_cast<int64_t>(random() % kSteps); step < kSteps; ++step) {
      batches.fill(step, 0, batch);
      ASSERT_TRUE(same(batch, straight[static_cast<size_t>(step)])) << step;
    }
  }
}

TEST(PackedBatchesTest, SeedsAndPhasesDiffer) {
  const std::string folder = test_folder();
  const TokenShards text = open_source(folder, write_source(folder, "a", numbered_documents(random_lengths(1, 90, 50)), SourceKind::text));
  PackOptions o = options_for({{.source = &text}}, 16, 8);
  PackedBatch first, other;
  PackedBatches::create(o)->fill(0, 0, first);
  o.phase = 1;
  PackedBatches::create(o)->fill(0, 0, other);
  EXPECT_FALSE(same(first, other));
  o.phase = 0;
  o.seed = 8;
  PackedBatches::create(o)->fill(0, 0, other);
  EXPECT_FALSE(same(first, other));
}

TEST(PackedBatchesTest, WeightsAreEpochsAndSharesAreShares) {
  const std::string folder = test_folder();
  const TokenShards a = open_source(folder, write_source(folder, "a", numbered_documents(random_lengths(1, 200, 50)), SourceKind::text));
  const TokenShards b = open_source(folder, write_source(folder, "b", numbered_documents(random_lengths(2, 40, 50)), SourceKind::text));
  const TokenShards c = open_source(folder, write_source(folder, "c", chat_documents(random_lengths(3, 90, 20)), SourceKind::chat));
  const PackedBatches batches = *PackedBatches::create(
      options_for({{.source = &a}, {.source = &b, .weight = 4}, {.source = &c, .share = 0.25}}, 16, 4));
  const std::vector<double> shares = batches.shares();
  EXPECT_NEAR(shares[2], 0.25, 1e-4);
  const std::vector<double> epochs = batches.epochs_before(4096);
  EXPECT_NEAR(epochs[1] / epochs[0], 4, 0.01);
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-12);
}

TEST(PackedBatchesTest, RefusesWhatCannotWork) {
  const std::string folder = test_folder();
  const TokenShards a = open_source(folder, write_source(folder, "a", text_documents({5, 6}), SourceKind::text));
  const TokenShards none = open_source(folder, write_source(folder, "none", {}, SourceKind::text));
  const auto message = [&](auto change) {
    PackOptions o = options_for({{.source = &a}}, 4, 6);
    change(o);
    const auto batches = PackedBatches::create(o);
    EXPECT_FALSE(batches.ok());
    return batches.ok() ? "" : batches.error().message;
  };
  EXPECT_NE(message([](PackOptions& o) { o.tokens_per_step = 25; }).find("multiple of 4"), std::string::npos);
  EXPECT_NE(message([](PackOptions& o) { o.micro_batches = 4; }).find("multiple of 16"), std::string::npos);
  EXPECT_NE(message([](PackOptions& o) { o.micro_batches = INT64_MAX; }), "");
  EXPECT_NE(message([](PackOptions& o) { o.seq_tokens = 1; }), "");
  EXPECT_NE(message([](PackOptions& o) { o.seq_tokens = INT64_MAX; }), "");
  EXPECT_NE(message([](PackOptions& o) { o.rank = 1; }), "");
  EXPECT_NE(message([](PackOptions& o) { o.mixture.clear(); }), "");
  EXPECT_NE(message([](PackOptions& o) { o.mixture[0].weight = -1; }).find("source a"), std::string::npos);
  EXPECT_NE(message([](PackOptions& o) { o.mixture[0].share = 1.5; }).find("source a"), std::string::npos);
  EXPECT_NE(message([](PackOptions& o) { o.mixture[0].share = 0.5; }).find("add up to 0.5"), std::string::npos);
  EXPECT_NE(message([](PackOptions& o) { o.mixture[0].weight = 0; }), "");
  EXPECT_NE(message([&](PackOptions& o) { o.mixture[0].source = &none; }).find("none"), std::string::npos);
}

RC_GTEST_PROP(PackedBatchesTest, AnyMixtureKeepsTheRules, ()) {
  const std::string folder = ::testing::TempDir() + "/packed_batches_prop";
  RC_ASSERT(make_directories(folder).ok());
  const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(2, 40)));
  const auto length = *rc::gen::inRange<int64_t>(2, 50), sequences = *rc::gen::inRange<int64_t>(1, 5);
  const auto step = *rc::gen::inRange<int64_t>(0, 1'000'000'000);
  const bool chat = *rc::gen::arbitrary<bool>();
  const SourceInfo info = chat ? write_source(folder, "a", chat_documents(lengths), SourceKind::chat, 50)
                               : write_source(folder, "a", numbered_documents(lengths), SourceKind::text, 50);
  const TokenShards source = open_source(folder, info);
  PackedBatch batch;
  PackedBatches::create(options_for({{.source = &source}}, length, sequences))->fill(step, 0, batch);
  BatchChecker(source).check(batch, false);
  RC_ASSERT(!::testing::Test::HasFailure());
}

}  // namespace
}  // namespace k3::train
