// Every form of the prefill against kda_ref on the same BF16 inputs (kernels.md 9).
#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/kda/cuda/kda_prefill_cuda.h"
#include "k3/ops/kda/kda_cases.h"

namespace k3::ops::cuda {
namespace {

struct ExportAt {
  int32_t sequence, tokens;
};

struct Tolerance {
  double out, state;
};

struct Answer {
  std::vector<float> out;                  // [T, H, 128]
  std::vector<std::vector<float>> states;  // final, of each sequence
  std::vector<std::vector<float>> exports;
  bool intact = false, others_untouched = false;
};

void round_inputs(KdaData& data, bool b_f32, bool state_bf16) {
  for (auto* x : {&data.q, &data.k, &data.v, &data.z}) {
    for (float& v : *x) v = round_to_bf16(v);
  }
  for (float& v : data.b) v = b_f32 ? v : round_to_bf16(v);
  for (auto& s : data.states) {
    for (float& v : s) v = state_bf16 ? round_to_bf16(v) : v;
  }
}

// Rows of `width` as columns [at, at + width) of rows of `stride`; the rest stays poisoned.
DeviceArray<uint16_t> strided(const std::vector<float>& x, int64_t width, int64_t stride, int64_t at) {
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  std::vector<uint16_t> all(static_cast<size_t>(rows * stride), 0xFFFF);
  const std::vector<uint16_t> bits = to_bf16(x);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(bits.begin() + r * width, width, all.begin() + r * stride + at);
  return DeviceArray<uint16_t>(all);
}

Answer reference(KdaData& data, const std::vector<ExportAt>& exports) {
  Answer run;
  run.states = data.states;
  run.out.assign(data.v.size(), std::nanf(""));
  std::vector<void*> pointers;
  for (auto& s : run.states) pointers.push_back(s.data());
  std::vector<KdaExport> list;
  for (const ExportAt& e : exports) {
    run.exports.emplace_back(data.states[0].size());
    list.push_back({e.sequence, e.tokens, nullptr});
  }
  for (size_t i = 0; i < list.size(); ++i) list[i].state = run.exports[i].data();
  KdaArgs args = data.args(pointers, run.out.data(), KdaForm::recurrent);
  args.exports = list;
  kda_ref(args);
  return run;
}

struct Way {
  KdaPrefillForm form = KdaPrefillForm::fused;
  bool b_f32 = false, state_bf16 = false;
  int64_t segment = 0;  // form segments: tokens
  bool pairs = false;
};

Answer on_gpu(const KdaData& data, const Way& way, const std::vector<ExportAt>& exports) {
  const int64_t heads = data.shape.heads, width = heads * 128, rows = data.tokens();
  const auto sequences = static_cast<int64_t>(data.shape.lengths.size()), size = heads * 128 * 128;
  const int64_t joint = 3 * width + 64;  // q, k, v are columns of one matrix
  std::vector<float> qkv(static_cast<size_t>(rows * joint), std::nanf(""));
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(data.q.begin() + r * width, width, qkv.begin() + r * joint);
    std::copy_n(data.k.begin() + r * width, width, qkv.begin() + r * joint + width);
    std::copy_n(data.v.begin() + r * width, width, qkv.begin() + r * joint + 2 * width);
  }
  const DeviceArray<uint16_t> projected(to_bf16(qkv)), z = strided(data.z, width, width + 128, 128), out(rows * (width + 8));
  const DeviceArray<float> b32(data.b), a_log(data.a_log), dt_bias(data.dt_bias);
  const DeviceArray<uint16_t> b16(to_bf16(data.b));
  std::vector<int32_t> offsets(data.offsets.begin(), data.offsets.end()), slots;
  std::vector<K3KdaExport> list;
  for (int64_t s = 0; s < sequences; ++s)
    slots.push_back(static_cast<int32_t>(2 * (sequences - s) - 1));  // every second one
  const auto pool = 2 * sequences + 1 + static_cast<int64_t>(exports.size());
  for (size_t e = 0; e < exports.size(); ++e) {
    list.push_back(
        {exports[e].sequence, exports[e].tokens, static_cast<int32_t>(2 * sequences + 1 + static_cast<int64_t>(e))});
  }
  const int64_t slot_stride = size + 256;
  std::vector<float> states(static_cast<size_t>(pool * slot_stride), 7.0F);
  for (size_t s = 0; s < slots.size(); ++s)
    std::copy(data.states[s].begin(), data.states[s].end(), states.begin() + slots[s] * slot_stride);
  const DeviceArray<float> states32(way.state_bf16 ? std::vector<float>(1) : states);
  const DeviceArray<uint16_t> states16(way.state_bf16 ? to_bf16(states) : std::vector<uint16_t>(1));
  const DeviceArray<int32_t> offsets_d(offsets), slots_d(slots);
  const DeviceArray<K3KdaExport> exports_d(list);

