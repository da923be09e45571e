#include "k3/ops/kda/kda.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "k3/ops/kda/kda_cases.h"
#include "k3/ops/kda/kda_kernel.h"

namespace k3::ops {
namespace {

// kda.h
constexpr double tolerance(KdaForm form) { return form == KdaForm::tiles ? 1e-4 : 1e-5; }

struct Answer {
  std::vector<Guarded> states;
  Guarded out{0};
  std::vector<void*> pointers;
};

Answer fresh(const KdaData& data) {
  Answer a;
  a.out = Guarded(static_cast<int64_t>(data.v.size()));
  for (const std::vector<float>& s : data.states) {
    a.states.emplace_back(static_cast<int64_t>(s.size()));
    std::copy(s.begin(), s.end(), a.states.back().data());
  }
  for (Guarded& s : a.states) a.pointers.push_back(s.data());
  return a;
}

double norm_ratio(const float* x, const float* ref, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference += (static_cast<double>(x[i]) - ref[i]) * (static_cast<double>(x[i]) - ref[i]);
    norm += static_cast<double>(ref[i]) * ref[i];
  }
  if (difference == 0) return 0;  // also when both are all zero
  return std::sqrt(difference / norm);
}

Answer run(Ctx ctx, KdaData& data, KdaForm form, std::span<const KdaExport> exports = {}) {
  Answer a = fresh(data);
  KdaArgs args = data.args(a.pointers, a.out.data(), form);
  args.exports = exports;
  kda(ctx, args);
  return a;
}

Answer run_ref(KdaData& data, std::span<const KdaExport> exports = {}) {
  Answer a = fresh(data);
  KdaArgs args = data.args(a.pointers, a.out.data(), KdaForm::recurrent);
  args.exports = exports;
  kda_ref(args);
  return a;
}

void expect_close(const Answer& got, const Answer& ref, KdaForm form, const std::string& what) {
  EXPECT_LE(norm_ratio(got.out.data(), ref.out.data(), ref.out.size()), tolerance(form)) << what << " out";
  EXPECT_TRUE(got.out.intact()) << what;
  for (size_t s = 0; s < ref.states.size(); ++s) {
    EXPECT_LE(norm_ratio(got.states[s].data(), ref.states[s].data(), ref.states[s].size()), tolerance(form))
        << what << " state " << s;
    EXPECT_TRUE(got.states[s].intact()) << what;
  }
}

bool same(const Guarded& a, const float* b, int64_t offset = 0) {
  return compare_bytes(a.data(), b + offset, static_cast<size_t>(a.size()) * sizeof(float)) == 0;
}

bool can(KdaForm form, Isa isa, int64_t dim) { return form != KdaForm::tiles || (isa >= Isa::avx512bf16 && dim % 32 == 0); }

class KdaTest : public testing::Test {
 protected:
  Workspace workspace;
  ThreadPool pool{2};
  Ctx ctx(Isa isa) { return {.pool = &pool, .workspace = &workspace, .isa = isa}; }

