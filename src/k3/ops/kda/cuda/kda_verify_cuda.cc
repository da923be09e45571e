#include "k3/ops/kda/cuda/kda_verify_cuda.h"

#include "k3/base/check.h"
#include "k3/ops/cuda/tensor_map.h"
#include "k3/ops/kda/cuda/kda_decode_cuda.h"
#include "k3/ops/kda/cuda/kda_verify_cuda.cuh"

namespace k3::ops::cuda {
namespace {

void check_row(const void* p, int64_t stride, int64_t heads) {  // copies take 16 bytes
  K3_CHECK(p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0 && stride >= heads * 128,
           "kda_verify: a row at {}, stride {}", p, stride);
}

void check_new_rows(const KdaRows& r, int64_t heads) {
  check_kda_rows(r, heads);
  for (int i = 0; i < 3; ++i) check_row(r.x[i], r.x_stride[i], heads);
  check_row(r.z, r.z_stride, heads);
  check_row(r.gate, r.gate_stride, heads);
}

void check_window(const KdaWindow& w, const KdaCommit& commit, int64_t heads) {
  K3_CHECK(w.max_tokens == 8 || w.max_tokens == 16, "kda_verify: windows of {} tokens", w.max_tokens);
  K3_CHECK(w.u != nullptr && reinterpret_cast<uintptr_t>(w.u) % 16 == 0 && w.u_stride % 4 == 0 &&
               w.u_stride >= heads * w.max_tokens * 128,
           "kda_verify: u, stride {}", w.u_stride);
  for (int i = 0; i < 3; ++i) check_row(commit.x[i], commit.x_stride[i], heads);
  check_row(commit.z, commit.z_stride, heads);
  K3_CHECK(commit.accepted != nullptr && commit.first_rows != nullptr, "kda_verify: no accepted counts or first rows");
  K3_CHECK(commit.export_slots == nullptr || commit.boundary != nullptr, "kda_verify: exports at no boundary");
}

// The copy engine knows no bounds but these, and slots are read from device memory: any number of them.
int map_states(const KdaSlots& s, int64_t heads, CUtensorMap* map) {
  return encode_map(map, {.base = s.state,
                          .rank = 3,
                          .sizes = {256, heads * 128, int64_t{1} << 24},
                          .strides = {1, 256, 2 * s.state_stride},
                          .box = {64, 128, 1}});
}

}  // namespace

CudaStatus kda_verify_cuda(const KdaVerifyArgs& args, Stream stream) {
  const int64_t heads = args.weights.heads;
  if (args.batch == 0 || heads == 0) return {};
  check_kda_weights(args.weights);
  check_new_rows(args.rows, heads);
  check_kda_slots(args.slots, heads);
  check_window(args.window, args.commit, heads);
  K3_CHECK(args.offsets != nullptr, "kda_verify: no offsets");
  CUtensorMap states;
  const bool bulk = args.launch.form != 1 && args.slots.state_bf16 == 0 && args.window.max_tokens == 8 &&
                    map_states(args.slots, heads, &states) == 0;
  return {kda_verify_launch(args, bulk ? &states : nullptr, stream)};
}

CudaStatus kda_commit_cuda(const KdaCommitArgs& args, Stream stream) {
  const KdaWeights& w = args.weights;
  if (args.batch == 0 || w.heads == 0) return {};
  K3_CHECK(w.taps[1] != nullptr && reinterpret_cast<uintptr_t>(w.taps[1]) % 16 == 0 && w.a_log != nullptr &&
               w.dt_bias != nullptr && reinterpret_cast<uintptr_t>(w.dt_bias) % 16 == 0,
           "kda_commit: weights of keys and decays");
  check_kda_slots(args.slots, w.heads);
  check_window(args.window, args.commit, w.heads);
  return {kda_commit_launch(args, stream)};
}

}  // namespace k3::ops::cuda
