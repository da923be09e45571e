// The training forward against golden logits of an independent program, and its gradients against finite differences.
#include "k3/train/run/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "k3/base/rng.h"
#include "k3/format/npy.h"
#include "k3/model/init.h"

namespace k3::train {
namespace {

std::string folder_of(const char* name) { return std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/" + name; }

struct Loaded {
  TrainWeights weights;
  Storage grads;
  Tensor gradients() const { return Tensor(grads.data(), weights.dtype, {weights.elements}); }
};

Loaded load(const char* name, DType dtype) {
  const Checkpoint checkpoint = Checkpoint::open(folder_of(name)).value();
  Config config = load_config(folder_of(name)).value();
  resolve_by_tensors(checkpoint, config);
  settle_random(config);
  Loaded out{make_train_weights(config, dtype).value(), {}};
  const Status read = read_train_weights(checkpoint, out.weights);
  EXPECT_TRUE(read.ok()) << read.error().message;
  out.grads = Storage::allocate(out.weights.elements * dtype_bytes(dtype)).value();
  return out;
}

std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint64_t seed) {
  const Rng rng(seed, 3);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.bits(static_cast<uint64_t>(i)) % static_cast<uint32_t>(vocab)));
  return ids;
}

double real(const Tensor& t, int64_t i) { return t.dtype == DType::f64 ? t.as<double>()[i] : static_cast<double>(t.f32()[i]); }

class OracleModel : public testing::TestWithParam<const char*> {};
class CurvedModel : public testing::TestWithParam<const char*> {};

// Every logit of the golden sequence: in FP64 to the digits that are left where epsilons and scales travel as FP32 numbers and the golden
// values are stored as such (logits up to 8, 13 layers); in FP32 to the tolerance of the folder's README.
TEST_P(OracleModel, TrainingForwardGivesGoldenLogits) {
  std::ifstream file(folder_of(GetParam()) + "/golden.json");
  const auto ids = nlohmann::json::parse(file)["ids"].get<std::vector<int32_t>>();
  const NpyMatrix wanted = read_npy(folder_of(GetParam()) + "/golden_logits.npy").value();
  for (const DType dtype : {DType::f64, DType::f32}) {
    ThreadPool pool(2);
    Loaded model = load(GetParam(), dtype);
    Gradient gradient(model.weights, model.gradients(), pool);
    const auto tokens = static_cast<int64_t>(ids.size());
    const std::vector<int64_t> offsets = {0, tokens};
    const Tensor logits = gradient.logits({ids, {}, offsets});
    double worst = 0;
    for (int64_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(real(logits, i) - static_cast<double>(wanted.values[static_cast<size_t>(i)])));
    EXPECT_LT(worst, dtype == DType::f64 ? 1e-5 : 2e-3) << dtype_name(dtype);
  }
}

// Central differences in FP64 (steps h and 2 h, so that the cubic term falls out) at the largest gradient of every parameter. These random
// models are strongly curved: h is 2e-6, and the loss of about 200 nats is then worth 1e-7 of rounding; 1e-6 of the gradient, or 1e-5. One in
// twelve tensors of a family, among them its first: each costs four forwards of the whole model, and ops have tables of their own (*_train_test.cc).
TEST_P(CurvedModel, GradientsAreThoseOfFiniteDifferences) {
  ThreadPool pool(2);
  Loaded model = load(GetParam(), DType::f64);
  Gradient gradient(model.weights, model.gradients(), pool);
  const std::vector<int32_t> ids = random_ids(21, model.weights.config.vocab_size, 5);
  std::vector<int32_t> targets = random_ids(21, model.weights.config.vocab_size, 6);
  targets[7] = targets[20] = -1;
  const std::vector<int64_t> offsets = {0, 1, 19, 19, 21};  // packed documents, one of them empty
  const MicroBatch batch{ids, targets, offsets};
  const ops::CrossEntropy loss = gradient.add(batch, 1.0);
  EXPECT_EQ(19, loss.tokens);
  EXPECT_NEAR(loss.nats, gradient.loss(batch).nats, 1e-9);
  std::map<const ParamFamily*, int> seen;
  for (const TrainTensor& t : model.weights.tensors) {
    if (t.family->optimizer == OptimizerGroup::none || t.expert > 1 || seen[t.family]++ % 12 != 0) continue;
    const Tensor values = model.weights.tensor(t), grads = model.gradients().slice(t.at, t.at + t.count);
    int64_t place = 0;
    for (int64_t i = 0; i < t.count; ++i) {
      if (std::abs(grads.as<double>()[i]) > std::abs(grads.as<double>()[place])) place = i;
    }
    double& value = values.as<double>()[place];
    const double before = value;
    const auto slope = [&](double step) {
      value = before + step;
      const double above = gradient.loss(batch).nats;
      value = before - step;
      const double below = gradient.loss(batch).nats;
      value = before;
      return (above - below) / (2 * step);
    };
    const double wanted = (4 * slope(2e-6) - slope(4e-6)) / 3, got = grads.as<double>()[place];
    EXPECT_NEAR(wanted, got, 1e-6 * std::max(10.0, std::abs(wanted))) << t.name << " at " << place;
  }
}

