#include "k3/ops/mla/cuda/mla_cuda.h"

#include "k3/base/check.h"
#include "k3/ops/cuda/tensor_map.h"
#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void check_pages(const LatentPages& p) {
  K3_CHECK(p.page_tokens > 0 && p.page_tokens % 16 == 0, "pages of {} tokens", p.page_tokens);
  K3_CHECK(p.row_stride >= kLatentRow && p.row_stride % 8 == 0 &&
               p.page_stride >= (p.page_tokens - 1) * p.row_stride + kLatentRow && p.page_stride % 8 == 0 && aligned(p.base),
           "pages with strides {} and {}", p.page_stride, p.row_stride);
}

constexpr int64_t kAlign = 256;
int64_t up(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct PartBytes {
  int64_t splits, sums, acc;
};
PartBytes part_bytes(const MlaDecodeConfig& c) {
  const int64_t blocks = int64_t{c.workers} * c.pair, rows = 2 * blocks * c.row_tile;
  return {up(blocks * static_cast<int64_t>(sizeof(int2))), up(rows * static_cast<int64_t>(sizeof(float2))),
          rows * kLatent * 4};
}

MapShape map_of(const LatentPages& pages, int box_tokens) {
  return {.base = pages.base,
          .rank = 3,
          .sizes = {kLatentRow, pages.page_tokens, pages.pages},
          .strides = {1, pages.row_stride, pages.page_stride},
          .box = {64, box_tokens, 1}};
}

}  // namespace

CudaStatus latent_append_cuda(const LatentAppend& args, Stream stream) {
  check_pages(args.pages);
  K3_CHECK(args.kv_stride >= kLatentRow && args.kv_stride % 8 == 0 && aligned(args.kv) && aligned(args.norm_weight),
           "latent rows of stride {}", args.kv_stride);
  if (args.tokens == 0 || args.batch == 0) return {};
  return {latent_append_launch(args, stream)};
}

CudaStatus latent_gather_cuda(const LatentGather& args, Stream stream) {
  check_pages(args.pages);
  K3_CHECK(args.out_stride >= kLatentRow && args.out_stride % 8 == 0 && aligned(args.out), "latent rows of stride {}",
           args.out_stride);
  if (args.tokens == 0 || args.batch == 0) return {};
  return {latent_gather_launch(args, stream)};
}

CudaStatus mla_absorb_cuda(const MlaAbsorb& args, Stream stream) {
  K3_CHECK(args.heads > 0 && args.q_stride >= args.heads * kMlaKey && args.q_stride % 8 == 0 && aligned(args.q) &&
               aligned(args.kv_b) && aligned(args.query),
           "queries of {} heads, stride {}", args.heads, args.q_stride);
  if (args.tokens == 0) return {};
  return {mla_absorb_launch(args, stream)};
}

CudaStatus mla_values_cuda(const MlaValues& args, Stream stream) {
  K3_CHECK(args.heads > 0 && args.out_stride >= args.heads * kMlaValue && args.out_stride % 8 == 0 && aligned(args.out) &&
               aligned(args.ol) && aligned(args.kv_b) && aligned(args.gate) && args.gate_stride % 8 == 0,
           "values of {} heads, stride {}", args.heads, args.out_stride);
  if (args.tokens == 0) return {};
  return {mla_values_launch(args, stream)};
}

int64_t mla_decode_workspace_bytes(const MlaDecodeConfig& config) {
  const PartBytes bytes = part_bytes(config);
  return config.hopper ? bytes.splits + bytes.sums + bytes.acc : 0;
}

CudaStatus mla_decode_cuda(const MlaDecode& args, Stream stream) {
  check_pages(args.pages);
  K3_CHECK(args.heads > 0 && args.max_query_tokens > 0 && aligned(args.query) && aligned(args.ol),
           "decode of {} heads, {} tokens a request", args.heads, args.max_query_tokens);
  if (args.batch == 0 || args.query_tokens == 0) return {};
  MlaDecodeLaunch launch;
  launch.args = args;
  launch.config = mla_decode_config(args.heads, args.max_query_tokens, device_info());
  const MlaDecodeConfig& c = launch.config;
  if (!c.hopper) return {mla_decode_any_launch(args, stream)};
  K3_CHECK(args.workspace != nullptr && reinterpret_cast<uintptr_t>(args.workspace) % kAlign == 0,
           "decode without workspace");
  const PartBytes bytes = part_bytes(c);
  auto* workspace = static_cast<std::byte*>(args.workspace);
  launch.parts.splits = reinterpret_cast<int2*>(workspace);
  launch.parts.sums = reinterpret_cast<float2*>(workspace + bytes.splits);
  launch.parts.acc = reinterpret_cast<float*>(workspace + bytes.splits + bytes.sums);
  const int64_t page_tokens = args.pages.page_tokens;
  launch.box_tokens = page_tokens % 64 == 0 ? 64 / c.pair : page_tokens % 32 == 0 ? 32 : 16;
  int code = encode_map(&launch.query, {.base = args.query,
                                        .rank = 2,
                                        .sizes = {kLatentRow, args.query_tokens * args.heads},
                                        .strides = {1, kLatentRow},
                                        .box = {64, c.row_tile}});
  if (code == 0) code = encode_map(&launch.pages, map_of(args.pages, launch.box_tokens));
  if (code == 0) code = c.halves ? mla_decode_halves_launch(launch, stream) : mla_decode_sm90_launch(launch, stream);
  if (code == 0) code = mla_merge_launch(launch, stream);
  return {code};
}

