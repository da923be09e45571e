#include "k3/ops/kda/cuda/kda_verify_cuda.h"

#include "k3/base/check.h"
#include "k3/ops/kda/cuda/kda_decode_cuda.h"
#include "k3/ops/kda/cuda/kda_verify_cuda.cuh"

namespace k3::ops::cuda {
namespace {

void check_window(const KdaWindow& w, const KdaCommit& commit, int64_t heads) {
  K3_CHECK(w.max_tokens == 8 || w.max_tokens == 16, "kda_verify: windows of {} tokens", w.max_tokens);
  K3_CHECK(w.factors != nullptr && reinterpret_cast<uintptr_t>(w.factors) % 16 == 0 && w.factors_stride % 4 == 0 &&
               w.factors_stride >= heads * w.max_tokens * 3 * 128,
           "kda_verify: factors, stride {}", w.factors_stride);
  K3_CHECK(w.inputs != nullptr && reinterpret_cast<uintptr_t>(w.inputs) % 8 == 0 && w.inputs_stride % 4 == 0 &&
               w.inputs_stride >= heads * w.max_tokens * 3 * 128,
           "kda_verify: inputs, stride {}", w.inputs_stride);
  K3_CHECK(commit.accepted != nullptr && (commit.export_slots == nullptr || commit.boundary != nullptr), "kda_verify: commit counts");
}

}  // namespace

int kda_verify_split(int64_t pairs, int form, const DeviceInfo& device) {
  if (form >= 1) return 1 << (form - 1);
  int split = 1;
  while (split < 4 && pairs * split * 2 <= device.sm_count) split *= 2;
  return split;
}

CudaStatus kda_verify_cuda(const KdaVerifyArgs& args, Stream stream) {
  const int64_t heads = args.weights.heads;
  if (args.batch == 0 || heads == 0) return {};
  check_kda_weights(args.weights);
  check_kda_rows(args.rows, heads);
  check_kda_slots(args.slots, heads);
  check_window(args.window, args.commit, heads);
  K3_CHECK(args.offsets != nullptr, "kda_verify: no offsets");
  return {kda_verify_launch(args, kda_verify_split(args.batch * heads, args.launch.form, device_info()), stream)};
}

CudaStatus kda_commit_cuda(const KdaCommitArgs& args, Stream stream) {
  if (args.batch == 0 || args.heads == 0) return {};
  check_kda_slots(args.slots, args.heads);
  check_window(args.window, args.commit, args.heads);
  return {kda_commit_launch(args, kda_verify_split(args.batch * int64_t{args.heads}, args.launch.form, device_info()), stream)};
}

}  // namespace k3::ops::cuda
