// KDA of any head size against short_conv_ref, kda_ref and a norm in double.
#include "k3/ops/kda/cuda/kda_any_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/kda/kda_cases.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops::cuda {
namespace {

constexpr double kOutTolerance = 3e-3;  // kda_any_cuda.h
// With what rounding cut off; the state that outputs are read from adds errors token by token.
double both_tolerance(int64_t tokens) { return 1e-4 + 1e-6 * static_cast<double>(tokens); }
double state_tolerance(bool bf16, int64_t tokens) { return bf16 ? 3e-3 : 1e-6 * static_cast<double>(std::max<int64_t>(tokens, 1)); }

struct Export {
  int32_t sequence, tokens, slot;
};

struct Problem {
  KdaCase shape;
  int64_t taps, width;
  bool state_bf16;
  KdaData data;
  std::vector<float> gate, norm, tap[3];
  std::vector<std::vector<float>> states, tails;  // [H, D, D]; [3, K - 1, H * D]

  Problem(const KdaCase& c, int64_t taps_, bool state_bf16_) : shape(c), taps(taps_), width(c.heads * c.dim), state_bf16(state_bf16_), data(c, 4) {
    for (std::vector<float>* x : {&data.q, &data.k, &data.v, &data.z, &data.b}) {
      for (float& v : *x) v = round_to_bf16(v);
    }
    gate = random_bf16(data.tokens() * width, 20);
    norm = random_normal(c.dim, 21);
    for (float& v : norm) v = 1 + v / 4;
    for (uint64_t part = 0; part < 3; ++part) tap[part] = random_normal(width * taps, 30 + part, 0.5F);
    states = data.states;
    for (auto& s : states) {
      for (float& v : s) v = state_bf16 ? round_to_bf16(v) : v;
    }
    for (size_t s = 0; s < states.size(); ++s) tails.push_back(random_bf16(3 * (taps - 1) * width, 40 + s, c.qk_scale));
  }

