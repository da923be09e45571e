// KDA prefill (kernels.md 9), as planned for each shape; the note says how. Prompts of 131,072 tokens: --filter kda_long.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/kda/cuda/kda_prefill_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Anchor {
  double must, aim;
  const char* note;
};

enum class Inputs { normal, keep, alike, unbounded, trained, deep };  // the last three without a lower bound

void prefill_case(Bench& bench, int64_t heads, const std::vector<int32_t>& lengths, Inputs inputs, Anchor anchor) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
                longest = *std::max_element(lengths.begin(), lengths.end());
  const auto sequences = static_cast<int64_t>(lengths.size());
  const char* kinds[] = {"", " keep", " alike", " unbounded", " unbounded rates 1-16", " unbounded -50"};
  const char* kind = kinds[static_cast<int>(inputs)];
  const bool bounded = inputs < Inputs::unbounded;
  const std::string name =
      fmt::format("H={} T={}{}{}", heads, tokens, sequences > 1 ? fmt::format(" seqs={}", sequences) : "", kind);
  const char* kernel =
      tokens > 100'000 ? "kda_long_prefill" : "kda_prefill";  // the long ones take seconds: --filter kda_long
  if (!bench.wants(kernel, name)) return;
  const int64_t width = heads * 128;
  const DeviceArray<uint16_t> qkv(tokens * 3 * width), z(tokens * width), b(tokens * heads), out(tokens * width);
  gpu_check(fill_normal_bf16(qkv.data(), qkv.size(), 1, 1.0F, nullptr).code, "fill");
  gpu_check(fill_normal_bf16(z.data(), z.size(), 2, 1.0F, nullptr).code, "fill");
  gpu_check(fill_normal_bf16(b.data(), b.size(), 3, 1.0F, nullptr).code, "fill");
  if (inputs == Inputs::deep) z.set(std::vector<uint16_t>(static_cast<size_t>(z.size()), float_to_bf16(50.0F)));
  if (inputs == Inputs::keep || inputs == Inputs::alike)
    z.set(std::vector<uint16_t>(static_cast<size_t>(z.size()), float_to_bf16(-8.0F)));
  if (inputs == Inputs::alike) {  // every key of a head the same
    std::vector<uint16_t> all = qkv.get();
    for (int64_t t = 1; t < tokens; ++t) std::copy_n(all.begin() + width, width, all.begin() + t * 3 * width + width);
    qkv.set(all);
  }
  const DeviceArray<float> a_log(heads), dt_bias(width), states(sequences * heads * 128 * 128);
  a_log.zero(), dt_bias.zero(), states.zero();
  if (inputs == Inputs::trained) {  // rates over the heads, softplus(dt_bias) over the channels from 0.001 to 0.1
    std::vector<float> rates(static_cast<size_t>(heads)), steps(static_cast<size_t>(width));
    for (size_t h = 0; h < rates.size(); ++h)
      rates[h] = std::log(1 + 15 * (static_cast<float>(h) + 0.5F) / static_cast<float>(heads));
    for (size_t i = 0; i < steps.size(); ++i)
      steps[i] = std::log(std::expm1(std::pow(10.0F, static_cast<float>(i % 128) / 64 - 3)));
    a_log.set(rates), dt_bias.set(steps);
  }
  std::vector<int32_t> offsets{0}, slots;
  for (const int32_t n : lengths) offsets.push_back(offsets.back() + n), slots.push_back(static_cast<int32_t>(slots.size()));
  const DeviceArray<int32_t> offsets_d(offsets), slots_d(slots);
  K3KdaPrefill a{};
  a.tokens = tokens, a.heads = heads, a.sequences = sequences, a.longest = longest;
  a.q = qkv.data(), a.k = qkv.data() + width, a.v = qkv.data() + 2 * width, a.z = z.data();
  a.q_stride = a.k_stride = a.v_stride = 3 * width, a.z_stride = width, a.b = b.data(), a.b_stride = heads;
  a.bounded = bounded ? 1 : 0, a.lower_bound = bounded ? -5 : 0, a.a_log = a_log.data(), a.dt_bias = dt_bias.data(),
  a.offsets = offsets_d.data();
  a.states = states.data(), a.slot_stride = heads * 128 * 128, a.from = slots_d.data(), a.out = out.data(),
  a.out_stride = width;
  const KdaPrefillShape shape{tokens, heads, sequences, longest, bounded ? std::optional<float>(-5.0F) : std::nullopt};
  const KdaPrefillPlan plan = kda_prefill_plan(shape, device_info());
  const DeviceArray<float> workspace(std::max<int64_t>(1, kda_prefill_workspace_bytes(shape, plan) / 4));
  a.workspace = workspace.data();
  BenchLine line;
  line.kernel = kernel, line.name = name;
  line.bytes = static_cast<double>(tokens * heads) * (5 * 256 + 2) + static_cast<double>(2 * states.bytes());
  line.flops = 117'760.0 * static_cast<double>(tokens * heads);
  line.must = anchor.must, line.aim = anchor.aim;
  const char* names[] = {"auto", "recurrent", "fused", "segments"};
  line.note = fmt::format("{}{}; {}", names[static_cast<int>(plan.form)],
                          plan.segment > 0 ? fmt::format(" of {} tokens", plan.segment)
                          : plan.pairs     ? " by pairs"
                                           : "",
                          anchor.note);
  bench.run(
      line, [&](cudaStream_t stream, int) { gpu_check(kda_prefill_cuda(a, plan, stream).code, "kda_prefill"); }, 2);
}

