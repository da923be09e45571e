// Dense products on the GPU against linear_ref (double) on the same BF16 inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/gemm/cuda/gemm_plans.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/linear_cases.h"
#include "k3/ops/gemm/weight_value.h"

namespace k3::ops::cuda {
namespace {

// A weight on both sides.
struct BothWeight {
  OwnedWeight host;
  DeviceArray<uint8_t> data, scales;
  BothWeight(Scheme scheme, int64_t rows, int64_t cols, uint64_t seed)
      : host(random_weight(scheme, rows, cols, seed)), data(host.data), scales(host.scales) {}
  Weight device() const {
    return {data.data(), scales.size() == 0 ? nullptr : scales.data(), host.scheme, host.rows, host.cols};
  }
};

// An output on the device: rows strided, poisoned; bits as they came.
struct Output {
  DType dtype;
  int64_t tokens, rows, stride;
  DeviceArray<uint8_t> memory;
  Output(DType type, int64_t t, int64_t o, int64_t row_stride)
      : dtype(type), tokens(t), rows(o), stride(row_stride), memory(t * row_stride * dtype_bytes(type)) {}
  float value(const std::vector<uint8_t>& bytes, int64_t t, int64_t o) const {
    float out = 0;
    convert_to_float(bytes.data() + (t * stride + o) * dtype_bytes(dtype), dtype, 1, &out);
    return out;
  }
  // Between rows nothing was written.
  bool gaps_intact(const std::vector<uint8_t>& bytes) const {
    const int64_t size = dtype_bytes(dtype);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = (t * stride + rows) * size; i < (t + 1) * stride * size; ++i) {
        if (bytes[static_cast<size_t>(i)] != 0xFF) return false;
      }
    }
    return true;
  }
  void fill(const std::vector<float>& values) const {  // [tokens, rows]; the gaps stay poisoned
    std::vector<uint8_t> bytes(static_cast<size_t>(memory.size()), 0xFF);
    for (int64_t t = 0; t < tokens; ++t) {
      convert_from_float(values.data() + t * rows, dtype, rows, bytes.data() + t * stride * dtype_bytes(dtype));
    }
    memory.set(bytes);
  }
  GemmPart part(const Weight& w, bool accumulate = false) const { return {w, memory.data(), stride, dtype, accumulate}; }
};

struct Input {
  int64_t tokens, in, stride;
  std::vector<float> values;  // [tokens, stride]
  DeviceArray<uint16_t> device;
  Input(int64_t t, int64_t i, int64_t row_stride, uint64_t seed)
      : tokens(t), in(i), stride(row_stride), values(random_bf16(t * row_stride, seed)), device(to_bf16(values)) {}
  Tensor host() { return matrix(values.data(), tokens, in, stride); }
};

// Largest error over its bound (gemm_cuda.h), where `added` was in y before. Prints where when it fails.
double worst(const std::string& what, Input& x, const OwnedWeight& w, const Output& y, const std::vector<float>& added = {},
             bool library = false) {
  std::vector<float> ref(static_cast<size_t>(x.tokens * w.rows));
  linear_ref(x.host(), w.view(), matrix(ref.data(), x.tokens, w.rows), false);
  const std::vector<uint8_t> bytes = y.memory.get();
  EXPECT_TRUE(y.gaps_intact(bytes)) << what;
  EXPECT_TRUE(y.memory.guards_intact()) << what;
  std::vector<float> dense(static_cast<size_t>(w.rows * w.cols));
  for (int64_t o = 0; o < w.rows; ++o) {
    for (int64_t i = 0; i < w.cols; ++i) dense[static_cast<size_t>(o * w.cols + i)] = weight_value(w.view(), o, i);
  }
  double most = 0;
  int wrong = 0;
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t o = 0; o < w.rows; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < w.cols; ++i) {
        sum += std::abs(static_cast<double>(x.values[static_cast<size_t>(t * x.stride + i)]) *
                        static_cast<double>(dense[static_cast<size_t>(o * w.cols + i)]));
      }
      const auto at = static_cast<size_t>(t * w.rows + o);
      const double before = added.empty() ? 0 : static_cast<double>(added[at]);
      const double want = static_cast<double>(ref[at]) + before;
      double bound =
          (static_cast<double>(w.cols) / 256 + 16) * 0x1p-22 * sum + 0x1p-23 * (std::abs(want) + std::abs(before));
      if (y.dtype == DType::bf16) bound += 0x1p-8 * (std::abs(want) + (library ? std::abs(want - before) : 0.0));
      const double got = static_cast<double>(y.value(bytes, t, o));
      const double ratio = bound == 0 ? (got == 0 ? 0.0 : 1e9) : std::abs(got - want) / bound;
      if (!(ratio <= 1) && wrong++ < 3)
        fmt::print("{}: y[{}, {}] is {}, should be {} (bound {})\n", what, t, o, got, want, bound);
      if (!(ratio <= most)) most = ratio;
    }
  }
  if (wrong > 0) fmt::print("{}: {} of {} wrong\n", what, wrong, x.tokens * w.rows);
  return most;
}

