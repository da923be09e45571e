// Internal to ops/kda. What the GPU tests of decode, verify and commit share: inputs as columns of one wide matrix, paged
// slots that are not contiguous, and the reference: short_conv_ref, kda_ref and the gated norm in double, request by
// request.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/kda/cuda/kda_decode_cuda.h"
#include "k3/ops/kda/cuda/kda_verify_cuda.h"
#include "k3/ops/kda/kda_cases.h"
#include "k3/ops/short_conv/short_conv.h"

namespace k3::ops::cuda {

inline KdaCase plain(int64_t heads) {
  KdaCase c;
  c.name = "normal";
  c.heads = heads;
  return c;
}

struct RequestState {
  std::vector<float> state;     // [H, 128, 128]
  std::vector<float> tails[3];  // [3, H * 128]
};

// `rows` tokens of anybody, and the states of `requests` requests. Everything that the kernels get in BF16 is exact in it.
struct StepProblem {
  KdaCase shape;
  int64_t rows, requests, heads, width;
  bool state_bf16, conv_bf16;
  KdaData data;
  std::vector<float> gate, norm, taps[3];
  std::vector<RequestState> initial;
  static constexpr float kEps = 1e-5F;

  StepProblem(KdaCase c, int64_t rows_, int64_t requests_, bool state_bf16_, bool conv_bf16_, uint64_t seed)
      : shape(with_rows(c, rows_)),
        rows(rows_),
        requests(requests_),
        heads(c.heads),
        width(c.heads * 128),
        state_bf16(state_bf16_),
        conv_bf16(conv_bf16_),
        data(shape, seed),
        gate(random_bf16(rows_ * width, seed + 20)),
        norm(random_normal(128, seed + 21)) {
    for (std::vector<float>* x : {&data.q, &data.k, &data.v, &data.z, &data.b}) {
      for (float& v : *x) v = round_to_bf16(v);
    }
    for (float& v : norm) v = 1 + v / 4;
    for (uint64_t part = 0; part < 3; ++part) taps[part] = random_normal(width * 4, seed + 30 + part, 0.5F);
    for (int64_t r = 0; r < requests; ++r) {
      const auto s = static_cast<uint64_t>(r);
      RequestState state;
      state.state = random_normal(width * 128, seed + 100 + s, shape.state_norm / 128);
      for (float& v : state.state) v = state_bf16 ? round_to_bf16(v) : v;
      for (uint64_t part = 0; part < 3; ++part) {
        state.tails[part] = conv_bf16 ? random_bf16(3 * width, seed + 1000 + 3 * s + part, shape.qk_scale)
                                      : random_normal(3 * width, seed + 1000 + 3 * s + part, shape.qk_scale);
      }
      initial.push_back(std::move(state));
    }
  }

  // `tokens` rows from `row` on pass through one request's state; out [tokens, width].
  void advance(int64_t row, int64_t tokens, RequestState& s, float* out) {
    if (tokens == 0) return;
    const auto count = static_cast<size_t>(tokens * width);
    std::vector<float> conv[3], o(count);
    const std::vector<int64_t> offsets = {0, tokens};
    const float* x[3] = {data.q.data(), data.k.data(), data.v.data()};
    for (size_t part = 0; part < 3; ++part) {
      conv[part].resize(count);
      const ConvTail tail{s.tails[part].data(), DType::f32};
      short_conv_ref(matrix(const_cast<float*>(x[part]) + row * width, tokens, width), matrix(taps[part].data(), width, 4),
                     offsets, {&tail, 1}, matrix(conv[part].data(), tokens, width));
    }
    KdaArgs args;
    void* state = s.state.data();
    args.q = Tensor(conv[0].data(), DType::f32, {tokens, heads, 128});
    args.k = Tensor(conv[1].data(), DType::f32, {tokens, heads, 128});
    args.v = Tensor(conv[2].data(), DType::f32, {tokens, heads, 128});
    args.z = Tensor(data.z.data() + row * width, DType::f32, {tokens, heads, 128});
    args.b = Tensor(data.b.data() + row * heads, DType::f32, {tokens, heads});
    args.a_log = Tensor(data.a_log.data(), DType::f32, {heads});
    args.dt_bias = Tensor(data.dt_bias.data(), DType::f32, {heads, 128});
    args.lower_bound = shape.lower_bound;
    args.offsets = offsets;
    args.states = {&state, 1};
    args.out = Tensor(o.data(), DType::f32, {tokens, heads, 128});
    kda_ref(args);
    for (int64_t at = 0; at < tokens * heads; ++at) {
      double sum = 0;
      for (int64_t i = 0; i < 128; ++i) sum += std::pow(static_cast<double>(o[static_cast<size_t>(at * 128 + i)]), 2);
      for (int64_t i = 0; i < 128; ++i) {
        const double g = gate[static_cast<size_t>(row * width + at * 128 + i)];
        const double y = o[static_cast<size_t>(at * 128 + i)] / std::sqrt(sum / 128 + static_cast<double>(kEps));
        out[at * 128 + i] = static_cast<float>(y * static_cast<double>(norm[static_cast<size_t>(i)]) / (1 + std::exp(-g)));
      }
    }
  }