const BenchRegistration registration("kda_prefill", [](Bench& bench) {
  const std::vector<int32_t> packed = {13312, 8192, 4096, 3072, 2048, 1024, 512, 512};
  prefill_case(bench, 12, {1024}, Inputs::normal, {15, 8, "FlashKDA 0.130 ms, FLA 0.108"});
  prefill_case(bench, 12, {8192}, Inputs::normal, {8, 3, "FlashKDA 0.852 ms, FLA 0.596"});
  prefill_case(bench, 12, {8192}, Inputs::keep, {8, 3, "FlashKDA 0.852 ms, FLA 0.596"});
  prefill_case(bench, 12, {8192}, Inputs::alike, {8, 3, "FlashKDA 0.852 ms, FLA 0.596"});
  prefill_case(bench, 12, {32768}, Inputs::normal, {8, 3, "FlashKDA 3.282 ms, FLA 2.226"});
  prefill_case(bench, 12, packed, Inputs::normal, {6, 3, "FlashKDA 1.643 ms"});
  for (const Inputs inputs : {Inputs::normal, Inputs::unbounded, Inputs::trained, Inputs::deep})
    prefill_case(bench, 32, {8192}, inputs, {0, 0, "Kimi-Linear"});
  prefill_case(bench, 32, {1024}, Inputs::unbounded, {0, 0, "Kimi-Linear"});
  prefill_case(bench, 96, {1024}, Inputs::normal, {6.4, 4, "FlashKDA 0.207 ms, FLA 0.395"});
  prefill_case(bench, 96, {8192}, Inputs::normal, {4, 2, "FlashKDA 1.401 ms, FLA 2.685"});
  prefill_case(bench, 96, {8192}, Inputs::keep, {4, 2, "FlashKDA 1.401 ms, FLA 2.685"});
  for (const Inputs inputs : {Inputs::unbounded, Inputs::trained, Inputs::deep})
    prefill_case(bench, 96, {8192}, inputs, {4, 2, "no bound"});
  prefill_case(bench, 96, {32768}, Inputs::normal, {4, 2, "FlashKDA 5.484 ms, FLA 10.78"});
  prefill_case(bench, 96, packed, Inputs::normal, {4, 2, "FlashKDA 5.432 ms, FLA 10.73"});
  prefill_case(bench, 12, {131072}, Inputs::normal, {8, 3, "FlashKDA 13.09 ms"});
  prefill_case(bench, 96, {131072}, Inputs::normal, {4, 2, "FlashKDA 21.81 ms, FLA 42.90"});
});

}  // namespace
}  // namespace k3::ops::cuda