std::string config_text(const RowsConfig& c) {
  return fmt::format("tiles {} warps {} cluster {}", c.token_tiles, c.k_warps, c.cluster);
}

void check_rows(Scheme scheme, const LinearCase& c, const RowsConfig& config, DType out, int64_t pad_x, int64_t pad_y,
                bool accumulate) {
  const std::string what = fmt::format("scheme {} T {} I {} O {} {} {} +x {} +y {}", static_cast<int>(scheme), c.tokens,
                                       c.in, c.out, config_text(config), dtype_name(out), pad_x, pad_y);
  Input x(c.tokens, c.in, c.in + pad_x, 3);
  const BothWeight w(scheme, c.out, c.in, 4);
  const Output y(out, c.tokens, c.out, c.out + pad_y);
  std::vector<float> added;
  if (accumulate) y.fill(added = random_bf16(c.tokens * c.out, 5));
  GemmArgs args{.x = x.device.data(), .tokens = c.tokens, .in = c.in, .x_stride = x.stride, .part_count = 1};
  args.parts[0] = y.part(w.device(), accumulate);
  ASSERT_TRUE(gemm_rows_cuda(args, config, nullptr).ok()) << what;
  EXPECT_LE(worst(what, x, w.host, y, added), 1) << what;
}

// The stream kernel against the reference, and bit for bit against the row kernel with the same split.
void check_stream(const LinearCase& c, const RowsConfig& config, DType out, int64_t pad_x, int64_t pad_y, bool accumulate) {
  const std::string what =
      fmt::format("stream T {} I {} O {} {} {}", c.tokens, c.in, c.out, config_text(config), dtype_name(out));
  Input x(c.tokens, c.in, c.in + pad_x, 3);
  const BothWeight w(Scheme::bf16, c.out, c.in, 4);
  const Output y(out, c.tokens, c.out, c.out + pad_y), same(out, c.tokens, c.out, c.out + pad_y);
  std::vector<float> added;
  if (accumulate) y.fill(added = random_bf16(c.tokens * c.out, 5)), same.fill(added);
  GemmArgs args{.x = x.device.data(), .tokens = c.tokens, .in = c.in, .x_stride = x.stride, .part_count = 1};
  args.parts[0] = y.part(w.device(), accumulate);
  ASSERT_TRUE(gemm_stream_cuda(args, config, nullptr).ok()) << what;
  EXPECT_LE(worst(what, x, w.host, y, added), 1) << what;
  args.parts[0] = same.part(w.device(), accumulate);
  RowsConfig rows = config;
  rows.row_tiles = 1;
  ASSERT_TRUE(gemm_rows_cuda(args, rows, nullptr).ok()) << what;
  EXPECT_EQ(y.memory.get(), same.memory.get()) << what << ": not the row kernel's bits";
}

