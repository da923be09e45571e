// Verification of 8 tokens with the commit of the window before, and the commit alone. A "pass" is one read or one write of
// the states at the copy rate; note says how many the time is.
#include <fmt/format.h>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/kda/cuda/kda_decode_gpu_buffers.h"

namespace k3::ops::cuda {
namespace {

// floor: state read and written; of accepted tokens u, keys and decay inputs read; of the new window q, k, v, z, gate and
// beta read, u and out written; conv state read and written.
double verify_bytes(double pairs, double state_bytes, double tokens, double accepted) {
  return pairs * (2 * state_bytes + accepted * 1024 + tokens * (512 + 6 * 256 + 2) + 4608);
}

void verify_cases(Bench& bench) {
  for (const auto& [batch, heads] : {std::pair{1, 12}, {8, 12}, {32, 12}, {128, 12}, {256, 12}, {32, 96}, {128, 96}}) {
    for (const bool bf16 : {false, true}) {
      const std::string name = fmt::format("H={} B={} {}", heads, batch, bf16 ? "bf16" : "f32");
      if (!bench.wants("kda_verify", name) && !bench.wants("kda_commit", name)) continue;
      const int64_t pairs = int64_t{batch} * heads;
      const int64_t state_bytes = kStateElements * (bf16 ? 2 : 4);
      const int64_t copies = std::clamp<int64_t>((int64_t{200} << 20) / (pairs * state_bytes) + 1, 2, 64);
      const StepBuffers buffers(batch, heads, batch * 8, bf16, copies, 8);
      std::vector<int32_t> offsets;
      for (int r = 0; r <= batch; ++r) offsets.push_back(8 * r);
      const DeviceArray<int32_t> offset_array(offsets);
      for (const int accepted : {8, 4}) {
        const DeviceArray<int32_t> accepted_array(std::vector<int32_t>(static_cast<size_t>(batch), accepted));
        BenchLine line;
        line.bytes = verify_bytes(static_cast<double>(pairs), static_cast<double>(state_bytes), 8, accepted);
        const double pass_us = static_cast<double>(pairs * state_bytes) / bench.copy_gbps() * 1e-3;
        line.note = fmt::format("T=8, {} accepted; a pass is {:.2f} us", accepted, pass_us);
        if (pairs >= 400)
          line.must = 2.8 * pass_us / (line.bytes / bench.copy_gbps() * 1e-3), line.aim = line.must * 2.3 / 2.8;
        line.kernel = "kda_verify";
        for (const int32_t form : {0, 1}) {
          if (form == 1 && bf16) continue;
          line.name = fmt::format("{} a={}{}", name, accepted, form == 1 ? " without bulk copies" : "");
          bench.run(line, [&](cudaStream_t stream, int i) {
            KdaVerifyArgs a{};
            a.weights = buffers.weights(), a.rows = buffers.rows(i), a.offsets = offset_array.data();
            a.slots = buffers.slots(i), a.window = buffers.window(i);
            a.commit = buffers.commit(i, accepted_array.data(), offset_array.data());
            a.batch = batch, a.launch.form = form;
            gpu_check(kda_verify_cuda(a, stream).code, "kda_verify");
          });
        }
        line.kernel = "kda_commit";
        line.must = line.aim = 0;
        line.bytes = static_cast<double>(pairs) * (2 * static_cast<double>(state_bytes) + accepted * 1024 + 4608);
        bench.run(line, [&](cudaStream_t stream, int i) {
          KdaCommitArgs a{};
          a.weights = buffers.weights(), a.slots = buffers.slots(i), a.window = buffers.window(i);
          a.commit = buffers.commit(i, accepted_array.data(), offset_array.data()), a.batch = batch;
          gpu_check(kda_commit_cuda(a, stream).code, "kda_commit");
        });
      }
    }
  }
}
const BenchRegistration kRegistered("kda_verify", verify_cases);

}  // namespace
}  // namespace k3::ops::cuda
