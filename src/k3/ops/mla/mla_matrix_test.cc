// Expanded attention on BF16 products: dot instruction, emulated tiles and, where there are any, tiles.
#include "k3/ops/mla/mla_matrix.h"

#include <gtest/gtest.h>

#include "k3/ops/mla/mla_cases.h"

namespace k3::ops {
namespace {

constexpr double kUnit = 1.0 / 512;  // above the mean error of rounding to BF16 (mla.h)

// mla.h: q, keys, values and weights are rounded once; of an FP32 cache the latent is, too.
double tolerance(const MlaCase& c) {
  const double spread = static_cast<double>(c.scale), latent = c.cache == DType::f32 ? 1 : 0;
  return kUnit * std::sqrt(2 + latent + (2 + latent) * spread * spread);
}

double norm_ratio(const float* x, const float* ref, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference += (static_cast<double>(x[i]) - ref[i]) * (static_cast<double>(x[i]) - ref[i]);
    norm += static_cast<double>(ref[i]) * ref[i];
  }
  return std::sqrt(difference / norm);
}

struct Unit {
  const char* name;
  PackedFn fn;
};

const MlaCase kSmall{
    .heads = 2, .nope = 32, .rope = 32, .value = 64, .rank = 96, .cache = DType::bf16, .scheme = Scheme::bf16};
const MlaCase kK3{
    .heads = 2, .nope = 128, .rope = 64, .value = 128, .rank = 512, .cache = DType::bf16, .scheme = Scheme::bf16};

class MlaMatrixTest : public testing::Test {
 protected:
  Workspace workspace;
  ThreadPool pool{2};

  void SetUp() override {
    if (units().empty()) GTEST_SKIP() << "no BF16 dot instruction";
  }

  static std::vector<Unit> units() {
    std::vector<Unit> all;
    if (detect_isa() >= Isa::avx512bf16) all = {{"dots", packed_avx512bf16}, {"emulated", packed_emulated}};
    if (detect_isa() >= Isa::amx) all.push_back({"amx", packed_amx});
    return all;
  }

  Ctx ctx(Isa isa = Isa::avx512bf16) { return {.pool = &pool, .workspace = &workspace, .isa = isa, .policy = Policy::bf16}; }

  static void run(const Ctx& c, const MlaArgs& args, PackedFn fn) {
    std::vector<size_t> sequences;
    for (size_t s = 0; s < args.caches.size(); ++s) {
      if (args.offsets[s] < args.offsets[s + 1]) sequences.push_back(s);
    }
    mla_run_matrix(c, args, fn, sequences);
  }

  static Guarded run(const Ctx& c, MlaData& data, PackedFn fn) {
    Guarded out(data.out_size());
    run(c, data.args(out.data(), MlaForm::expanded), fn);
    EXPECT_TRUE(out.intact());
    return out;
  }

