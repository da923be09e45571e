// Sampling of 163,840 logits. "normal": N(0, 1), the flattest rows that occur (top_p 0.95 keeps most of the vocabulary);
// "peaked": N(0, 1) * 4, as sharp as a language model's.
#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/sampling/cuda/sampling_cuda.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kVocab = 163840;

void sample(Bench& bench, const char* what, int64_t rows, bool bf16, float scale, const SampleRow* params, int top) {
  const std::string name = fmt::format("{} rows={} {}", what, rows, bf16 ? "bf16" : "f32");
  if (!bench.wants("sampling", name)) return;
  const DeviceArray<uint16_t> normal(rows * kVocab);
  gpu_check(fill_normal_bf16(normal.data(), normal.size(), 7, scale, bench.stream()).code, "fill");
  gpu_sync();
  const DeviceArray<float> f32(bf16 ? std::vector<float>() : [&] {
    std::vector<float> x = from_bf16(normal.get());
    for (size_t i = 0; i < x.size(); ++i)
      x[i] += 0.003F * static_cast<float>(static_cast<uint32_t>(i * 2654435761U) >> 8) * 0x1p-24F;
    return x;
  }());
  std::vector<SampleRow> all(static_cast<size_t>(rows), params != nullptr ? *params : SampleRow{});
  for (size_t i = 0; i < all.size(); ++i) all[i].uniform = (static_cast<double>(i) + 0.5) / static_cast<double>(rows);
  const DeviceArray<SampleRow> d_params(all);
  const DeviceArray<int32_t> ids(rows), top_ids(rows * 20);
  const DeviceArray<uint32_t> flags(rows);
  const DeviceArray<float> logprobs(rows), top_logprobs(rows * 20);
  const double bytes = static_cast<double>(rows * kVocab) * (bf16 ? 2 : 4);
  const double one_row_us = bytes / bench.copy_gbps() * 1e-3;
  bench.run({.kernel = "sampling",
             .name = name,
             .bytes = bytes,
             .must = rows == 1 ? 30 / one_row_us : 3,
             .aim = rows == 1 ? 15 / one_row_us : 1.5,
             .note = rows == 1 ? "must 30 us" : ""},
            [&](cudaStream_t stream, int) {
              gpu_check(sampling_cuda({.rows = rows,
                                       .vocab = kVocab,
                                       .logits = bf16 ? static_cast<const void*>(normal.data()) : f32.data(),
                                       .stride = kVocab,
                                       .logits_bf16 = bf16,
                                       .params = params != nullptr ? d_params.data() : nullptr,
                                       .ids = ids.data(),
                                       .flags = flags.data(),
                                       .logprobs = top > 0 ? logprobs.data() : nullptr,
                                       .top = top,
                                       .top_ids = top_ids.data(),
                                       .top_logprobs = top_logprobs.data()},
                                      stream)
                            .code,
                        "sampling");
            });
}

const BenchRegistration registration("sampling", [](Bench& bench) {
  const SampleRow top_p{1, 0.95F, 0, 0}, top_k{1, 1, 0, 50}, both{0.8F, 0.95F, 0, 50}, plain{1, 1, 0, 0};
  for (const int64_t rows : {1, 16, 256}) {
    sample(bench, "argmax", rows, false, 1, nullptr, 0);
    sample(bench, "argmax", rows, true, 1, nullptr, 0);
    sample(bench, "no filter normal", rows, false, 1, &plain, 0);
    sample(bench, "top_p normal", rows, false, 1, &top_p, 0);
    sample(bench, "top_p peaked", rows, false, 4, &top_p, 0);
    sample(bench, "top_p peaked", rows, true, 4, &top_p, 0);
    sample(bench, "top_k peaked", rows, false, 4, &top_k, 0);
    sample(bench, "top_k top_p peaked", rows, true, 4, &both, 0);
    sample(bench, "top_p peaked 20 logprobs", rows, false, 4, &top_p, 20);
  }
});

}  // namespace
}  // namespace k3::ops::cuda
