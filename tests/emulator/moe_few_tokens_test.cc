// Experts of few tokens and of one, as for Hopper, against double on the same weights. Their blocks wait for each other, so
// that all of a small grid live at once; copies land late, some long after others that were asked for later.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "k3/ops/moe/cuda/moe_stream_cuda.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/moe_experts.h"

namespace k3::ops::cuda {
namespace {

using emulator::Experts;
using emulator::from_bf16;

constexpr MoeWeights kMx = MoeWeights::mxfp4, kBf = MoeWeights::bf16;

struct Case {
  MoeWeights kind = kMx;
  int tokens = 1, experts = 4, topk = 2, width = 96, hidden = 64;
  MoeGlu glu = {true, 4, 25};
  int first = 0, local = 0;  // experts of this rank; 0: all
  int count = -1;            // tokens really there
  int shared = 0;            // columns of shared experts
  bool routes = false, places = false, norm = false;
};

struct Routing {
  std::vector<float> logits, bias, weights;
  std::vector<int32_t> ids;
};
// The choice is by sigmoid and bias, the weight by sigmoid alone; skewed to the low experts.
Routing routing_of(const Case& c, uint64_t seed) {
  Routing r;
  const Rng rng(seed, 3);
  const auto experts = static_cast<size_t>(c.experts);
  for (size_t e = 0; e < experts; ++e) r.bias.push_back(0.1F * static_cast<float>(rng.normal(e)));
  for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
    std::vector<double> scores(experts), keys(experts);
    for (size_t e = 0; e < experts; ++e) {
      r.logits.push_back(static_cast<float>(rng.normal((t + 1) * experts + e) - 2 * static_cast<double>(e) / c.experts));
      scores[e] = 1 / (1 + std::exp(-static_cast<double>(r.logits.back())));
      keys[e] = scores[e] + static_cast<double>(r.bias[e]);
    }
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)]; });
    double sum = 0;
    for (int j = 0; j < c.topk; ++j) sum += scores[static_cast<size_t>(order[static_cast<size_t>(j)])];
    for (int j = 0; j < c.topk; ++j) {
      r.ids.push_back(order[static_cast<size_t>(j)]);
      r.weights.push_back(static_cast<float>(scores[static_cast<size_t>(r.ids.back())] / sum * 2.5));
    }
  }
  return r;
}

class FewTokens {
 public:
  FewTokens(const Case& c, uint64_t seed)
      : case_(c),
        local_(c.local > 0 ? c.local : c.experts),
        weights_(c.kind, local_, c.width, c.hidden),
        routing_(routing_of(c, seed)),
        z_(emulator::random_bf16(size(c.tokens * c.width), seed)),
        add_(emulator::random_bf16(size(c.tokens * c.width), seed + 1)),
        gain_(emulator::random_bf16(size(c.width), seed + 2)),
        shared_w_(emulator::random_bf16(size(c.width * c.shared) + 8, seed + 3, 0.1F)),
        shared_hidden_(emulator::random_bf16(size(c.tokens * c.shared) + 8, seed + 4)),
        workspace_(size(moe_stream_workspace_bytes(c.tokens, c.topk, local_, c.hidden)) + 256) {
    make_reference();
  }

