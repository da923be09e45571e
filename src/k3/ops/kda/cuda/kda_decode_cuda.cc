#include "k3/ops/kda/cuda/kda_decode_cuda.h"

#include "k3/base/check.h"
#include "k3/ops/kda/cuda/kda_decode_cuda.cuh"

namespace k3::ops::cuda {
namespace {

bool aligned(const void* p, uintptr_t bytes) { return p != nullptr && reinterpret_cast<uintptr_t>(p) % bytes == 0; }

void check_row(const void* p, int64_t stride, int64_t width, const char* name) {
  K3_CHECK(aligned(p, 8) && stride % 4 == 0 && stride >= width, "kda_decode: {} at {}, stride {}", name, p, stride);
}

}  // namespace

void check_kda_weights(const KdaWeights& w) {
  K3_CHECK(w.heads >= 0 && w.lower_bound <= 0, "kda_decode: {} heads, lower bound {}", w.heads, w.lower_bound);
  for (const float* taps : w.taps) K3_CHECK(aligned(taps, 16), "kda_decode: taps");
  K3_CHECK(aligned(w.dt_bias, 16) && w.a_log != nullptr && w.norm != nullptr, "kda_decode: weights");
}

void check_kda_rows(const KdaRows& rows, int64_t heads) {
  for (int i = 0; i < 3; ++i) check_row(rows.x[i], rows.x_stride[i], heads * 128, "projection");
  check_row(rows.z, rows.z_stride, heads * 128, "z");
  check_row(rows.gate, rows.gate_stride, heads * 128, "gate");
  check_row(rows.out, rows.out_stride, heads * 128, "out");
  K3_CHECK(rows.beta != nullptr && rows.beta_stride >= heads, "kda_decode: beta, stride {}", rows.beta_stride);
}

void check_kda_slots(const KdaSlots& s, int64_t heads) {
  K3_CHECK(aligned(s.state, 16) && s.state_stride >= heads * 128 * 128 && s.state_stride % 8 == 0,
           "kda_decode: state, stride {}", s.state_stride);
  K3_CHECK(aligned(s.conv, 16) && s.conv_stride >= 9 * heads * 128 && s.conv_stride % 8 == 0,
           "kda_decode: conv state, stride {}", s.conv_stride);
  K3_CHECK(s.slots != nullptr, "kda_decode: no slots");
}

bool kda_decode_takes_low(int64_t pairs, bool state_bf16, const DeviceInfo& device) {
  return kda_decode_config(pairs, state_bf16, 0, device.sm_count).split == 4;
}

CudaStatus kda_decode_cuda(const KdaDecodeArgs& args, Stream stream) {
  const int64_t heads = args.weights.heads;
  if (args.batch == 0 || heads == 0) return {};
  check_kda_weights(args.weights);
  KdaRows rows = args.rows;
  if (args.low.z_w != nullptr) {
    check_row(args.low.z_w, 128, 128, "second factor of z");
    check_row(args.low.z_in, args.low.z_stride, 128, "input of z");
    K3_CHECK(aligned(args.low.z_w, 16), "kda_decode: second factor of z");
    rows.z = rows.out, rows.z_stride = rows.out_stride;  // not read
  }
  if (args.low.gate_w != nullptr) {
    K3_CHECK(args.low.z_w != nullptr && aligned(args.low.gate_w, 16), "kda_decode: second factor of the gate");
    check_row(args.low.gate_in, args.low.gate_stride, 128, "input of the gate");
    rows.gate = rows.out, rows.gate_stride = rows.out_stride;
  }
  check_kda_rows(rows, heads);
  K3_CHECK(reinterpret_cast<uintptr_t>(args.out_rest) % 8 == 0, "kda_decode: rest at {}", args.out_rest);
  check_kda_slots(args.slots, heads);
  const KdaDecodeConfig config =
      kda_decode_config(args.batch * heads, args.slots.state_bf16 != 0, args.launch.form, device_info().sm_count);
  K3_CHECK(args.low.z_w == nullptr || config.split == 4, "kda_decode: low rank with {} requests", args.batch);
  return {kda_decode_launch(args, config, stream)};
}

}  // namespace k3::ops::cuda
