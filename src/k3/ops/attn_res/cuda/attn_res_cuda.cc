#include <algorithm>

#include "k3/base/check.h"
#include "k3/ops/attn_res/cuda/attn_res_cuda.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kMostHidden = 16384;
constexpr int kMostSources = 9;                           // of the kernels that hold every row in registers
constexpr int64_t kLargeStatic = 2304, kReserved = 1024;  // shared memory of the large kernel, and of the system, a block
constexpr int64_t kVector = 8;                            // BF16 of 16 bytes

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

void check_rows(const void* rows, int64_t stride, const char* what) {
  K3_CHECK(reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride % kVector == 0, "attn_res: {} is not aligned to 16 bytes",
           what);
}

}  // namespace

AttnResPlan attn_res_plan(int64_t tokens, int64_t hidden, int sources, const DeviceInfo& device) {
  const int64_t vectors = hidden / kVector;
  if (sources > kMostSources) {
    const auto threads = static_cast<int>(std::clamp<int64_t>(round_up(vectors, 32), 32, 512));
    const auto shared = static_cast<int>(hidden * 4 + (threads / 32 + 1) * sources * 8);
    return {AttnResKernel::any, 1, threads, static_cast<int>(tokens), 0, shared};
  }
  if (sources <= 2 && tokens > 2 * device.sm_count && vectors <= 1024) {
    return {AttnResKernel::few, 1, static_cast<int>(round_up((vectors + 3) / 4, 32)), static_cast<int>(tokens), 0, 0};
  }
  const int64_t large_threads = round_up((vectors + 1) / 2, 32) + 32;  // two vectors a thread and a warp that loads
  const bool many = tokens > (vectors > 512 ? device.sm_count / 4 : 2 * device.sm_count);
  if (many && large_threads <= 480) {
    const int per_sm = static_cast<int>(std::clamp<int64_t>(480 / large_threads, 1, 4));
    const int64_t room = (device.shared_bytes_per_block + kReserved) / per_sm - kReserved - kLargeStatic;
    const auto slots = static_cast<int>(std::min<int64_t>(room / (hidden * 2 + 16), 32));
    const auto grid = static_cast<int>(std::min<int64_t>(tokens, static_cast<int64_t>(device.sm_count) * per_sm));
    return {
        AttnResKernel::large, 1, static_cast<int>(large_threads), grid, slots, static_cast<int>(slots * (hidden * 2 + 16))};
  }
  int cluster = 1;
  while (cluster < 8 && (vectors > 896 * cluster || (tokens * cluster * 2 <= device.sm_count && vectors >= 64 * cluster)))
    cluster *= 2;
  const auto threads = static_cast<int>(round_up((vectors + cluster - 1) / cluster, 32));
  return {AttnResKernel::small, cluster, threads, static_cast<int>(tokens * cluster), 0, 0};
}

CudaStatus attn_res_cuda(const AttnResSite& s, const AttnResPlan& plan, Stream stream) {
  K3_CHECK(s.hidden > 0 && s.hidden % kVector == 0 && s.hidden <= kMostHidden && s.blocks >= 0 && s.blocks <= 1024,
           "attn_res: hidden {} and {} blocks", s.hidden, s.blocks);
  K3_CHECK(s.query != nullptr && s.out != nullptr && (s.blocks > 0 || s.prefix != nullptr || s.delta != nullptr),
           "attn_res: no sources");
  K3_CHECK(s.inter_max == nullptr || (s.blocks == 1 && s.inter_sum != nullptr),
           "attn_res: a merge has one inter-block row, not {}", s.blocks);
  check_rows(s.bank, s.bank_stride, "bank");
  check_rows(nullptr, s.bank_block_stride, "bank");
  check_rows(s.prefix, s.prefix_stride, "prefix");
  check_rows(s.delta, s.delta_stride, "delta");
  check_rows(s.prefix_out, s.prefix_out_stride, "prefix_out");
  check_rows(s.bank_out, s.bank_out_stride, "bank_out");
  check_rows(s.rest, s.rest_stride, "rest");
  check_rows(s.rest_out, s.rest_stride, "rest_out");
  K3_CHECK(s.rest == nullptr || s.prefix != nullptr, "attn_res: the rest of no prefix");
  check_rows(s.out, s.out_stride, "out");
  check_rows(s.out_rest, s.out_stride, "out_rest");
  check_rows(s.query, 0, "query");
  check_rows(s.norm, 0, "norm");
  if (s.tokens == 0) return {};
  if (plain_device()) return {attn_res_plain_launch(s, stream)};
  return {attn_res_site_launch(s, plan, stream)};
}

CudaStatus attn_res_cuda(const AttnResSite& s, Stream stream) {
  const int sources = s.blocks + (s.prefix != nullptr || s.delta != nullptr ? 1 : 0);
  return attn_res_cuda(s, attn_res_plan(s.tokens, s.hidden, sources, device_info()), stream);
}

CudaStatus attn_res_inter_cuda(const AttnResInter& a, Stream stream) {
  K3_CHECK(a.hidden > 0 && a.hidden % 64 == 0, "attn_res_inter: hidden {}", a.hidden);
  K3_CHECK(a.blocks > 0 && a.blocks <= 8 && a.sites > 0 && a.sites <= 24, "attn_res_inter: {} blocks, {} sites", a.blocks,
           a.sites);
  check_rows(a.bank, a.bank_stride, "bank");
  check_rows(nullptr, a.bank_block_stride, "bank");
  check_rows(a.y1, a.y1_stride, "y1");
  check_rows(nullptr, a.y1_site_stride, "y1");
  check_rows(a.workspace, 0, "workspace");
  check_rows(a.query, 0, "query");
  K3_CHECK(a.query != nullptr && a.bank != nullptr && a.y1 != nullptr && a.m1 != nullptr && a.d1 != nullptr &&
               a.workspace != nullptr,
           "attn_res_inter: no data");
  if (a.tokens == 0) return {};
  return {attn_res_inter_launch(a, stream)};
}

}  // namespace k3::ops::cuda
