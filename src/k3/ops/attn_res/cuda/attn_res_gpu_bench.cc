// AttnRes sites, kernel-anchors.md 7. Two boundaries: "mix" reads the sources and writes one normalised row (that of the
// anchors); "site" also adds delta to P and stores P. Replays rotate over separate rows, so that nothing is in the second
// cache by accident.
#include <algorithm>
#include <vector>

#include "k3/ops/attn_res/cuda/attn_res_cuda.h"
#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/rms_norm/cuda/rms_norm_cuda.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kHidden = 7168;

void site(Bench& bench, int64_t tokens, int sources, bool whole, bool dependent, AttnResKernel kernel, int cluster = 0) {
  const std::string name =
      fmt::format("{} T={} sources={}{}{}", whole ? "site" : "mix", tokens, sources, dependent ? " pdl" : "",
                  cluster > 0                      ? fmt::format(" cluster={}", cluster)
                  : kernel == AttnResKernel::large ? " ring"
                                                   : "");
  if (!bench.wants("attn_res", name)) return;
  const int copies = tokens > 1000 ? 1 : 8;
  const int64_t row = tokens * kHidden, blocks = sources - 1;
  DeviceArray<uint16_t> rows(copies * row * (sources + 2));  // bank, prefix, delta, out
  gpu_check(fill_normal_bf16(rows.data(), rows.size(), 1, 1, bench.stream()).code, "fill");
  std::vector<float> query = random_normal(kHidden, 2, 0.01F), norm(kHidden, 1);
  const DeviceArray<float> d_query(query), d_norm(norm);
  AttnResPlan plan = attn_res_plan(tokens, kHidden, sources, device_info());
  if (kernel == AttnResKernel::large) plan = attn_res_plan(100000, kHidden, sources, device_info());
  if (kernel == AttnResKernel::large) plan.grid = static_cast<int>(std::min<int64_t>(plan.grid, tokens));
  if (cluster > 0) {
    const int64_t vectors = kHidden / 8;
    plan = {AttnResKernel::small,
            cluster,
            static_cast<int>((vectors / cluster + 31) / 32 * 32),
            static_cast<int>(tokens * cluster),
            0,
            0};
  }
  const double moved = static_cast<double>(row) * 2 * (whole ? sources + 3 : sources + 1);
  const double floor_us = moved / bench.copy_gbps() * 1e-3;
  const bool few = tokens <= 8;
  bench.run(
      {.kernel = "attn_res",
       .name = name,
       .bytes = moved,
       .must = few ? 5 / floor_us : 1.5,
       .aim = few ? 2.5 / floor_us : 1.15,
       .note = few ? "must 5 us, aim 2.5 us" : ""},
      [&](cudaStream_t stream, int i) {
        uint16_t* at = rows.data() + (i % copies) * row * (sources + 2);
        gpu_check(attn_res_cuda({.tokens = tokens,
                                 .hidden = kHidden,
                                 .blocks = static_cast<int>(blocks),
                                 .bank = at,
                                 .bank_block_stride = row,
                                 .bank_stride = kHidden,
                                 .prefix = at + blocks * row,
                                 .prefix_stride = kHidden,
                                 .delta = whole ? at + sources * row : nullptr,
                                 .delta_stride = kHidden,
                                 .prefix_out = whole ? at + blocks * row : nullptr,
                                 .prefix_out_stride = kHidden,
                                 .query = d_query.data(),
                                 .norm = d_norm.data(),
                                 .out = at + (sources + 1) * row,
                                 .out_stride = kHidden,
                                 .dependent = dependent},
                                plan, stream)
                      .code,
                  "attn_res");
      },
      tokens > 1000 ? 2 : 8);
}

// What a site adds to a chain of programmatic launches: RMSNorm alone, and RMSNorm whose result is the delta of a site.
// Between two sites lies another kernel, as in the model, so the site's early loads are hidden.
void chain(Bench& bench, int64_t tokens) {
  constexpr int kSources = 9;
  const std::string alone = fmt::format("chain of rms_norm T={}", tokens),
                    both = fmt::format("chain of rms_norm and site T={}", tokens);
  if (!bench.wants("attn_res", alone)) return;
  const int copies = 8;
  const int64_t row = tokens * kHidden;
  DeviceArray<uint16_t> rows(copies * row * (kSources + 3));
  gpu_check(fill_normal_bf16(rows.data(), rows.size(), 1, 1, bench.stream()).code, "fill");
  const std::vector<float> query = random_normal(kHidden, 2, 0.01F), norm(kHidden, 1);
  const DeviceArray<float> d_query(query), d_norm(norm);
  const auto first = [&](uint16_t* at, uint16_t* from, cudaStream_t stream) {
    gpu_check(rms_norm_cuda({.tokens = tokens,
                             .width = kHidden,
                             .x = from,
                             .x_stride = kHidden,
                             .weight = d_norm.data(),
                             .out = at + kSources * row,
                             .out_stride = kHidden,
                             .dependent = true},
                            stream)
                  .code,
              "rms_norm");
  };
  bench.run(
      {.kernel = "attn_res", .name = alone, .bytes = static_cast<double>(row) * 4, .note = ""},
      [&](cudaStream_t stream, int i) { first(rows.data() + (i % copies) * row * (kSources + 3), rows.data(), stream); },
      16);
  bench.run(
      {.kernel = "attn_res", .name = both, .bytes = static_cast<double>(row) * 2 * (kSources + 5), .note = ""},
      [&](cudaStream_t stream, int i) {
        uint16_t* at = rows.data() + (i % copies) * row * (kSources + 3);
        first(at, i == 0 ? rows.data() : rows.data() + ((i - 1) % copies) * row * (kSources + 3) + (kSources + 1) * row,
              stream);
        gpu_check(attn_res_cuda({.tokens = tokens,
                                 .hidden = kHidden,
                                 .blocks = kSources - 1,
                                 .bank = at,
                                 .bank_block_stride = row,
                                 .bank_stride = kHidden,
                                 .prefix = at + (kSources - 1) * row,
                                 .prefix_stride = kHidden,
                                 .delta = at + kSources * row,
                                 .delta_stride = kHidden,
                                 .prefix_out = at + (kSources - 1) * row,
                                 .prefix_out_stride = kHidden,
                                 .query = d_query.data(),
                                 .norm = d_norm.data(),
                                 .out = at + (kSources + 1) * row,
                                 .out_stride = kHidden,
                                 .dependent = true},
                                stream)
                      .code,
                  "attn_res");
      },
      16);
}

