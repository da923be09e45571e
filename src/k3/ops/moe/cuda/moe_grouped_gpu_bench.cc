// Experts for many tokens: kernels.md 9. "products" are the two grouped products (with the list of tiles), as the anchor has
// them; "all" adds plan, gather, weighted sum and norm. The floor counts the experts that are touched; routing is random.
#include <algorithm>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/moe/cuda/moe_grouped_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_pack.h"

namespace k3::ops::cuda {
namespace {

struct Model {
  const char* name;
  int experts, topk, width, hidden;
  bool situ;
  MoeWeights kind;
  double must, aim;
  std::vector<int> tokens;
};

void check(CudaStatus status) { gpu_check(status.code, "launch"); }

struct Experts {
  DeviceArray<uint8_t> w13, w2;
  DeviceArray<float> factors;
};
// Random numbers; MXFP4: those of 8 experts again and again.
Experts random_experts_of(const Model& m, cudaStream_t stream) {
  const int64_t bytes13 = moe_packed_bytes(m.kind, 2 * m.hidden, m.width),
                bytes2 = moe_packed_bytes(m.kind, m.width, m.hidden);
  Experts x{DeviceArray<uint8_t>(bytes13 * m.experts), DeviceArray<uint8_t>(bytes2 * m.experts),
            DeviceArray<float>(4 * m.experts)};
  if (m.kind == MoeWeights::bf16) {
    check(fill_normal_bf16(x.w13.data(), bytes13 * m.experts / 2, 1, 0.02F, stream));
    check(fill_normal_bf16(x.w2.data(), bytes2 * m.experts / 2, 2, 0.02F, stream));
    gpu_sync();
    return x;
  }
  const int64_t values = static_cast<int64_t>(m.width) * m.hidden;
  const DeviceArray<uint8_t> codes(3 * values / 2), scales(values / 32);
  gpu_check(cudaMemsetAsync(scales.data(), 120, scales.bytes(), stream), "memset");
  for (int e = 0; e < m.experts; ++e) {
    if (e < 8) check(fill_normal_bf16(codes.data(), 3 * values / 4, static_cast<uint64_t>(e), 1.0F, stream));
    MoePack pack;
    pack.kind = m.kind, pack.width = m.width, pack.hidden = m.hidden;
    pack.w1 = codes.data(), pack.w2 = codes.data() + values / 2, pack.w3 = codes.data() + values;
    pack.s1 = pack.s2 = pack.s3 = scales.data();
    pack.w13_packed = x.w13.data() + e * bytes13, pack.w2_packed = x.w2.data() + e * bytes2,
    pack.factors = x.factors.data() + 4 * e;
    check(moe_pack_cuda(pack, stream));
  }
  gpu_sync();
  return x;
}

std::vector<int32_t> random_ids(const Model& m, int tokens) {
  const Rng rng(static_cast<uint64_t>(tokens), 11);
  uint64_t draw = 0;
  std::vector<int32_t> ids;
  for (int t = 0; t < tokens; ++t) {
    const size_t first = ids.size();
    while (ids.size() < first + static_cast<size_t>(m.topk)) {
      const auto e = static_cast<int32_t>(rng.uniform(draw++) * m.experts);
      if (std::find(ids.begin() + static_cast<int64_t>(first), ids.end(), e) == ids.end()) ids.push_back(e);
    }
  }
  return ids;
}

void run_model(Bench& bench, const Model& m) {
  const auto name_of = [&](int tokens) {
    return fmt::format("{} {} E={} T={}", m.name, m.kind == MoeWeights::bf16 ? "bf16" : "mxfp4", m.experts, tokens);
  };
  if (std::none_of(m.tokens.begin(), m.tokens.end(), [&](int t) { return bench.wants("moe_grouped", name_of(t)); })) return;
  const Experts experts = random_experts_of(m, bench.stream());
  const double weights = 3.0 * m.width * m.hidden, weight_bytes = m.kind == MoeWeights::bf16 ? 2 : 17.0 / 32;
  for (const int tokens : m.tokens) {
    const std::vector<int32_t> ids = random_ids(m, tokens);
    std::vector<int> rows(static_cast<size_t>(m.experts));
    for (const int32_t e : ids) ++rows[static_cast<size_t>(e)];
    const auto touched = m.experts - std::count(rows.begin(), rows.end(), 0);
    const int64_t slots = static_cast<int64_t>(tokens) * m.topk, values = static_cast<int64_t>(tokens) * m.width;
    const DeviceArray<int32_t> d_ids(ids);
    const DeviceArray<float> d_weights(std::vector<float>(static_cast<size_t>(slots), 1.0F / static_cast<float>(m.topk)));
    const DeviceArray<uint16_t> z(values), gain(m.width), out(values), y(slots * m.width);
    check(fill_normal_bf16(z.data(), values, 3, 1, bench.stream()));
    check(fill_normal_bf16(gain.data(), m.width, 4, 1, bench.stream()));
    const DeviceArray<uint8_t> workspace(moe_grouped_workspace_bytes(tokens, m.topk, m.experts, m.width, m.hidden));
    MoeGroupedCuda args;
    args.weights = {m.kind,
                    m.experts,
                    m.width,
                    m.hidden,
                    experts.w13.data(),
                    experts.w2.data(),
                    m.kind == MoeWeights::mxfp4 ? experts.factors.data() : nullptr};
    args.glu = {m.situ, 4, 25};
    args.z = z.data(), args.z_stride = m.width, args.ids = d_ids.data(), args.tokens = tokens, args.topk = m.topk;
    args.rows = y.data(), args.workspace = workspace.data();
    MoeGroupedSum sum;
    sum.weights = d_weights.data(), sum.out = out.data(), sum.norm_weight = gain.data();
    BenchLine line;
    line.kernel = "moe_grouped";
    line.bytes = static_cast<double>(touched) * weights * weight_bytes + 4.0 * static_cast<double>(values);
    line.flops = 2 * weights * static_cast<double>(slots);
    line.must = m.must, line.aim = m.aim;
    line.name = name_of(tokens) + " products";
    line.note = fmt::format("{} experts, at most {} rows{}", touched, *std::max_element(rows.begin(), rows.end()),
                            m.experts == 448 ? ", half of K3's experts" : "");
    gpu_sync();  // the stream does not wait for the poison of new arrays
    check(moe_grouped_prepare_cuda(args, bench.stream()));
    bench.run(
        line, [&](cudaStream_t stream, int) { check(moe_grouped_products_cuda(args, stream)); }, 0);
    line.must = line.aim = 0;
    BenchLine part = line;
    part.flops = 0;
    part.name = name_of(tokens) + " plan and gather";
    part.bytes = 2.0 * static_cast<double>(values + slots * m.width) + 12.0 * static_cast<double>(slots);
    bench.run(
        part, [&](cudaStream_t stream, int) { check(moe_grouped_prepare_cuda(args, stream)); }, 8);
    part.name = name_of(tokens) + " sum";
    part.bytes = 2.0 * static_cast<double>(slots * m.width + values);
    bench.run(
        part, [&](cudaStream_t stream, int) { check(moe_grouped_combine_cuda(args, sum, stream)); }, 8);
    line.name = name_of(tokens) + " all";
    bench.run(
        line,
        [&](cudaStream_t stream, int) {
          check(moe_grouped_cuda(args, stream));
          check(moe_grouped_combine_cuda(args, sum, stream));
        },
        1);
  }
}

const BenchRegistration kBench("moe_grouped", [](Bench& bench) {
  const std::vector<int> tokens = {128, 512, 2048, 4096};
  run_model(bench, {"K3", 896, 16, 3584, 3072, true, MoeWeights::mxfp4, 2.0, 1.35, tokens});
  run_model(bench, {"K3 half", 448, 16, 3584, 3072, true, MoeWeights::bf16, 1.3, 1.12, tokens});
  run_model(bench, {"Kimi-Linear", 256, 8, 2304, 1024, false, MoeWeights::bf16, 1.3, 1.12, {512, 8192}});
  run_model(bench, {"Kimi-Linear", 256, 8, 2304, 1024, false, MoeWeights::mxfp4, 2.0, 1.35, {512, 8192}});
});

}  // namespace
}  // namespace k3::ops::cuda
