// Convolution and SiLU of q, k, v of a prefill.
#include <fmt/format.h>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/short_conv/cuda/short_conv_cuda.h"

namespace k3::ops::cuda {
namespace {

void conv_cases(Bench& bench) {
  for (const auto& [heads, tokens] : {std::pair<int64_t, int64_t>{12, 1024}, {12, 8192}, {96, 1024}, {96, 8192}}) {
    const int64_t channels = heads * 128, wide = 3 * channels;
    BenchLine line;
    line.kernel = "short_conv", line.name = fmt::format("H={} T={}", heads, tokens);
    if (!bench.wants(line.kernel, line.name)) continue;
    line.bytes = static_cast<double>(4 * tokens * wide);
    line.note = "q, k, v in one launch";
    const DeviceArray<uint16_t> x(2 * tokens * wide), y(2 * tokens * wide), conv(9 * channels);
    gpu_check(fill_normal_bf16(x.data(), x.size(), 1, 1, nullptr).code, "fill");
    conv.zero();
    const DeviceArray<float> taps(random_normal(wide * 4, 1, 0.5F));
    const DeviceArray<int32_t> offsets(std::vector<int32_t>{0, static_cast<int32_t>(tokens)}),
        slots(std::vector<int32_t>{0});
    bench.run(line, [&](cudaStream_t stream, int i) {
      ShortConvArgs a{};
      for (int64_t part = 0; part < 3; ++part) {
        a.x[part] = x.data() + (i % 2 * tokens * 3 + part) * channels,
        a.y[part] = y.data() + (i % 2 * tokens * 3 + part) * channels;
        a.x_stride[part] = a.y_stride[part] = wide;
        a.taps[part] = taps.data() + part * channels * 4;
      }
      a.parts = 3, a.channels = static_cast<int32_t>(channels), a.tokens = static_cast<int32_t>(tokens), a.sequences = 1;
      a.offsets = offsets.data(), a.slots = slots.data(), a.conv = conv.data(), a.conv_stride = 9 * channels,
      a.conv_bf16 = 1;
      gpu_check(short_conv_cuda(a, stream).code, "short_conv");
    });
  }
}
const BenchRegistration kRegistered("short_conv", conv_cases);

}  // namespace
}  // namespace k3::ops::cuda