// FP32 against FP64, from the weights that training begins with (the oracle's own amplify rounding: they were made to find mistakes): norm
// ratio of each parameter's gradient. Errors of FP32 sums of some hundred terms lie near 1e-6; 1e-4 leaves room for gradients that are
// differences of large terms.
TEST_P(OracleModel, GradientsInFp32AreThoseInFp64) {
  ThreadPool pool(2);
  Loaded exact = load(GetParam(), DType::f64), fast = load(GetParam(), DType::f32);
  for (Loaded* model : {&exact, &fast}) draw_train_weights(model->weights, 11, pool);
  const std::vector<int32_t> ids = random_ids(130, exact.weights.config.vocab_size, 5);
  const std::vector<int32_t> targets = random_ids(130, exact.weights.config.vocab_size, 6);
  const std::vector<int64_t> offsets = {0, 3, 70, 130};  // one more than a block of queries and than a kept state
  Gradient(exact.weights, exact.gradients(), pool).add({ids, targets, offsets}, 1.0);
  Gradient(fast.weights, fast.gradients(), pool).add({ids, targets, offsets}, 1.0);
  for (size_t n = 0; n < exact.weights.tensors.size(); ++n) {
    const TrainTensor &a = exact.weights.tensors[n], &b = fast.weights.tensors[n];
    double error = 0, norm = 0;
    for (int64_t i = 0; i < a.count; ++i) {
      const double wanted = exact.gradients().as<double>()[a.at + i], d = wanted - real(fast.gradients(), b.at + i);
      error += d * d;
      norm += wanted * wanted;
    }
    EXPECT_LE(std::sqrt(error), 1e-4 * std::sqrt(norm) + 1e-7) << a.name;
  }
}

// Regions that are computed again give the same bits.
TEST_P(OracleModel, RecomputingChangesNothing) {
  ThreadPool pool(2);
  Loaded kept = load(GetParam(), DType::f32), again = load(GetParam(), DType::f32);
  const std::vector<int32_t> ids = random_ids(70, kept.weights.config.vocab_size, 5);
  const std::vector<int32_t> targets = random_ids(70, kept.weights.config.vocab_size, 6);
  const std::vector<int64_t> offsets = {0, 30, 70};
  Gradient a(kept.weights, kept.gradients(), pool), b(again.weights, again.gradients(), pool);
  b.tape().recompute = true;
  EXPECT_EQ(a.add({ids, targets, offsets}, 1.0).nats, b.add({ids, targets, offsets}, 1.0).nats);
  EXPECT_EQ(0, std::memcmp(kept.grads.data(), again.grads.data(), static_cast<size_t>(kept.grads.size_bytes())));
}

INSTANTIATE_TEST_SUITE_P(All, CurvedModel, testing::Values("k3-a", "k3-d", "kl-a", "mix-b"));
INSTANTIATE_TEST_SUITE_P(All, OracleModel, testing::Values("k3-a", "k3-b", "k3-c", "k3-d", "k3-e", "k3-f", "kl-a", "kl-b", "mix-a", "mix-b"));

}  // namespace
}  // namespace k3::train
