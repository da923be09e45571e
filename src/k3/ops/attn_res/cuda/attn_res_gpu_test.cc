// Sites on the GPU against attn_res_ref and rms_norm_ref on the same BF16 rows; P and the new bank row bit exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/attn_res/cuda/attn_res_cuda.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops::cuda {
namespace {

constexpr double kTolerance = 3e-3;  // kernels.md 9
constexpr double kTwoRows = 5e-5;    // of out and out_rest: 16 bits, sums of up to 16,384 numbers in FP32
constexpr float kEps = 1e-5F;

struct Case {
  int64_t tokens = 1, hidden = 64;
  int blocks = 1;
  bool prefix = true, delta = true;
  bool norm = true, norm_bf16 = false, bank_out = false;
  int64_t pad = 0;  // extra elements a row
  float query_scale = 1;
  std::optional<AttnResKernel> kernel = {};
  bool rest = false, keep = false;  // what rounding cut off is there; is wanted
};

std::string name(const Case& c) {
  return fmt::format("T={} hidden={} blocks={} prefix={} delta={} norm={}{} bank_out={} pad={} query={} kernel={} rest={} keep={}", c.tokens,
                     c.hidden, c.blocks, c.prefix, c.delta, c.norm, c.norm_bf16 ? " bf16" : "", c.bank_out, c.pad,
                     c.query_scale, c.kernel ? static_cast<int>(*c.kernel) : -1, c.rest, c.keep);
}

// Rows of a [rows, hidden] array laid out with `stride`; what lies between keeps the poison.
std::vector<uint16_t> strided(const std::vector<float>& x, int64_t hidden, int64_t stride) {
  std::vector<uint16_t> out(x.size() / static_cast<size_t>(hidden) * static_cast<size_t>(stride), 0xFFFF);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto h = static_cast<size_t>(hidden);
    out[i / h * static_cast<size_t>(stride) + i % h] = float_to_bf16(x[i]);
  }
  return out;
}
// The opposite; false when the gaps were written.
bool unstride(const std::vector<uint16_t>& x, int64_t hidden, int64_t stride, std::vector<float>& out) {
  out.clear();
  bool clean = true;
  for (size_t i = 0; i < x.size(); ++i) {
    if (static_cast<int64_t>(i) % stride < hidden) {
      out.push_back(bf16_to_float(x[i]));
    } else {
      clean = clean && x[i] == 0xFFFF;
    }
  }
  return clean;
}

AttnResPlan plan_of(const Case& c, int sources) {
  const DeviceInfo& device = device_info();
  AttnResPlan plan = attn_res_plan(c.tokens, c.hidden, sources, device);
  if (!c.kernel || *c.kernel == plan.kernel) return plan;
  if (*c.kernel == AttnResKernel::any) {
    plan = attn_res_plan(c.tokens, c.hidden, 10, device);
  } else if (*c.kernel == AttnResKernel::large) {
    plan = attn_res_plan(1'000'000, c.hidden, std::max(sources, 3), device);
    plan.grid =
        static_cast<int>(std::min<int64_t>(plan.grid, std::max<int64_t>(1, c.tokens / 3)));  // several tokens a block
  } else if (*c.kernel == AttnResKernel::few && sources <= 2) {
    plan = attn_res_plan(1'000'000, c.hidden, sources, device);
    plan.grid = static_cast<int>(c.tokens);
  }
  return plan;
}