  // With the sum in the same launch, and what is added to it where no norm follows.
  void run(const emulator::Options& options) {
    const Case& c = case_;
    slot_out_.assign(size(c.tokens * c.topk * c.width), NAN);
    out_.assign(size(c.tokens * c.width), emulator::kNanBf16);
    MoeStreamCuda a;
    a.weights = c.places ? weights_.scattered() : weights_.view();
    a.glu = c.glu;
    a.z = aligned(z_);
    a.token_count = c.count < 0 ? nullptr : &c.count;
    a.tokens = c.tokens;
    a.topk = c.topk;
    a.first_expert = c.first;
    if (c.routes) {
      a.route = {.logits = routing_.logits.data(), .bias = routing_.bias.data(), .experts = c.experts, .scale = 2.5F};
    } else {
      a.ids = routing_.ids.data();
      a.sum.weights = routing_.weights.data();
    }
    if (c.shared > 0) a.shared = {aligned(shared_w_), aligned(shared_hidden_), c.shared};
    a.slot_out = slot_out_.data();
    a.workspace = workspace_.data() + (256 - reinterpret_cast<uintptr_t>(workspace_.data()) % 256) % 256;
    a.sum.out = out_.data();
    if (c.norm) a.sum.norm_weight = gain_.data();
    if (!c.norm) a.sum.add = add_.data();
    emulator::set_options(options);
    ASSERT_EQ(moe_stream_cuda(a, nullptr).code, 0) << emulator::failure();
    const auto* const counters = reinterpret_cast<const int32_t*>(a.workspace);
    for (int i = 0; i < 4096; ++i) ASSERT_EQ(counters[i], 0) << "counter " << i;
  }

  void judge() const {
    const Case& c = case_;
    emulator::Apart slots, sums;
    for (size_t i = 0; i < slot_out_.size(); ++i) {
      if (slots_[i / size(c.width)].empty()) {
        ASSERT_TRUE(std::isnan(slot_out_[i])) << i;
      } else {
        slots.add(static_cast<double>(slot_out_[i]), slots_[i / size(c.width)][i % size(c.width)]);
      }
    }
    for (size_t i = 0; i < out_.size(); ++i) {
      if (i >= size(tokens() * c.width)) {
        ASSERT_EQ(out_[i], emulator::kNanBf16);
      } else {
        sums.add(from_bf16(out_[i]), sums_[i]);
      }
    }
    EXPECT_LE(slots.ratio(), 4e-3);
    EXPECT_LE(sums.ratio(), 4e-3);
  }

 private:
  static size_t size(int64_t x) { return static_cast<size_t>(x); }
  static const void* aligned(std::vector<uint16_t>& x) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data()) % 16, 0U);
    return x.data();
  }
  int tokens() const { return case_.count < 0 ? case_.tokens : case_.count; }
  void make_reference() {
    const Case& c = case_;
    slots_.resize(size(c.tokens * c.topk));
    for (int t = 0; t < tokens(); ++t) {
      std::vector<double> sum(size(c.width));
      for (int j = 0; j < c.topk; ++j) {
        const size_t slot = size(t * c.topk + j);
        const int expert = routing_.ids[slot] - c.first;
        if (expert < 0 || expert >= local_) continue;
        slots_[slot] = weights_.result(expert, z_.data() + t * c.width, c.glu);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(routing_.weights[slot]) * slots_[slot][i];
      }
      double squares = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        if (!c.norm) sum[i] += from_bf16(add_[size(t * c.width) + i]);
        for (size_t k = 0; k < size(c.shared); ++k)
          sum[i] += from_bf16(shared_w_[i * size(c.shared) + k]) * from_bf16(shared_hidden_[size(t * c.shared) + k]);
        squares += sum[i] * sum[i];
      }
      for (size_t i = 0; i < sum.size(); ++i)
        sums_.push_back(c.norm ? sum[i] / std::sqrt(squares / c.width + 1e-5) * from_bf16(gain_[i]) : sum[i]);
    }
  }

  Case case_;
  int local_;
  Experts weights_;
  Routing routing_;
  std::vector<uint16_t> z_, add_, gain_, shared_w_, shared_hidden_;
  std::vector<std::byte> workspace_;
  std::vector<std::vector<double>> slots_;  // empty: not of this rank
  std::vector<double> sums_;
  std::vector<float> slot_out_;
  std::vector<uint16_t> out_;
};