  K3KdaPrefill a{};
  a.tokens = rows, a.heads = heads, a.sequences = sequences;
  a.longest = std::max<int64_t>(1, *std::max_element(data.shape.lengths.begin(), data.shape.lengths.end()));
  a.q = projected.data(), a.k = projected.data() + width, a.v = projected.data() + 2 * width, a.z = z.data() + 128;
  a.q_stride = a.k_stride = a.v_stride = joint, a.z_stride = width + 128;
  a.b = way.b_f32 ? static_cast<const void*>(b32.data()) : b16.data(), a.b_stride = heads, a.b_f32 = way.b_f32 ? 1 : 0;
  a.bounded = data.shape.lower_bound ? 1 : 0, a.lower_bound = data.shape.lower_bound.value_or(0);
  a.state_bf16 = way.state_bf16 ? 1 : 0, a.a_log = a_log.data(), a.dt_bias = dt_bias.data(), a.offsets = offsets_d.data();
  a.states = way.state_bf16 ? static_cast<void*>(states16.data()) : states32.data(), a.slot_stride = slot_stride;
  a.from = slots_d.data(), a.exports = exports_d.data(), a.export_count = static_cast<int64_t>(list.size());
  a.out = out.data(), a.out_stride = width + 8;
  KdaPrefillShape shape{rows, heads, sequences, a.longest, data.shape.lower_bound};
  KdaPrefillPlan plan{way.form, way.segment, way.pairs};
  const DeviceArray<float> workspace(std::max<int64_t>(1, kda_prefill_workspace_bytes(shape, plan) / 4));
  a.workspace = workspace.data();
  const CudaStatus status = kda_prefill_cuda(a, plan, nullptr);
  EXPECT_EQ(status.code, 0) << cudaGetErrorString(static_cast<cudaError_t>(status.code));
  gpu_sync();