  void compare(KdaCase c, std::initializer_list<KdaForm> forms, uint64_t seed = 1) {
    KdaData data(c, seed);
    const Answer ref = run_ref(data);
    for (const Isa isa : test_isas()) {
      for (const KdaForm form : forms) {
        if (!can(form, isa, c.dim)) continue;
        const std::string what =
            fmt::format("{} {} form {} H {} D {}", c.name, isa_name(isa), static_cast<int>(form), c.heads, c.dim);
        expect_close(run(ctx(isa), data, form), ref, form, what);
      }
    }
  }
};

constexpr std::initializer_list<KdaForm> kForms = {KdaForm::recurrent, KdaForm::chunk, KdaForm::automatic,
                                                   KdaForm::tiles};

TEST_F(KdaTest, EveryInputSetEveryForm) {
  for (const KdaCase& c : kda_input_sets(2, 32, {70, 17})) compare(c, kForms, 11);
}

TEST_F(KdaTest, InputSetsAtFullWidth) {
  for (const KdaCase& c : kda_input_sets(1, 128, {100})) compare(c, {KdaForm::recurrent, KdaForm::chunk, KdaForm::tiles}, 23);
}

TEST_F(KdaTest, LengthsAndEmptySequences) {
  KdaCase c;
  c.name = "lengths";
  c.dim = 16;
  c.lengths = {0, 1, 15, 0, 16, 17, 63, 64, 65, 1000, 0};
  compare(c, kForms);
  c.z_scale = 0, c.z_offset = -8;
  c.name = "lengths keep";
  compare(c, kForms);
  c.dim = 32;
  compare(c, {KdaForm::tiles});
  c.z_scale = 1, c.z_offset = 0;
  c.name = "lengths";
  compare(c, {KdaForm::tiles});
}

TEST_F(KdaTest, HeadWidthsAndCounts) {
  for (const int64_t dim : {1, 7, 16, 24, 32, 40, 64, 72, 96, 128, 136}) {
    KdaCase c;
    c.name = "widths";
    c.dim = dim;
    c.heads = 1 + dim % 7;
    c.lengths = {21, 3};
    compare(c, kForms);
  }
}

TEST_F(KdaTest, K3DimensionsAFewTokens) {
  KdaCase c;
  c.name = "k3";
  c.heads = 96;
  c.dim = 128;
  c.lengths = {3, 1};
  compare(c, {KdaForm::recurrent, KdaForm::chunk, KdaForm::tiles});
}

TEST_F(KdaTest, NothingToDo) {
  KdaCase c;
  c.lengths = {0, 0};
  KdaData data(c);
  for (const Isa isa : test_isas()) {
    const Answer a = run(ctx(isa), data, KdaForm::automatic);
    for (size_t s = 0; s < 2; ++s) EXPECT_TRUE(same(a.states[s], data.states[s].data()));
  }
}

TEST_F(KdaTest, RecurrentDoesNotDependOnTheSplit) {
  KdaCase c;
  c.lengths = {75};
  for (const int64_t dim : {40, 64, 128}) {
    c.dim = dim;
    KdaData data(c, 3);
    for (const Isa isa : test_isas()) {
      const Answer whole = run(ctx(isa), data, KdaForm::recurrent);
      for (const int64_t step : {1, 7, 16, 33}) {
        Answer parts = fresh(data);
        for (int64_t t = 0; t < 75; t += step) {
          const int64_t end = std::min<int64_t>(t + step, 75);
          const std::vector<int64_t> offsets = {0, end - t};
          KdaArgs args = data.args(parts.pointers, parts.out.data(), KdaForm::recurrent);
          for (Tensor* x : {&args.q, &args.k, &args.v, &args.z, &args.b, &args.out}) *x = x->slice(t, end);
          args.offsets = offsets;
          kda(ctx(isa), args);
        }
        EXPECT_TRUE(same(whole.out, parts.out.data())) << isa_name(isa) << " step " << step;
        EXPECT_TRUE(same(whole.states[0], parts.states[0].data())) << isa_name(isa) << " step " << step;
      }
    }
  }
}

// A BF16 state is the FP32 one between loading and storing.
TEST_F(KdaTest, Bf16StatesAreRoundedOnceACall) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{1, 40}, std::vector<int64_t>{0, 17}}) {
    KdaCase c;
    c.lengths = lengths;
    KdaData data(c, 11);
    std::vector<std::vector<uint16_t>> halves(data.states.size());
    for (size_t s = 0; s < halves.size(); ++s) {
      for (float& x : data.states[s]) {
        halves[s].push_back(float_to_bf16(x));
        x = bf16_to_float(halves[s].back());
      }
    }
    for (const Isa isa : test_isas()) {
      std::vector<std::vector<float>> copies(2, std::vector<float>(data.states[1].size()));
      std::vector<std::vector<uint16_t>> copies16(2, std::vector<uint16_t>(data.states[1].size()));
      const KdaExport wide[] = {{1, 16, copies[0].data()}, {1, 5, copies[1].data()}};
      const KdaExport narrow[] = {{1, 16, copies16[0].data()}, {1, 5, copies16[1].data()}};
      const Answer want = run(ctx(isa), data, KdaForm::automatic, wide);
      std::vector<std::vector<uint16_t>> states = halves;
      std::vector<void*> pointers;
      for (auto& s : states) pointers.push_back(s.data());
      Guarded out(static_cast<int64_t>(data.v.size()));
      KdaArgs args = data.args(pointers, out.data(), KdaForm::automatic);
      args.state_dtype = DType::bf16;
      args.exports = narrow;
      kda(ctx(isa), args);
      EXPECT_TRUE(same(out, want.out.data())) << isa_name(isa);
      const auto rounded = [](const float* x, const std::vector<uint16_t>& got) {
        for (size_t i = 0; i < got.size(); ++i) {
          if (got[i] != float_to_bf16(x[i])) return false;
        }
        return true;
      };
      for (size_t s = 0; s < states.size(); ++s) EXPECT_TRUE(rounded(want.states[s].data(), states[s])) << isa_name(isa);
      for (size_t e = 0; e < copies.size(); ++e) EXPECT_TRUE(rounded(copies[e].data(), copies16[e])) << isa_name(isa);
    }
  }
}

