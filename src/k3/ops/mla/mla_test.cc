#include "k3/ops/mla/mla.h"

#include <gtest/gtest.h>

#include <cstring>

#include "k3/ops/mla/mla_cases.h"

namespace k3::ops {
namespace {

constexpr double kTolerance = 1e-5;  // mla.h
constexpr auto kForms = {MlaForm::absorbed, MlaForm::expanded, MlaForm::automatic};

double norm_ratio(const float* x, const float* ref, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference += (static_cast<double>(x[i]) - ref[i]) * (static_cast<double>(x[i]) - ref[i]);
    norm += static_cast<double>(ref[i]) * ref[i];
  }
  return std::sqrt(difference / norm);
}

class MlaTest : public testing::Test {
 protected:
  Workspace workspace;
  ThreadPool pool{2};
  Ctx ctx(Isa isa) { return {.pool = &pool, .workspace = &workspace, .isa = isa}; }

  Guarded run(const Ctx& c, MlaData& data, MlaForm form) {
    Guarded out(data.out_size());
    mla(c, data.args(out.data(), form));
    EXPECT_TRUE(out.intact());
    return out;
  }

  void compare(const MlaCase& c, uint64_t seed = 1) {
    MlaData data(c, seed);
    data.append(ctx(Isa::scalar));
    Guarded ref(data.out_size());
    mla_ref(data.args(ref.data(), MlaForm::automatic));
    for (const Isa isa : test_isas()) {
      for (const MlaForm form : kForms) {
        const Guarded out = run(ctx(isa), data, form);
        EXPECT_LE(norm_ratio(out.data(), ref.data(), out.size()), kTolerance)
            << isa_name(isa) << " form " << static_cast<int>(form) << " heads " << c.heads << " rank " << c.rank << " seed "
            << seed;
      }
    }
  }
};

TEST_F(MlaTest, ShapesAndDtypes) {
  for (MlaCase c : mla_shapes()) {
    for (const DType cache : {DType::f32, DType::bf16, DType::f8_e4m3}) {
      for (const Scheme scheme : {Scheme::f32, Scheme::bf16, Scheme::f16}) {
        c.cache = cache;
        c.scheme = scheme;
        c.lengths = {9};
        c.history = {70};
        compare(c);
      }
    }
  }
}

TEST_F(MlaTest, LengthsHistoriesAndEmptySequences) {
  MlaCase c;
  c.heads = 3;
  c.lengths = {0, 1, 15, 16, 17, 0, 63, 64, 65, 200, 1, 2, 0};
  c.history = {3, 0, 0, 1, 64, 0, 128, 127, 0, 63, 300, 62, 0};
  for (const int64_t page : {1, 16, 64, 100}) {
    c.page_tokens = page;
    compare(c, static_cast<uint64_t>(page));
  }
}

TEST_F(MlaTest, SharpSoftmaxAndLongHistory) {
  MlaCase c;
  c.scale = 30;
  c.lengths = {3, 40};
  c.history = {4100, 2040};  // over the borders of the 2,048-token segments
  compare(c);
  c.scale = 0;
  compare(c);
}

TEST_F(MlaTest, LongPrefill) {
  MlaCase c;
  c.heads = 2;
  c.lengths = {1000};
  c.history = {100};
  compare(c);
}

TEST_F(MlaTest, K3HeadsAFewTokens) {
  MlaCase c{.heads = 96, .nope = 128, .rope = 64, .value = 128, .rank = 512};
  c.lengths = {2};
  c.history = {5};
  c.scheme = Scheme::bf16;
  compare(c);
}

TEST_F(MlaTest, NothingToDo) {
  MlaCase c;
  c.lengths = {0, 0};
  c.history = {0, 4};
  MlaData data(c);
  for (const Isa isa : test_isas()) {
    for (const MlaForm form : kForms) EXPECT_TRUE(run(ctx(isa), data, form).intact());
  }
  data.append(ctx(Isa::scalar));
}

// The arguments of rows [t, end) of sequence s.
struct Slice {
  std::vector<int64_t> offsets, history;
  MlaArgs args;
  Slice(MlaData& data, size_t s, int64_t t, int64_t end, float* out, MlaForm form)
      : offsets{0, end - t}, history{data.shape.history[s] + t}, args(data.args(out, form)) {
    args.q = args.q.slice(data.offsets[s] + t, data.offsets[s] + end);
    args.out = args.out.slice(data.offsets[s] + t, data.offsets[s] + end);
    args.offsets = offsets;
    args.history = history;
    args.caches = std::span(data.caches).subspan(s, 1);
  }
};

// One call, token by token, in odd chunks, each sequence alone, one thread or three: the same bits.
TEST_F(MlaTest, AbsorbedDoesNotDependOnChunksNeighboursThreads) {
  ThreadPool three(3);
  for (MlaCase c : {mla_shapes()[0], mla_shapes()[2], mla_shapes()[5]}) {
    c.lengths = {50, 1, 20};
    c.history = {2030, 64, 0};
    c.cache = DType::bf16;
    MlaData data(c);
    data.append(ctx(Isa::scalar));
    for (const Isa isa : test_isas()) {
      Ctx deterministic = ctx(isa);
      deterministic.deterministic = true;
      const Guarded whole = run(deterministic, data, MlaForm::automatic);
      for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &three}) {
        Ctx other = deterministic;
        other.pool = threads;
        const Guarded again = run(other, data, MlaForm::automatic);
        EXPECT_EQ(0, compare_bytes(whole.data(), again.data(), static_cast<size_t>(whole.size()) * 4));
        for (const int64_t step : {1, 7, 1000}) {
          Guarded parts(data.out_size());
          for (size_t s = 0; s < c.lengths.size(); ++s) {
            for (int64_t t = 0; t < c.lengths[s]; t += step) {
              const Slice slice(data, s, t, std::min(t + step, c.lengths[s]), parts.data(), MlaForm::automatic);
              mla(other, slice.args);
            }
          }
          EXPECT_EQ(0, compare_bytes(whole.data(), parts.data(), static_cast<size_t>(whole.size()) * 4))
              << isa_name(isa) << " step " << step << " heads " << c.heads;
        }
      }
    }
  }
}

