#include "k3/ops/gemm/cuda/gemm_cuda.h"

#include <bit>

#include "k3/base/check.h"
#include "k3/ops/gemm/cuda/gemm_plans.h"
#include "k3/ops/gemm/cuda/gemm_rows.cuh"
#include "k3/ops/gemm/cuda/gemm_stream.cuh"

namespace k3::ops::cuda {
namespace {

bool aligned_16(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

void check(const GemmArgs& a) {
  K3_CHECK(a.part_count > 0 && a.part_count <= GemmArgs::kMostParts, "{} parts", a.part_count);
  K3_CHECK(a.tokens >= 0 && a.in > 0 && a.x_stride >= a.in, "x [{}, {}], stride {}", a.tokens, a.in, a.x_stride);
  K3_CHECK(a.tokens < int64_t{1} << 30 && a.in < int64_t{1} << 30, "x [{}, {}]", a.tokens, a.in);
  for (int i = 0; i < a.part_count; ++i) {
    const GemmPart& part = a.parts[static_cast<size_t>(i)];
    K3_CHECK(part.w.cols == a.in, "part {}: the weight has {} columns, x {}", i, part.w.cols, a.in);
    K3_CHECK(part.w.rows >= 0 && part.w.rows < int64_t{1} << 30 && part.y_stride >= part.w.rows, "part {}: y [., {}], stride {}", i,
             part.w.rows, part.y_stride);
    K3_CHECK(part.y_dtype == DType::bf16 || part.y_dtype == DType::f32, "part {}: y is {}", i, dtype_name(part.y_dtype));
    K3_CHECK(part.w.scheme == Scheme::bf16 || scheme_has_scales(part.w.scheme), "part {}: no such weights on the GPU", i);
    if (!scheme_has_scales(part.w.scheme)) continue;
    K3_CHECK(a.in % 32 == 0 && aligned_16(part.w.data) && part.w.scales != nullptr, "part {}: {} columns", i, a.in);
  }
}

bool x_aligned(const GemmArgs& a) { return a.in % 8 == 0 && a.x_stride % 8 == 0 && aligned_16(a.x); }

RowsCodec codec_of(const GemmArgs& a, Scheme scheme) {
  if (scheme == Scheme::mxfp4) return RowsCodec::mxfp4;
  if (scheme == Scheme::i8) return RowsCodec::i8;
  bool aligned = x_aligned(a);
  for (int i = 0; i < a.part_count; ++i) {
    const Weight& w = a.parts[static_cast<size_t>(i)].w;
    aligned = aligned && (w.scheme != Scheme::bf16 || aligned_16(w.data));
  }
  return aligned ? RowsCodec::bf16 : RowsCodec::bf16_unaligned;
}

int64_t row_tiles(const GemmArgs& a) {
  int64_t tiles = 0;
  for (int i = 0; i < a.part_count; ++i) tiles += (a.parts[static_cast<size_t>(i)].w.rows + kGemmRowTile - 1) / kGemmRowTile;
  return tiles;
}

CudaStatus launch_scheme(const GemmArgs& a, Scheme scheme, const RowsConfig& config, Stream stream) {
  Rows rows;
  rows.x = a.x;
  rows.x_stride = a.x_stride;
  rows.tokens = static_cast<int>(a.tokens);
  rows.in = static_cast<int>(a.in);
  const int64_t group = 8 * config.token_tiles;
  rows.token_groups = static_cast<int>((a.tokens + group - 1) / group);
  rows.k_warps_log2 = std::countr_zero(static_cast<unsigned>(config.k_warps));
  rows.cluster_log2 = std::countr_zero(static_cast<unsigned>(config.cluster));
  for (int i = 0; i < a.part_count; ++i) {
    const GemmPart& part = a.parts[static_cast<size_t>(i)];
    if (part.w.scheme != scheme || part.w.rows == 0) continue;
    rows.parts[rows.part_count++] = {.w = static_cast<const uint8_t*>(part.w.data),
                                     .scales = part.w.scales,
                                     .y = part.y,
                                     .y_stride = part.y_stride,
                                     .rows = static_cast<int>(part.w.rows),
                                     .tile_begin = rows.tiles,
                                     .y_f32 = part.y_dtype == DType::f32,
                                     .accumulate = part.accumulate};
    rows.tiles += static_cast<int>((part.w.rows + kGemmRowTile - 1) / kGemmRowTile);
  }
  if (rows.tiles == 0) return {};
  return {gemm_rows_launch(rows, codec_of(a, scheme), x_aligned(a), config.token_tiles, a.dependent, stream)};
}

}  // namespace

CudaStatus gemm_rows_cuda(const GemmArgs& args, const RowsConfig& config, Stream stream) {
  check(args);
  if (args.tokens == 0) return {};
  for (const Scheme scheme : {Scheme::bf16, Scheme::mxfp4, Scheme::i8}) {
    const CudaStatus status = launch_scheme(args, scheme, config, stream);
    if (!status.ok()) return status;
  }
  return {};
}

CudaStatus gemm_stream_cuda(const GemmArgs& args, const StreamConfig& config, Stream stream) {
  check(args);
  if (args.tokens == 0) return {};
  Stream16 out;
  out.x = static_cast<const uint8_t*>(args.x);
  out.x_stride = args.x_stride;
  out.tokens = static_cast<int>(args.tokens);
  out.in = static_cast<int>(args.in);
  out.block_rows = config.block_rows;
  out.stages = config.stages;
  for (int i = 0; i < args.part_count; ++i) {
    const GemmPart& part = args.parts[static_cast<size_t>(i)];
    if (part.w.rows == 0) continue;
    K3_CHECK(part.w.scheme == Scheme::bf16 && aligned_16(part.w.data), "part {}", i);
    out.parts[out.part_count++] = {.w = static_cast<const uint8_t*>(part.w.data),
                                   .y = part.y,
                                   .y_stride = part.y_stride,
                                   .row_begin = out.rows,
                                   .y_f32 = part.y_dtype == DType::f32,
                                   .accumulate = part.accumulate};
    out.rows += static_cast<int>(part.w.rows);
  }
  if (out.rows == 0) return {};
  K3_CHECK(args.tokens <= kStreamMostTokens && args.in % kGemmKStep == 0 && x_aligned(args), "x [{}, {}]", args.tokens, args.in);
  return {gemm_stream_launch(out, config.row_tiles, config.token_tiles, config.blocks, config.shared_bytes, args.dependent, stream)};
}

CudaStatus gemm_cuda(const GemmArgs& args, const GemmPlans* plans, Stream stream) {
  check(args);
  if (args.tokens == 0) return {};
  GemmArgs streamed = args, rest = args;
  streamed.part_count = rest.part_count = 0;
  for (int i = 0; i < args.part_count; ++i) {
    const GemmPart& part = args.parts[static_cast<size_t>(i)];
    if (part.w.rows == 0) continue;
    const GemmRoute route = gemm_route(args.tokens, args.in, part.w.scheme, args.deterministic);
    if (route == GemmRoute::library && plans != nullptr) {
      const GemmShape shape{args.tokens, part.w.rows, args.in, part.y_dtype, part.accumulate};
      if (plans->run(shape, args.x, args.x_stride, part.w.data, part.y, part.y_stride, stream).ok()) continue;
    }
    GemmArgs& to = route == GemmRoute::stream && aligned_16(part.w.data) && x_aligned(args) ? streamed : rest;
    to.parts[static_cast<size_t>(to.part_count++)] = part;
  }
  const int sm_count = device_info().sm_count;
  if (streamed.part_count > 0) {
    int64_t rows = 0;
    for (int i = 0; i < streamed.part_count; ++i) rows += streamed.parts[static_cast<size_t>(i)].w.rows;
    const CudaStatus status = gemm_stream_cuda(streamed, stream_config(args.tokens, rows, args.in, sm_count), stream);
    if (!status.ok()) return status;
  }
  if (rest.part_count == 0) return {};
  return gemm_rows_cuda(rest, rows_config(rest.tokens, row_tiles(rest), rest.in, sm_count, rest.deterministic), stream);
}

}  // namespace k3::ops::cuda