int64_t mla_fused_workspace_bytes(const MlaFusedConfig& c) {
  const int64_t rows = int64_t{c.blocks} * c.row_tile;
  return up(int64_t{c.row_tile} * kLatentRow * 2) + up(rows * static_cast<int64_t>(sizeof(float2))) + rows * kLatent * 4;
}

CudaStatus mla_fused_cuda(const MlaFused& args, Stream stream) {
  check_pages(args.pages);
  K3_CHECK(args.heads > 0 && args.q_stride >= args.heads * kMlaKey && args.q_stride % 8 == 0 && aligned(args.q) && aligned(args.kv_b) &&
               aligned(args.append.kv) && aligned(args.append.norm_weight) && args.append.kv_stride % 8 == 0 &&
               args.append.kv_stride >= kLatentRow && args.out_stride >= args.heads * kMlaValue,
           "fused MLA of {} heads, strides {}, {} and {}", args.heads, args.q_stride, args.append.kv_stride, args.out_stride);
  K3_CHECK(args.workspace != nullptr && reinterpret_cast<uintptr_t>(args.workspace) % kAlign == 0 && args.counters != nullptr,
           "fused MLA without workspace");
  MlaFusedLaunch launch;
  launch.args = args;
  launch.config = mla_fused_config(args.heads, args.tokens, 1, device_info());
  const MlaFusedConfig& c = launch.config;
  K3_CHECK(c.usable, "fused MLA of {} heads and {} tokens", args.heads, args.tokens);
  auto* workspace = static_cast<std::byte*>(args.workspace);
  launch.query_rows = workspace;
  workspace += up(int64_t{c.row_tile} * kLatentRow * 2);
  launch.sums = reinterpret_cast<float2*>(workspace);
  launch.acc = reinterpret_cast<float*>(workspace + up(int64_t{c.blocks} * c.row_tile * static_cast<int64_t>(sizeof(float2))));
  launch.counters = args.counters;
  const int64_t page_tokens = args.pages.page_tokens;
  launch.box_tokens = page_tokens % 64 == 0 ? 64 : page_tokens % 32 == 0 ? 32 : 16;
  int code = encode_map(&launch.query, {.base = launch.query_rows,
                                        .rank = 2,
                                        .sizes = {kLatentRow, args.tokens * args.heads},
                                        .strides = {1, kLatentRow},
                                        .box = {64, c.row_tile}});
  if (code == 0) code = encode_map(&launch.pages, map_of(args.pages, launch.box_tokens));
  if (code == 0) {
    code = encode_map(&launch.keys, {.base = args.kv_b,
                                     .rank = 2,
                                     .sizes = {kLatent, args.heads * (kMlaNope + kMlaValue)},
                                     .strides = {1, kLatent},
                                     .box = {64, kMlaNope}});
  }
  if (code == 0) code = mla_fused_launch(launch, stream);
  return {code};
}

CudaStatus mla_prefill_cuda(const MlaPrefill& args, Stream stream) {
  K3_CHECK(args.heads > 0 && args.q_stride >= args.heads * kMlaKey &&
               args.expanded_stride >= args.heads * (kMlaNope + kMlaValue) && args.out_stride >= args.heads * kMlaValue,
           "prefill of {} heads, strides {}, {} and {}", args.heads, args.q_stride, args.expanded_stride, args.out_stride);
  K3_CHECK((args.q_stride | args.expanded_stride | args.shared_stride | args.out_stride | args.gate_stride) % 8 == 0 &&
               aligned(args.q) && aligned(args.expanded) && aligned(args.shared_keys) && aligned(args.out) &&
               aligned(args.gate),
           "prefill with rows not aligned to 16 bytes");
  if (args.tokens == 0 || args.batch == 0) return {};
  K3_CHECK(args.keys > 0, "prefill of {} tokens without keys", args.tokens);
  K3_CHECK(args.so_far == nullptr || (aligned(args.so_far) && args.lse != nullptr), "prefill in parts without sums");
  const DeviceInfo& device = device_info();
  if (device.capability < 90 || device.capability >= 100) return {mla_prefill_any_launch(args, stream)};
  MlaPrefillLaunch launch;
  launch.args = args;
  launch.head_group = mla_prefill_head_group(args.heads, args.keys, device);
  const int64_t heads = args.heads;
  int code = encode_map(
      &launch.q, {.base = args.q, .sizes = {heads * kMlaKey, args.tokens}, .strides = {1, args.q_stride}, .box = {64, 128}});
  if (code == 0) {
    code = encode_map(&launch.expanded, {.base = args.expanded,
                                         .sizes = {heads * (kMlaNope + kMlaValue), args.keys},
                                         .strides = {1, args.expanded_stride},
                                         .box = {64, 128}});
  }
  if (code == 0) {
    code = encode_map(
        &launch.shared_keys,
        {.base = args.shared_keys, .sizes = {kMlaRope, args.keys}, .strides = {1, args.shared_stride}, .box = {64, 128}});
  }
  if (code == 0) code = mla_prefill_sm90_launch(launch, stream);
  return {code};
}

}  // namespace k3::ops::cuda