 private:
  static KdaCase with_rows(KdaCase c, int64_t rows) {
    c.lengths = {rows};
    c.dim = 128;
    return c;
  }
};

// The problem on the device. Request r has slot slots[r]; fresh slots are poison, so that what should be untouched shows.
class StepDevice {
 public:
  explicit StepDevice(StepProblem& p)
      : p_(p),
        wide_(5 * p.width + (p.heads + 8) / 8 * 8),
        out_stride_(p.width + 12),
        slot_count_(2 * p.requests + 3),
        state_stride_(p.width * 128 + 64),
        conv_stride_(9 * p.width + 32) {
    std::vector<float> x(static_cast<size_t>(p.rows * wide_));
    const float* parts[5] = {p.data.q.data(), p.data.k.data(), p.data.v.data(), p.data.z.data(), p.gate.data()};
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t i = 0; i < 5; ++i) std::copy_n(parts[i] + r * p.width, p.width, x.data() + r * wide_ + i * p.width);
      std::copy_n(p.data.b.data() + r * p.heads, p.heads, x.data() + r * wide_ + 5 * p.width + 1);
    }
    x_ = DeviceArray<uint16_t>(to_bf16(x));
    out_ = DeviceArray<uint16_t>(p.rows * out_stride_);
    rest_ = DeviceArray<uint16_t>(p.rows * out_stride_);
    for (size_t i = 0; i < 3; ++i) taps_[i] = DeviceArray<float>(p.taps[i]);
    a_log_ = DeviceArray<float>(p.data.a_log);
    dt_bias_ = DeviceArray<float>(p.data.dt_bias);
    norm_ = DeviceArray<float>(p.norm);
    state_ = DeviceArray<uint8_t>(slot_count_ * state_stride_ * state_bytes());
    conv_ = DeviceArray<uint8_t>(slot_count_ * conv_stride_ * conv_bytes());
    for (int64_t r = 0; r < p.requests; ++r) slots.push_back(static_cast<int32_t>(2 * (p.requests - r)));
    slots_ = DeviceArray<int32_t>(slots);
    for (int64_t r = 0; r < p.requests; ++r) put(slots[static_cast<size_t>(r)], p.initial[static_cast<size_t>(r)]);
  }

  std::vector<int32_t> slots;
  void set_slots(const std::vector<int32_t>& s) {
    slots = s;
    slots_.set(s);
  }
  int64_t slot_count() const { return slot_count_; }

  KdaDecodeArgs decode(int64_t row, int form) const {
    KdaDecodeArgs a{};
    a.weights = weights();
    a.rows = rows(row);
    a.slots = slot_args();
    a.launch.form = form;
    a.batch = static_cast<int32_t>(p_.requests);
    return a;
  }
  // What is a row a token, from `row` on.
  std::span<uint16_t> inputs(int64_t row) const { return {x_.data() + row * wide_, static_cast<size_t>(x_.size() - row * wide_)}; }
  void* rest(int64_t row) const { return rest_.data() + row * out_stride_; }
  KdaWeights weights() const {
    KdaWeights w{};
    for (size_t i = 0; i < 3; ++i) w.taps[i] = taps_[i].data();
    w.a_log = a_log_.data(), w.dt_bias = dt_bias_.data(), w.norm = norm_.data();
    w.lower_bound = p_.shape.lower_bound.value_or(0);
    w.norm_eps = StepProblem::kEps;
    w.heads = static_cast<int32_t>(p_.heads);
    return w;
  }
  KdaRows rows(int64_t row) const {
    KdaRows r{};
    const uint16_t* x = x_.data() + row * wide_;
    for (int64_t i = 0; i < 3; ++i) r.x[i] = x + i * p_.width, r.x_stride[i] = wide_;
    r.z = x + 3 * p_.width, r.gate = x + 4 * p_.width, r.beta = x + 5 * p_.width + 1;
    r.z_stride = r.gate_stride = r.beta_stride = wide_;
    r.out = out_.data() + row * out_stride_, r.out_stride = out_stride_;
    return r;
  }
  KdaSlots slot_args() const {
    KdaSlots s{};
    s.state = state_.data(), s.state_stride = state_stride_, s.state_bf16 = p_.state_bf16 ? 1 : 0;
    s.conv = conv_.data(), s.conv_stride = conv_stride_, s.conv_bf16 = p_.conv_bf16 ? 1 : 0;
    s.slots = slots_.data();
    return s;
  }

  // [count, width] of out, from row on.
  std::vector<float> out(int64_t row, int64_t count) const { return rows_of(out_, row, count); }
  // The same with what rounding cut off.
  std::vector<float> out_and_rest(int64_t row, int64_t count) const {
    std::vector<float> y = rows_of(out_, row, count);
    const std::vector<float> low = rows_of(rest_, row, count);
    for (size_t i = 0; i < y.size(); ++i) y[i] += low[i];
    return y;
  }
  void poison_out() const { out_.poison(); }
  // Bytes of one slot (without the gap to the next).
  std::vector<uint8_t> state_bytes_of(int64_t slot) const {
    return bytes(state_, slot, p_.width * 128, state_stride_, state_bytes());
  }
  std::vector<uint8_t> conv_bytes_of(int64_t slot) const {
    return bytes(conv_, slot, 9 * p_.width, conv_stride_, conv_bytes());
  }
  std::vector<float> state_of(int64_t slot) const { return to_floats(state_bytes_of(slot), p_.state_bf16); }
  // Is what the slot holds as poisoned as it was?
  bool untouched(int64_t slot) const {
    const auto clean = [](const std::vector<uint8_t>& x) {
      return std::all_of(x.begin(), x.end(), [](uint8_t b) { return b == 0xFF; });
    };
    return clean(state_bytes_of(slot)) && clean(conv_bytes_of(slot));
  }
  bool guards_intact() const { return out_.guards_intact() && rest_.guards_intact() && state_.guards_intact() && conv_.guards_intact(); }
  // Tails of the slot as the conv state stores them.
  bool conv_is(int64_t slot, const RequestState& s) const { return conv_bytes_of(slot) == encode(joined(s), p_.conv_bf16); }
  void put(int64_t slot, const RequestState& s) const {
    const std::vector<uint8_t> state = encode(s.state, p_.state_bf16), conv = encode(joined(s), p_.conv_bf16);
    state_.set_at(slot * state_stride_ * state_bytes(), state);
    conv_.set_at(slot * conv_stride_ * conv_bytes(), conv);
  }

 private:
  std::vector<float> rows_of(const DeviceArray<uint16_t>& from, int64_t row, int64_t count) const {
    const std::vector<float> all = from_bf16(from.get());
    std::vector<float> y;
    for (int64_t r = row; r < row + count; ++r) y.insert(y.end(), all.begin() + r * out_stride_, all.begin() + r * out_stride_ + p_.width);
    return y;
  }
  int64_t state_bytes() const { return p_.state_bf16 ? 2 : 4; }
  int64_t conv_bytes() const { return p_.conv_bf16 ? 2 : 4; }
  static std::vector<float> joined(const RequestState& s) {
    std::vector<float> x;
    for (const std::vector<float>& tail : s.tails) x.insert(x.end(), tail.begin(), tail.end());
    return x;
  }
  static std::vector<uint8_t> encode(const std::vector<float>& x, bool bf16) {
    std::vector<uint8_t> out(x.size() * (bf16 ? 2 : 4));
    const std::vector<uint16_t> bits = bf16 ? to_bf16(x) : std::vector<uint16_t>();
    std::memcpy(out.data(), bf16 ? static_cast<const void*>(bits.data()) : x.data(), out.size());
    return out;
  }
  static std::vector<float> to_floats(const std::vector<uint8_t>& raw, bool bf16) {
    if (bf16) return from_bf16({reinterpret_cast<const uint16_t*>(raw.data()), raw.size() / 2});
    std::vector<float> x(raw.size() / 4);
    std::memcpy(x.data(), raw.data(), raw.size());
    return x;
  }
  static std::vector<uint8_t> bytes(const DeviceArray<uint8_t>& pool, int64_t slot, int64_t count, int64_t stride,
                                    int64_t size) {
    return pool.get_at(slot * stride * size, count * size);
  }

  StepProblem& p_;
  int64_t wide_, out_stride_, slot_count_, state_stride_, conv_stride_;
  DeviceArray<uint16_t> x_, out_, rest_;
  DeviceArray<float> taps_[3], a_log_, dt_bias_, norm_;
  DeviceArray<uint8_t> state_, conv_;
  DeviceArray<int32_t> slots_;
};

// Prints the worst ratios of a test at its end, so that a log says how near the tolerances are.
struct WorstRatios {
  std::string name;
  double out = 0, both = 0, state = 0;  // both: out with what rounding cut off
  explicit WorstRatios(std::string_view n) : name(n) {}
  ~WorstRatios() { fmt::print("  {}: worst out {:.2e}, with its rest {:.2e}, state {:.2e}\n", name, out, both, state); }
};

}  // namespace k3::ops::cuda
