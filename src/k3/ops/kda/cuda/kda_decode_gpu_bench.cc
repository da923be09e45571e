// KDA decode: B x H over enough states that L2 holds none, every form that could serve the case.
#include <fmt/format.h>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/kda/cuda/kda_decode_gpu_buffers.h"

namespace k3::ops::cuda {
namespace {

void decode_cases(Bench& bench) {
  static constexpr const char* kForms[] = {"", " registers", " cluster", " bulk4", " bulk8"};
  for (const int heads : {12, 96}) {
    for (const int batch : {1, 8, 32, 128, 256}) {
      for (const bool bf16 : {false, true}) {
        const int64_t pairs = int64_t{batch} * heads;
        const std::string name = fmt::format("H={} B={} {}", heads, batch, bf16 ? "bf16" : "f32");
        if (!bench.wants("kda_decode", name)) continue;
        const int64_t state_bytes = pairs * kStateElements * (bf16 ? 2 : 4);
        const StepBuffers buffers(batch, heads, batch, bf16,
                                  std::clamp<int64_t>((int64_t{200} << 20) / state_bytes + 1, 2, 256), 0);
        BenchLine line;
        line.kernel = "kda_decode";
        line.bytes = static_cast<double>(2 * state_bytes + pairs * (4608 + 6 * 256 + 2));
        if (pairs >= 3000) line.must = bf16 ? 1.30 : 1.20, line.aim = bf16 ? 1.15 : 1.10;
        line.note = "conv, norms, gate, recurrence, output norm";
        std::vector<int> forms = {0};
        if (pairs <= 96) forms.insert(forms.end(), {1, 2});
        if (pairs > 96) forms.insert(forms.end(), {1, 3, 4});
        for (const int form : forms) {
          line.name = name + kForms[form];
          bench.run(
              line,
              [&](cudaStream_t stream, int i) {
                KdaDecodeArgs args = buffers.decode(i);
                args.launch.form = form;
                gpu_check(kda_decode_cuda(args, stream).code, "kda_decode");
              },
              pairs <= 100 ? 32 : 8);
          if (form == 0) {
            line.name = name + " dependent";
            bench.run(
                line,
                [&](cudaStream_t stream, int i) {
                  KdaDecodeArgs args = buffers.decode(i);
                  args.launch.dependent = args.launch.early_state = 1;
                  gpu_check(kda_decode_cuda(args, stream).code, "kda_decode");
                },
                pairs <= 100 ? 32 : 8);
          }
        }
      }
    }
  }
}
const BenchRegistration kRegistered("kda_decode", decode_cases);

}  // namespace
}  // namespace k3::ops::cuda