TEST_F(KdaTest, DeterministicMeansRecurrent) {
  KdaCase c;
  c.lengths = {50};
  KdaData data(c);
  for (const Isa isa : test_isas()) {
    Ctx deterministic = ctx(isa);
    deterministic.deterministic = true;
    EXPECT_TRUE(same(run(deterministic, data, KdaForm::automatic).out, run(ctx(isa), data, KdaForm::recurrent).out.data()));
  }
}

// Gates with a bound so low that e^{-G} overflows.
TEST_F(KdaTest, LowBound) {
  KdaCase c;
  c.name = "bound -30";
  c.dim = 64;
  c.lower_bound = -30.0F;
  compare(c, kForms);
  c.z_scale = 8;
  compare(c, kForms);
}

TEST_F(KdaTest, WhereTilesAreTaken) {
  static_assert(kda_on_tiles({.isa = Isa::amx, .policy = Policy::bf16}, 128));
  static_assert(!kda_on_tiles({.isa = Isa::amx, .policy = Policy::exact}, 128));
  static_assert(!kda_on_tiles({.isa = Isa::amx, .policy = Policy::bf16, .deterministic = true}, 128));
  static_assert(!kda_on_tiles({.isa = Isa::amx, .policy = Policy::bf16}, 48));
  KdaCase c;
  c.lengths = {50};
  KdaData data(c);
  for (const Isa isa : test_isas()) {
    Ctx bf16 = ctx(isa);
    bf16.policy = Policy::bf16;
    c.lengths = {48};  // whole chunks
    KdaData whole(c);
    const KdaForm form = kda_on_tiles(bf16, c.dim) ? KdaForm::tiles : KdaForm::chunk;
    EXPECT_TRUE(same(run(bf16, whole, KdaForm::automatic).out, run(ctx(isa), whole, form).out.data())) << isa_name(isa);
    EXPECT_TRUE(same(run(ctx(isa), data, KdaForm::chunk).out, run(bf16, data, KdaForm::chunk).out.data()));
  }
}

TEST_F(KdaTest, ThreadsAndNeighboursDoNotMatter) {
  KdaCase c;
  c.heads = 5;
  c.lengths = {33, 18, 40};
  KdaData data(c);
  const int64_t width = c.heads * c.dim;
  ThreadPool three(3);
  for (const Isa isa : test_isas()) {
    for (const KdaForm form : {KdaForm::recurrent, KdaForm::chunk, KdaForm::tiles}) {
      if (!can(form, isa, c.dim)) continue;
      Ctx alone = ctx(isa);
      alone.pool = nullptr;
      Ctx many = ctx(isa);
      many.pool = &three;
      const Answer a = run(alone, data, form), b = run(many, data, form);
      EXPECT_TRUE(same(a.out, b.out.data()));
      // The second sequence by itself.
      Answer single = fresh(data);
      std::vector<void*> one = {single.pointers[1]};
      const std::vector<int64_t> offsets = {0, 18};
      KdaArgs args = data.args(one, single.out.data(), form);
      for (Tensor* x : {&args.q, &args.k, &args.v, &args.z, &args.b, &args.out}) *x = x->slice(33, 51);
      args.offsets = offsets;
      kda(many, args);
      EXPECT_EQ(0,
                compare_bytes(single.out.data() + 33 * width, a.out.data() + 33 * width, static_cast<size_t>(18 * width) * 4));
      EXPECT_TRUE(same(single.states[1], a.states[1].data()));
    }
  }
}