  Answer run;
  const std::vector<float> padded = from_bf16(out.get()),
                           pools = way.state_bf16 ? from_bf16(states16.get()) : states32.get();
  run.intact = out.guards_intact() && states32.guards_intact() && states16.guards_intact() && workspace.guards_intact();
  run.others_untouched = true;
  for (int64_t r = 0; r < rows; ++r) {
    run.out.insert(run.out.end(), padded.begin() + r * (width + 8), padded.begin() + r * (width + 8) + width);
    for (int64_t c = width; c < width + 8; ++c)
      run.others_untouched &= std::isnan(padded[static_cast<size_t>(r * (width + 8) + c)]);
  }
  const auto slot = [&](int64_t s) {
    return std::vector<float>(pools.begin() + s * slot_stride, pools.begin() + s * slot_stride + size);
  };
  for (const int32_t s : slots) run.states.push_back(slot(s));
  for (const K3KdaExport& e : list) run.exports.push_back(slot(e.slot));
  for (int64_t s = 0; s < pool; ++s) {
    const bool free = s % 2 == 0 && s <= 2 * sequences;
    for (int64_t i = free ? 0 : size; i < slot_stride; ++i)
      run.others_untouched &= pools[static_cast<size_t>(s * slot_stride + i)] == 7.0F;
  }
  return run;
}

// Where the first wrong element is, for a failure's message.
std::string first_wrong(const std::vector<float>& x, const std::vector<float>& ref, int64_t heads) {
  double norm = 0;
  for (const float v : ref) norm += static_cast<double>(v) * v;
  const double rms = std::sqrt(norm / static_cast<double>(std::max<size_t>(1, ref.size())));
  int64_t wrong = 0, first = -1;
  for (size_t i = 0; i < ref.size(); ++i) {
    if (std::abs(static_cast<double>(x[i]) - ref[i]) <= 0.1 * rms + 0.1 * std::abs(static_cast<double>(ref[i]))) continue;
    if (wrong++ == 0) first = static_cast<int64_t>(i);
  }
  if (first < 0) return "no element far off";
  return fmt::format("{} of {} far off, first at {} (row {} head {} column {}): {} for {}", wrong, ref.size(), first,
                     first / 128 / heads, first / 128 % heads, first % 128, x[static_cast<size_t>(first)],
                     ref[static_cast<size_t>(first)]);
}

struct Worst {
  double out = 0, state = 0;
};

Worst compare(const Answer& got, const Answer& ref, Tolerance tolerance, int64_t heads, const std::string& what) {
  Worst worst;
  worst.out = norm_ratio(got.out, ref.out);
  EXPECT_LE(worst.out, tolerance.out) << what << " out: " << first_wrong(got.out, ref.out, heads);
  for (size_t s = 0; s < ref.states.size(); ++s) {
    const double e = norm_ratio(got.states[s], ref.states[s]);
    worst.state = std::max(worst.state, e);
    EXPECT_LE(e, tolerance.state) << what << " state of " << s << ": " << first_wrong(got.states[s], ref.states[s], 128);
  }
  for (size_t s = 0; s < ref.exports.size(); ++s) {
    const double e = norm_ratio(got.exports[s], ref.exports[s]);
    worst.state = std::max(worst.state, e);
    EXPECT_LE(e, tolerance.state) << what << " export " << s << ": " << first_wrong(got.exports[s], ref.exports[s], 128);
  }
  EXPECT_TRUE(got.intact) << what;
  EXPECT_TRUE(got.others_untouched) << what;
  return worst;
}

Tolerance tolerance_of(const KdaCase& c, const Way& way) {
  if (way.form == KdaPrefillForm::recurrent) return {3e-3, way.state_bf16 ? 3e-3 : 1e-5};
  const auto longest = static_cast<double>(*std::max_element(c.lengths.begin(), c.lengths.end()));
  // One key again and again, beta 1: the state is one value, and every token leaves behind the BF16 rounding of its key,
  // 2^-9, twice a token's share of it, in directions that no later token reads.
  if (c.key_correlation == 1 && c.z_offset < 0) return {0x1p-9 * std::sqrt(2 * longest), 0x1p-9 * std::sqrt(2 * longest)};
  if (c.key_correlation > 0 && c.z_offset < 0) return {1.5e-2, 2e-2};
  return {6e-3, 5e-3};
}

Worst check(KdaCase c, const Way& way, uint64_t seed, const std::vector<ExportAt>& exports = {}) {
  c.dim = 128;
  KdaData data(c, seed);
  round_inputs(data, way.b_f32, way.state_bf16);
  const Answer ref = reference(data, exports), got = on_gpu(data, way, exports);
  const std::string what =
      fmt::format("{} form {} segment {} pairs {}", c.name, static_cast<int>(way.form), way.segment, way.pairs);
  const Worst worst = compare(got, ref, tolerance_of(c, way), c.heads, what);
  fmt::print("{:<44} out {:.2e} state {:.2e}\n", what, worst.out, worst.state);
  return worst;
}

KdaCase lengths(const std::vector<int64_t>& list, int64_t heads = 1) {
  KdaCase c;
  c.name = "lengths";
  c.lengths = list;
  c.heads = heads;
  return c;
}

bool hopper() { return device_info().capability / 10 == 9; }

TEST(KdaPrefillGpu, SanitizeSmallTails) {
  K3_NEEDS_GPU();
  check(lengths({1, 0, 17, 15}, 2), {KdaPrefillForm::recurrent}, 3, {{2, 16}, {2, 17}});
  if (!hopper()) return;
  check(lengths({16}), {KdaPrefillForm::fused}, 2);
  check(lengths({1, 0, 17, 15}, 2), {KdaPrefillForm::fused}, 3);
  check(lengths({40, 17}), {KdaPrefillForm::fused}, 4, {{0, 3}, {0, 16}, {1, 17}, {0, 16}});
  check(lengths({1, 0, 17, 35}, 2), {KdaPrefillForm::fused, false, false, 0, true}, 3);
  check(lengths({70, 17, 33}, 2), {KdaPrefillForm::segments, false, false, 32}, 5, {{0, 5}, {0, 64}});
}

TEST(KdaPrefillGpu, RecurrentInputSets) {
  K3_NEEDS_GPU();
  for (const KdaCase& c : kda_input_sets(1, 128, {70, 17})) check(c, {KdaPrefillForm::recurrent}, 11);
}

TEST(KdaPrefillGpu, FusedInputSets) {
  K3_NEEDS_GPU();
  if (!hopper()) GTEST_SKIP() << "Hopper alone";
  for (const KdaCase& c : kda_input_sets(2, 128, {100, 17})) {
    check(c, {KdaPrefillForm::fused, true}, 11);
    check(c, {KdaPrefillForm::fused, false, false, 0, true}, 12);
  }
}

TEST(KdaPrefillGpu, FusedLengthsEmptySequencesAndExports) {
  K3_NEEDS_GPU();
  if (!hopper()) GTEST_SKIP() << "Hopper alone";
  KdaCase c = lengths({0, 1, 15, 0, 16, 17, 63, 64, 65, 1000, 0});
  const std::vector<ExportAt> exports = {{9, 1000}, {9, 16}, {9, 333}, {9, 334}, {6, 1}, {5, 17}, {9, 640}};
  check(c, {KdaPrefillForm::fused}, 21, exports);
  c.name = "lengths keep";
  c.z_scale = 0, c.z_offset = -8;
  check(c, {KdaPrefillForm::fused}, 22, exports);
  check(c, {KdaPrefillForm::fused, false, false, 0, true}, 22, exports);
  check(c, {KdaPrefillForm::segments, false, false, 64}, 22, exports);
  check(c, {KdaPrefillForm::segments, false, false, 320}, 22, exports);
}

TEST(KdaPrefillGpu, SegmentsInputSets) {
  K3_NEEDS_GPU();
  if (!hopper()) GTEST_SKIP() << "Hopper alone";
  for (const KdaCase& c : kda_input_sets(1, 128, {200, 90})) {
    check(c, {KdaPrefillForm::segments, false, false, 48}, 31);
  }
}

// What the CPU would need minutes for: the chunk forms against the token-by-token kernel, which the other tests hold to
// 1e-5.
TEST(KdaPrefillGpu, LongPromptsAgainstTokenByToken) {
  K3_NEEDS_GPU();
  if (!hopper()) GTEST_SKIP() << "Hopper alone";
  for (const int i : {0, 1, 2, 3}) {
    const bool keep = i % 2 == 1;
    KdaCase c = lengths({5003, 3000, 801}, 3);
    c.name = keep ? "long keep" : "long";
    c.dim = 128;
    if (i >= 2) c.lower_bound = std::nullopt, c.name += " unbounded";
    if (keep) c.z_scale = 0, c.z_offset = -8;
    KdaData data(c, 77);
    round_inputs(data, false, false);
    const std::vector<ExportAt> exports = {{0, 1003}, {1, 2999}, {0, 4096}};
    const Answer ref = on_gpu(data, {KdaPrefillForm::recurrent}, exports);
    for (const Way& way :
         {Way{KdaPrefillForm::fused}, Way{KdaPrefillForm::fused, false, false, 0, true},
          Way{KdaPrefillForm::segments, false, false, 640}, Way{KdaPrefillForm::segments, false, false, 1008}}) {
      const std::string what =
          fmt::format("{} form {} segment {} pairs {}", c.name, static_cast<int>(way.form), way.segment, way.pairs);
      const Worst worst = compare(on_gpu(data, way, exports), ref, tolerance_of(c, way), c.heads, what);
      fmt::print("{:<44} out {:.2e} state {:.2e}\n", what, worst.out, worst.state);
    }
  }
}

TEST(KdaPrefillGpu, Bf16States) {
  K3_NEEDS_GPU();
  check(lengths({65, 3}, 3), {KdaPrefillForm::recurrent, true, true}, 5, {{0, 7}});
  if (!hopper()) return;
  check(lengths({65, 3}, 3), {KdaPrefillForm::fused, true, true}, 5, {{0, 7}});
  check(lengths({65, 3}, 3), {KdaPrefillForm::segments, true, true, 16}, 5, {{0, 7}});
}

}  // namespace
}  // namespace k3::ops::cuda