TEST(GemmGpu, SanitizeStreamTails) {
  K3_NEEDS_GPU();
  for (const LinearCase& c : {LinearCase{1, 32, 1}, LinearCase{3, 96, 17}, LinearCase{9, 288, 33}, LinearCase{16, 544, 70},
                              LinearCase{17, 64, 20}}) {
    for (const int row_tiles : {1, 2, 4}) {
      if (row_tiles == 4 && c.tokens <= 8) continue;
      const int token_tiles = c.tokens <= 8 ? 1 : c.tokens <= 16 ? 2 : 4, rows = 16 * row_tiles;
      check_stream(c, {(c.out + rows - 1) / rows, row_tiles, token_tiles, 4, 1}, DType::bf16, 8, 3, false);
    }
  }
}

TEST(GemmGpu, StreamAgreesWithTheReferenceAndTheRowKernel) {
  K3_NEEDS_GPU();
  for (const LinearCase& c :
       {LinearCase{1, 2304, 300}, LinearCase{4, 64, 4}, LinearCase{8, 1024, 48}, LinearCase{7, 160, 66},
        LinearCase{12, 1056, 530}, LinearCase{16, 2304, 140}, LinearCase{1, 7168, 97}, LinearCase{5, 4096, 33},
        LinearCase{2, 128, 1000}, LinearCase{21, 512, 50}, LinearCase{70, 256, 30}}) {
    for (const int sms : {2, 132}) {
      for (const bool deterministic : {false, true}) {
        const RowsConfig config = rows_config(c.tokens, c.out, c.in, sms, deterministic, 4);
        check_stream(c, config, deterministic ? DType::bf16 : DType::f32, 8, 5, sms == 2);
      }
    }
  }
}

void check_wide(const LinearCase& c, const RowsConfig& config, DType out, int64_t pad_x, int64_t pad_y, bool accumulate) {
  const std::string what =
      fmt::format("wide T {} I {} O {} {} {}", c.tokens, c.in, c.out, config_text(config), dtype_name(out));
  Input x(c.tokens, c.in, c.in + pad_x, 3);
  const BothWeight w(Scheme::bf16, c.out, c.in, 4);
  const Output y(out, c.tokens, c.out, c.out + pad_y);
  std::vector<float> added;
  if (accumulate) y.fill(added = random_bf16(c.tokens * c.out, 5));
  GemmArgs args{.x = x.device.data(), .tokens = c.tokens, .in = c.in, .x_stride = x.stride, .part_count = 1};
  args.parts[0] = y.part(w.device(), accumulate);
  ASSERT_TRUE(gemm_wide_cuda(args, config, nullptr).ok()) << what;
  EXPECT_LE(worst(what, x, w.host, y, added), 1) << what;
}

TEST(GemmGpu, SanitizeWideTails) {
  K3_NEEDS_GPU();
  for (const LinearCase& c :
       {LinearCase{1, 64, 1}, LinearCase{17, 192, 33}, LinearCase{40, 128, 130}, LinearCase{65, 192, 20}}) {
    check_wide(c, wide_config(c.out, c.in, 4), DType::bf16, 8, 3, false);
  }
  check_wide({33, 320, 40}, {1, 8, 1, 8, 2}, DType::f32, 0, 0, true);
}

TEST(GemmGpu, WideAgreesWithTheReference) {
  K3_NEEDS_GPU();
  for (const LinearCase& c : {LinearCase{16, 2304, 70}, LinearCase{32, 1024, 128}, LinearCase{33, 1536, 200},
                              LinearCase{64, 576, 300}, LinearCase{100, 320, 129}, LinearCase{128, 768, 60}}) {
    for (const int cluster : {1, 2, 4, 8}) {
      check_wide(c, {(c.out + 127) / 128, 8, 1, 8, cluster}, cluster == 1 ? DType::bf16 : DType::f32, 8, 5, cluster == 2);
    }
    check_wide(c, wide_config(c.out, c.in, 132), DType::bf16, 0, 0, false);
  }
}

TEST(GemmGpu, SanitizeRowsTails) {
  K3_NEEDS_GPU();
  for (const Scheme scheme : {Scheme::bf16, Scheme::mxfp4, Scheme::i8}) {
    for (const LinearCase& c :
         {LinearCase{1, 32, 1}, LinearCase{3, 96, 17}, LinearCase{9, 160, 33}, LinearCase{17, 288, 15}}) {
      for (const RowsConfig& config : {RowsConfig{1, 1, 1, 8, 1}, RowsConfig{1, 1, 2, 2, 2}, RowsConfig{100, 1, 4, 1, 1}}) {
        check_rows(scheme, c, config, DType::bf16, 8, 3, false);
      }
    }
  }
  check_rows(Scheme::bf16, {2, 33, 5}, {1, 1, 1, 8, 1}, DType::f32, 1, 1, true);  // unaligned rows
}

