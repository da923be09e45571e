// Delta attention over prompts, as for Hopper, against double on the same BF16 rows: chunks go from producers to consumers
// through buffers, in pairs of blocks from one to the other, too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/kda/cuda/kda_prefill_cuda.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/numbers.h"

namespace k3::ops::cuda {

int kda_prefill_recurrent_launch(const K3KdaPrefill&, CUstream_st*) { return 1; }  // the form that is not emulated

namespace {

using emulator::from_bf16;

constexpr int kWidth = 128;
constexpr float kBound = -5;

struct Case {
  std::vector<int> lengths = {};
  int heads = 1;
  bool bounded = true;
  KdaPrefillPlan plan = {KdaPrefillForm::fused};
  std::vector<K3KdaExport> exports = {};  // slots follow
};

class Prefill {
 public:
  Prefill(const Case& c, uint64_t seed) : case_(c) {
    offsets_ = {0};
    for (const int n : c.lengths) offsets_.push_back(offsets_.back() + n);
    const auto heads = static_cast<size_t>(c.heads), tokens = static_cast<size_t>(offsets_.back());
    for (size_t i = 0; i < 4; ++i) rows_[i] = emulator::random_bf16(tokens * heads * kWidth, seed + i);
    logits_ = emulator::random_bf16(tokens * heads, seed + 4);
    for (size_t h = 0; h < heads; ++h) a_log_.push_back(0.3F * static_cast<float>(h) - 0.5F);
    for (const uint16_t x : emulator::random_bf16(heads * kWidth, seed + 5))
      dt_bias_.push_back(static_cast<float>(from_bf16(x)) - 2);
    const size_t sequences = c.lengths.size();
    for (size_t s = 0; s < sequences; ++s) slots_.push_back(static_cast<int32_t>(sequences - 1 - s));
    for (size_t e = 0; e < c.exports.size(); ++e) case_.exports[e].slot = static_cast<int32_t>(sequences + e);
    const auto begin = emulator::random_bf16((sequences + c.exports.size()) * slot(), seed + 6);
    for (const uint16_t x : begin) states_.push_back(static_cast<float>(from_bf16(x)));
    out_.assign(tokens * heads * kWidth, emulator::kNanBf16);
    make_reference();
  }

  int run() {
    const int64_t heads = case_.heads, stride = heads * kWidth;
    K3KdaPrefill a{};
    a.tokens = offsets_.back(), a.heads = heads, a.sequences = static_cast<int64_t>(case_.lengths.size());
    a.longest = std::max(1, *std::max_element(case_.lengths.begin(), case_.lengths.end()));
    a.q = rows_[0].data(), a.k = rows_[1].data(), a.v = rows_[2].data(), a.z = rows_[3].data();
    a.q_stride = a.k_stride = a.v_stride = a.z_stride = a.out_stride = stride;
    a.b = logits_.data(), a.b_stride = heads;
    a.bounded = case_.bounded ? 1 : 0, a.lower_bound = kBound;
    a.a_log = a_log_.data(), a.dt_bias = dt_bias_.data(), a.offsets = offsets_.data();
    a.states = states_.data(), a.slot_stride = static_cast<int64_t>(slot()), a.from = slots_.data();
    a.exports = case_.exports.data(), a.export_count = static_cast<int64_t>(case_.exports.size());
    a.out = out_.data();
    const KdaPrefillShape shape{a.tokens, heads, a.sequences, a.longest, kBound};
    workspace_.assign(static_cast<size_t>(kda_prefill_workspace_bytes(shape, case_.plan) / 4 + 1), NAN);
    a.workspace = workspace_.data();
    return kda_prefill_cuda(a, case_.plan, nullptr).code;
  }

  void judge() const {
    emulator::Apart out;
    for (size_t i = 0; i < out_.size(); ++i) out.add(from_bf16(out_[i]), want_[i]);
    EXPECT_LE(out.ratio(), 6e-3);
    for (size_t i = 0; i < want_states_.size(); i += slot()) {
      emulator::Apart state;
      for (size_t j = i; j < i + slot(); ++j) state.add(static_cast<double>(states_[j]), want_states_[j]);
      EXPECT_LE(state.ratio(), 5e-3) << "slot " << i / slot();
    }
  }

 private:
  size_t slot() const { return static_cast<size_t>(case_.heads) * kWidth * kWidth; }