// As often as given on the same counters.
void check(const Case& c, int multiprocessors, uint32_t seed = 1, int times = 1, uint32_t latest = 400) {
  SCOPED_TRACE(fmt::format("{} tokens, top {} of {}, width {}, hidden {}, seed {}", c.tokens, c.topk, c.experts, c.width,
                           c.hidden, seed));
  pretend_device({.sm_count = multiprocessors, .capability = 90, .shared_bytes_per_block = 232448});
  FewTokens few(c, seed);
  for (int i = 0; i < times; ++i) {
    few.run({.seed = seed + static_cast<uint32_t>(i), .late_copies = true, .latest = latest, .whole_grid = true});
    if (testing::Test::HasFatalFailure()) return;
    few.judge();
  }
}

TEST(MoeOneEmulated, ATokenAgainAndAgain) {
  check({.kind = kMx, .experts = 9, .topk = 8, .width = 544, .hidden = 288, .shared = 136, .routes = true}, 5, 1, 2);
  check({.kind = kBf, .experts = 9, .topk = 8, .width = 264, .hidden = 136, .shared = 64, .routes = true}, 5, 2, 2);
  check({.kind = kMx, .experts = 40, .topk = 16, .places = true}, 3, 3);
  check({.kind = kBf, .experts = 5, .width = 40, .hidden = 24, .glu = {false}, .shared = 8}, 3, 4);
}

// Items of so many chunks that the ring is full before the items' buffers are.
TEST(MoeOneEmulated, LongRows) {
  for (uint32_t seed = 7; seed < 9; ++seed) {
    check({.kind = kMx, .experts = 4, .topk = 3, .width = 2560}, 2, seed);
    check({.kind = kBf, .experts = 4, .topk = 3, .width = 1032}, 2, seed);
    check({.kind = kMx, .experts = 3, .width = 192, .hidden = 2048}, 2, seed);
  }
}

// Experts that lie elsewhere; none is here.
TEST(MoeOneEmulated, LocalExperts) {
  for (const MoeWeights kind : {kMx, kBf}) {
    check({.kind = kind, .experts = 20, .topk = 8, .first = 4, .local = 9, .shared = 64}, 4, 5, 2);
    check({.kind = kind, .experts = 20, .topk = 2, .first = 19, .local = 1, .shared = 64}, 4, 6, 2);
  }
}

TEST(MoeStreamEmulated, TokensInOrder) {
  for (const MoeWeights kind : {kMx, kBf}) {
    check({.kind = kind, .tokens = 4, .experts = 9, .topk = 4, .width = 288, .hidden = 160, .shared = 64, .routes = true}, 4,
          1, 2);
    check({.kind = kind, .tokens = 8, .experts = 20, .topk = 8, .first = 4, .local = 9, .count = 5, .places = true}, 3, 2);
    check({.kind = kind, .tokens = 1, .experts = 9, .topk = 4, .glu = {false}, .norm = true}, 6, 3);
  }
}

TEST(MoeStreamEmulated, TokensByExpert) {
  for (const MoeWeights kind : {kMx, kBf}) {
    check({.kind = kind, .tokens = 20, .experts = 9, .topk = 2, .width = 288, .hidden = 160}, 4, 1, 2);
    check({.kind = kind, .tokens = 40, .experts = 5, .topk = 3, .places = true, .norm = true}, 3, 2);
    check({.kind = kind, .tokens = 20, .experts = 12, .topk = 4, .first = 3, .local = 6, .count = 13}, 4, 3);
    for (uint32_t seed = 4; seed < 7; ++seed)
      check({.kind = kind, .tokens = 10, .experts = 6, .topk = 3, .width = 544}, 2, seed);
  }
}

// Blocks with rows of down, and none of gate and up.
TEST(MoeStreamEmulated, FewUnits) {
  for (uint32_t seed = 11; seed < 13; ++seed) {
    check({.kind = kBf, .tokens = 2, .experts = 2, .topk = 1, .width = 264, .hidden = 8}, 8, seed, 1, 5000);
    check({.kind = kMx, .tokens = 2, .experts = 1, .topk = 1, .width = 288, .hidden = 32}, 8, seed, 1, 5000);
  }
}

}  // namespace
}  // namespace k3::ops::cuda