TEST(GemmGpu, RowsAgreeWithTheReference) {
  K3_NEEDS_GPU();
  const std::vector<LinearCase> cases = {{1, 1, 1},      {1, 8, 3},      {2, 31, 3},    {4, 64, 4},      {5, 17, 7},
                                         {7, 160, 66},   {8, 1023, 9},   {8, 1024, 48}, {12, 1056, 130}, {13, 1032, 67},
                                         {16, 2304, 40}, {19, 2080, 31}, {1, 7168, 97}, {33, 512, 70},   {64, 128, 96}};
  for (const LinearCase& c : cases) {
    for (const Scheme scheme : {Scheme::bf16, Scheme::mxfp4, Scheme::i8}) {
      if (scheme != Scheme::bf16 && c.in % 32 != 0) continue;
      check_rows(scheme, c, rows_config(c.tokens, c.out, c.in, 132, true, 1), DType::bf16, 0, 0, false);
      check_rows(scheme, c, rows_config(c.tokens, c.out, c.in, 132, false, 1), DType::f32, 8, 5, true);
    }
  }
}

TEST(GemmGpu, EverySplit) {
  K3_NEEDS_GPU();
  for (const int token_tiles : {1, 2, 4}) {
    for (const int k_warps : {1, 2, 4, 8}) {
      for (const int cluster : {1, 2, 4, 8}) {
        for (const int row_tiles : {1, 2, 4}) {
          if (row_tiles * token_tiles == 4 && token_tiles == 1) continue;
          check_stream({11, 1088, 90}, {8, row_tiles, token_tiles, k_warps, cluster}, DType::f32, 0, 0, false);
        }
      }
    }
  }
}

