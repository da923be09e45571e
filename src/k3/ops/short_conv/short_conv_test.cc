#include "k3/ops/short_conv/short_conv.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "k3/ops/short_conv/short_conv_cases.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

struct Data {
  ConvCase shape;
  DType dtype;
  std::vector<int64_t> offsets{0};
  std::vector<float> x, taps;
  std::vector<std::vector<float>> tails;  // as floats

  Data(const ConvCase& c, DType tail_dtype) : shape(c), dtype(tail_dtype) {
    for (const int64_t n : c.lengths) offsets.push_back(offsets.back() + n);
    x = random_normal(offsets.back() * c.channels, 1);
    taps = random_normal(c.channels * c.taps, 2);
    for (size_t s = 0; s < c.lengths.size(); ++s) tails.push_back(random_normal((c.taps - 1) * c.channels, 10 + s));
  }

  // sum |tap x| of every output, the scale of the tolerance (short_conv.h).
  std::vector<double> magnitudes() const {
    std::vector<double> out(x.size());
    for (size_t s = 0; s < tails.size(); ++s) {
      for (int64_t t = 0; t < shape.lengths[s]; ++t) {
        for (int64_t c = 0; c < shape.channels; ++c) {
          double sum = 0;
          for (int64_t n = 0; n < shape.taps; ++n) {
            const int64_t from = t + n - (shape.taps - 1);
            const float input = from < 0 ? tails[s][static_cast<size_t>((from + shape.taps - 1) * shape.channels + c)]
                                         : x[static_cast<size_t>((offsets[s] + from) * shape.channels + c)];
            sum += std::abs(static_cast<double>(taps[static_cast<size_t>(c * shape.taps + n)]) * static_cast<double>(input));
          }
          out[static_cast<size_t>((offsets[s] + t) * shape.channels + c)] = sum;
        }
      }
    }
    return out;
  }
};

// Tail memory of all sequences in the dtype of the case, with a guard element behind each.
struct Tails {
  std::vector<std::vector<uint32_t>> words;
  std::vector<ConvTail> views;
  DType dtype;
  explicit Tails(const Data& d) : dtype(d.dtype) {
    for (const std::vector<float>& tail : d.tails) {
      std::vector<uint32_t>& w = words.emplace_back(tail.size() + 1, 0xABCDABCD);
      convert_from_float(tail.data(), dtype, static_cast<int64_t>(tail.size()), w.data());
    }
    for (std::vector<uint32_t>& w : words) views.push_back({w.data(), dtype});
  }
  std::vector<float> values(size_t s) const {
    std::vector<float> out(words[s].size() - 1);
    convert_to_float(words[s].data(), dtype, static_cast<int64_t>(out.size()), out.data());
    return out;
  }
  bool intact() const {
    return std::all_of(words.begin(), words.end(), [](const auto& w) { return w.back() == 0xABCDABCD; });
  }
};

class ShortConvTest : public testing::Test {
 protected:
  ThreadPool pool{2};
  Ctx ctx(Isa isa) { return {.pool = &pool, .isa = isa}; }
};

Tensor matrix(const float* data, int64_t rows, int64_t columns) {
  return Tensor(const_cast<float*>(data), DType::f32, {rows, columns});
}

TEST_F(ShortConvTest, EveryCaseEveryIsa) {
  for (const ConvCase& c : conv_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Data d(c, dtype);
      const int64_t tokens = d.offsets.back();
      Tails want_tails(d);
      std::vector<float> want(d.x.size());
      short_conv_ref(matrix(d.x.data(), tokens, c.channels), matrix(d.taps.data(), c.channels, c.taps), d.offsets,
                     want_tails.views, matrix(want.data(), tokens, c.channels));
      const std::vector<double> magnitude = d.magnitudes();
      for (const Isa isa : test_isas()) {
        Tails tails(d);
        Guarded y(tokens * c.channels);
        short_conv(ctx(isa), matrix(d.x.data(), tokens, c.channels), matrix(d.taps.data(), c.channels, c.taps), d.offsets,
                   tails.views, matrix(y.data(), tokens, c.channels));
        EXPECT_TRUE(y.intact() && tails.intact());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(y.data()[i], want[i], 2e-6 * magnitude[i])
              << isa_name(isa) << " channels " << c.channels << " at " << i;
        }
        for (size_t s = 0; s < c.lengths.size(); ++s) EXPECT_EQ(tails.values(s), want_tails.values(s)) << s;
        // In place, and from strided rows.
        Tails again(d);
        std::vector<float> in_place = d.x;
        short_conv(ctx(isa), matrix(in_place.data(), tokens, c.channels), matrix(d.taps.data(), c.channels, c.taps),
                   d.offsets, again.views, matrix(in_place.data(), tokens, c.channels));
        EXPECT_EQ(0, compare_bytes(in_place.data(), y.data(), in_place.size() * 4));
        for (size_t s = 0; s < c.lengths.size(); ++s) EXPECT_EQ(tails.values(s), again.values(s)) << s;
      }
    }
  }
}

