// MLA decode and prefill: the rows of kernel-anchors.md 5, whose FlashMLA times stand in the notes.
#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Row {
  int64_t heads, batch, length, tokens;
  double flashmla_us, must, aim;
};

void decode_case(Bench& bench, const Row& r) {
  const std::string name = fmt::format("H={} B={} S={} T={}", r.heads, r.batch, r.length, r.tokens);
  if (!bench.wants("mla_decode", name)) return;
  constexpr int64_t kRow = 576, kPage = 64;
  const int64_t pages = r.batch * (r.length / kPage), rows = r.batch * r.tokens * r.heads;
  // Small caches: several of them in turn, so that none is in L2.
  const int copies = static_cast<int>(std::min<int64_t>(8, 1 + (int64_t{256} << 20) / (pages * kPage * kRow * 2)));
  const DeviceArray<uint16_t> pool(copies * pages * kPage * kRow), query(rows * kRow), ol(rows * 512);
  const DeviceArray<float> lse(rows);
  gpu_check(fill_normal_bf16(pool.data(), pool.size(), 1, 1, bench.stream()).code, "fill");
  gpu_check(fill_normal_bf16(query.data(), query.size(), 2, 1, bench.stream()).code, "fill");
  std::vector<int32_t> table(static_cast<size_t>(copies * pages));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const Rng rng(3, 3);
  for (size_t i = table.size(); i > 1; --i) std::swap(table[i - 1], table[rng.bits(i) % i]);
  const DeviceArray<int32_t> table_d(table),
      lengths(std::vector<int32_t>(static_cast<size_t>(r.batch), static_cast<int32_t>(r.length)));
  const DeviceArray<uint8_t> workspace(mla_decode_workspace_bytes(mla_decode_config(r.heads, r.tokens, device_info())));
  MlaDecode args{.query = query.data(),
                 .lengths = lengths.data(),
                 .batch = r.batch,
                 .heads = r.heads,
                 .max_query_tokens = r.tokens,
                 .query_tokens = r.batch * r.tokens,
                 .pages = {pool.data(), kPage * kRow, kRow, copies * pages, kPage, table_d.data(), r.length / kPage},
                 .ol = ol.data(),
                 .lse = lse.data(),
                 .workspace = workspace.data()};
  BenchLine line{.kernel = "mla_decode",
                 .name = name,
                 .must = r.must,
                 .aim = r.aim,
                 .note = fmt::format("FlashMLA {:.1f} us", r.flashmla_us)};
  line.bytes = static_cast<double>(pages * kPage * kRow * 2 + rows * (kRow + 512) * 2 + rows * 4);
  line.flops = 2.0 * 1088 * static_cast<double>(rows * r.length);
  bench.run(
      line,
      [&](cudaStream_t stream, int i) {
        args.pages.table = table_d.data() + i % copies * pages;
        gpu_check(mla_decode_cuda(args, stream).code, "mla_decode");
      },
      4);
}

void products_case(Bench& bench, int64_t heads, int64_t tokens) {
  const std::string name = fmt::format("H={} rows={}", heads, tokens);
  if (!bench.wants("mla_absorb", name) && !bench.wants("mla_values", name)) return;
  const int64_t weight = heads * 256 * 512;
  const int copies = static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / (weight * 2), 1, 16));
  const DeviceArray<uint16_t> kv_b(copies * weight), q(tokens * heads * 192), query(tokens * heads * 576),
      ol(tokens * heads * 512), gate(tokens * heads * 128), out(tokens * heads * 128);
  for (const DeviceArray<uint16_t>* x : {&kv_b, &q, &ol, &gate}) {
    gpu_check(fill_normal_bf16(x->data(), x->size(), 1, 1, bench.stream()).code, "fill");
  }
  const auto rows = static_cast<double>(tokens * heads);
  BenchLine line{.kernel = "mla_absorb", .name = name, .note = ""};
  line.bytes = static_cast<double>(weight) + rows * (192 + 576) * 2;  // half of the matrix, two bytes each
  line.flops = 2 * rows * 128 * 512;
  bench.run(line, [&](cudaStream_t stream, int i) {
    gpu_check(
        mla_absorb_cuda({q.data(), heads * 192, kv_b.data() + i % copies * weight, query.data(), tokens, heads}, stream)
            .code,
        "absorb");
  });
  line.kernel = "mla_values";
  line.bytes = static_cast<double>(weight) + rows * (512 + 128 + 128) * 2;
  bench.run(line, [&](cudaStream_t stream, int i) {
    gpu_check(mla_values_cuda({ol.data(), kv_b.data() + i % copies * weight, gate.data(), heads * 128, out.data(),
                               heads * 128, tokens, heads},
                              stream)
                  .code,
              "values");
  });
}

