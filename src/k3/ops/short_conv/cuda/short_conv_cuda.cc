#include "k3/ops/short_conv/cuda/short_conv_cuda.h"

#include "k3/base/check.h"
#include "k3/ops/short_conv/cuda/short_conv_config.h"
#include "k3/ops/short_conv/cuda/short_conv_cuda.cuh"

namespace k3::ops::cuda {
namespace {

bool aligned(const void* p) { return p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void check(const ShortConvArgs& a) {
  K3_CHECK(a.parts >= 1 && a.parts <= 3 && a.channels % 8 == 0, "short_conv: {} parts of {} channels", a.parts, a.channels);
  for (int i = 0; i < a.parts; ++i) {
    K3_CHECK(aligned(a.x[i]) && a.x_stride[i] % 8 == 0 && a.x_stride[i] >= a.channels, "short_conv: x, stride {}",
             a.x_stride[i]);
    K3_CHECK(aligned(a.y[i]) && a.y_stride[i] % 8 == 0 && a.y_stride[i] >= a.channels, "short_conv: y, stride {}",
             a.y_stride[i]);
    K3_CHECK(aligned(a.taps[i]), "short_conv: taps");
  }
  K3_CHECK(a.offsets != nullptr && a.slots != nullptr, "short_conv: no offsets or slots");
  K3_CHECK(aligned(a.conv) && a.conv_stride % 8 == 0 && a.conv_stride >= int64_t{3} * a.parts * a.channels,
           "short_conv: conv state, stride {}", a.conv_stride);
  K3_CHECK(a.exports == 0 || (a.export_sequences != nullptr && a.export_tokens != nullptr && a.export_slots != nullptr),
           "short_conv: exports");
}

}  // namespace

CudaStatus short_conv_cuda(const ShortConvArgs& args, Stream stream) {
  if (args.tokens == 0 || args.sequences == 0 || args.channels == 0) return {};
  check(args);
  const int64_t channels = int64_t{args.parts} * args.channels;
  return {short_conv_launch(args, short_conv_run(args.tokens, channels, device_info().sm_count), stream)};
}

}  // namespace k3::ops::cuda