TEST_F(ShortConvTest, StridedInputAndThreadCount) {
  const ConvCase c{300, 4, {6, 2}};
  const Data d(c, DType::f32);
  std::vector<float> wide(8 * 700, NAN);
  for (size_t t = 0; t < 8; ++t)
    std::copy_n(d.x.begin() + static_cast<int64_t>(t * 300), 300, wide.begin() + static_cast<int64_t>(t * 700 + 100));
  for (const Isa isa : test_isas()) {
    Tails tails(d), others(d);
    std::vector<float> y(8 * 300), z(8 * 300);
    short_conv(ctx(isa), matrix(d.x.data(), 8, 300), matrix(d.taps.data(), 300, 4), d.offsets, tails.views,
               matrix(y.data(), 8, 300));
    Ctx alone = ctx(isa);
    alone.pool = nullptr;
    short_conv(alone, matrix(wide.data(), 8, 700).columns(100, 400), matrix(d.taps.data(), 300, 4), d.offsets, others.views,
               matrix(z.data(), 8, 300));
    EXPECT_EQ(y, z);
    for (size_t s = 0; s < 2; ++s) EXPECT_EQ(tails.values(s), others.values(s));
  }
}

TEST_F(ShortConvTest, SplittingASequenceChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t taps : {2, 4, 7}) {
      const Data d({70, taps, {20}}, dtype);
      for (const Isa isa : test_isas()) {
        Tails whole_tails(d);
        std::vector<float> whole(d.x.size());
        short_conv(ctx(isa), matrix(d.x.data(), 20, 70), matrix(d.taps.data(), 70, taps), d.offsets, whole_tails.views,
                   matrix(whole.data(), 20, 70));
        for (const int64_t step : {1, 2, 3, 7}) {
          Tails tails(d);
          std::vector<float> parts(d.x.size());
          for (int64_t t = 0; t < 20; t += step) {
            const int64_t n = std::min<int64_t>(step, 20 - t);
            const std::vector<int64_t> offsets = {0, n};
            short_conv(ctx(isa), matrix(d.x.data() + t * 70, n, 70), matrix(d.taps.data(), 70, taps), offsets, tails.views,
                       matrix(parts.data() + t * 70, n, 70));
          }
          EXPECT_EQ(whole, parts) << isa_name(isa) << " step " << step;
          EXPECT_EQ(whole_tails.values(0), tails.values(0));
        }
      }
    }
  }
}

std::vector<float> numbers(const nlohmann::json& json, const char* name) {
  return json.at(name).at("data").get<std::vector<float>>();
}

// Five steps, then one more with the carried inputs. The vectors' state is [channels, 3].
TEST_F(ShortConvTest, Vectors) {
  std::ifstream file(K3_SOURCE_DIR "/tests/data/oracle-ops/shortconv.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  const std::vector<float> taps = numbers(json, "weight"), x = numbers(json, "in"), want = numbers(json, "out"),
                           state = numbers(json, "state_after"), x1 = numbers(json, "in_next"),
                           want1 = numbers(json, "out_next");
  const auto near = [](float got, float ref) { EXPECT_NEAR(got, ref, 1e-5 + 1e-4 * std::abs(static_cast<double>(ref))); };
  for (const Isa isa : test_isas()) {
    std::vector<float> tail(3 * 64), y(5 * 64), y1(64);
    const std::vector<ConvTail> tails = {{tail.data(), DType::f32}};
    const std::vector<int64_t> five = {0, 5}, one = {0, 1};
    short_conv(ctx(isa), matrix(x.data(), 5, 64), matrix(taps.data(), 64, 4), five, tails, matrix(y.data(), 5, 64));
    for (size_t i = 0; i < y.size(); ++i) near(y[i], want[i]);
    for (size_t c = 0; c < 64; ++c) {
      for (size_t n = 0; n < 3; ++n) EXPECT_EQ(tail[n * 64 + c], state[c * 3 + n]);
    }
    short_conv(ctx(isa), matrix(x1.data(), 1, 64), matrix(taps.data(), 64, 4), one, tails, matrix(y1.data(), 1, 64));
    for (size_t i = 0; i < y1.size(); ++i) near(y1[i], want1[i]);
  }
}

}  // namespace
}  // namespace k3::ops
