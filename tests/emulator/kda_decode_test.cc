// Decode of delta attention, as for Hopper, by the sessions of the tests on a GPU: with copies that land late, warps in
// random order, and rows that the kernel before still writes.
#include "k3/ops/kda/cuda/kda_decode_session_test.h"
#include "tests/emulator/emulator.h"

namespace k3::ops::cuda {
namespace {

void pace(uint32_t seed, uint32_t latest = 400) {
  emulator::set_options({.seed = seed, .late_copies = true, .latest = latest});
}

void steps(const KdaCase& shape, int64_t requests, int64_t count, const DecodeForm& form, uint32_t seed,
           uint32_t latest = 400) {
  DecodeSession s(shape, requests, count, form, seed);
  s.both_tolerance = 5e-5;
  emulator::Options options = {.seed = seed, .late_copies = true, .latest = latest};
  if (form.early || form.dependent) {
    for (const std::span<uint16_t> x : s.inputs())
      options.before.push_back({reinterpret_cast<char*>(x.data()), x.size_bytes()});
  }
  emulator::set_options(options);
  for (int64_t i = 0; i < count && !testing::Test::HasFailure(); ++i) s.step();
  s.check_rest_of_memory();
  emulator::set_options({});
}

// Forms that take them with second factors, too.
std::vector<DecodeForm> every_form() {
  std::vector<DecodeForm> out;
  for (int form = 1; form <= 4; ++form) {
    for (const bool state_bf16 : {false, true}) {
      for (const DecodeLow low : {DecodeLow::none, DecodeLow::z, DecodeLow::z_and_gate}) {
        if (form == 2 || low == DecodeLow::none) out.push_back({.form = form, .state_bf16 = state_bf16, .low = low});
      }
    }
  }
  return out;
}

TEST(KdaDecodeEmulated, EveryFormAndDtype) {
  uint32_t seed = 0;
  for (DecodeForm form : every_form()) {
    for (const bool conv_bf16 : {false, true}) {
      form.conv_bf16 = conv_bf16;
      steps(plain(3), 2, 2, form, ++seed);
      ASSERT_FALSE(HasFailure()) << emulator::failure();
    }
  }
}

TEST(KdaDecodeEmulated, EveryInputSet) {
  uint32_t seed = 200;
  for (const KdaCase& c : kda_input_sets(1, 128, {1})) {
    for (int form = 1; form <= 4; ++form) {
      ++seed;
      steps(c, 1, 2, {.form = form, .state_bf16 = (seed / 4 + seed) % 2 == 0}, seed);
      ASSERT_FALSE(HasFailure()) << emulator::failure();
    }
  }
}

// A request without a slot: zeros, and what it had stays.
TEST(KdaDecodeEmulated, NegativeSlot) {
  for (const DecodeForm& form : every_form()) {
    pace(60);
    DecodeSession s(plain(2), 3, 2, form, 9);
    s.step();
    s.lose_slot(1);
    s.step();
    s.check_rest_of_memory();
    ASSERT_FALSE(HasFailure()) << emulator::failure();
  }
}

TEST(KdaDecodeEmulated, WithAndWithoutRest) {
  for (const DecodeForm& form : every_form()) {
    pace(70);
    check_rest_changes_nothing(form, 13);
    ASSERT_FALSE(HasFailure()) << emulator::failure();
  }
}

// Many schedules, copies that come very late, the kernel before beside this one.
TEST(KdaDecodeEmulated, Schedules) {
  for (DecodeForm form : every_form()) {
    for (uint32_t seed = 100; seed < 109; ++seed) {
      form.dependent = seed % 3 != 0, form.early = seed % 3 == 1;
      steps(plain(1), 1, 2, form, seed, 2000);
      ASSERT_FALSE(HasFailure()) << emulator::failure();
    }
  }
}

}  // namespace
}  // namespace k3::ops::cuda
