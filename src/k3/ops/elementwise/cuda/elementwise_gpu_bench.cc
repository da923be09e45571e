// The memory-bound kernels without a case in kernels.md 9: RMSNorm, gated activations, add, casts, embedding. Their floor is
// the copy rate; "must" and "aim" are those of AttnRes prefill.
#include <algorithm>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/elementwise/cuda/elementwise_cuda.h"
#include "k3/ops/embedding/cuda/embedding_cuda.h"
#include "k3/ops/rms_norm/cuda/rms_norm_cuda.h"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.h"

namespace k3::ops::cuda {
namespace {

BenchLine line(const char* kernel, const std::string& name, double bytes, bool large) {
  return {.kernel = kernel, .name = name, .bytes = bytes, .must = large ? 1.5 : 0.0, .aim = large ? 1.15 : 0.0, .note = ""};
}

DeviceArray<uint16_t> filled(Bench& bench, int64_t count) {
  DeviceArray<uint16_t> x(count);
  gpu_check(fill_normal_bf16(x.data(), count, 1, 1, bench.stream()).code, "fill");
  return x;
}

void norms(Bench& bench, int64_t tokens, int64_t width, bool delta) {
  const std::string name = fmt::format("{}x{}{}", tokens, width, delta ? " add" : "");
  if (!bench.wants("rms_norm", name)) return;
  const auto x = filled(bench, tokens * width), d = filled(bench, tokens * width), out = filled(bench, tokens * width);
  const DeviceArray<float> weight(std::vector<float>(static_cast<size_t>(width), 1.0F));
  bench.run(line("rms_norm", name, static_cast<double>(tokens * width) * 2 * (delta ? 4 : 2), tokens > 1000),
            [&](cudaStream_t stream, int) {
              gpu_check(rms_norm_cuda({.tokens = tokens,
                                       .width = width,
                                       .x = x.data(),
                                       .x_stride = width,
                                       .delta = delta ? d.data() : nullptr,
                                       .delta_stride = width,
                                       .sum_out = delta ? x.data() : nullptr,
                                       .sum_out_stride = width,
                                       .weight = weight.data(),
                                       .out = out.data(),
                                       .out_stride = width},
                                      stream)
                            .code,
                        "rms_norm");
            });
}

void glus(Bench& bench, int64_t tokens, int64_t width, bool situ) {
  const std::string name = fmt::format("{} {}x{}", situ ? "situ" : "silu", tokens, width);
  if (!bench.wants("glu", name)) return;
  const auto x = filled(bench, tokens * width * 2), out = filled(bench, tokens * width);
  bench.run(line("glu", name, static_cast<double>(tokens * width) * 6, tokens > 1000), [&](cudaStream_t stream, int) {
    gpu_check(glu_cuda({.rows = tokens,
                        .width = width,
                        .gate = x.data(),
                        .gate_stride = 2 * width,
                        .up = x.data() + width,
                        .up_stride = 2 * width,
                        .out = out.data(),
                        .out_stride = width,
                        .situ = situ,
                        .beta = 4,
                        .linear_beta = 25},
                       stream)
                  .code,
              "glu");
  });
}

void rows(Bench& bench, int64_t tokens, int64_t width) {
  const auto x = filled(bench, tokens * width), y = filled(bench, tokens * width), out = filled(bench, 2 * tokens * width);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % ids.size());
  const DeviceArray<int32_t> d_ids(ids);
  const std::string name = fmt::format("{}x{}", tokens, width);
  const auto count = static_cast<double>(tokens * width);
  const RowPair pair{tokens, width, x.data(), width, y.data(), width, out.data(), width};
  bench.run(line("add", name, count * 6, true),
            [&](cudaStream_t stream, int) { gpu_check(add_cuda(pair, stream).code, "add"); });
  bench.run(line("sigmoid_gate", name, count * 6, true),
            [&](cudaStream_t stream, int) { gpu_check(sigmoid_gate_cuda(pair, stream).code, "gate"); });
  bench.run(line("to_f32", name, count * 6, true), [&](cudaStream_t stream, int) {
    gpu_check(convert_cuda({tokens, width, x.data(), width, false, out.data(), width, true}, stream).code, "convert");
  });
  bench.run(line("embedding", name, count * 4, true), [&](cudaStream_t stream, int) {
    gpu_check(embedding_cuda({tokens, width, tokens, x.data(), width, d_ids.data(), out.data(), width}, stream).code,
              "embedding");
  });
}

const BenchRegistration registration("elementwise", [](Bench& bench) {
  for (const int64_t tokens : {8192, 1}) {
    norms(bench, tokens, 7168, false);
    norms(bench, tokens, 7168, true);
    glus(bench, tokens, 6144, true);
  }
  norms(bench, 65536, 512, false);
  glus(bench, 8192, 6144, false);
  if (bench.wants("add sigmoid_gate to_f32 embedding", "8192x7168")) rows(bench, 8192, 7168);
});

}  // namespace
}  // namespace k3::ops::cuda
