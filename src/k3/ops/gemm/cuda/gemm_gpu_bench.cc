// Dense products of Kimi-Linear and of one K3 rank of eight. gemm: what gemm_cuda takes, as a dependent launch; gemm_lt:
// cuBLASLt alone; gemm_wide: one wgmma launch for all parts; gemm_exact: deterministic.
#include <algorithm>
#include <map>
#include <memory>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/gemm/cuda/gemm_plans.h"

namespace k3::ops::cuda {
namespace {

struct Product {
  const char* name;
  int64_t in;
  std::vector<std::pair<int64_t, DType>> parts;
  int64_t rows() const {
    int64_t sum = 0;
    for (const auto& [rows, dtype] : parts) sum += rows;
    return sum;
  }
};

const std::vector<Product> kProducts = {
    {"linear qkv 3x4096x2304", 2304, {{4096, DType::bf16}, {4096, DType::bf16}, {4096, DType::bf16}}},
    {"linear q 4096x2304", 2304, {{4096, DType::bf16}}},
    {"linear o 2304x4096", 4096, {{2304, DType::bf16}}},
    {"linear fa+ga 2x128x2304", 2304, {{128, DType::bf16}, {128, DType::bf16}}},
    {"linear fb 4096x128", 128, {{4096, DType::bf16}}},
    {"linear router 256x2304", 2304, {{256, DType::f32}}},
    {"linear shared-in 2x1024x2304", 2304, {{1024, DType::bf16}, {1024, DType::bf16}}},
    {"linear shared-out 2304x1024", 1024, {{2304, DType::bf16}}},
    {"linear ffn 9216x2304", 2304, {{9216, DType::bf16}}},
    {"linear head 163840x2304", 2304, {{163840, DType::f32}}},
    {"K3 qkv 3x1536x7168", 7168, {{1536, DType::bf16}, {1536, DType::bf16}, {1536, DType::bf16}}},
    {"K3 o 7168x1536", 1536, {{7168, DType::bf16}}},
    {"K3 front 896+3584x7168", 7168, {{896, DType::f32}, {3584, DType::bf16}}},
    {"K3 shared-in 2x768x7168", 7168, {{768, DType::bf16}, {768, DType::bf16}}},
    {"K3 head 20480x7168", 7168, {{20480, DType::f32}}},
};

constexpr int64_t kDistinct = 300'000'000;  // weights of the calls in a graph: none is found in L2

class Run {
 public:
  Run(const Bench& bench, const Product& product, int64_t tokens)
      : product_(product),
        tokens_(tokens),
        copies_(static_cast<int>(std::clamp<int64_t>(kDistinct / (product.rows() * product.in), 2, 48))),
        x_(tokens * product.in) {
    fill(x_, 1, 1.0F, bench.stream());
    for (int c = 0; c < copies_; ++c) {
      weights_.emplace_back(product.rows() * product.in);
      fill(weights_.back(), static_cast<uint64_t>(c) + 2, 0.05F, bench.stream());
    }
    for (const auto& [rows, dtype] : product.parts) outputs_.emplace_back(tokens * rows * dtype_bytes(dtype));
  }
  int copies() const { return copies_; }
  int64_t rows() const { return product_.rows(); }
  int64_t in() const { return product_.in; }

  GemmArgs args(int call, bool dependent) const {
    GemmArgs a{.x = x_.data(), .tokens = tokens_, .in = product_.in, .x_stride = product_.in};
    a.dependent = dependent;
    const uint16_t* w = weights_[static_cast<size_t>(call % copies_)].data();
    for (size_t i = 0; i < product_.parts.size(); ++i) {
      const auto& [rows, dtype] = product_.parts[i];
      a.parts[static_cast<size_t>(a.part_count++)] = {
          {w, nullptr, Scheme::bf16, rows, product_.in}, outputs_[i].data(), rows, dtype, false};
      w += rows * product_.in;
    }
    return a;
  }
  BenchLine line(const std::string& kernel, const std::string& note) const {
    BenchLine out;
    out.kernel = kernel;
    out.name = fmt::format("{} T={}", product_.name, tokens_);
    const int64_t weights = product_.rows() * product_.in;
    out.bytes = 2.0 * static_cast<double>(weights + tokens_ * product_.in);
    for (const auto& [rows, dtype] : product_.parts) out.bytes += static_cast<double>(tokens_ * rows * dtype_bytes(dtype));
    out.flops = 2.0 * static_cast<double>(tokens_ * weights);
    out.note = note;
    return out;
  }