// Scale bytes over the whole range, and the codes of every value: dequantisation is exact, so a product with unit vectors
// is, too.
void check_codes(bool plain) {
  for (const Scheme scheme : {Scheme::mxfp4, Scheme::i8}) {
    constexpr int64_t kIn = 160, kRows = 253;
    BothWeight w(scheme, kRows, kIn, 9);
    for (int64_t o = 0; o < kRows; ++o) {
      for (int64_t i = 0; i < kIn / 32; ++i)
        w.host.scales[static_cast<size_t>(o * (kIn / 32) + i)] = static_cast<uint8_t>(o);
    }
    w.scales.set(w.host.scales);
    std::vector<uint16_t> unit(static_cast<size_t>(kIn * kIn), 0);
    for (int64_t i = 0; i < kIn; ++i) unit[static_cast<size_t>(i * kIn + i)] = 0x3F80;
    const DeviceArray<uint16_t> x(unit);
    const Output y(DType::bf16, kIn, kRows, kRows);
    GemmArgs args{.x = x.data(), .tokens = kIn, .in = kIn, .x_stride = kIn, .part_count = 1};
    args.parts[0] = y.part(w.device());
    if (plain) {
      ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
    } else {
      ASSERT_TRUE(gemm_rows_cuda(args, rows_config(kIn, kRows, kIn, 132, true, 1), nullptr).ok());
    }
    const std::vector<uint8_t> bytes = y.memory.get();
    int wrong = 0;
    for (int64_t o = 0; o < kRows; ++o) {
      for (int64_t i = 0; i < kIn; ++i) {
        const float want = weight_value(w.host.view(), o, i), got = y.value(bytes, i, o);
        if (got != want && wrong++ < 5)
          fmt::print("scheme {} scale {} column {}: {} should be {}\n", static_cast<int>(scheme), o, i, got, want);
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(GemmGpu, CodedWeightsAreExact) {
  K3_NEEDS_GPU();
  check_codes(false);
}

void check_parts() {
  constexpr int64_t kIn = 288;
  for (const bool dependent : {false, true}) {
    Input x(6, kIn, kIn, 1);
    const BothWeight a(Scheme::bf16, 40, kIn, 2), b(Scheme::bf16, 7, kIn, 3), c(Scheme::i8, 33, kIn, 4),
        d(Scheme::mxfp4, 16, kIn, 5), e(Scheme::bf16, 128, kIn, 6), none(Scheme::bf16, 0, kIn, 7);
    const BothWeight* weights[] = {&a, &b, &c, &d, &e, &none};
    std::vector<Output> outputs;
    for (size_t i = 0; i < 6; ++i)
      outputs.emplace_back(i % 2 == 0 ? DType::bf16 : DType::f32, 6, weights[i]->host.rows, weights[i]->host.rows + 4);
    GemmArgs args{.x = x.device.data(), .tokens = 6, .in = kIn, .x_stride = kIn, .part_count = 6, .dependent = dependent};
    for (size_t i = 0; i < 6; ++i) args.parts[i] = outputs[i].part(weights[i]->device());
    ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
    for (size_t i = 0; i < 5; ++i) EXPECT_LE(worst(fmt::format("part {}", i), x, weights[i]->host, outputs[i]), 1);
  }
}

TEST(GemmGpu, SeveralPartsInOneLaunch) {
  K3_NEEDS_GPU();
  check_parts();
}

TEST(GemmGpu, SanitizePlainKernel) {
  K3_NEEDS_GPU();
  const PretendPlain plain;
  check_parts();
  check_codes(true);
}

TEST(GemmGpu, NoTokensWriteNothing) {
  K3_NEEDS_GPU();
  const BothWeight w(Scheme::bf16, 16, 32, 1);
  const Output y(DType::bf16, 1, 16, 16);
  GemmArgs args{.x = w.data.data(), .tokens = 0, .in = 32, .x_stride = 32, .part_count = 1};
  args.parts[0] = y.part(w.device());
  EXPECT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
  for (const uint8_t byte : y.memory.get()) ASSERT_EQ(byte, 0xFF);
}

// The bits of a token do not depend on how many tokens there are, on its place, nor on the other parts.
TEST(GemmGpu, DeterministicTokensDoNotSeeTheirNeighbours) {
  K3_NEEDS_GPU();
  constexpr int64_t kTokens = 75, kIn = 1056, kRows = 50;
  const Input x(kTokens, kIn, kIn, 1);
  for (const Scheme scheme : {Scheme::bf16, Scheme::i8}) {
    const int64_t in = scheme == Scheme::bf16 ? kIn : 1024;
    const BothWeight w(scheme, kRows, in, 2), other(scheme, 300, in, 3);
    const Output all(DType::f32, kTokens, kRows, kRows);
    GemmArgs args{
        .x = x.device.data(), .tokens = kTokens, .in = in, .x_stride = kIn, .part_count = 1, .deterministic = true};
    args.parts[0] = all.part(w.device());
    ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
    const std::vector<uint8_t> want = all.memory.get();
    for (const int64_t count : {1, 2, 8, 9, 16, 17, 40}) {
      for (const int64_t first : {int64_t{0}, int64_t{30}}) {
        const Output some(DType::f32, count, kRows, kRows), beside(DType::bf16, count, 300, 300);
        GemmArgs part = args;
        part.x = x.device.data() + first * kIn;
        part.tokens = count;
        part.part_count = 2;
        part.parts[0] = beside.part(other.device());
        part.parts[1] = some.part(w.device());
        ASSERT_TRUE(gemm_cuda(part, nullptr, nullptr).ok());
        const std::vector<uint8_t> got = some.memory.get();
        EXPECT_EQ(std::memcmp(got.data(), want.data() + first * kRows * 4, got.size()), 0) << count << " from " << first;
      }
    }
  }
}

TEST(GemmGpu, LibraryPlansAgreeWithTheReference) {
  K3_NEEDS_GPU();
  Result<GemmPlans> plans = GemmPlans::create();
  ASSERT_TRUE(plans.ok()) << plans.error().message;
  for (const LinearCase& c : {LinearCase{24, 256, 128}, LinearCase{64, 1536, 72}, LinearCase{200, 288, 64}}) {
    for (const DType out : {DType::bf16, DType::f32}) {
      for (const bool accumulate : {false, true}) {
        const std::string what =
            fmt::format("T {} I {} O {} {}{}", c.tokens, c.in, c.out, dtype_name(out), accumulate ? " +=" : "");
        const GemmShape shape{c.tokens, c.out, c.in, out, accumulate};
        ASSERT_TRUE(plans->prepare(shape, nullptr).ok()) << what;
        ASSERT_TRUE(plans->has(shape)) << what;
        Input x(c.tokens, c.in, c.in + 64, 3);
        const BothWeight w(Scheme::bf16, c.out, c.in, 4);
        const Output y(out, c.tokens, c.out, c.out + 16);
        std::vector<float> added;
        if (accumulate) y.fill(added = random_bf16(c.tokens * c.out, 5));
        ASSERT_TRUE(plans->run(shape, x.device.data(), x.stride, w.data.data(), y.memory.data(), y.stride, nullptr).ok())
            << what;
        EXPECT_LE(worst(what, x, w.host, y, added, true), 1) << what;
      }
    }
  }
}

// Weights that lie one after the other, with outputs side by side, are one product; others are not. Unaligned ones need no
// library.
TEST(GemmGpu, ManyTokensThroughTheLibrary) {
  K3_NEEDS_GPU();
  Result<GemmPlans> plans = GemmPlans::create();
  ASSERT_TRUE(plans.ok()) << plans.error().message;
  constexpr int64_t kTokens = 48, kIn = 256;
  Input x(kTokens, kIn, kIn, 1);
  const BothWeight w(Scheme::bf16, 96, kIn, 2), other(Scheme::bf16, 33, kIn, 3);
  const Output together(DType::bf16, kTokens, 96, 96), apart(DType::f32, kTokens, 33, 33);
  GemmArgs args{.x = x.device.data(), .tokens = kTokens, .in = kIn, .x_stride = kIn, .part_count = 3};
  const Weight whole = w.device();
  args.parts[0] = together.part(weight_rows(whole, 0, 40));
  args.parts[1] = together.part(weight_rows(whole, 40, 96));
  args.parts[1].y = together.memory.data() + 40 * 2;
  args.parts[2] = apart.part(other.device());  // rows of y are not aligned to 16 bytes
  ASSERT_TRUE(gemm_prepare(args, *plans, nullptr).ok());
  EXPECT_TRUE(plans->has({kTokens, 96, kIn, DType::bf16, false}));
  EXPECT_FALSE(plans->has({kTokens, 40, kIn, DType::bf16, false}));
  EXPECT_TRUE(plans->has({kTokens, 33, kIn, DType::f32, false}));
  for (const GemmPlans* with : {static_cast<const GemmPlans*>(nullptr), static_cast<const GemmPlans*>(&*plans)}) {
    together.memory.poison(), apart.memory.poison();
    ASSERT_TRUE(gemm_cuda(args, with, nullptr).ok());
    EXPECT_LE(worst("together", x, w.host, together), 1);
    EXPECT_LE(worst("apart", x, other.host, apart), 1);
  }
}

TEST(GemmGpu, PlansComeBackFromText) {
  K3_NEEDS_GPU();
  Result<GemmPlans> plans = GemmPlans::create(), other = GemmPlans::create();
  ASSERT_TRUE(plans.ok() && other.ok());
  const GemmShape shape{64, 256, 512, DType::bf16, false};
  ASSERT_TRUE(plans->prepare(shape, nullptr).ok());
  EXPECT_FALSE(other->has(shape));
  ASSERT_TRUE(other->load(plans->save()).ok());
  EXPECT_TRUE(other->has(shape));
  EXPECT_EQ(other->save(), plans->save());
  EXPECT_FALSE(other->has({65, 256, 512, DType::bf16, false}));  // beyond the bucket
  EXPECT_FALSE(other->load("cublaslt 1\n").ok());
  EXPECT_FALSE(other->load(plans->save() + "256 x\n").ok());
}

}  // namespace
}  // namespace k3::ops::cuda
