#include "k3/ops/gemm/cuda/gemm_cuda.h"

#include <algorithm>
#include <bit>

#include "k3/base/check.h"
#include "k3/ops/gemm/cuda/gemm_plain.cuh"
#include "k3/ops/gemm/cuda/gemm_plans.h"
#include "k3/ops/gemm/cuda/gemm_rows.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kMostSiteColumns = 4096;  // what the threads of gemm_one_sm90.cu hold

bool aligned_16(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

void check(const GemmArgs& a) {
  K3_CHECK(a.part_count > 0 && a.part_count <= GemmArgs::kMostParts, "{} parts", a.part_count);
  K3_CHECK(a.tokens >= 0 && a.in > 0 && a.x_stride >= a.in, "x [{}, {}], stride {}", a.tokens, a.in, a.x_stride);
  K3_CHECK(a.tokens < int64_t{1} << 30 && a.in < int64_t{1} << 30, "x [{}, {}]", a.tokens, a.in);
  for (int i = 0; i < a.part_count; ++i) {
    const GemmPart& part = a.parts[static_cast<size_t>(i)];
    K3_CHECK(part.w.cols == a.in, "part {}: the weight has {} columns, x {}", i, part.w.cols, a.in);
    K3_CHECK(part.w.rows >= 0 && part.w.rows < int64_t{1} << 30 && part.y_stride >= part.w.rows,
             "part {}: y [., {}], stride {}", i, part.w.rows, part.y_stride);
    K3_CHECK(part.y_dtype == DType::bf16 || part.y_dtype == DType::f32, "part {}: y is {}", i, dtype_name(part.y_dtype));
    K3_CHECK(part.w.scheme == Scheme::bf16 || scheme_has_scales(part.w.scheme), "part {}: no such weights on the GPU", i);
    if (part.up) {
      K3_CHECK(gemm_fuses(a.tokens, a.in, part.w.scheme) && part.up.scheme == Scheme::bf16 && part.up.rows == part.w.rows &&
                   part.up.cols == a.in && aligned_16(part.up.data) && !part.accumulate,
               "part {}: gate [{}, {}] and up [{}, {}]", i, part.w.rows, part.w.cols, part.up.rows, part.up.cols);
    }
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

int64_t rows_of(const GemmPart& part) { return part.up ? 2 * part.w.rows : part.w.rows; }
int64_t rows_of(const GemmArgs& a) {  // of one launch of all parts
  if (a.other_x != nullptr) return rows_of(a.parts[0]);
  int64_t rows = 0;
  for (int i = 0; i < a.part_count; ++i) rows += rows_of(a.parts[static_cast<size_t>(i)]);
  return rows;
}

GemmShape shape_of(const GemmArgs& a, const GemmPart& part) {
  return {a.tokens, part.w.rows, a.in, part.y_dtype, part.accumulate};
}

// Parts from i on that take the same way and, in the library's, are one product: w lies after w, y after y.
struct Run {
  GemmPart first;  // with the rows of all
  int parts = 1;
  bool library = false;
};
Run run_from(const GemmArgs& a, int i) {
  Run run{.first = a.parts[static_cast<size_t>(i)]};
  run.library = !run.first.up && gemm_route(a.tokens, run.first.w.rows, a.in, run.first.w.scheme, a.deterministic) == GemmRoute::library;
  while (run.library && i + run.parts < a.part_count) {
    const GemmPart& next = a.parts[static_cast<size_t>(i + run.parts)];
    const auto* w_end = static_cast<const uint8_t*>(run.first.w.data) + run.first.w.rows * a.in * 2;
    const auto* y_end = static_cast<const uint8_t*>(run.first.y) + run.first.w.rows * dtype_bytes(run.first.y_dtype);
    if (next.up || next.w.scheme != Scheme::bf16 || next.w.data != w_end || next.y != y_end || next.y_dtype != run.first.y_dtype ||
        next.y_stride != run.first.y_stride || next.accumulate != run.first.accumulate) {
      break;
    }
    run.first.w.rows += next.w.rows;
    ++run.parts;
  }
  return run;
}

void check_other(const GemmArgs& a) {
  K3_CHECK(a.other_x == nullptr || (a.part_count == 2 && a.parts[0].w.rows == a.parts[1].w.rows &&
                                    a.parts[0].w.scheme == a.parts[1].w.scheme && aligned_16(a.other_x)),
           "two inputs and {} parts", a.part_count);
}

bool even_parts(const GemmArgs& a) {
  return std::all_of(a.parts.begin(), a.parts.begin() + a.part_count, [](const GemmPart& part) { return rows_of(part) % 2 == 0; });
}

// The launch of the parts of one scheme; no rows when there are none.
Rows launch_of(const GemmArgs& a, Scheme scheme, const RowsConfig& config) {
  Rows rows;
  rows.x = a.x;
  rows.x_stride = a.x_stride;
  rows.tokens = static_cast<int>(a.tokens);
  rows.in = static_cast<int>(a.in);
  rows.release_late = a.release_late;
  const int64_t group = 8 * config.token_tiles;
  rows.token_groups = static_cast<int>((a.tokens + group - 1) / group);
  rows.k_warps_log2 = std::countr_zero(static_cast<unsigned>(config.k_warps));
  rows.cluster_log2 = std::countr_zero(static_cast<unsigned>(config.cluster));
  if (a.other_x != nullptr) rows.other_x = a.other_x;
  rows.x_rest = a.x_rest;
  rows.split = a.split;
  rows.glu = {a.glu.kind == GluKind::situ, a.glu.beta, a.glu.linear_beta.value_or(0)};
  for (int i = 0; i < a.part_count; ++i) {
    const GemmPart& part = a.parts[static_cast<size_t>(i)];
    if (part.w.scheme != scheme || part.w.rows == 0) continue;
    if (part.up) rows.grain_log2 = 1;
    rows.parts[rows.part_count++] = {.w = static_cast<const uint8_t*>(part.w.data),
                                     .up = static_cast<const uint8_t*>(part.up.data),
                                     .scales = part.w.scales,
                                     .y = part.y,
                                     .y_stride = part.y_stride,
                                     .row_begin = rows.rows,
                                     .y_f32 = part.y_dtype == DType::f32,
                                     .accumulate = part.accumulate};
    if (a.other_x == nullptr) rows.rows += static_cast<int>(rows_of(part));
  }
  if (a.other_x != nullptr && rows.part_count > 0) {
    rows.rows = static_cast<int>(rows_of(a));
    rows.part_count = 1;  // a block sees one
  }
  if (rows.rows == 0) return rows;
  const int64_t height = kGemmRowTile * config.row_tiles, least = (rows.rows + height - 1) / height;
  const int grains = rows.rows >> rows.grain_log2;
  rows.tiles = static_cast<int>(std::clamp<int64_t>(config.tiles, least, grains));  // config may be that of more rows
  rows.base_height = grains / rows.tiles << rows.grain_log2;
  rows.higher = grains % rows.tiles;
  return rows;
}

int launch_plain(const GemmArgs& a, const GemmPart& part, Stream stream) {
  PlainProduct p;
  p.x = a.x;
  p.x_stride = a.x_stride;
  p.tokens = a.tokens;
  p.in = static_cast<int>(a.in);
  p.w = part.w.data;
  p.scales = part.w.scales;
  p.rows = part.w.rows;
  p.codec = part.w.scheme == Scheme::bf16 ? PlainCodec::bf16 : part.w.scheme == Scheme::i8 ? PlainCodec::i8 : PlainCodec::mxfp4;
  p.y = part.y;
  p.y_stride = part.y_stride;
  p.y_f32 = part.y_dtype == DType::f32;
  p.accumulate = part.accumulate;
  return gemm_plain_launch(p, stream);
}

}  // namespace

CudaStatus gemm_rows_cuda(const GemmArgs& args, const RowsConfig& config, Stream stream) {
  check(args);
  K3_CHECK(config.row_tiles == 1, "row tiles {}", config.row_tiles);
  check_other(args);
  for (const GemmPart& part : args.parts) K3_CHECK(!part.up, "the row kernel has no pairs");
  if (args.tokens == 0) return {};
  for (const Scheme scheme : {Scheme::bf16, Scheme::mxfp4, Scheme::i8}) {
    const Rows rows = launch_of(args, scheme, config);
    if (rows.rows == 0) continue;
    const int code =
        gemm_rows_launch(rows, codec_of(args, scheme), x_aligned(args), config.token_tiles, args.dependent, stream);
    if (code != 0) return {code};
  }
  return {};
}

CudaStatus gemm_stream_cuda(const GemmArgs& args, const RowsConfig& config, Stream stream) {
  check(args);
  if (args.tokens == 0) return {};
  const Rows rows = launch_of(args, Scheme::bf16, config);
  if (rows.rows == 0) return {};
  K3_CHECK(rows.grain_log2 == 0 || even_parts(args), "a pair beside a part of odd rows");
  check_other(args);
  K3_CHECK(args.in % kGemmKStep == 0 && codec_of(args, Scheme::bf16) == RowsCodec::bf16 && rows.rows == rows_of(args),
           "x [{}, {}], stride {}", args.tokens, args.in, args.x_stride);
  return {gemm_stream_launch(rows, config.row_tiles, config.token_tiles, args.dependent, stream)};
}

CudaStatus gemm_wide_cuda(const GemmArgs& args, const RowsConfig& config, Stream stream) {
  check(args);
  if (args.tokens == 0) return {};
  const Rows rows = launch_of(args, Scheme::bf16, config);
  if (rows.rows == 0) return {};
  K3_CHECK(args.tokens <= kWideTokens && args.in % kWideColumns == 0 && codec_of(args, Scheme::bf16) == RowsCodec::bf16 &&
               rows.rows == rows_of(args),
           "x [{}, {}], stride {}", args.tokens, args.in, args.x_stride);
  return {gemm_wide_launch(rows, args.dependent, stream)};
}

namespace {

bool one_serves(const GemmArgs& args) {  // BF16, aligned
  const bool pairs = std::any_of(args.parts.begin(), args.parts.begin() + args.part_count, [](const GemmPart& p) { return static_cast<bool>(p.up); });
  return args.tokens == 1 && !args.deterministic && args.other_x == nullptr && (!pairs || even_parts(args)) &&
         one_config(rows_of(args), args.in, pairs ? 2 : 1, device_info().sm_count, args.split).tiles > 0;
}

}  // namespace

bool gemm_takes_site(const GemmArgs& args) { return args.in <= kMostSiteColumns && gemm_takes_split(args) && one_serves(args); }

bool gemm_takes_split(const GemmArgs& args) {
  if (args.tokens != 1 || plain_device() || args.other_x != nullptr || args.in % kGemmKStep != 0 || !x_aligned(args) || !aligned_16(args.x_rest)) return false;
  for (int i = 0; i < args.part_count; ++i) {
    const GemmPart& part = args.parts[static_cast<size_t>(i)];
    if (part.w.scheme != Scheme::bf16 || !aligned_16(part.w.data)) return false;
  }
  return true;
}

namespace {

// One token, all parts BF16 and aligned.
CudaStatus gemm_one_cuda(const GemmArgs& args, Stream stream) {
  Rows rows = launch_of(args, Scheme::bf16, {});
  if (rows.rows == 0) return {};
  const OneConfig config = one_config(rows.rows, args.in, 1 << rows.grain_log2, device_info().sm_count, args.split);
  const int grains = rows.rows >> rows.grain_log2;
  rows.tiles = static_cast<int>(config.tiles);
  rows.base_height = grains / rows.tiles << rows.grain_log2;
  rows.higher = grains % rows.tiles;
  rows.one = {.height = config.height,
              .groups = config.groups,
              .pitch = config.pitch,
              .ring_bytes = config.ring_bytes(),
              .claims = config.claims ? args.claims : nullptr};
  const GemmSite& s = args.site;
  rows.site = {s.prefix, s.delta, s.prefix_out, s.rest, s.rest_out, s.norm, s.norm_bf16, s.eps, s.out, s.counter};
  return {gemm_one_launch(rows, args.dependent, stream)};
}

}  // namespace

CudaStatus gemm_cuda(const GemmArgs& args, const GemmPlans* plans, Stream stream) {
  check(args);
  K3_CHECK((args.site.delta == nullptr || gemm_takes_site(args)) && (!args.split || gemm_takes_split(args)), "a site or a split x: {} tokens, {} columns", args.tokens, args.in);
  K3_CHECK(!args.split || args.site.delta != nullptr || args.x_rest != nullptr, "a split x without its second row");
  if (args.tokens == 0) return {};
  GemmArgs streamed = args, rest = args, library = args;
  streamed.part_count = rest.part_count = library.part_count = 0;
  const auto add = [](GemmArgs& to, const GemmPart& part) { to.parts[static_cast<size_t>(to.part_count++)] = part; };
  const auto by_library = [&](const GemmPart& part) {
    return plans != nullptr &&
           plans->run(shape_of(args, part), args.x, args.x_stride, part.w.data, part.y, part.y_stride, stream).ok();
  };
  for (int i = 0; i < args.part_count;) {
    const Run run = run_from(args, i);
    i += run.parts;
    if (run.first.w.rows == 0) continue;
    if (plain_device()) {
      if (run.library && by_library(run.first)) continue;
      const int code = launch_plain(args, run.first, stream);
      if (code != 0) return {code};
      continue;
    }
    const bool streams =
        run.first.w.scheme == Scheme::bf16 && args.in % kGemmKStep == 0 && aligned_16(run.first.w.data) && x_aligned(args);
    if (streams) {
      add(run.library ? library : streamed, run.first);
    } else if (!run.library || !by_library(run.first)) {
      add(rest, run.first);
    }
  }
  if (gemm_wide_wins(args.tokens, rows_of(library), library.part_count, args.in)) {
    const CudaStatus status =
        gemm_wide_cuda(library, wide_config(rows_of(library), args.in, device_info().sm_count), stream);
    if (!status.ok()) return status;
  } else {
    for (int i = 0; i < library.part_count; ++i) {
      const GemmPart& part = library.parts[static_cast<size_t>(i)];
      if (!by_library(part)) add(streamed, part);
    }
  }
  const auto config = [&](const GemmArgs& a, int most_row_tiles) {
    return rows_config(a.tokens, rows_of(a), a.in, device_info().sm_count, a.deterministic, most_row_tiles);
  };
  if (streamed.part_count > 0 && one_serves(streamed)) {
    const CudaStatus status = gemm_one_cuda(streamed, stream);
    if (!status.ok()) return status;
    streamed.part_count = 0;
  }
  if (streamed.part_count > 0) {
    const CudaStatus status = gemm_stream_cuda(streamed, config(streamed, 4), stream);
    if (!status.ok()) return status;
  }
  return rest.part_count == 0 ? CudaStatus{} : gemm_rows_cuda(rest, config(rest, 1), stream);
}

Status gemm_prepare(const GemmArgs& args, GemmPlans& plans, Stream stream) {
  check(args);
  for (int i = 0; i < args.part_count;) {
    const Run run = run_from(args, i);
    i += run.parts;
    if (run.library && args.tokens > 0 && run.first.w.rows > 0) K3_TRY(plans.prepare(shape_of(args, run.first), stream));
  }
  return {};
}

}  // namespace k3::ops::cuda
