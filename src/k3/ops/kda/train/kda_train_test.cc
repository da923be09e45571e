#include <gtest/gtest.h>

#include "k3/ops/kda/kda.h"
#include "k3/ops/kda/train/cuda/kda_train_cuda.h"
#include "k3/ops/kda/train/kda_train_cases.h"

namespace k3::ops {
namespace {

constexpr double kTolerance = 1e-5;  // kda_train.h

template <class T>
double dot(const std::vector<T>& a, const std::vector<T>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

double loss(KdaTrainData<double>& data) {
  kda_train_forward_ref(data.args(), data.rows(data.y));
  return dot(data.y, data.dy) + dot(data.final, data.d_final);
}

void run_ref(KdaTrainData<double>& data) {
  kda_train_forward_ref(data.args(), data.rows(data.y));
  kda_train_vjp_ref(data.args(), data.rows(data.dy), data.grads());
}

void run(Ctx ctx, KdaTrainData<float>& data) {
  const Workspace::Scope scope(*ctx.workspace);
  KdaTrainSaved saved;
  kda_train_forward(ctx, data.args(), data.rows(data.y), &saved);
  kda_train_vjp(ctx, data.args(), saved, data.rows(data.dy), data.grads());
}

// Along a few directions of each input (all of them at once would hide a tensor behind a larger one).
void compare_with_differences(const KdaTrainCase& c) {
  KdaTrainData<double> data(c);
  run_ref(data);
  KdaTrainData<double> moved(c);
  for (size_t i = 0; i < data.inputs().size(); ++i) {
    const auto [name, value, gradient] = data.inputs()[i];
    std::vector<double>& x = *moved.inputs()[i].value;
    const std::vector<double> at = x;
    for (uint64_t seed = 0; seed < 3 && !x.empty(); ++seed) {
      const std::vector<float> way = random_normal(static_cast<int64_t>(x.size()), 900 + seed);
      constexpr double kStep = 1e-5;
      double expected = 0, moves[2] = {};
      for (const int side : {0, 1}) {
        for (size_t j = 0; j < x.size(); ++j) x[j] = at[j] + (side == 0 ? kStep : -kStep) * static_cast<double>(way[j]);
        moves[side] = loss(moved);
      }
      for (size_t j = 0; j < x.size(); ++j) expected += (*gradient)[j] * static_cast<double>(way[j]);
      const double found = (moves[0] - moves[1]) / (2 * kStep), size = std::sqrt(dot(*gradient, *gradient));
      EXPECT_NEAR(found, expected, 1e-6 * (size + 1)) << c.name << " H " << c.heads << " D " << c.dim << " K " << c.taps << ": " << name;
      x = at;
    }
  }
}

TEST(KdaTrainRef, FiniteDifferences) {
  for (const bool bounded : {true, false}) {
    for (const int64_t taps : {1, 2, 4}) {
      KdaTrainCase c;
      c.heads = 2, c.dim = 5, c.taps = taps, c.lengths = {1, 0, 3, 12};
      c.name = bounded ? "bounded" : "unbounded";
      if (!bounded) c.lower_bound = std::nullopt;
      compare_with_differences(c);
      c.states = false;
      compare_with_differences(c);
    }
  }
}

TEST(KdaTrainRef, FiniteDifferencesOfWideHeads) {
  for (const int64_t dim : {16, 32, 64, 128}) {
    KdaTrainCase c;
    c.heads = dim == 128 ? 1 : 3, c.dim = dim, c.lengths = {5, 0, 18};
    if (dim == 64) c.lower_bound = std::nullopt;
    if (dim == 32) c.key_correlation = 0.99F;
    if (dim >= 64) c.lengths = {7};
    compare_with_differences(c);
  }
}

// The same numbers as the ops of inference.
TEST(KdaTrainRef, ForwardIsThatOfInference) {
  for (const bool bounded : {true, false}) {
    KdaTrainCase c;
    c.lengths = {33, 1, 20};
    if (!bounded) c.lower_bound = std::nullopt;
    KdaTrainData<double> data(c);
    kda_train_forward_ref(data.args(), data.rows(data.y));
    KdaTrainData<float> f(c);
    TestRun test(Isa::scalar);
    std::vector<float> z = f.z, out(f.q.size()), states = f.initial, tails(static_cast<size_t>(3 * 3 * f.width()));
    KdaMixArgs mix;
    const int64_t t = f.tokens(), size = c.heads * c.dim * c.dim;
    const auto heads = [&](std::vector<float>& x) { return Tensor(x.data(), DType::f32, {t, c.heads, c.dim}); };
    const KdaTrainArgs args = f.args();
    mix.kda.q = heads(f.q), mix.kda.k = heads(f.k), mix.kda.v = heads(f.v), mix.kda.z = heads(z), mix.kda.out = heads(out);
    mix.kda.b = args.b, mix.kda.a_log = args.a_log, mix.kda.dt_bias = args.dt_bias.reshape({c.heads, c.dim});
    mix.kda.lower_bound = c.lower_bound;
    mix.kda.offsets = f.offsets;
    std::vector<void*> pointers;
    std::vector<ConvTail> windows;
    std::vector<std::vector<float>> window(static_cast<size_t>(3 * f.sequences()), std::vector<float>(static_cast<size_t>(3 * f.width())));
    for (int64_t s = 0; s < f.sequences(); ++s) pointers.push_back(states.data() + s * size);
    for (auto& w : window) windows.push_back({w.data(), DType::f32});
    mix.kda.states = pointers;
    for (int part = 0; part < 3; ++part) mix.taps[part] = &args.taps[part];
    mix.tails = windows;
    mix.norm = args.norm, mix.gate = args.gate, mix.eps = args.eps, mix.y = f.rows(f.y);
    kda_mix(test.ctx, mix);
    for (size_t i = 0; i < f.y.size(); ++i) ASSERT_NEAR(static_cast<double>(f.y[i]), data.y[i], 2e-5) << i;
    for (size_t i = 0; i < states.size(); ++i) ASSERT_NEAR(static_cast<double>(states[i]), data.final[i], 2e-5) << i;
  }
}

double norm_ratio(const std::vector<float>& x, const std::vector<double>& ref) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (static_cast<double>(x[i]) - ref[i]) * (static_cast<double>(x[i]) - ref[i]);
    norm += ref[i] * ref[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

// Sum of |dg dg/da_log| of each head: what da_log may be off in terms of.
double decay_terms(KdaTrainData<double>& ref) {
  double sum = 0;
  const int64_t dim = ref.shape.dim, width = ref.width();
  for (int64_t i = 0; i < ref.tokens() * width; ++i) {
    const auto at = static_cast<size_t>(i), channel = static_cast<size_t>(i % width);
    const double x = ref.z[at] + ref.dt_bias[channel], a = std::exp(ref.a_log[channel / static_cast<size_t>(dim)]);
    const double s = 1 / (1 + std::exp(-x)), soft = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    sum += std::abs(ref.dz[at] * (ref.shape.lower_bound ? x : soft / std::max(s, 1e-300))) * (a > 0 ? 1 : 0);
  }
  return sum;
}

void expect_close(KdaTrainData<float>& got, KdaTrainData<double>& ref, const std::string& what) {
  EXPECT_LE(norm_ratio(got.y, ref.y), kTolerance) << what << " y";
  EXPECT_LE(norm_ratio(got.final, ref.final), kTolerance) << what << " final";
  for (size_t i = 0; i < ref.inputs().size(); ++i) {
    const std::vector<float>& x = *got.inputs()[i].gradient;
    const std::vector<double>& y = *ref.inputs()[i].gradient;
    if (std::string(ref.inputs()[i].name) == "a_log") {
      for (size_t j = 0; j < x.size(); ++j) EXPECT_NEAR(static_cast<double>(x[j]), y[j], kTolerance * decay_terms(ref)) << what << " a_log";
    } else {
      EXPECT_LE(norm_ratio(x, y), kTolerance) << what << " d " << ref.inputs()[i].name;
    }
  }
}

class KdaTrainTest : public testing::Test {
 protected:
  Workspace workspace;
  ThreadPool pool{2};
  Ctx ctx(Isa isa) { return {.pool = &pool, .workspace = &workspace, .isa = isa}; }

  void compare(const KdaTrainCase& c, uint64_t seed = 1) {
    KdaTrainData<double> ref(c, seed);
    run_ref(ref);
    for (const Isa isa : test_isas()) {
      if (isa > Isa::avx512) continue;  // no kernels of their own
      KdaTrainData<float> data(c, seed);
      run(ctx(isa), data);
      expect_close(data, ref, fmt::format("{} {} H {} D {} K {}", c.name, isa_name(isa), c.heads, c.dim, c.taps));
    }
  }
};

TEST_F(KdaTrainTest, EveryInputSet) {
  for (const KdaTrainCase& c : kda_train_input_sets(2, 32, {70, 17})) compare(c, 11);
}

TEST_F(KdaTrainTest, InputSetsOfWideHeads) {
  for (const KdaTrainCase& c : kda_train_input_sets(1, 128, {100})) compare(c, 23);
}

TEST_F(KdaTrainTest, LengthsAndEmptySequences) {
  KdaTrainCase c;
  c.name = "lengths";
  c.dim = 16;
  c.lengths = {0, 1, 3, 0, 15, 16, 17, 63, 64, 65, 200, 0};
  compare(c);
  c.z_scale = 0, c.z_offset = -8;
  c.name = "lengths keep";
  compare(c);
  c.lower_bound = std::nullopt;
  c.name = "lengths keep unbounded";
  compare(c);
}

// Not D = 1: a unit row of one channel does not turn, and the gradient that is left comes from the epsilon of the norm.
TEST_F(KdaTrainTest, WidthsHeadsAndTaps) {
  for (const int64_t dim : {7, 16, 24, 32, 48, 64, 72, 128, 136}) {
    KdaTrainCase c;
    c.name = "widths";
    c.dim = dim;
    c.heads = 1 + dim % 3;
    c.taps = dim % 16 == 0 ? 4 : 1 + dim % 8;
    c.lengths = {21, 3};
    compare(c);
  }
  for (const int64_t taps : {1, 2, 3, 8}) {
    KdaTrainCase c;
    c.heads = 3;
    c.taps = taps;
    c.lengths = {80, 2, 5};
    compare(c);
  }
}

TEST_F(KdaTrainTest, NoTokens) {
  KdaTrainCase c;
  c.lengths = {0, 0};
  compare(c);
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && compare_bytes(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST_F(KdaTrainTest, ThreadsChangeNothing) {
  KdaTrainCase c;
  c.heads = 3;
  c.lengths = {100, 300, 1, 0, 257, 40};
  for (const Isa isa : {Isa::scalar, std::min(detect_isa(), Isa::avx512)}) {
    KdaTrainData<float> one(c), many(c);
    TestRun single(isa), five(isa, 5);
    run(single.ctx, one);
    run(five.ctx, many);
    EXPECT_TRUE(same(one.y, many.y) && same(one.final, many.final));
    for (size_t i = 0; i < one.inputs().size(); ++i) {
      EXPECT_TRUE(same(*one.inputs()[i].gradient, *many.inputs()[i].gradient)) << one.inputs()[i].name;
    }
  }
}

TEST_F(KdaTrainTest, ParametersAreAddedToAndGradientsMayLieOnInputs) {
  KdaTrainCase c;
  c.lengths = {70, 30};
  KdaTrainData<float> data(c), other(c);
  const Ctx on = ctx(std::min(detect_isa(), Isa::avx512));
  run(on, data);
  const std::vector<float> once = data.ddt_bias;
  run(on, data);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(data.ddt_bias[i], 2 * once[i]);

  const Workspace::Scope scope(workspace);
  KdaTrainSaved saved;
  const KdaTrainArgs args = other.args();
  kda_train_forward(on, args, other.rows(other.y), &saved);
  KdaTrainGrads grads = other.grads();
  grads.dq_in = args.q_in, grads.dk_in = args.k_in, grads.dv_in = args.v_in, grads.dz = args.z, grads.db = args.b, grads.dgate = args.gate;
  kda_train_vjp(on, args, saved, other.rows(other.dy), grads);
  EXPECT_TRUE(same(data.dq, other.q) && same(data.dk, other.k) && same(data.dv, other.v) && same(data.dz, other.z));
  EXPECT_TRUE(same(data.db, other.b) && same(data.dgate, other.gate));
}

// Two halves of a sequence with the state and its gradient carried between them: only the convolution's window is lost, so K = 1.
TEST_F(KdaTrainTest, StatesCarryGradients) {
  KdaTrainCase whole, first, second;
  whole.taps = first.taps = second.taps = 1;
  whole.lengths = {90}, first.lengths = {37}, second.lengths = {53};
  KdaTrainData<float> a(whole), b(first), d(second);
  const auto part = [&](std::vector<float>& from, std::vector<float>& to, size_t rows, size_t skip) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(skip * from.size() / 90), rows * from.size() / 90, to.begin());
  };
  for (size_t i = 0; i < 6; ++i) {
    part(*a.inputs()[i].value, *b.inputs()[i].value, 37, 0);
    part(*a.inputs()[i].value, *d.inputs()[i].value, 53, 37);
  }
  part(a.dy, b.dy, 37, 0);
  part(a.dy, d.dy, 53, 37);
  for (size_t i = 6; i < 12; ++i) *b.inputs()[i].value = *d.inputs()[i].value = *a.inputs()[i].value;
  b.initial = a.initial;
  d.d_final = a.d_final;
  const Ctx on = ctx(std::min(detect_isa(), Isa::avx512));
  run(on, a);
  KdaTrainSaved saved;
  kda_train_forward(on, b.args(), b.rows(b.y), &saved);
  d.initial = b.final;
  run(on, d);
  b.d_final = d.d_initial;
  kda_train_vjp(on, b.args(), saved, b.rows(b.dy), b.grads());
  for (size_t i = 0; i < b.dq.size(); ++i) ASSERT_NEAR(a.dk[i], b.dk[i], 1e-4) << i;
  for (size_t i = 0; i < a.d_initial.size(); ++i) ASSERT_NEAR(a.d_initial[i], b.d_initial[i], 1e-4) << i;
}

TEST(KdaTrain, KernelsAndPassesOfAGpu) {
  EXPECT_TRUE(cuda::kda_train_fast(128, 4, -5.0F, 90));
  EXPECT_FALSE(cuda::kda_train_fast(128, 4, -8.0F, 90));
  EXPECT_FALSE(cuda::kda_train_fast(128, 4, std::nullopt, 90));
  EXPECT_FALSE(cuda::kda_train_fast(48, 4, -5.0F, 90));
  EXPECT_FALSE(cuda::kda_train_fast(64, 2, -5.0F, 90));
  EXPECT_FALSE(cuda::kda_train_fast(128, 4, -5.0F, 80));
  EXPECT_EQ(cuda::kda_train_scan_parts(32, 128, 132), 4);
  EXPECT_EQ(cuda::kda_train_scan_parts(256, 128, 132), 1);
  EXPECT_EQ(cuda::kda_train_scan_parts(32, 32, 132), 1);
  EXPECT_EQ(cuda::kda_train_pass_heads(96, 1024, 128), 6);
  EXPECT_EQ(cuda::kda_train_pass_heads(4, 1088, 128), 4);
  EXPECT_EQ(cuda::kda_train_pass_heads(96, 1 << 20, 128), 1);
}

TEST(KdaTrain, Supported) {
  EXPECT_TRUE(kda_train_supported({}, 3, 32, 4));
  EXPECT_FALSE(kda_train_supported({}, 3, 512, 4));
  EXPECT_FALSE(kda_train_supported({}, 3, 32, 9));
}

}  // namespace
}  // namespace k3::ops