const BenchRegistration products("mla_products", [](Bench& bench) {
  for (const int64_t heads : {96, 12}) {
    for (const int64_t tokens : {1, 8, 64, 256}) products_case(bench, heads, tokens);
  }
});

// A layer between its products at one token, as a step queues it: one launch, or five.
void step_case(Bench& bench, int64_t heads, int64_t length, bool fused) {
  const std::string name = fmt::format("H={} S={} {}", heads, length, fused ? "one launch" : "five launches");
  if (!bench.wants("mla_step", name)) return;
  constexpr int64_t kRow = 576, kPage = 64;
  const int64_t pages = (length + kPage - 1) / kPage, weight = heads * 256 * 512;
  const int copies =
      static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / ((pages * kPage * kRow + weight) * 2), 1, 8));
  const DeviceArray<uint16_t> pool(copies * pages * kPage * kRow), kv_b(copies * weight), q(heads * 192), kv(kRow),
      norm(512), gate(heads * 128), out(heads * 128), query(heads * kRow), ol(heads * 512);
  for (const DeviceArray<uint16_t>* x : {&pool, &kv_b, &q, &kv, &norm, &gate})
    gpu_check(fill_normal_bf16(x->data(), x->size(), 1, 1, bench.stream()).code, "fill");
  std::vector<int32_t> table(static_cast<size_t>(copies * pages));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const DeviceArray<int32_t> table_d(table), lengths(std::vector<int32_t>{static_cast<int32_t>(length)}),
      history(std::vector<int32_t>{static_cast<int32_t>(length - 1)}), offsets(std::vector<int32_t>{0, 1}),
      counters(std::vector<int32_t>(kFusedCounters, 0));
  const MlaFusedConfig config = mla_fused_config(heads, 1, 1, device_info());
  const DeviceArray<uint8_t> workspace(
      std::max(mla_decode_workspace_bytes(mla_decode_config(heads, 1, device_info())), mla_fused_workspace_bytes(config)));
  BenchLine line{.kernel = "mla_step", .name = name, .note = ""};
  line.bytes = static_cast<double>((length * kRow + weight) * 2 + heads * (192 + 128 + 128) * 2);
  line.flops = 2.0 * 1088 * static_cast<double>(heads * length);
  bench.run(line, [&](cudaStream_t stream, int i) {
    const LatentPages at{pool.data(), kPage * kRow, kRow, copies * pages, kPage, table_d.data() + i % copies * pages, pages};
    const uint16_t* w = kv_b.data() + i % copies * weight;
    const LatentAppend append{.kv = kv.data(),
                              .kv_stride = kRow,
                              .norm_weight = norm.data(),
                              .norm_f32 = false,
                              .eps = 1e-6F,
                              .tokens = 1,
                              .batch = 1,
                              .offsets = offsets.data(),
                              .history = history.data(),
                              .pages = at};
    if (fused) {
      const MlaFused args{.append = append,
                          .q = q.data(),
                          .q_stride = heads * 192,
                          .kv_b = w,
                          .lengths = lengths.data(),
                          .offsets = offsets.data(),
                          .tokens = 1,
                          .heads = heads,
                          .pages = at,
                          .gate = gate.data(),
                          .gate_stride = heads * 128,
                          .out = out.data(),
                          .out_stride = heads * 128,
                          .workspace = workspace.data(),
                          .counters = counters.data()};
      gpu_check(mla_fused_cuda(args, stream).code, "fused");
      return;
    }
    gpu_check(latent_append_cuda(append, stream).code, "append");
    gpu_check(mla_absorb_cuda({q.data(), heads * 192, w, query.data(), 1, heads}, stream).code, "absorb");
    const MlaDecode decode{.query = query.data(),
                           .lengths = lengths.data(),
                           .offsets = offsets.data(),
                           .batch = 1,
                           .heads = heads,
                           .query_tokens = 1,
                           .pages = at,
                           .ol = ol.data(),
                           .workspace = workspace.data()};
    gpu_check(mla_decode_cuda(decode, stream).code, "decode");
    gpu_check(mla_values_cuda({ol.data(), w, gate.data(), heads * 128, out.data(), heads * 128, 1, heads}, stream).code,
              "values");
  });
}