// All sites of a block in one read, and the merge of one site with its prefix.
void batched(Bench& bench, int64_t tokens, int blocks, int sites) {
  const std::string inter = fmt::format("inter T={} blocks={} sites={}", tokens, blocks, sites),
                    merge = fmt::format("merge T={}", tokens);
  if (!bench.wants("attn_res", inter)) return;
  const int64_t row = tokens * kHidden;
  DeviceArray<uint16_t> bank(blocks * row), y1(sites * row), rest(4 * row);  // prefix, delta, out
  for (const auto* x : {&bank, &y1, &rest})
    gpu_check(fill_normal_bf16(x->data(), x->size(), 1, 1, bench.stream()).code, "fill");
  const std::vector<float> query = random_normal(sites * kHidden, 2, 0.01F), norm(kHidden, 1);
  const DeviceArray<float> d_query(query), d_norm(norm), m1(sites * tokens), d1(sites * tokens);
  const DeviceArray<std::byte> workspace(attn_res_inter_workspace_bytes(tokens));
  bench.run(
      {.kernel = "attn_res",
       .name = inter,
       .bytes = static_cast<double>(row) * 2 * (blocks + sites),
       .must = 1.5,
       .aim = 1.15,
       .note = "rows read once, y1 written"},
      [&](cudaStream_t stream, int) {
        gpu_check(attn_res_inter_cuda({.tokens = tokens,
                                       .hidden = kHidden,
                                       .blocks = blocks,
                                       .sites = sites,
                                       .bank = bank.data(),
                                       .bank_block_stride = row,
                                       .bank_stride = kHidden,
                                       .query = d_query.data(),
                                       .y1 = y1.data(),
                                       .y1_site_stride = row,
                                       .y1_stride = kHidden,
                                       .m1 = m1.data(),
                                       .d1 = d1.data(),
                                       .workspace = workspace.data()},
                                      stream)
                      .code,
                  "inter");
      },
      2);
  bench.run(
      {.kernel = "attn_res",
       .name = merge,
       .bytes = static_cast<double>(row) * 2 * 5,
       .must = 1.5,
       .aim = 1.15,
       .note = "y1, P, delta read; P, y written"},
      [&](cudaStream_t stream, int i) {
        const int64_t s = i % sites;
        gpu_check(attn_res_cuda({.tokens = tokens,
                                 .hidden = kHidden,
                                 .blocks = 1,
                                 .bank = y1.data() + s * row,
                                 .bank_stride = kHidden,
                                 .prefix = rest.data(),
                                 .prefix_stride = kHidden,
                                 .delta = rest.data() + row,
                                 .delta_stride = kHidden,
                                 .prefix_out = rest.data(),
                                 .prefix_out_stride = kHidden,
                                 .query = d_query.data() + s * kHidden,
                                 .norm = d_norm.data(),
                                 .inter_max = m1.data() + s * tokens,
                                 .inter_sum = d1.data() + s * tokens,
                                 .out = rest.data() + 2 * row,
                                 .out_stride = kHidden},
                                stream)
                      .code,
                  "merge");
      },
      2);
}

const BenchRegistration registration("attn_res", [](Bench& bench) {
  constexpr AttnResKernel kAuto = AttnResKernel::small;
  for (const int sources : {9, 5}) {
    for (const int64_t tokens : {1, 8, 128, 8192}) {
      site(bench, tokens, sources, false, false, kAuto);
      site(bench, tokens, sources, true, false, kAuto);
      if (tokens <= 128) site(bench, tokens, sources, true, true, kAuto);
    }
  }
  for (const int cluster : {1, 2, 4}) site(bench, 8, 9, true, true, kAuto, cluster);
  for (const int cluster : {2, 4}) site(bench, 8, 9, true, false, kAuto, cluster);
  for (const int cluster : {2, 4}) site(bench, 1, 9, true, false, kAuto, cluster);
  for (const int64_t tokens : {1, 8}) chain(bench, tokens);
  batched(bench, 8192, 8, 24);
  batched(bench, 8192, 4, 24);
  batched(bench, 1024, 8, 24);
  for (const int64_t tokens : {32, 64, 256, 512}) {
    site(bench, tokens, 9, true, true, AttnResKernel::large);
    if (tokens <= 64) site(bench, tokens, 9, true, true, kAuto, tokens == 32 ? 4 : 2);
  }
});

}  // namespace
}  // namespace k3::ops::cuda
