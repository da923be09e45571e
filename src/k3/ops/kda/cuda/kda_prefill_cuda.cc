#include "k3/ops/kda/cuda/kda_prefill_cuda.h"

#include <algorithm>
#include <cmath>

#include "k3/base/check.h"

namespace k3::ops::cuda {
namespace {

constexpr float kFusedBound = -5.25F;  // 16 tokens of it stay inside FP32 and BF16
constexpr int64_t kChunk = 16, kMapBytes = int64_t{2} * 128 * 128 * 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Microseconds, measured on an H200; only their ratios matter.
constexpr double kChunkUs = 0.95, kPairChunkUs = 0.72, kMapChunkUs = 0.90, kStartUs = 12, kScanUs = 2;

double fused_cost(const KdaPrefillShape& s, int64_t blocks, bool pairs) {
  const double all =
      static_cast<double>(ceil_div(s.tokens, kChunk) * s.heads) / static_cast<double>(pairs ? blocks / 2 : blocks);
  return kStartUs + (pairs ? kPairChunkUs : kChunkUs) * std::max(all, static_cast<double>(ceil_div(s.longest, kChunk)));
}

// How often the device is filled: whole times when every block works equally long.
double rounds(int64_t items, int64_t blocks, bool even) {
  const double exact = static_cast<double>(items) / static_cast<double>(blocks);
  return even ? std::ceil(exact) : std::max(1.0, exact + 0.25);
}

// Two passes over pieces of `segment` tokens, and the scan between them; the first takes two blocks a piece.
double segments_cost(const KdaPrefillShape& s, int64_t blocks, int64_t segment) {
  const bool even = s.sequences == 1;
  const int64_t pieces = ceil_div(s.tokens, segment) + (s.sequences - 1) / 2, chain = ceil_div(s.longest, segment);
  const int64_t maps = std::max<int64_t>(0, 2 * (pieces - s.sequences) - (even ? 1 : 0)) * s.heads;
  const double chunks = static_cast<double>(segment / kChunk);
  return 2.5 * kStartUs + kScanUs * static_cast<double>(chain) +
         chunks * (kMapChunkUs * rounds(maps, blocks, even) + kChunkUs * rounds(pieces * s.heads, blocks, even));
}

}  // namespace

KdaPrefillPlan kda_prefill_plan(const KdaPrefillShape& s, const DeviceInfo& device, KdaPrefillForm form) {
  // Without a bound the factors refer to tokens near them (kernels.md 2.6); a bound that 16 tokens cannot hold goes the long way.
  const bool fits = device.capability / 10 == 9 && (!s.lower_bound || (*s.lower_bound >= kFusedBound && *s.lower_bound < 0));
  if (!fits || form == KdaPrefillForm::recurrent) return {};
  const int64_t blocks = std::max(2, device.sm_count);
  const bool pairs = fused_cost(s, blocks, true) < fused_cost(s, blocks, false);
  KdaPrefillPlan best{KdaPrefillForm::fused, 0, pairs};
  if (form == KdaPrefillForm::fused || s.tokens == 0) return best;
  double cost = form == KdaPrefillForm::segments ? 1e30 : fused_cost(s, blocks, pairs);
  for (int64_t pieces = 2; pieces <= 24; ++pieces) {
    const int64_t segment = std::max(kChunk, ceil_div(ceil_div(s.longest, pieces), kChunk) * kChunk);
    if (segment >= s.longest && form != KdaPrefillForm::segments) break;
    const double c = segments_cost(s, blocks, segment);
    if (c < cost) cost = c, best = {KdaPrefillForm::segments, segment, false};
  }
  return best;
}

int64_t kda_prefill_workspace_bytes(const KdaPrefillShape& shape, const KdaPrefillPlan& plan) {
  if (plan.form != KdaPrefillForm::segments) return 0;
  return (shape.tokens / plan.segment + shape.sequences) * shape.heads * kMapBytes;
}

CudaStatus kda_prefill_cuda(const K3KdaPrefill& given, const KdaPrefillPlan& plan, Stream stream) {
  K3KdaPrefill args = given;
  K3_CHECK(args.heads > 0 && args.sequences >= 0 && args.tokens >= 0, "heads {} sequences {} tokens {}", args.heads,
           args.sequences, args.tokens);
  if (args.sequences == 0 || args.tokens == 0) return {};
  for (const int64_t stride : {args.q_stride, args.k_stride, args.v_stride, args.z_stride, args.out_stride}) {
    K3_CHECK(stride >= args.heads * 128 && stride % 8 == 0, "stride {}", stride);
  }
  K3_CHECK(args.b != nullptr && args.b_stride >= args.heads, "stride {} of b", args.b_stride);
  K3_CHECK(args.slot_stride >= args.heads * 128 * 128 && args.slot_stride % 4 == 0, "slot stride {}", args.slot_stride);
  for (const void* p :
       {args.q, args.k, args.v, args.z, static_cast<const void*>(args.out), static_cast<const void*>(args.states)}) {
    K3_CHECK(p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0, "rows start at multiples of 16 bytes");
  }
  K3_CHECK(args.longest > 0 && args.longest <= args.tokens && (args.export_count == 0 || args.exports != nullptr),
           "longest {}", args.longest);
  if (args.to == nullptr) args.to = args.from;
  K3_CHECK(args.from != nullptr, "slots");
  args.segment = plan.segment, args.pairs = plan.pairs ? 1 : 0;
  switch (plan.form) {
    case KdaPrefillForm::fused: return {kda_prefill_fused_launch(args, stream)};
    case KdaPrefillForm::segments:
      K3_CHECK(plan.segment > 0 && plan.segment % kChunk == 0 && args.workspace != nullptr, "segment {}", plan.segment);
      return {kda_prefill_segments_launch(args, stream)};
    default: return {kda_prefill_recurrent_launch(args, stream)};
  }
}

}  // namespace k3::ops::cuda

extern "C" int64_t k3_kda_prefill_workspace(int64_t tokens, int64_t heads, int64_t sequences, int64_t longest) {
  const k3::ops::cuda::KdaPrefillShape shape{tokens, heads, sequences, longest};
  return kda_prefill_workspace_bytes(shape, kda_prefill_plan(shape, k3::ops::cuda::device_info()));
}

extern "C" int k3_kda_prefill(const K3KdaPrefill* args, CUstream_st* stream) {
  k3::ops::cuda::KdaPrefillShape shape{args->tokens, args->heads, args->sequences, args->longest};
  shape.lower_bound = args->bounded != 0 ? std::optional<float>(args->lower_bound) : std::nullopt;
  return kda_prefill_cuda(*args, kda_prefill_plan(shape, k3::ops::cuda::device_info()), stream).code;
}