double run(const Case& c) {
  SCOPED_TRACE(name(c));
  const int64_t T = c.tokens, H = c.hidden, stride = H + c.pad;
  const std::vector<float> bank = random_bf16(c.blocks * T * H, 1), prefix = random_bf16(T * H, 2),
                           delta = random_bf16(T * H, 3, 0.5F);
  std::vector<float> rest = random_bf16(T * H, 6, 1e-3F);
  if (!c.rest) std::fill(rest.begin(), rest.end(), 0.0F);
  std::vector<float> query = random_normal(H, 4, c.query_scale / std::sqrt(static_cast<float>(H))), norm = random_bf16(H, 5);
  std::vector<float> p(static_cast<size_t>(T * H)), low = rest, sum = p;  // the sum rounded, what that cuts off, both
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = c.prefix ? prefix[i] : delta[i];
    if (c.prefix && c.delta) {
      const float x = (prefix[i] + rest[i]) + delta[i];
      p[i] = round_to_bf16(x);
      low[i] = c.keep ? round_to_bf16(x - p[i]) : 0;
    }
    sum[i] = p[i] + low[i];
  }
  const bool with_prefix = c.prefix || c.delta;

  // attn_res_ref takes P as the last row; without P the last bank row takes its place.
  std::vector<float> want(p.size());
  std::vector<float> rows = bank, last = sum;
  int64_t count = c.blocks;
  if (!with_prefix) {
    --count;
    last.assign(bank.end() - static_cast<ptrdiff_t>(T * H), bank.end());
  }
  const Tensor want_t(want.data(), DType::f32, {T, H});
  attn_res_ref(count > 0 ? Tensor(rows.data(), DType::f32, {count, T, H}) : Tensor(),
               Tensor(last.data(), DType::f32, {T, H}), Tensor(query.data(), DType::f32, {H}), kEps, want_t);
  if (c.norm) rms_norm_ref(want_t, Tensor(norm.data(), DType::f32, {H}), kEps, want_t);

  const DeviceArray<uint16_t> d_bank(strided(bank, H, stride)), d_prefix(strided(prefix, H, stride)),
      d_delta(strided(delta, H, stride)), d_rest(strided(rest, H, stride));
  const DeviceArray<float> d_query(query), d_norm(norm);
  const DeviceArray<uint16_t> d_norm_bf16(to_bf16(norm)), out(T * stride), out_rest(T * stride), bank_out(T * stride), prefix_out(T * stride);
  const bool in_place = c.pad == 0;
  const AttnResSite site{.tokens = T,
                         .hidden = H,
                         .blocks = c.blocks,
                         .bank = d_bank.data(),
                         .bank_block_stride = T * stride,
                         .bank_stride = stride,
                         .prefix = c.prefix ? d_prefix.data() : nullptr,
                         .prefix_stride = stride,
                         .delta = c.delta ? d_delta.data() : nullptr,
                         .delta_stride = stride,
                         .prefix_out = !with_prefix           ? nullptr
                                       : in_place && c.prefix ? d_prefix.data()
                                                              : prefix_out.data(),
                         .prefix_out_stride = stride,
                         .rest = c.rest ? d_rest.data() : nullptr,
                         .rest_out = c.keep ? d_rest.data() : nullptr,
                         .rest_stride = stride,
                         .bank_out = c.bank_out ? bank_out.data() : nullptr,
                         .bank_out_stride = stride,
                         .query = d_query.data(),
                         .norm = !c.norm       ? nullptr
                                 : c.norm_bf16 ? static_cast<const void*>(d_norm_bf16.data())
                                               : d_norm.data(),
                         .norm_bf16 = c.norm_bf16,
                         .eps = kEps,
                         .norm_eps = kEps,
                         .out = out.data(),
                         .out_stride = stride,
                         .out_rest = c.keep ? out_rest.data() : nullptr};
  const CudaStatus status = attn_res_cuda(site, plan_of(c, c.blocks + (with_prefix ? 1 : 0)), nullptr);
  EXPECT_TRUE(status.ok()) << to_status(status, "attn_res").error().message;
  gpu_sync();
  std::vector<float> got;
  EXPECT_TRUE(unstride(out.get(), H, stride, got));
  const double ratio = norm_ratio(got, want);
  EXPECT_LE(ratio, kTolerance);
  if (!(ratio <= kTolerance)) {
    for (size_t i = 0; i < got.size(); ++i) {
      if (!(std::abs(got[i] - want[i]) <= 0.02F * std::abs(want[i]) + 0.02F)) {
        fmt::print("first wrong: token {} column {}: {} not {}\n", i / static_cast<size_t>(H), i % static_cast<size_t>(H),
                   got[i], want[i]);
        break;
      }
    }
  }
  if (c.keep) {
    std::vector<float> both;
    EXPECT_TRUE(unstride(out_rest.get(), H, stride, both));
    for (size_t i = 0; i < both.size(); ++i) both[i] += got[i];
    EXPECT_LE(norm_ratio(both, want), kTwoRows);
  }
  if (with_prefix) {
    EXPECT_TRUE(unstride((in_place && c.prefix ? d_prefix : prefix_out).get(), H, stride, got));
    EXPECT_TRUE(got == p) << "P";
    if (c.keep) {
      EXPECT_TRUE(unstride(d_rest.get(), H, stride, got));
      EXPECT_TRUE(got == low) << "what rounding cut off";
    }
    if (c.bank_out) {
      EXPECT_TRUE(unstride(bank_out.get(), H, stride, got));
      EXPECT_TRUE(got == p) << "bank row";
    }
  }
  for (const auto* array : {&d_bank, &d_prefix, &d_delta, &d_rest, &out_rest, &out, &bank_out, &prefix_out}) EXPECT_TRUE(array->guards_intact());
  EXPECT_TRUE(d_bank.get() == strided(bank, H, stride)) << "the bank was written";
  return ratio;
}