const BenchRegistration steps("mla_step", [](Bench& bench) {
  for (const int64_t heads : {32, 12}) {
    for (const int64_t length : {512, 4096, 32768, 131072}) {
      step_case(bench, heads, length, true);
      step_case(bench, heads, length, false);
    }
  }
});

void prefill_case(Bench& bench, int64_t heads, int64_t tokens, int64_t history) {
  const std::string name = fmt::format("H={} T={} history={}", heads, tokens, history);
  if (!bench.wants("mla_prefill", name)) return;
  const int64_t keys = tokens + history;
  const DeviceArray<uint16_t> q(tokens * heads * 192), expanded(keys * heads * 256), latent(keys * 576),
      out(tokens * heads * 128);
  for (const DeviceArray<uint16_t>* x : {&q, &expanded, &latent}) {
    gpu_check(fill_normal_bf16(x->data(), x->size(), 1, 1, bench.stream()).code, "fill");
  }
  const DeviceArray<int32_t> q_offsets(std::vector<int32_t>{0, static_cast<int32_t>(tokens)}),
      k_offsets(std::vector<int32_t>{0, static_cast<int32_t>(keys)});
  const MlaPrefill args{.q = q.data(),
                        .q_stride = heads * 192,
                        .expanded = expanded.data(),
                        .expanded_stride = heads * 256,
                        .shared_keys = latent.data() + 512,
                        .shared_stride = 576,
                        .query_offsets = q_offsets.data(),
                        .key_offsets = k_offsets.data(),
                        .batch = 1,
                        .heads = heads,
                        .tokens = tokens,
                        .keys = keys,
                        .gate = nullptr,
                        .gate_stride = 0,
                        .out = out.data(),
                        .out_stride = heads * 128,
                        .lse = nullptr};
  BenchLine line{.kernel = "mla_prefill", .name = name, .note = "without the expansion"};
  const auto seen = static_cast<double>(tokens) * (static_cast<double>(history) + static_cast<double>(tokens + 1) / 2);
  line.bytes = static_cast<double>(tokens * heads * 320 + keys * (heads * 256 + 64)) * 2;
  line.flops = 2 * 320 * seen * static_cast<double>(heads);
  bench.run(
      line, [&](cudaStream_t stream, int) { gpu_check(mla_prefill_cuda(args, stream).code, "prefill"); }, 1);
}

const BenchRegistration prefill_rows("mla_prefill", [](Bench& bench) {
  prefill_case(bench, 96, 8192, 0);
  prefill_case(bench, 32, 8192, 0);
  prefill_case(bench, 12, 8192, 0);
  prefill_case(bench, 12, 2048, 30720);
});

const BenchRegistration decode_rows("mla_decode", [](Bench& bench) {
  constexpr Row kRows[] = {
      {96, 1, 8192, 1, 29.5, 0, 0},      {96, 1, 131072, 1, 83.7, 0, 0},       {96, 1, 1048576, 1, 442, 1.5, 1.2},
      {96, 8, 32768, 1, 125, 1.5, 1.2},  {96, 32, 8192, 1, 126, 1.5, 1.2},     {96, 32, 32768, 1, 437, 1.5, 1.2},
      {96, 128, 8192, 1, 449, 1.5, 1.2}, {96, 8, 32768, 8, 608, 0, 0},         {12, 1, 8192, 1, 30.7, 0, 0},
      {12, 1, 131072, 1, 81.2, 0, 0},    {12, 1, 1048576, 1, 346, 1.15, 1.08}, {12, 8, 32768, 1, 97.3, 1.4, 1.2},
      {12, 32, 8192, 1, 95.4, 1.4, 1.2}, {12, 32, 32768, 1, 320, 1.15, 1.08},  {12, 128, 8192, 1, 315, 1.15, 1.08},
      {12, 8, 32768, 8, 126, 1.6, 1.25},
  };
  for (const Row& r : kRows) decode_case(bench, r);
});

}  // namespace
}  // namespace k3::ops::cuda