  void make_reference() {
    want_.resize(out_.size());
    want_states_.assign(states_.begin(), states_.end());
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      for (int h = 0; h < case_.heads; ++h) walk(s, static_cast<size_t>(h));
    }
  }
  void walk(size_t s, size_t h) {
    double* const state = &want_states_[static_cast<size_t>(slots_[s]) * slot() + h * kWidth * kWidth];  // [values][keys]
    for (int t = 0; t < case_.lengths[s]; ++t) {
      const auto token = static_cast<size_t>(offsets_[s] + t), at = (token * static_cast<size_t>(case_.heads) + h) * kWidth;
      double x[3][kWidth], squares[2] = {1e-6, 1e-6};
      for (size_t m = 0; m < 3; ++m) {
        for (size_t i = 0; i < kWidth; ++i) {
          x[m][i] = from_bf16(rows_[m][at + i]);
          if (m < 2) squares[m] += x[m][i] * x[m][i];
        }
      }
      const double beta = 1 / (1 + std::exp(-from_bf16(logits_[token * static_cast<size_t>(case_.heads) + h])));
      for (size_t v = 0; v < kWidth; ++v) {
        double* const row = state + v * kWidth;
        double held = 0, out = 0;
        for (size_t k = 0; k < kWidth; ++k) {
          if (v == 0) decay_[k] = std::exp(gate(from_bf16(rows_[3][at + k]), h, k));
          row[k] *= decay_[k];
          held += row[k] * x[1][k] / std::sqrt(squares[1]);
        }
        const double more = beta * (x[2][v] - held);
        for (size_t k = 0; k < kWidth; ++k) {
          row[k] += more * x[1][k] / std::sqrt(squares[1]);
          out += row[k] * x[0][k] / std::sqrt(squares[0]);
        }
        want_[at + v] = out / std::sqrt(static_cast<double>(kWidth));
      }
      for (const K3KdaExport& e : case_.exports) {
        if (e.sequence == static_cast<int32_t>(s) && e.tokens == t + 1)
          std::copy_n(state, kWidth * kWidth, &want_states_[static_cast<size_t>(e.slot) * slot() + h * kWidth * kWidth]);
      }
    }
  }
  double gate(double z, size_t h, size_t k) const {
    const double x = z + static_cast<double>(dt_bias_[h * kWidth + k]), rate = std::exp(static_cast<double>(a_log_[h]));
    return case_.bounded ? static_cast<double>(kBound) / (1 + std::exp(-rate * x)) : -rate * std::log1p(std::exp(x));
  }

  Case case_;
  std::vector<int32_t> offsets_, slots_;
  std::array<std::vector<uint16_t>, 4> rows_;  // q, k, v, z
  std::vector<uint16_t> logits_, out_;
  std::vector<float> a_log_, dt_bias_, states_, workspace_;
  std::vector<double> want_, want_states_;
  double decay_[kWidth] = {};
};

void check(const Case& c, uint32_t seed, int times = 1, uint32_t latest = 400) {
  SCOPED_TRACE(fmt::format("{} sequences, the first of {}, pairs {}, pieces of {}, seed {}", c.lengths.size(), c.lengths[0],
                           c.plan.pairs, c.plan.segment, seed));
  const Prefill begun(c, seed);
  for (int i = 0; i < times; ++i) {
    Prefill prefill = begun;
    emulator::set_options(
        {.seed = seed + static_cast<uint32_t>(i), .late_products = true, .late_copies = true, .latest = latest});
    ASSERT_EQ(prefill.run(), 0) << emulator::failure();
    prefill.judge();
  }
}

constexpr KdaPrefillPlan kOne = {KdaPrefillForm::fused}, kPairs = {KdaPrefillForm::fused, 0, true};

TEST(KdaPrefillEmulated, LengthsAndExports) {
  for (const KdaPrefillPlan& plan : {kOne, kPairs}) {
    check({.lengths = {1, 0, 17, 35}, .heads = 2, .plan = plan}, 1);
    check({.lengths = {40, 17}, .plan = plan, .exports = {{0, 3, 0}, {0, 16, 0}, {1, 17, 0}, {0, 16, 0}}}, 2);
    check({.lengths = {40, 17}, .bounded = false, .plan = plan, .exports = {{0, 3, 0}}}, 3);
  }
}

// Buffers go round; the last chunks have no rows to ask for behind them.
TEST(KdaPrefillEmulated, ManyChunks) {
  for (const KdaPrefillPlan& plan : {kOne, kPairs}) check({.lengths = {16 * 30 + 5}, .plan = plan}, 11, 4);
}

// A producer that comes to a buffer for the second time while the rows of the first are still on their way to another warp:
// the last chunks once took them for their own.
TEST(KdaPrefillEmulated, RowsThatComeLate) {
  check({.lengths = {13 * 16}, .plan = kOne}, 31, 8, 5000);
  check({.lengths = {17 * 16}, .plan = kPairs}, 32, 8, 5000);
}

TEST(KdaPrefillEmulated, Pieces) {
  check({.lengths = {70, 17, 33}, .plan = {KdaPrefillForm::segments, 32}, .exports = {{0, 5, 0}, {0, 64, 0}}}, 21);
  check({.lengths = {160}, .bounded = false, .plan = {KdaPrefillForm::segments, 48}}, 22);
}

}  // namespace
}  // namespace k3::ops::cuda