void report(const char* what, double worst) { fmt::print("{}: worst norm ratio {:.2e}\n", what, worst); }

TEST(AttnResGpu, SanitizeSmallestShapes) {
  K3_NEEDS_GPU();
  for (const AttnResKernel kernel : {AttnResKernel::small, AttnResKernel::large, AttnResKernel::any, AttnResKernel::few}) {
    for (const int64_t hidden : {8, 40, 264}) {
      run({.tokens = 3, .hidden = hidden, .blocks = 1, .kernel = kernel});
      run({.tokens = 1, .hidden = hidden, .blocks = 2, .kernel = kernel});
      run({.tokens = 5, .hidden = hidden, .blocks = 3, .bank_out = true, .pad = 8, .kernel = kernel});
      run({.tokens = 2, .hidden = hidden, .blocks = 0, .kernel = kernel});
      run({.tokens = 2, .hidden = hidden, .blocks = 2, .prefix = false, .delta = false, .kernel = kernel});
      for (const int blocks : {0, 1, 2}) run({.tokens = 3, .hidden = hidden, .blocks = blocks, .bank_out = true, .kernel = kernel, .rest = true, .keep = true});
    }
  }
}

TEST(AttnResGpu, SanitizePlainKernel) {
  K3_NEEDS_GPU();
  const PretendPlain plain;
  for (const int64_t hidden : {8, 40, 264}) {
    for (const int blocks : {1, 3, 8}) {
      run({.tokens = 3, .hidden = hidden, .blocks = blocks, .bank_out = true, .pad = 8, .kernel = AttnResKernel::any});
      run({.tokens = 2, .hidden = hidden, .blocks = blocks, .prefix = false, .kernel = AttnResKernel::any});
      run({.tokens = 2, .hidden = hidden, .blocks = blocks, .prefix = false, .delta = false, .kernel = AttnResKernel::any});
      run({.tokens = 2, .hidden = hidden, .blocks = blocks, .delta = false, .norm = false, .kernel = AttnResKernel::any});
    }
    run({.tokens = 2, .hidden = hidden, .blocks = 0, .kernel = AttnResKernel::any});
    run({.tokens = 2, .hidden = hidden, .blocks = 3, .pad = 8, .kernel = AttnResKernel::any, .rest = true, .keep = true});
    run({.tokens = 2, .hidden = hidden, .blocks = 1, .delta = false, .kernel = AttnResKernel::any, .rest = true});
    run({.tokens = 2, .hidden = hidden, .blocks = 1, .kernel = AttnResKernel::any, .keep = true});
  }
}

// A sum in two rows: read, kept, both, or read without a delta; more sources than the kernels in registers take, too.
TEST(AttnResGpu, WhatRoundingCutsOff) {
  K3_NEEDS_GPU();
  double worst = 0;
  for (const AttnResKernel kernel : {AttnResKernel::small, AttnResKernel::large, AttnResKernel::any, AttnResKernel::few}) {
    for (const int blocks : {0, 1, 2, 5, 8}) {
      for (const int64_t hidden : {40, 2304, 7168}) {
        for (const int64_t pad : {0, 8}) {
          const Case c{.tokens = 7, .hidden = hidden, .blocks = blocks, .bank_out = blocks % 2 == 0, .pad = pad, .kernel = kernel};
          for (const auto& [rest, keep] : {std::pair{true, true}, {false, true}, {true, false}}) {
            Case with = c;
            with.rest = rest, with.keep = keep;
            worst = std::max(worst, run(with));
          }
          Case read = c;
          read.delta = false, read.rest = true;
          worst = std::max(worst, run(read));
        }
      }
    }
  }
  for (const int64_t tokens : {1, 2, 8, 20, 40, 300}) {
    for (const int blocks : {0, 1, 8, 9, 33}) {
      worst = std::max(worst, run({.tokens = tokens, .hidden = 7168, .blocks = blocks, .norm_bf16 = true, .rest = true, .keep = true}));
      worst = std::max(worst, run({.tokens = tokens, .hidden = 2304, .blocks = blocks, .rest = true, .keep = true}));
    }
  }
  report("a sum in two rows", worst);
}

