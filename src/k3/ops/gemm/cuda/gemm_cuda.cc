#include "k3/ops/gemm/cuda/gemm_cuda.h"

#include <bit>

#include "k3/base/check.h"
#include "k3/ops/gemm/cuda/gemm_plans.h"
#include "k3/ops/gemm/cuda/gemm_rows.cuh"

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

RowsCodec codec_of(const GemmArgs& a, Scheme scheme) {
  if (scheme == Scheme::mxfp4) return RowsCodec::mxfp4;
  if (scheme == Scheme::i8) return RowsCodec::i8;
  bool aligned = a.in % 8 == 0 && a.x_stride % 8 == 0 && aligned_16(a.x);
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
  const bool x_aligned = a.in % 8 == 0 && a.x_stride % 8 == 0 && aligned_16(a.x);
  return {gemm_rows_launch(rows, codec_of(a, scheme), x_aligned, config.token_tiles, a.dependent, stream)};
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

CudaStatus gemm_cuda(const GemmArgs& args, const GemmPlans* plans, Stream stream) {
  check(args);
  if (args.tokens == 0) return {};
  GemmArgs rest = args;  // parts that the library does not take
  rest.part_count = 0;
  for (int i = 0; i < args.part_count; ++i) {
    const GemmPart& part = args.parts[static_cast<size_t>(i)];
    if (part.w.rows == 0) continue;
    const GemmShape shape{args.tokens, part.w.rows, args.in, part.y_dtype, part.accumulate};
    const bool library = plans != nullptr && plans->has(shape) && gemm_route(args.tokens, part.w.rows, args.in, part.w.scheme,
                                                                            args.deterministic) == GemmRoute::library;
    if (library && plans->run(shape, args.x, args.x_stride, part.w.data, part.y, part.y_stride, stream).ok()) continue;
    rest.parts[static_cast<size_t>(rest.part_count++)] = part;
  }
  if (rest.part_count == 0) return {};
  const RowsConfig config = rows_config(rest.tokens, row_tiles(rest), rest.in, device_info().sm_count, rest.deterministic);
  return gemm_rows_cuda(rest, config, stream);
}

}  // namespace k3::ops::cuda