 private:
  static void fill(const DeviceArray<uint16_t>& out, uint64_t seed, float scale, cudaStream_t stream) {
    gpu_check(fill_normal_bf16(out.data(), out.size(), seed, scale, stream).code, "fill");
  }
  const Product& product_;
  int64_t tokens_;
  int copies_;
  DeviceArray<uint16_t> x_;
  std::vector<DeviceArray<uint16_t>> weights_;
  std::vector<DeviceArray<uint8_t>> outputs_;
};

void each(Bench& bench, const std::string& kernel, const std::vector<int64_t>& tokens,
          const std::function<void(Run&, int64_t)>& body) {
  for (const Product& product : kProducts) {
    for (const int64_t t : tokens) {
      if (t > 128 && product.rows() > 20000) continue;
      if (!bench.wants(kernel, fmt::format("{} T={}", product.name, t))) continue;
      Run run(bench, product, t);
      body(run, t);
    }
  }
}

void prepare(GemmPlans& plans, const GemmArgs& args, cudaStream_t stream) {
  for (int i = 0; i < args.part_count; ++i) {
    const GemmPart& part = args.parts[static_cast<size_t>(i)];
    const Status status = plans.prepare({args.tokens, part.w.rows, args.in, part.y_dtype, part.accumulate}, stream);
    if (!status.ok()) fmt::print("{}\n", status.error().message);
  }
}

const BenchRegistration kGemm("gemm", [](Bench& bench) {
  Result<GemmPlans> plans = GemmPlans::create();
  if (!plans.ok()) return fmt::print("{}\n", plans.error().message);
  each(bench, "gemm", {1, 8, 32, 64, 128, 8192}, [&](Run& run, int64_t) {
    const Status status = gemm_prepare(run.args(0, false), *plans, bench.stream());
    if (!status.ok()) fmt::print("{}\n", status.error().message);
    bench.run(
        run.line("gemm", "dependent launches"),
        [&](cudaStream_t stream, int i) { gpu_check(gemm_cuda(run.args(i, true), &*plans, stream).code, "gemm"); },
        run.copies());
  });
  each(bench, "gemm_lt", {1, 8, 32, 64, 128, 8192}, [&](Run& run, int64_t t) {
    prepare(*plans, run.args(0, false), bench.stream());
    bench.run(
        run.line("gemm_lt", "a call a part"),
        [&](cudaStream_t stream, int i) {
          const GemmArgs args = run.args(i, false);
          for (int p = 0; p < args.part_count; ++p) {
            const GemmPart& part = args.parts[static_cast<size_t>(p)];
            gpu_check(plans
                          ->run({t, part.w.rows, args.in, part.y_dtype, false}, args.x, args.x_stride, part.w.data, part.y,
                                part.y_stride, stream)
                          .code,
                      "cuBLASLt");
          }
        },
        run.copies());
  });
  each(bench, "gemm_wide", {32, 64, 128}, [&](Run& run, int64_t) {
    const RowsConfig config = wide_config(run.rows(), run.in(), device_info().sm_count);
    bench.run(
        run.line("gemm_wide", fmt::format("{} tiles, cluster {}", config.tiles, config.cluster)),
        [&](cudaStream_t stream, int i) { gpu_check(gemm_wide_cuda(run.args(i, true), config, stream).code, "wide"); },
        run.copies());
  });
  each(bench, "gemm_exact", {8, 128, 1024}, [&](Run& run, int64_t) {
    bench.run(
        run.line("gemm_exact", "deterministic"),
        [&](cudaStream_t stream, int i) {
          GemmArgs args = run.args(i, true);
          args.deterministic = true;
          gpu_check(gemm_cuda(args, nullptr, stream).code, "gemm");
        },
        run.copies());
  });
});

}  // namespace
}  // namespace k3::ops::cuda