TEST(AttnResGpu, EveryNumberOfBlocksEveryKernel) {
  K3_NEEDS_GPU();
  for (const AttnResKernel kernel : {AttnResKernel::small, AttnResKernel::large, AttnResKernel::any, AttnResKernel::few}) {
    double worst = 0;
    for (int blocks = 0; blocks <= 8; ++blocks) {
      for (const int64_t hidden : {128, 2304}) {
        worst = std::max(
            worst, run({.tokens = 7, .hidden = hidden, .blocks = blocks, .bank_out = blocks % 2 == 0, .kernel = kernel}));
      }
      if (blocks > 0) {
        worst = std::max(worst, run({.tokens = 4, .hidden = 128, .blocks = blocks, .prefix = false, .kernel = kernel}));
        worst = std::max(
            worst, run({.tokens = 4, .hidden = 128, .blocks = blocks, .prefix = false, .delta = false, .kernel = kernel}));
      }
      worst = std::max(worst,
                       run({.tokens = 4, .hidden = 128, .blocks = blocks, .delta = false, .norm = false, .kernel = kernel}));
    }
    report(fmt::format("kernel {}", static_cast<int>(kernel)).c_str(), worst);
  }
}

TEST(AttnResGpu, WidthOfK3) {
  K3_NEEDS_GPU();
  double worst = 0;
  for (const int64_t tokens : {1, 2, 5, 8, 16, 33, 66, 70})
    worst = std::max(worst, run({.tokens = tokens, .hidden = 7168, .blocks = 8}));
  for (const int64_t tokens : {1, 40}) {
    worst = std::max(worst,
                     run({.tokens = tokens, .hidden = 7168, .blocks = 5, .norm_bf16 = true, .bank_out = true, .pad = 16}));
    worst = std::max(
        worst, run({.tokens = tokens, .hidden = 7168, .blocks = 8, .query_scale = 50, .kernel = AttnResKernel::large}));
    worst = std::max(
        worst,
        run({.tokens = tokens, .hidden = 7168, .blocks = 8, .norm_bf16 = true, .pad = 16, .kernel = AttnResKernel::large}));
    worst = std::max(worst,
                     run({.tokens = tokens, .hidden = 7168, .blocks = 8, .query_scale = 0, .kernel = AttnResKernel::any}));
  }
  worst = std::max(worst, run({.tokens = 300, .hidden = 7168, .blocks = 4}));
  worst = std::max(worst, run({.tokens = 2, .hidden = 16384, .blocks = 3}));
  worst = std::max(worst, run({.tokens = 270, .hidden = 7168, .blocks = 1, .norm_bf16 = true, .bank_out = true, .pad = 16}));
  worst = std::max(worst, run({.tokens = 270, .hidden = 7168, .blocks = 0}));
  report("7168", worst);
}

TEST(AttnResGpu, ManyBlocks) {
  K3_NEEDS_GPU();
  double worst = 0;
  for (const int blocks : {9, 15, 32, 33, 70})
    worst = std::max(worst, run({.tokens = 3, .hidden = 2304, .blocks = blocks, .bank_out = true}));
  report("many blocks", worst);
}