TEST_F(KdaTest, ExportsAtAnyPosition) {
  KdaCase c;
  c.lengths = {60, 33};
  for (const bool bounded : {true, false}) {
    if (!bounded) c.lower_bound = std::nullopt;
    KdaData data(c);
    const int64_t n = c.heads * c.dim * c.dim;
    const std::vector<std::pair<int64_t, int64_t>> wanted = {{0, 37}, {0, 1},  {0, 16}, {0, 17},
                                                             {0, 60}, {1, 32}, {1, 33}, {0, 37}};
    const auto slots = [&](std::vector<Guarded>& storage) {
      std::vector<KdaExport> exports;
      for (size_t i = 0; i < wanted.size(); ++i) storage.emplace_back(n);
      for (size_t i = 0; i < wanted.size(); ++i) exports.push_back({wanted[i].first, wanted[i].second, storage[i].data()});
      return exports;
    };
    std::vector<Guarded> ref_storage;
    const std::vector<KdaExport> ref_exports = slots(ref_storage);
    const Answer ref = run_ref(data, ref_exports);
    for (const Isa isa : test_isas()) {
      for (const KdaForm form : kForms) {
        if (!can(form, isa, c.dim)) continue;
        std::vector<Guarded> storage;
        const std::vector<KdaExport> exports = slots(storage);
        const Answer got = run(ctx(isa), data, form, exports);
        expect_close(got, ref, form, "exports");
        for (size_t i = 0; i < wanted.size(); ++i) {
          EXPECT_LE(norm_ratio(storage[i].data(), ref_storage[i].data(), n), tolerance(form)) << i;
          EXPECT_TRUE(storage[i].intact());
        }
        EXPECT_TRUE(same(storage[4], got.states[0].data()));
      }
    }
  }
}

// 4,096 steps with gates that keep memory: a systematic error of the decay would grow with the age of the content.
TEST_F(KdaTest, LongRunDoesNotDrift) {
  KdaCase c;
  c.name = "drift";
  c.heads = 1;
  c.dim = 64;
  c.lengths = {4096};
  c.z_scale = 0, c.z_offset = -8;
  c.beta_offset = -6;
  compare(c, {KdaForm::recurrent, KdaForm::chunk, KdaForm::tiles});
}

// A wrong epsilon (1e-5, or on the mean) must be visible: with |k|^2 = 1e-6 the factor is 1/sqrt(2e-6).
TEST_F(KdaTest, EpsilonIsAddedToTheSum) {
  KdaCase c;
  c.heads = 1;
  c.dim = 16;
  c.lengths = {1};
  c.state_norm = 0;
  KdaData data(c);
  std::fill(data.k.begin(), data.k.end(), 1e-3F / 4);
  std::fill(data.q.begin(), data.q.end(), 1e-3F / 4);
  std::fill(data.b.begin(), data.b.end(), 30.0F);  // beta = 1
  for (const Isa isa : test_isas()) {
    for (const KdaForm form : {KdaForm::recurrent, KdaForm::chunk}) {
      const Answer a = run(ctx(isa), data, form);
      const Answer ref = run_ref(data);
      // S = kn v^T, o = v * (kn . qn) / sqrt(D) and |kn|^2 = 1/2.
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_NEAR(a.out.data()[i], data.v[i] * 0.5F / 4, 1e-6) << isa_name(isa);
        EXPECT_NEAR(ref.out.data()[i], data.v[i] * 0.5F / 4, 1e-6);
      }
    }
  }
}