  void compare(const MlaCase& c, uint64_t seed = 1) {
    MlaData data(c, seed);
    data.append(ctx());
    Guarded ref(data.out_size());
    mla_ref(data.args(ref.data(), MlaForm::automatic));
    for (const Unit& unit : units()) {
      const Guarded out = run(ctx(), data, unit.fn);
      const double ratio = norm_ratio(out.data(), ref.data(), out.size());
      EXPECT_LE(ratio, tolerance(c)) << unit.name << " heads " << c.heads << " rank " << c.rank << " seed " << seed;
    }
  }
};

TEST_F(MlaMatrixTest, ShapesAndCaches) {
  for (MlaCase c :
       {kSmall, kK3, MlaCase{.heads = 3, .nope = 64, .rope = 0, .value = 32, .rank = 32, .scheme = Scheme::bf16}}) {
    for (const DType cache : {DType::f32, DType::bf16, DType::f8_e4m3}) {
      c.cache = cache;
      c.lengths = {70};
      c.history = {45};
      compare(c);
    }
  }
}

TEST_F(MlaMatrixTest, LengthsHistoriesPagesAndEmptySequences) {
  MlaCase c = kSmall;
  c.lengths = {0, 1, 15, 16, 17, 0, 63, 64, 65, 200, 1, 2, 600, 0};
  c.history = {3, 0, 0, 1, 64, 0, 128, 127, 0, 63, 300, 62, 500, 0};
  for (const int64_t page : {1, 16, 100}) {
    c.page_tokens = page;
    c.cache = page == 16 ? DType::f32 : DType::bf16;
    compare(c, static_cast<uint64_t>(page));
  }
}

// Past the borders of blocks (512), parts (512) and slabs (2,048).
TEST_F(MlaMatrixTest, SlabsOfLongSequences) {
  MlaCase c = kSmall;
  c.heads = 1;
  c.lengths = {100, 1100, 30};
  c.history = {4090, 1500, 2048};
  compare(c);
}

// More keys and values than are expanded at a time: heads in two groups.
TEST_F(MlaMatrixTest, MoreHeadsThanOneGroup) {
  MlaCase c{.heads = 70, .nope = 32, .rope = 0, .value = 32, .rank = 32, .cache = DType::bf16, .scheme = Scheme::bf16};
  c.lengths = {20};
  c.history = {kMlaSlab - 20};
  ASSERT_LT(mla_expanded_elements({c.heads, 32, 0, 32, 32, 1}, pool.size()), c.heads * kMlaSlab * 64);
  compare(c);
}

TEST_F(MlaMatrixTest, SharpAndFlatSoftmax) {
  MlaCase c = kK3;
  c.lengths = {130};
  c.history = {600};
  for (const float scale : {0.0F, 4.0F, 30.0F}) {
    c.scale = scale;
    compare(c);
  }
}

// Keys and values of one head in a BF16 cache, rounded as the kernels round them.
struct Expanded {
  std::vector<double> keys, values;
  Expanded(const MlaData& data, int64_t cached) {
    const MlaCase& c = data.shape;
    for (int64_t p = 0; p < cached; ++p) {
      const uint16_t* row = data.caches[0].row_bf16(p);
      for (int64_t n = 0; n < c.nope + c.value; ++n) {
        double sum = 0;
        for (int64_t r = 0; r < c.rank; ++r) {
          sum += static_cast<double>(bf16_to_float(data.weight16[static_cast<size_t>(n * c.rank + r)])) *
                 static_cast<double>(bf16_to_float(row[r]));
        }
        (n < c.nope ? keys : values).push_back(static_cast<double>(round_to_bf16(static_cast<float>(sum))));
      }
      for (int64_t i = 0; i < c.rope; ++i) keys.push_back(static_cast<double>(bf16_to_float(row[c.rank + i])));
    }
  }
};

// One query over the first `visible` cached tokens.
void attend(const MlaCase& c, const Expanded& kv, const float* q, int64_t visible, std::vector<float>* out) {
  const int64_t key = c.nope + c.rope;
  std::vector<double> p;
  double top = -INFINITY, sum = 0;
  for (int64_t j = 0; j < visible; ++j) {
    double score = 0;
    for (int64_t i = 0; i < key; ++i) score += static_cast<double>(q[i]) * kv.keys[static_cast<size_t>(j * key + i)];
    p.push_back(score / std::sqrt(static_cast<double>(key)));
    top = std::max(top, p.back());
  }
  for (double& x : p) sum += x = std::exp(x - top);
  for (int64_t v = 0; v < c.value; ++v) {
    double mixed = 0;
    for (int64_t j = 0; j < visible; ++j)
      mixed += p[static_cast<size_t>(j)] / sum * kv.values[static_cast<size_t>(j * c.value + v)];
    out->push_back(static_cast<float>(mixed));
  }
}

// On operands rounded as the kernels round them only the weights are left, however sharp the softmax. (A key or value whose
// FP32 sum falls to the other side of a rounding border is one in a thousand.)
TEST_F(MlaMatrixTest, OnlyTheWeightsAreRoundedBesideTheOperands) {
  MlaCase c = kK3;
  c.heads = 1;
  c.lengths = {150};
  c.history = {500};
  for (const float scale : {1.0F, 8.0F}) {
    c.scale = scale;
    MlaData data(c);
    data.append(ctx());
    for (float& x : data.q) x = round_to_bf16(x);
    const Expanded kv(data, 650);
    std::vector<float> want;
    for (int64_t t = 0; t < 150; ++t) attend(c, kv, data.q.data() + t * (c.nope + c.rope), 500 + t + 1, &want);
    for (const Unit& unit : units()) {
      const Guarded out = run(ctx(), data, unit.fn);
      EXPECT_LE(norm_ratio(out.data(), want.data(), out.size()), kUnit) << unit.name << " scale " << scale;
    }
  }
}

// Weights sum to one as they are rounded: like values come out as they are.
TEST_F(MlaMatrixTest, LikeValuesComeOutAsTheyAre) {
  MlaCase c = kSmall;
  c.lengths = {700};
  MlaData data(c);
  data.append(ctx());
  for (int64_t t = 0; t < 700; ++t) {
    for (int64_t i = 0; i < c.rank; ++i) data.caches[0].row_bf16(t)[i] = data.caches[0].row_bf16(0)[i];
  }
  for (const Unit& unit : units()) {
    const Guarded out = run(ctx(), data, unit.fn);
    for (int64_t i = 0; i < data.out_size(); ++i) {
      const float first = out.data()[i % (c.heads * c.value)];
      EXPECT_NEAR(out.data()[i], first, std::abs(first) * 1e-5F) << unit.name;
    }
  }
}

// Threads, chunks, neighbours, splitting: a row depends on its position alone. Dots and emulation add in one order.
TEST_F(MlaMatrixTest, SameBitsHoweverItIsCut) {
  ThreadPool many(7);
  MlaCase c = kSmall;
  c.lengths = {700, 1, 90};
  c.history = {1600, 64, 0};
  MlaData data(c);
  data.append(ctx());
  const Guarded whole = run(ctx(), data, packed_avx512bf16);
  const auto same = [&](const Guarded& other) {
    return compare_bytes(whole.data(), other.data(), static_cast<size_t>(whole.size()) * 4) == 0;
  };
  Ctx alone = ctx(), crowd = ctx();
  alone.pool = nullptr;
  crowd.pool = &many;
  EXPECT_TRUE(same(run(ctx(), data, packed_emulated)));
  EXPECT_TRUE(same(run(alone, data, packed_avx512bf16)));
  EXPECT_TRUE(same(run(crowd, data, packed_avx512bf16)));
  for (const int64_t step : {37, 512}) {
    Guarded parts(data.out_size());
    for (size_t s = 0; s < 3; ++s) {
      for (int64_t t = 0; t < c.lengths[s]; t += step) {
        const int64_t end = std::min(t + step, c.lengths[s]);
        MlaArgs args = data.args(parts.data(), MlaForm::expanded);
        const std::vector<int64_t> offsets{0, end - t}, history{c.history[s] + t};
        args.q = args.q.slice(data.offsets[s] + t, data.offsets[s] + end);
        args.out = args.out.slice(data.offsets[s] + t, data.offsets[s] + end);
        args.offsets = offsets;
        args.history = history;
        args.caches = std::span(data.caches).subspan(s, 1);
        run(ctx(), args, packed_avx512bf16);
      }
    }
    EXPECT_TRUE(same(parts)) << step;
  }
}

// A later token that is not a number must not reach earlier ones, whether its latent or its shared key is to blame; those
// that see it become what the reference makes of it (an infinite score is NaN, one of minus infinity no weight).
TEST_F(MlaMatrixTest, CausalEvenForNan) {
  for (const int64_t column : {int64_t{3}, kSmall.rank + 3}) {
    for (const float poison : {NAN, INFINITY}) {
      MlaCase c = kSmall;
      c.lengths = {200};
      c.history = {450};  // the poisoned token lies in the second block
      MlaData clean(c), poisoned(c);
      clean.append(ctx());
      poisoned.append(ctx());
      poisoned.caches[0].row_bf16(450 + 90)[column] = float_to_bf16(poison);
      const int64_t before = 90 * c.heads * c.value;
      Guarded ref(poisoned.out_size());
      mla_ref(poisoned.args(ref.data(), MlaForm::automatic));
      for (const Unit& unit : units()) {
        const Guarded x = run(ctx(), clean, unit.fn), y = run(ctx(), poisoned, unit.fn);
        EXPECT_EQ(0, compare_bytes(x.data(), y.data(), static_cast<size_t>(before) * 4)) << unit.name;
        for (int64_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(std::isnan(y.data()[i]), std::isnan(ref.data()[i]))
              << unit.name << " " << column << " " << poison << " " << i;
        }
      }
    }
  }
}

// A value beyond BF16 beside a key that is a number: no query that sees it stays finite, no other notices.
TEST_F(MlaMatrixTest, CausalEvenForValuesThatOverflow) {
  MlaCase c = kSmall;
  c.lengths = {200};
  MlaData clean(c), large(c);
  for (MlaData* data : {&clean, &large}) {
    data->append(ctx());
    for (int64_t row = 0; row < c.heads * (c.nope + c.value); ++row) {
      const bool is_key = row % (c.nope + c.value) < c.nope;
      data->weight16[static_cast<size_t>(row * c.rank + 3)] = float_to_bf16(is_key ? 0.0F : 1000.0F);
    }
  }
  large.caches[0].row_bf16(90)[3] = float_to_bf16(1e37F);
  const int64_t before = 90 * c.heads * c.value;
  for (const Unit& unit : units()) {
    const Guarded x = run(ctx(), clean, unit.fn), y = run(ctx(), large, unit.fn);
    EXPECT_EQ(0, compare_bytes(x.data(), y.data(), static_cast<size_t>(before) * 4)) << unit.name;
    for (int64_t i = before; i < y.size(); ++i) ASSERT_FALSE(std::isfinite(y.data()[i])) << unit.name << " " << i;
  }
}

// Which arithmetic mla() takes: BF16 products only in policy bf16, not deterministic, with dimensions that fit.
TEST_F(MlaMatrixTest, OthersStayAsTheyAre) {
  const auto out = [&](MlaData& data, Policy policy, bool deterministic, MlaForm form) {
    Ctx c = ctx();
    c.policy = policy;
    c.deterministic = deterministic;
    Guarded y(data.out_size());
    mla(c, data.args(y.data(), form));
    return std::vector<float>(y.data(), y.data() + y.size());
  };
  MlaCase k3 = kK3, odd = kSmall, wide = kSmall;
  odd.rope = 12;
  wide.scheme = Scheme::f32;
  for (MlaCase* c : {&k3, &odd, &wide}) {
    c->lengths = {90, 3};
    c->history = {10, 400};
    MlaData data(*c);
    data.append(ctx());
    const std::vector<float> exact = out(data, Policy::exact, false, MlaForm::expanded);
    EXPECT_EQ(out(data, Policy::bf16, false, MlaForm::expanded) == exact, c != &k3);
    EXPECT_EQ(out(data, Policy::bf16, true, MlaForm::expanded), exact);
    EXPECT_EQ(out(data, Policy::bf16, true, MlaForm::automatic), out(data, Policy::exact, true, MlaForm::automatic));
  }
}

TEST(MlaMatrix, WhatFits) {
  EXPECT_TRUE(mla_matrix_can({96, 128, 64, 128, 512, 1}, Scheme::bf16));
  EXPECT_TRUE(mla_matrix_can({96, 128, 0, 128, 512, 1}, Scheme::bf16));
  EXPECT_FALSE(mla_matrix_can({96, 128, 64, 128, 512, 1}, Scheme::f32));
  EXPECT_FALSE(mla_matrix_can({96, 128, 16, 128, 512, 1}, Scheme::bf16));
  EXPECT_FALSE(mla_matrix_can({96, 128, 64, 120, 512, 1}, Scheme::bf16));
  EXPECT_FALSE(mla_matrix_can({96, 120, 64, 128, 512, 1}, Scheme::bf16));
  EXPECT_FALSE(mla_matrix_can({96, 128, 64, 128, 500, 1}, Scheme::bf16));
}

TEST(MlaMatrix, WhereExpansionPays) {
  const MlaDims k3{96, 128, 64, 128, 512, 1};
  for (const MlaExpandRate& rate : {kMlaRowsRate, kMlaDotsRate, kMlaTilesRate}) {
    EXPECT_FALSE(mla_expansion_pays(k3, 0, 1, rate));
    EXPECT_FALSE(mla_expansion_pays(k3, 1 << 20, 1, rate));
    EXPECT_TRUE(mla_expansion_pays(k3, 0, 512, rate));
    EXPECT_TRUE(mla_expansion_pays(k3, 1 << 20, 512, rate));
  }
  // Behind a long history a cached token costs 131,072 once and 320 a query against 1,088 a query: from 131,072 / (1,088
  // speed - 320) queries on.
  EXPECT_FALSE(mla_expansion_pays(k3, 1 << 20, 170, kMlaRowsRate));
  EXPECT_TRUE(mla_expansion_pays(k3, 1 << 20, 171, kMlaRowsRate));
  EXPECT_FALSE(mla_expansion_pays(k3, 1 << 20, 70, {.speed = 2, .strip = 32}));
  EXPECT_TRUE(mla_expansion_pays(k3, 1 << 20, 71, {.speed = 2, .strip = 32}));
  EXPECT_FALSE(mla_expansion_pays(k3, 1 << 20, 32, {.speed = 4, .strip = 32}));
  EXPECT_TRUE(mla_expansion_pays(k3, 1 << 20, 33, {.speed = 4, .strip = 32}));
  // Few heads: reading a latent takes the absorbed form as long as 2.3 of them do, so 1,088 counts 1 + 2.3 / heads times.
  const MlaExpandRate shared{.speed = 2, .strip = 32, .shared = 2.3};
  for (const auto& [heads, last] : {std::pair{2, 30}, {12, 57}, {96, 68}}) {
    const MlaDims few{heads, 128, 64, 128, 512, 1};
    EXPECT_FALSE(mla_expansion_pays(few, 1 << 20, last, shared)) << heads;
    EXPECT_TRUE(mla_expansion_pays(few, 1 << 20, last + 1, shared)) << heads;
  }
  // Without history both project every token once; a strip is expanded whole.
  EXPECT_TRUE(mla_expansion_pays(k3, 0, 2, kMlaRowsRate));
  EXPECT_FALSE(mla_expansion_pays(k3, 0, 15, {.speed = 2, .strip = 32}));
  EXPECT_TRUE(mla_expansion_pays(k3, 0, 16, {.speed = 2, .strip = 32}));
}

// The bound that memory plans count with.
TEST_F(MlaMatrixTest, ScratchStaysInItsBound) {
  for (const int threads : {1, 2, 7}) {
    ThreadPool own(threads);
    for (MlaCase c : {kSmall, kK3}) {
      for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{5}, {513}, {64, 64, 64}, {300, 1, 1100}}) {
        c.lengths = lengths;
        c.history.assign(lengths.size(), 1000);
        c.heads = 3;
        MlaData data(c);
        data.append(ctx());
        Workspace fresh;
        Ctx limited = ctx();
        limited.pool = &own;
        limited.workspace = &fresh;
        run(limited, data, packed_avx512bf16);
        const MlaDims dims{c.heads, c.nope, c.rope, c.value, c.rank, 1};
        EXPECT_LE(fresh.peak_bytes(), 4 * mla_matrix_scratch(dims, data.tokens(), threads) + 4096)
            << threads << " " << lengths[0];
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
