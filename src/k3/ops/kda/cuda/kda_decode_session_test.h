// Internal to ops/kda. Decode steps one after the other against the reference: what the tests on a GPU and on the emulated
// one (tests/emulator) share.
#pragma once

#include <gtest/gtest.h>

#include "k3/ops/kda/cuda/kda_decode_gpu_util.h"

namespace k3::ops::cuda {

enum class DecodeLow { none, z, z_and_gate };  // what the kernel makes of second factors

struct DecodeForm {
  int form = 0;  // kda_decode_config.h
  bool state_bf16 = false, conv_bf16 = true;
  DecodeLow low = DecodeLow::none;
  bool dependent = false, early = false;
};

// Second factors and what they meet; the problem gets their products.
class DecodeFactors {
 public:
  DecodeFactors(StepProblem& p, DecodeLow low, uint64_t seed) {
    std::vector<float>* const products[2] = {&p.data.z, &p.gate};
    count_ = low == DecodeLow::none ? 0 : low == DecodeLow::z ? 1 : 2;
    for (size_t i = 0; i < count_; ++i) {
      const std::vector<float> in = random_bf16(p.rows * kPitch, seed + 50 + i),
                               w = random_bf16(p.width * 128, seed + 60 + i, 0.1F);
      for (int64_t row = 0; row < p.rows; ++row) {
        for (int64_t c = 0; c < p.width; ++c) {
          double sum = 0;
          for (int64_t k = 0; k < 128; ++k) {
            sum += static_cast<double>(in[static_cast<size_t>(row * kPitch + k)]) *
                   static_cast<double>(w[static_cast<size_t>(c * 128 + k)]);
          }
          (*products[i])[static_cast<size_t>(row * p.width + c)] = static_cast<float>(sum);
        }
      }
      in_[i] = DeviceArray<uint16_t>(to_bf16(in)), w_[i] = DeviceArray<uint16_t>(to_bf16(w));
    }
  }
  // In place of the products that the rows have.
  void apply(KdaDecodeArgs& a, int64_t row) const {
    if (count_ == 0) return;
    a.low.z_w = w_[0].data(), a.low.z_in = in_[0].data() + row * kPitch, a.low.z_stride = kPitch;
    a.rows.z = nullptr;
    if (count_ == 1) return;
    a.low.gate_w = w_[1].data(), a.low.gate_in = in_[1].data() + row * kPitch, a.low.gate_stride = kPitch;
    a.rows.gate = nullptr;
  }
  std::span<uint16_t> inputs(size_t i) const { return {in_[i].data(), static_cast<size_t>(in_[i].size())}; }

 private:
  static constexpr int64_t kPitch = 132;
  size_t count_ = 0;
  DeviceArray<uint16_t> in_[2], w_[2];
};

// Steps of `requests` requests. After each the reference goes on from the kernel's state.
class DecodeSession {
 public:
  static constexpr double kOutTolerance = 3e-3;  // kda_decode_cuda.h
  static constexpr double state_tolerance(bool bf16) { return bf16 ? 3e-3 : 1e-6; }

  DecodeSession(const KdaCase& shape, int64_t requests, int64_t steps, const DecodeForm& form, uint64_t seed)
      : form_(form),
        p_(shape, steps * requests, requests, form.state_bf16, form.conv_bf16, seed),
        factors_(p_, form.low, seed),
        d_(p_),
        slots_(d_.slots),
        states_(p_.initial) {}

  WorstRatios* worst = nullptr;
  double both_tolerance = 1e-4;  // of the output with its rest
  bool rest = true;
  const StepDevice& device() const { return d_; }
  // All that the kernel before may still write when one of early_state begins.
  std::vector<std::span<uint16_t>> inputs() const { return {d_.inputs(0), factors_.inputs(0), factors_.inputs(1)}; }

  // From now on.
  void lose_slot(size_t request) {
    std::vector<int32_t> slots = d_.slots;
    slots[request] = -1;
    d_.set_slots(slots);
  }
  // A token of every request.
  void step() {
    KdaDecodeArgs args = d_.decode(row_, form_.form);
    factors_.apply(args, row_);
    if (rest) args.out_rest = d_.rest(row_);
    args.launch.dependent = form_.dependent ? 1 : 0, args.launch.early_state = form_.early ? 1 : 0;
    ASSERT_TRUE(kda_decode_cuda(args, nullptr).ok());
    for (int64_t r = 0; r < p_.requests; ++r) check(r);
    row_ += p_.requests;
  }
  void check_rest_of_memory() const {
    for (int64_t slot = 0; slot < d_.slot_count(); ++slot) {
      const bool used = std::find(slots_.begin(), slots_.end(), slot) != slots_.end();
      EXPECT_TRUE(used || d_.untouched(slot)) << slot;
    }
    EXPECT_TRUE(d_.guards_intact());
  }

 private:
  void check(int64_t r) {
    const std::string what = fmt::format("{} H {} B {} {} form {} row {} request {}", p_.shape.name, p_.heads, p_.requests,
                                         p_.state_bf16 ? "bf16" : "f32", form_.form, row_, r);
    RequestState& s = states_[static_cast<size_t>(r)];
    const int32_t slot = slots_[static_cast<size_t>(r)];
    const bool lost = d_.slots[static_cast<size_t>(r)] < 0;
    std::vector<float> expected(static_cast<size_t>(p_.width));
    if (!lost) p_.advance(row_ + r, 1, s, expected.data());
    const std::vector<float> got = d_.state_of(slot);
    const double state = norm_ratio(got, s.state), out = norm_ratio(d_.out(row_ + r, 1), expected),
                 both = rest ? norm_ratio(d_.out_and_rest(row_ + r, 1), expected) : 0;
    EXPECT_LE(state, lost ? 0 : state_tolerance(p_.state_bf16)) << what;
    EXPECT_TRUE(d_.conv_is(slot, s)) << what;
    EXPECT_LE(out, lost ? 0 : kOutTolerance) << what;
    EXPECT_LE(both, lost ? 0 : both_tolerance) << what;
    s.state = got;
    if (worst == nullptr) return;
    worst->state = std::max(worst->state, state), worst->out = std::max(worst->out, out),
    worst->both = std::max(worst->both, both);
  }

  DecodeForm form_;
  StepProblem p_;
  DecodeFactors factors_;  // before the device gets the problem
  StepDevice d_;
  std::vector<int32_t> slots_;  // of all requests, with those that are lost
  std::vector<RequestState> states_;
  int64_t row_ = 0;
};

// Who wants no rest gets the same bits, and nothing is written there.
inline void check_rest_changes_nothing(const DecodeForm& form, uint64_t seed) {
  DecodeSession with(plain(3), 2, 1, form, seed), without(plain(3), 2, 1, form, seed);
  without.rest = false;
  with.step();
  without.step();
  const StepDevice &a = with.device(), &b = without.device();
  EXPECT_EQ(a.out(0, 2), b.out(0, 2)) << form.form;
  for (const float x : b.out_and_rest(0, 2)) EXPECT_TRUE(std::isnan(x));  // as poisoned as it was
  for (const int32_t slot : a.slots) EXPECT_EQ(a.state_bytes_of(slot), b.state_bytes_of(slot)) << form.form;
  with.check_rest_of_memory();
  without.check_rest_of_memory();
}

}  // namespace k3::ops::cuda