// V-first: after one token from a zero state, state[v][k] = v kn^T.
TEST_F(KdaTest, StateIsValueFirst) {
  KdaCase c;
  c.heads = 1;
  c.dim = 16;
  c.lengths = {1};
  c.state_norm = 0;
  KdaData data(c);
  std::fill(data.k.begin(), data.k.end(), 0.0F);
  data.k[3] = 2;
  std::fill(data.b.begin(), data.b.end(), 30.0F);
  for (const Isa isa : test_isas()) {
    for (const KdaForm form : {KdaForm::recurrent, KdaForm::chunk}) {
      const Answer a = run(ctx(isa), data, form);
      for (size_t row = 0; row < 16; ++row) {
        for (size_t column = 0; column < 16; ++column) {
          EXPECT_NEAR(a.states[0].data()[row * 16 + column], column == 3 ? data.v[row] : 0.0F, 1e-6);
        }
      }
    }
  }
}

std::vector<float> numbers(const nlohmann::json& json, const char* name) {
  return json.at(name).at("data").get<std::vector<float>>();
}

nlohmann::json vectors(const std::string& name) {
  std::ifstream file(K3_SOURCE_DIR "/tests/data/oracle-ops/" + name + ".json");
  return nlohmann::json::parse(file);
}

double bound(float ref) { return 1e-5 + 1e-4 * std::abs(static_cast<double>(ref)); }

TEST_F(KdaTest, DecayVectors) {
  const nlohmann::json json = vectors("kda_decay");
  std::vector<float> z = numbers(json, "z"), a_log = numbers(json, "A_log"), dt = numbers(json, "dt_bias");
  const std::vector<float> want = numbers(json, "g");
  std::vector<float> g(z.size());
  kda_decay_ref(Tensor(z.data(), DType::f32, {4, 4, 16}), Tensor(a_log.data(), DType::f32, {4}),
                Tensor(dt.data(), DType::f32, {4, 16}), json.at("lower_bound").get<float>(),
                Tensor(g.data(), DType::f32, {4, 4, 16}));
  for (size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(g[i], want[i], bound(want[i]));
}

// Bare recurrence: q and k are not normalised there, so the vectors go to the kernels behind the preparation.
TEST_F(KdaTest, RecurrenceVectors) {
  for (const char* name : {"kda_recur1", "kda_recur8"}) {
    const nlohmann::json json = vectors(name);
    const auto tokens = json.at("T").get<int64_t>();
    const int64_t heads = 4, dim = 16;
    const std::vector<float> q = numbers(json, "q"), k = numbers(json, "k"), v = numbers(json, "v"),
                             alpha = numbers(json, "alpha"), beta = numbers(json, "beta"), want = numbers(json, "out"),
                             want_state = numbers(json, "state_out");
    const std::vector<std::pair<Isa, const KdaKernels*>> kernels = {
        {Isa::scalar, &kKdaPortable}, {Isa::avx2, &kKdaAvx2}, {Isa::avx512, &kKdaAvx512}};
    for (const auto& [isa, kernel] : kernels) {
      if (isa > detect_isa()) continue;
      for (auto* step : {kernel->recurrent_prepared, kernel->chunk_prepared}) {
        std::vector<float> out(v.size()), scratch(static_cast<size_t>(kda_scratch_floats(dim)));
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<float> kn, qn, g, b, state(static_cast<size_t>(dim * dim));
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t j = 0; j < dim; ++j) {
              const auto at = static_cast<size_t>((t * heads + h) * dim + j);
              kn.push_back(k[at]);
              qn.push_back(q[at] * 0.25F);
              g.push_back(std::log(alpha[at]));
            }
            b.push_back(beta[static_cast<size_t>(t * heads + h)]);
          }
          KdaPrepared p{.kn = kn.data(),
                        .qn = qn.data(),
                        .g = g.data(),
                        .beta = b.data(),
                        .v = v.data() + h * dim,
                        .out = out.data() + h * dim,
                        .tokens = tokens,
                        .dim = dim,
                        .padded = dim,
                        .row_stride = heads * dim,
                        .state = state.data(),
                        .scratch = scratch.data()};
          step(p);
          for (int64_t i = 0; i < dim; ++i) {  // the vectors' state is [K, V]
            for (int64_t j = 0; j < dim; ++j) {
              const float ref = want_state[static_cast<size_t>(h * dim * dim + i * dim + j)];
              EXPECT_NEAR(state[static_cast<size_t>(j * dim + i)], ref, bound(ref));
            }
          }
        }
        for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], want[i], bound(want[i])) << name << " " << isa_name(isa);
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