TEST_F(MlaTest, ExpandedDoesNotDependOnThreads) {
  ThreadPool three(3);
  MlaCase c;
  c.heads = 5;
  c.lengths = {700, 30};
  c.history = {0, 100};
  MlaData data(c);
  data.append(ctx(Isa::scalar));
  for (const Isa isa : test_isas()) {
    Ctx alone = ctx(isa), many = ctx(isa);
    alone.pool = nullptr;
    many.pool = &three;
    EXPECT_EQ(0, compare_bytes(run(alone, data, MlaForm::expanded).data(), run(many, data, MlaForm::expanded).data(),
                             static_cast<size_t>(data.out_size()) * 4));
  }
}

// A later token that is not a number must not reach earlier ones.
TEST_F(MlaTest, CausalEvenForNan) {
  MlaCase c;
  c.heads = 4;
  c.lengths = {100};
  c.history = {10};
  MlaData clean(c), poisoned(c);
  for (size_t i = static_cast<size_t>(90 * poisoned.width()); i < poisoned.kv.size(); ++i) poisoned.kv[i] = NAN;
  clean.append(ctx(Isa::scalar));
  poisoned.append(ctx(Isa::scalar));
  const auto before = static_cast<size_t>(90 * c.heads * c.value);
  for (const Isa isa : test_isas()) {
    for (const MlaForm form : {MlaForm::absorbed, MlaForm::expanded}) {
      const Guarded a = run(ctx(isa), clean, form), b = run(ctx(isa), poisoned, form);
      for (size_t i = 0; i < before; ++i) EXPECT_EQ(a.data()[i], b.data()[i]);
      EXPECT_TRUE(std::isnan(b.data()[before]));
    }
  }
}

float value_at(const PagedKv& cache, int64_t token, int64_t i) {
  float value = 0;
  convert_to_float(static_cast<const std::byte*>(cache.row(token)) + i * dtype_bytes(cache.dtype), cache.dtype, 1, &value);
  return value;
}

TEST_F(MlaTest, LatentAppend) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    MlaCase c;
    c.cache = dtype;
    c.page_tokens = 7;
    c.lengths = {40, 0, 3};
    c.history = {5, 2, 14};
    MlaData data(c), untouched(c);
    for (size_t i = 0; i < static_cast<size_t>(data.width()); ++i) data.kv[i] *= 1e-3F;  // epsilon matters in row 0
    data.append(ctx(Isa::scalar), 1e-6F);
    for (size_t s = 0; s < 3; ++s) {
      for (int64_t t = 0; t < c.history[s] + c.lengths[s]; ++t) {
        const bool is_new = t >= c.history[s];
        const float* kv = is_new ? data.kv.data() + (data.offsets[s] + t - c.history[s]) * data.width() : nullptr;
        double squares = 0;
        for (int64_t i = 0; is_new && i < c.rank; ++i) squares += static_cast<double>(kv[i]) * kv[i];
        const double factor = 1 / std::sqrt(squares / static_cast<double>(c.rank) + 1e-6);
        for (int64_t i = 0; i < data.width(); ++i) {
          const float got = value_at(data.caches[s], t, i);
          // Half a unit in the last place; in E4M3 no less than half its smallest number.
          const double relative = dtype == DType::f32 ? 3e-7 : dtype == DType::bf16 ? 1.0 / 256 : 1.0 / 16;
          const double least = dtype == DType::f8_e4m3 ? 0x1p-10 : 0;
          if (!is_new) {
            EXPECT_EQ(got, value_at(untouched.caches[s], t, i));
          } else if (i >= c.rank && dtype != DType::f8_e4m3) {  // copied as it is
            EXPECT_EQ(got, dtype == DType::f32 ? kv[i] : round_to_bf16(kv[i]));
          } else {
            const double want = i >= c.rank ? kv[i] : kv[i] * factor * data.norm[static_cast<size_t>(i)];
            EXPECT_NEAR(got, want, std::max(least, std::abs(want) * relative));
          }
        }
      }
    }
    // With inputs near 1e-3 the mean square is near 1e-6: the factor is about 0.7 of what no epsilon would give,
    // and 1e-5 would give 0.3 of it.
    const float small = value_at(data.caches[0], 5, 0);
    MlaData other(c);
    for (size_t i = 0; i < static_cast<size_t>(other.width()); ++i) other.kv[i] *= 1e-3F;
    other.append(ctx(Isa::scalar), 1e-5F);
    const float wrong = value_at(other.caches[0], 5, 0);
    EXPECT_GT(std::abs(small), 1.5F * std::abs(wrong));
    // Bytes outside the appended rows stay as they were.
    size_t changed = 0;
    for (size_t i = 0; i < data.pool.size(); ++i) changed += data.pool[i] != untouched.pool[i] ? 1 : 0;
    EXPECT_LE(changed, static_cast<size_t>(43 * data.width() * dtype_bytes(dtype)));
  }
}

}  // namespace
}  // namespace k3::ops
