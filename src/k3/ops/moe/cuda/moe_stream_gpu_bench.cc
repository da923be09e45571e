// Experts for few tokens: kernels.md 9. A call is plan (more than 8 tokens), both passes, and the weighted sum with its
// norm; the floor counts the experts that the calls really touch. Routing is random, another one each call.
#include <algorithm>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/moe/cuda/moe_stream_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_pack.h"
#include "k3/ops/router/cuda/router_cuda.h"

namespace k3::ops::cuda {
namespace {

constexpr int kRoutings = 8;

struct Model {
  const char* name;
  int experts, topk, width, hidden;
  bool situ;
};

void check(CudaStatus status) { gpu_check(status.code, "launch"); }

// Random packed experts, each of its own numbers.
struct Experts {
  DeviceArray<uint8_t> w13, w2;
  DeviceArray<float> factors;
  MoeExpertsCuda view;
};
Experts random_packed(const Model& m, MoeWeights kind, cudaStream_t stream) {
  const int64_t bytes13 = moe_packed_bytes(kind, 2 * m.hidden, m.width), bytes2 = moe_packed_bytes(kind, m.width, m.hidden);
  Experts x{DeviceArray<uint8_t>(bytes13 * m.experts),
            DeviceArray<uint8_t>(bytes2 * m.experts),
            DeviceArray<float>(4 * m.experts),
            {}};
  if (kind == MoeWeights::bf16) {
    check(fill_normal_bf16(x.w13.data(), bytes13 * m.experts / 2, 1, 0.02F, stream));
    check(fill_normal_bf16(x.w2.data(), bytes2 * m.experts / 2, 2, 0.02F, stream));
  } else {
    const int64_t values = static_cast<int64_t>(m.width) * m.hidden;
    const DeviceArray<uint8_t> codes(3 * values / 2), scales(values / 32);
    gpu_check(cudaMemsetAsync(scales.data(), 120, scales.bytes(), stream), "memset");
    for (int e = 0; e < m.experts; ++e) {
      check(fill_normal_bf16(codes.data(), 3 * values / 4, static_cast<uint64_t>(e), 1.0F, stream));
      const uint8_t* c = codes.data();
      const MoePack pack{.kind = kind,
                         .width = m.width,
                         .hidden = m.hidden,
                         .w1 = c,
                         .w2 = c + values / 2,
                         .w3 = c + values,
                         .s1 = scales.data(),
                         .s2 = scales.data(),
                         .s3 = scales.data(),
                         .w13_packed = x.w13.data() + e * bytes13,
                         .w2_packed = x.w2.data() + e * bytes2,
                         .factors = x.factors.data() + 4 * e};
      check(moe_pack_cuda(pack, stream));
    }
    gpu_sync();
  }
  x.view = {
      kind, m.experts, m.width, m.hidden, x.w13.data(), x.w2.data(), kind == MoeWeights::mxfp4 ? x.factors.data() : nullptr};
  return x;
}

// Distinct experts of one call, averaged over the routings that the calls rotate among.
double random_ids(const Model& m, int tokens, std::vector<int32_t>& ids) {
  const Rng rng(static_cast<uint64_t>(tokens), 11);
  uint64_t draw = 0;
  int64_t touched = 0;
  for (int r = 0; r < kRoutings; ++r) {
    std::vector<bool> used(static_cast<size_t>(m.experts));
    for (int t = 0; t < tokens; ++t) {
      std::vector<int32_t> mine;
      while (static_cast<int>(mine.size()) < m.topk) {
        const auto e = static_cast<int32_t>(rng.uniform(draw++) * m.experts);
        if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
      }
      for (const int32_t e : mine) used[static_cast<size_t>(e)] = true;
      ids.insert(ids.end(), mine.begin(), mine.end());
    }
    touched += std::count(used.begin(), used.end(), true);
  }
  return static_cast<double>(touched) / kRoutings;
}

void run_model(Bench& bench, const Model& m, MoeWeights kind, const std::vector<int>& all_tokens, double must_one,
               double must_more, double aim_one, double aim_more) {
  const std::string prefix = fmt::format("{} {}", m.name, kind == MoeWeights::bf16 ? "bf16" : "mxfp4");
  const auto name_of = [&](int tokens) { return fmt::format("{} T={} E={}", prefix, tokens, m.experts); };
  if (std::none_of(all_tokens.begin(), all_tokens.end(), [&](int t) { return bench.wants("moe_stream", name_of(t)); }))
    return;
  const Experts experts = random_packed(m, kind, bench.stream());
  const double weights = 3.0 * m.width * m.hidden, weight_bytes = kind == MoeWeights::bf16 ? 2 : 17.0 / 32;
  for (const int tokens : all_tokens) {
    std::vector<int32_t> ids;
    const double touched = random_ids(m, tokens, ids);
    const int64_t slots = static_cast<int64_t>(tokens) * m.topk;
    const DeviceArray<int32_t> d_ids(ids);
    const DeviceArray<float> d_weights(std::vector<float>(static_cast<size_t>(slots), 1.0F / static_cast<float>(m.topk))),
        slot_out(slots * m.width);
    const DeviceArray<uint16_t> z(to_bf16(random_normal(static_cast<int64_t>(tokens) * m.width, 3))),
        gain(to_bf16(random_normal(m.width, 4))), out(static_cast<int64_t>(tokens) * m.width);
    const DeviceArray<uint8_t> workspace(moe_stream_workspace_bytes(tokens, m.topk, m.experts, m.hidden));
    workspace.zero();
    const auto call = [&](cudaStream_t stream, int i) {
      const int32_t* mine = d_ids.data() + i % kRoutings * slots;
      const MoeStreamCuda args{.weights = experts.view,
                               .glu = {m.situ, 4, 25},
                               .z = z.data(),
                               .ids = mine,
                               .tokens = tokens,
                               .topk = m.topk,
                               .slot_out = slot_out.data(),
                               .workspace = workspace.data(),
                               .sum = {.weights = d_weights.data(), .out = out.data(), .norm_weight = gain.data()}};
      check(moe_stream_cuda(args, stream));
    };
    BenchLine line;
    line.kernel = "moe_stream";
    line.name = name_of(tokens);
    line.bytes = touched * weights * weight_bytes + 4.0 * tokens * m.width;
    line.flops = 2 * weights * static_cast<double>(slots);
    line.must = tokens <= 8 ? must_one : must_more;
    line.aim = tokens <= 8 ? aim_one : aim_more;
    line.note = fmt::format("{:.1f} experts; plan, both passes, sum and norm", touched);
    bench.run(line, call);
  }
}

const BenchRegistration kBench("moe_stream", [](Bench& bench) {
  const std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128}, few = {1, 32, 128};
  const Model k3{"K3", 896, 16, 3584, 3072, true}, half{"K3 half", 448, 16, 3584, 3072, true},
      linear{"Kimi-Linear", 256, 8, 2304, 1024, false};
  run_model(bench, k3, MoeWeights::mxfp4, tokens, 2.0, 1.6, 1.4, 1.2);
  run_model(bench, linear, MoeWeights::mxfp4, few, 2.0, 1.6, 1.4, 1.2);
  run_model(bench, half, MoeWeights::bf16, tokens, 1.3, 1.3, 1.12, 1.12);
  run_model(bench, linear, MoeWeights::bf16, few, 1.3, 1.3, 1.12, 1.12);
});

const BenchRegistration kRouter("router", [](Bench& bench) {
  for (const int tokens : {1, 16, 128, 4096}) {
    constexpr int kExperts = 896, kTopk = 16;
    const std::string name = fmt::format("T={} E={} top {}", tokens, kExperts, kTopk);
    if (!bench.wants("router", name)) continue;
    const DeviceArray<float> logits(random_normal(static_cast<int64_t>(tokens) * kExperts, 1)),
        bias(random_normal(kExperts, 2, 0.1F)), weights(tokens * kTopk);
    const DeviceArray<int32_t> ids(tokens * kTopk);
    BenchLine line;
    line.kernel = "router";
    line.name = name;
    line.bytes = 4.0 * tokens * kExperts + 8.0 * tokens * kTopk;
    bench.run(line, [&](cudaStream_t stream, int) {
      const RouterCuda args{.logits = logits.data(),
                            .bias = bias.data(),
                            .ids = ids.data(),
                            .weights = weights.data(),
                            .tokens = tokens,
                            .experts = kExperts,
                            .topk = kTopk};
      check(router_cuda(args, stream));
    });
  }
});

}  // namespace
}  // namespace k3::ops::cuda
