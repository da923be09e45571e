// Bits per byte by hand: of a model that knows nothing, and of a random one window by window, from its logits.
#include "k3/train/run/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/model/init.h"
#include "k3/train/data/prepared_data_test.h"
#include "k3/train/run/tiny_model_test.h"

namespace k3::train {
namespace {

constexpr int64_t kVocab = 200;

struct TinyModel {
  ThreadPool pool{2};
  TrainWeights weights;
  Storage memory;
  Gradient gradient;
  TinyModel() : weights(made()), memory(Storage::allocate(weights.elements * 8).value()), gradient(weights, grads(), pool) {}

 private:
  static TrainWeights made() {
    Config config = parse_config(tiny_model_json(kVocab), "tiny").value();
    settle_random(config);
    return make_train_weights(config, DType::f64).value();
  }
  Tensor grads() const { return Tensor(memory.data(), DType::f64, {weights.elements}); }
};

// All weights are zero, so all logits are: log2 200 bits a predicted token.
TEST(Evaluate, AModelThatKnowsNothing) {
  TinyModel model;
  const std::string folder = test_folder();
  // Of 5 + 2 + 19 tokens the first of each document is not predicted; a document has 3 bytes a token.
  const TokenShards source = open_source(folder, write_source(folder, "a", text_documents({5, 2, 19}), SourceKind::text, 1 << 20, kVocab), kVocab);
  for (const int64_t rows : {1, 4}) {
    const EvaluationRecord got = evaluate(model.gradient, EvalWindows::create(source, kTestPad, 8).value(), rows);
    EXPECT_EQ(23, got.tokens);
    EXPECT_EQ(78, got.bytes);
    EXPECT_NEAR(std::log(200.0), got.nats_per_token, 1e-12);
    EXPECT_NEAR(23 * std::log2(200.0) / 78, got.bits_per_byte, 1e-12);
  }
}

double nats_of(const double* logits, int32_t target) {
  double sum = 0;
  for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(logits[v]);
  return std::log(sum) - logits[target];
}

// Each document by itself in windows of 6 inputs, a forward each.
double nats_by_hand(Gradient& model, const std::vector<DocumentIds>& documents, int64_t window) {
  double nats = 0;
  for (const DocumentIds& d : documents) {
    const auto last = static_cast<int64_t>(d.ids.size()) - 1;
    for (int64_t begin = 0; begin < last; begin += window) {
      const int64_t size = std::min(window, last - begin);
      const std::vector<int32_t> inputs(d.ids.begin() + begin, d.ids.begin() + begin + size);
      const std::vector<int64_t> offsets = {0, size};
      const Tensor logits = model.logits({inputs, {}, offsets});
      for (int64_t i = 0; i < size; ++i) {
        const auto next = static_cast<size_t>(begin + i + 1);
        if (d.learned.empty() || d.learned[next] != 0) nats += nats_of(logits.f64() + i * kVocab, d.ids[next]);
      }
    }
  }
  return nats;
}

TEST(Evaluate, ARandomModelWindowByWindow) {
  TinyModel model;
  draw_train_weights(model.weights, 7, model.pool);
  for (double& w : std::span(model.weights.all().f64(), static_cast<size_t>(model.weights.elements))) w *= 4;  // far from knowing nothing
  for (const SourceKind kind : {SourceKind::text, SourceKind::chat}) {
    const std::string folder = test_folder();
    const std::vector<int64_t> lengths = {3, 14, 7, 2, 25, 6};
    const std::vector<DocumentIds> documents = kind == SourceKind::text ? text_documents(lengths) : chat_documents(lengths);
    const TokenShards source = open_source(folder, write_source(folder, "a", documents, kind, 1 << 20, kVocab), kVocab);
    const double nats = nats_by_hand(model.gradient, documents, 6);
    int64_t tokens = 0, bytes = 0;
    for (const DocumentIds& d : documents) {
      bytes += d.text_bytes;
      for (size_t i = 1; i < d.ids.size(); ++i) tokens += d.learned.empty() || d.learned[i] != 0 ? 1 : 0;
    }
    for (const int64_t rows : {1, 2, 5}) {
      const EvaluationRecord got = evaluate(model.gradient, EvalWindows::create(source, kTestPad, 6).value(), rows);
      EXPECT_EQ(tokens, got.tokens);
      EXPECT_EQ(bytes, got.bytes);
      EXPECT_NEAR(nats / static_cast<double>(tokens), got.nats_per_token, 1e-10);
      EXPECT_NEAR(nats / std::log(2.0) / static_cast<double>(bytes), got.bits_per_byte, 1e-10);
    }
    EXPECT_GT(std::abs(nats / static_cast<double>(tokens) - std::log(200.0)), 1e-3);
  }
}

}  // namespace
}  // namespace k3::train