// y1, its score and its mass in place of the rows they stand for.
void check_merge() {
  for (const int64_t tokens : {3, 300}) {
    for (const bool prefix : {true, false}) {
      constexpr int64_t kHidden = 256, kBlocks = 3;
      std::vector<float> bank = random_bf16(kBlocks * tokens * kHidden, 1), p = random_bf16(tokens * kHidden, 2);
      std::vector<float> query = random_normal(kHidden, 3, 0.2F), norm = random_bf16(kHidden, 4);
      std::vector<float> y1(p.size()), m1(static_cast<size_t>(tokens)), d1(static_cast<size_t>(tokens)), want(p.size());
      for (int64_t t = 0; t < tokens; ++t) {
        double scores[kBlocks];
        for (int64_t j = 0; j < kBlocks; ++j) {
          const float* row = &bank[static_cast<size_t>((j * tokens + t) * kHidden)];
          double dot = 0, squares = 0;
          for (int64_t i = 0; i < kHidden; ++i) {
            const auto x = static_cast<double>(row[i]);
            dot += x * static_cast<double>(query[static_cast<size_t>(i)]);
            squares += x * x;
          }
          scores[j] = dot / std::sqrt(squares / kHidden + 1e-5);
        }
        const double top = *std::max_element(scores, scores + kBlocks);
        double mass = 0;
        for (int64_t j = 0; j < kBlocks; ++j) {
          const double e = std::exp(scores[j] - top);
          mass += e;
          for (int64_t i = 0; i < kHidden; ++i) {
            y1[static_cast<size_t>(t * kHidden + i)] +=
                static_cast<float>(e) * bank[static_cast<size_t>((j * tokens + t) * kHidden + i)];
          }
        }
        m1[static_cast<size_t>(t)] = static_cast<float>(top);
        d1[static_cast<size_t>(t)] = static_cast<float>(mass);
      }
      std::vector<float> last = prefix ? p : std::vector<float>(bank.end() - static_cast<ptrdiff_t>(p.size()), bank.end());
      const Tensor want_t(want.data(), DType::f32, {tokens, kHidden});
      attn_res_ref(Tensor(bank.data(), DType::f32, {prefix ? kBlocks : kBlocks - 1, tokens, kHidden}),
                   Tensor(last.data(), DType::f32, {tokens, kHidden}), Tensor(query.data(), DType::f32, {kHidden}), kEps,
                   want_t);
      rms_norm_ref(want_t, Tensor(norm.data(), DType::f32, {kHidden}), kEps, want_t);
      const DeviceArray<uint16_t> d_y1(to_bf16(y1)), d_p(to_bf16(p)), out(tokens * kHidden);
      const DeviceArray<float> d_m1(m1), d_d1(d1), d_query(query), d_norm(norm);
      ASSERT_TRUE(attn_res_cuda({.tokens = tokens,
                                 .hidden = kHidden,
                                 .blocks = 1,
                                 .bank = d_y1.data(),
                                 .bank_stride = kHidden,
                                 .prefix = prefix ? d_p.data() : nullptr,
                                 .prefix_stride = kHidden,
                                 .query = d_query.data(),
                                 .norm = d_norm.data(),
                                 .inter_max = d_m1.data(),
                                 .inter_sum = d_d1.data(),
                                 .out = out.data(),
                                 .out_stride = kHidden},
                                nullptr)
                      .ok());
      gpu_sync();
      EXPECT_LE(norm_ratio(from_bf16(out.get()), want), kTolerance) << tokens << " " << prefix;
      EXPECT_TRUE(out.guards_intact());
    }
  }
}

TEST(AttnResGpu, MergeOfAnInterBlockPart) {
  K3_NEEDS_GPU();
  check_merge();
  const PretendPlain plain;
  check_merge();
}

// Programmatic launches in a graph: the delta of each site is written by the kernel right before it.
TEST(AttnResGpu, DependentLaunchesInAGraph) {
  K3_NEEDS_GPU();
  constexpr int64_t kHidden = 7168;
  constexpr int kSites = 6;
  const std::vector<float> prefix = random_bf16(kHidden, 2), bank = random_bf16(3 * kHidden, 1),
                           query = random_normal(kHidden, 3, 0.02F);
  const std::vector<float> ones(kHidden, 1.0F);
  const DeviceArray<uint16_t> d_bank(to_bf16(bank)), d_prefix(to_bf16(prefix)), first(to_bf16(random_bf16(kHidden, 9)));
  const DeviceArray<float> d_query(query), d_ones(ones);
  std::vector<DeviceArray<uint16_t>> outs;
  for (int i = 0; i < kSites; ++i) outs.emplace_back(kHidden);
  const auto site = [&](int i, bool dependent, cudaStream_t stream) {
    return attn_res_cuda({.tokens = 1,
                          .hidden = kHidden,
                          .blocks = 3,
                          .bank = d_bank.data(),
                          .bank_block_stride = kHidden,
                          .prefix = d_prefix.data(),
                          .delta = i == 0 ? first.data() : outs[static_cast<size_t>(i) - 1].data(),
                          .query = d_query.data(),
                          .norm = d_ones.data(),
                          .out = outs[static_cast<size_t>(i)].data(),
                          .dependent = dependent},
                         stream);
  };
  for (int i = 0; i < kSites; ++i) ASSERT_TRUE(site(i, false, nullptr).ok());
  gpu_sync();
  const std::vector<uint16_t> want = outs.back().get();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  gpu_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  gpu_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kSites; ++i) ASSERT_TRUE(site(i, i > 0, stream).ok());
  gpu_check(cudaStreamEndCapture(stream, &graph), "capture");
  gpu_check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (const auto& out : outs) out.poison();
    gpu_sync();
    gpu_check(cudaGraphLaunch(exec, stream), "graph");
    gpu_sync();
    ASSERT_TRUE(outs.back().get() == want) << repeat;
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace k3::ops::cuda