  // The first `tokens` tokens of a sequence through its state and tails; y [tokens, H * D].
  std::vector<float> advance(size_t sequence, int64_t tokens, std::vector<float>& state, std::vector<float>& tail) {
    const int64_t row = data.offsets[sequence], heads = shape.heads, dim = shape.dim;
    if (tokens == 0) return {};
    std::vector<float> conv[3], out(static_cast<size_t>(tokens * width)), y(out.size());
    const std::vector<int64_t> offsets = {0, tokens};
    float* x[3] = {data.q.data(), data.k.data(), data.v.data()};
    for (size_t part = 0; part < 3; ++part) {
      conv[part].resize(out.size());
      const ConvTail t{tail.data() + static_cast<int64_t>(part) * (taps - 1) * width, DType::f32};
      short_conv_ref(matrix(x[part] + row * width, tokens, width), matrix(tap[part].data(), width, taps), offsets, {&t, 1},
                     matrix(conv[part].data(), tokens, width));
    }
    KdaArgs a;
    void* at = state.data();
    a.q = Tensor(conv[0].data(), DType::f32, {tokens, heads, dim});
    a.k = Tensor(conv[1].data(), DType::f32, {tokens, heads, dim});
    a.v = Tensor(conv[2].data(), DType::f32, {tokens, heads, dim});
    a.z = Tensor(data.z.data() + row * width, DType::f32, {tokens, heads, dim});
    a.b = Tensor(data.b.data() + row * heads, DType::f32, {tokens, heads});
    a.a_log = Tensor(data.a_log.data(), DType::f32, {heads});
    a.dt_bias = Tensor(data.dt_bias.data(), DType::f32, {heads, dim});
    a.lower_bound = shape.lower_bound;
    a.offsets = offsets;
    a.states = {&at, 1};
    a.out = Tensor(out.data(), DType::f32, {tokens, heads, dim});
    kda_ref(a);
    gated_rms_norm_ref(a.out, Tensor(norm.data(), DType::f32, {dim}), matrix(gate.data() + row * width, tokens, width), 1e-5F,
                       matrix(y.data(), tokens, width));
    return y;
  }
};

void check(const KdaCase& shape, int64_t taps, bool state_bf16, bool conv_bf16, const std::vector<Export>& exports) {
  Problem p(shape, taps, state_bf16);
  SCOPED_TRACE(fmt::format("{} H {} D {} taps {} state {}", shape.name, shape.heads, shape.dim, taps, state_bf16 ? "bf16" : "f32"));
  const int64_t tokens = p.data.tokens(), sequences = static_cast<int64_t>(shape.lengths.size()), slots = 2 * sequences + 5;
  const int64_t state_size = p.width * shape.dim, conv_size = 3 * (taps - 1) * p.width, stride = p.width + 5;
  const auto strided = [&](const std::vector<float>& x) {
    std::vector<float> out(static_cast<size_t>(tokens * stride));
    for (int64_t t = 0; t < tokens; ++t) std::copy_n(x.begin() + t * p.width, p.width, out.begin() + t * stride);
    return to_bf16(out);
  };
  std::vector<float> states(static_cast<size_t>(slots * state_size)), convs(static_cast<size_t>(slots * conv_size));
  std::vector<int32_t> slot_of;
  for (int64_t s = 0; s < sequences; ++s) {
    slot_of.push_back(static_cast<int32_t>(2 * (sequences - 1 - s) + 1));
    std::copy_n(p.states[static_cast<size_t>(s)].begin(), state_size, states.begin() + slot_of.back() * state_size);
    std::copy_n(p.tails[static_cast<size_t>(s)].begin(), conv_size, convs.begin() + slot_of.back() * conv_size);
  }
  const DeviceArray<uint16_t> q(strided(p.data.q)), k(strided(p.data.k)), v(strided(p.data.v)), z(strided(p.data.z)), gate(strided(p.gate)),
      beta(to_bf16(p.data.b)), out(tokens * stride), out_rest(tokens * stride);
  const DeviceArray<float> tap0(p.tap[0]), tap1(p.tap[1]), tap2(p.tap[2]), a_log(p.data.a_log), dt_bias(p.data.dt_bias), norm(p.norm);
  const DeviceArray<float> states_f32(states), convs_f32(convs);
  const DeviceArray<uint16_t> states_bf16(to_bf16(states)), convs_bf16(to_bf16(convs));
  std::vector<int32_t> columns[3];
  for (const Export& e : exports) columns[0].push_back(e.sequence), columns[1].push_back(e.tokens), columns[2].push_back(e.slot);
  const DeviceArray<int32_t> offsets(std::vector<int32_t>(p.data.offsets.begin(), p.data.offsets.end())), slots_d(slot_of), e0(columns[0]),
      e1(columns[1]), e2(columns[2]);

  KdaAnyArgs a;
  a.weights = {{tap0.data(), tap1.data(), tap2.data()}, a_log.data(), dt_bias.data(), norm.data(), shape.lower_bound.value_or(0), 1e-5F,
               static_cast<int32_t>(shape.heads)};
  a.rows = {{q.data(), k.data(), v.data()}, {stride, stride, stride}, z.data(), stride, gate.data(), stride, beta.data(), shape.heads, out.data(), stride};
  a.slots.state = state_bf16 ? static_cast<void*>(states_bf16.data()) : states_f32.data();
  a.slots.state_stride = state_size;
  a.slots.conv = conv_bf16 ? static_cast<void*>(convs_bf16.data()) : convs_f32.data();
  a.slots.conv_stride = conv_size;
  a.slots.slots = slots_d.data();
  a.slots.state_bf16 = state_bf16;
  a.slots.conv_bf16 = conv_bf16;
  a.dim = static_cast<int>(shape.dim);
  a.taps = static_cast<int>(taps);
  a.sequences = static_cast<int>(sequences);
  a.offsets = offsets.data();
  a.exports = static_cast<int>(exports.size());
  a.export_sequences = e0.data();
  a.export_tokens = e1.data();
  a.export_slots = e2.data();
  a.out_rest = out_rest.data();
  ASSERT_TRUE(kda_any_cuda(a, nullptr).ok());
  gpu_sync();

  const std::vector<float> got_states = state_bf16 ? from_bf16(states_bf16.get()) : states_f32.get();
  const std::vector<float> got_convs = conv_bf16 ? from_bf16(convs_bf16.get()) : convs_f32.get(), got_out = from_bf16(out.get()),
                           got_rest = from_bf16(out_rest.get());
  const auto expect_slot = [&](size_t sequence, int64_t count, int32_t slot) {
    std::vector<float> state = p.states[sequence], tail = p.tails[sequence];
    const std::vector<float> y = p.advance(sequence, count, state, tail);
    EXPECT_LE(norm_ratio(std::span(got_states).subspan(static_cast<size_t>(slot * state_size), state.size()), std::span<const float>(state)),
              state_tolerance(state_bf16, count))
        << "sequence " << sequence << " after " << count;
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), got_convs.begin() + slot * conv_size)) << "sequence " << sequence << " after " << count;
    return y;
  };
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t count = shape.lengths[static_cast<size_t>(s)], row = p.data.offsets[static_cast<size_t>(s)];
    const std::vector<float> want = expect_slot(static_cast<size_t>(s), count, slot_of[static_cast<size_t>(s)]);
    std::vector<float> got;
    for (int64_t t = row; t < row + count; ++t) got.insert(got.end(), got_out.begin() + t * stride, got_out.begin() + t * stride + p.width);
    EXPECT_LE(norm_ratio(got, want), kOutTolerance) << s;
    for (int64_t i = 0; i < count * p.width; ++i) got[static_cast<size_t>(i)] += got_rest[static_cast<size_t>((row + i / p.width) * stride + i % p.width)];
    EXPECT_LE(norm_ratio(got, want), both_tolerance(count)) << s;
  }
  for (const Export& e : exports) expect_slot(static_cast<size_t>(e.sequence), e.tokens, e.slot);
  EXPECT_TRUE(out.guards_intact() && out_rest.guards_intact() && states_f32.guards_intact() && states_bf16.guards_intact() && convs_bf16.guards_intact());
}

TEST(KdaAnyGpu, SanitizeSizesAndExports) {
  K3_NEEDS_GPU();
  for (const auto& [dim, taps] : {std::pair<int64_t, int64_t>{1, 2}, {16, 4}, {24, 3}, {40, 8}, {128, 4}}) {
    KdaCase c;
    c.name = "normal";
    c.heads = 3;
    c.dim = dim;
    c.lengths = {1, 0, 17, 3};
    check(c, taps, dim == 24, dim != 40, {{2, 1, 0}, {2, 16, 2}, {3, 3, 4}});
  }
}

TEST(KdaAnyGpu, EveryInputSet) {
  K3_NEEDS_GPU();
  for (const KdaCase& c : kda_input_sets(2, 32, {65, 1})) {
    check(c, 4, false, true, {});
    check(c, 4, true, true, {});
  }
}

}  // namespace
}  // namespace k3::ops::cuda
