// Internal to ops/kda. Speculative windows one after the other against the reference: what the tests on a GPU and on the
// emulated one (tests/emulator) share.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "k3/ops/kda/cuda/kda_decode_gpu_util.h"

namespace k3::ops::cuda {

constexpr double kOutTolerance = 3e-3;  // kda_verify_cuda.h
constexpr double state_tolerance(bool bf16) { return bf16 ? 3e-3 : 1e-5; }

struct VerifyCycle {
  std::vector<int32_t> accepted, counts;  // of the old window; rows of the new one
  std::vector<int32_t> boundary = {};     // with exports
};

// A session of windows against the reference. After each commit the reference goes on from the kernel's state.
class VerifySession {
 public:
  VerifySession(const KdaCase& shape, int64_t requests, int max_tokens, int64_t rows, bool state_bf16, bool conv_bf16,
                uint64_t seed)
      : p_(shape, rows, requests, state_bf16, conv_bf16, seed),
        d_(p_),
        max_tokens_(max_tokens),
        committed_(p_.initial),
        window_stride_(p_.width * max_tokens),
        u_(d_.slot_count() * (window_stride_ + 8)),
        offsets_(requests + 1),
        accepted_(requests),
        boundary_(requests),
        export_(requests),
        first_rows_(requests),
        first_(static_cast<size_t>(requests), kNowhere) {}

  WorstRatios* worst = nullptr;
  bool separate = false;  // each window in two calls: commit, then verify with nothing accepted
  bool dependent = false, early = false;
  int32_t form = 0;  // 1: states without the copy engine
  std::function<void(std::span<uint16_t>)> young;  // told before each call what the kernel before it may still write
  StepDevice& device() { return d_; }
  StepProblem& problem() { return p_; }

  void run(const VerifyCycle& cycle, const std::string& what) {
    std::vector<int32_t> offsets = {0}, exports;
    for (const int32_t n : cycle.counts) offsets.push_back(offsets.back() + n);
    for (size_t r = 0; r < cycle.boundary.size(); ++r) exports.push_back(free_slot(static_cast<int64_t>(r)));
    set_counts(cycle.accepted, offsets);
    if (!cycle.boundary.empty()) boundary_.set(cycle.boundary), export_.set(exports);
    const bool exporting = !cycle.boundary.empty();
    if (separate) {
      ASSERT_TRUE(kda_commit_cuda(commit_args(exporting), nullptr).ok());
      accepted_.set(std::vector<int32_t>(cycle.accepted.size(), 0));
      ASSERT_TRUE(kda_verify_cuda(verify_args(false), nullptr).ok());
    } else {
      if (young) young(d_.inputs(row_));
      ASSERT_TRUE(kda_verify_cuda(verify_args(exporting), nullptr).ok());
    }
    check(cycle, offsets, exports, what);
    row_ += offsets.back();
  }
  // The commit alone.
  void finish(const std::vector<int32_t>& accepted, const std::vector<int32_t>& boundary, const std::string& what) {
    std::vector<int32_t> exports;
    for (size_t r = 0; r < boundary.size(); ++r) exports.push_back(free_slot(static_cast<int64_t>(r)));
    set_counts(accepted, {});
    boundary_.set(boundary);
    export_.set(exports);
    ASSERT_TRUE(kda_commit_cuda(commit_args(true), nullptr).ok());
    check({accepted, std::vector<int32_t>(accepted.size(), 0), boundary}, std::vector<int32_t>(accepted.size() + 1, 0),
          exports, what);
    EXPECT_TRUE(d_.untouched(1)) << what;
    EXPECT_TRUE(d_.guards_intact() && u_.guards_intact()) << what;
  }

  // After one window of six tokens of each of three requests: the second has no slot any more.
  void check_negative_slot() {
    const std::vector<int32_t> slots = d_.slots;
    const std::vector<uint8_t> state = d_.state_bytes_of(slots[1]), conv = d_.conv_bytes_of(slots[1]);
    d_.set_slots({slots[0], -1, slots[2]});
    first_[1] = kNowhere;  // what stands there for a request without a slot is not looked at
    set_counts({4, 4, 4}, {0, 6, 12, 18});
    d_.poison_out();
    ASSERT_TRUE(kda_verify_cuda(verify_args(false), nullptr).ok());
    EXPECT_EQ(d_.state_bytes_of(slots[1]), state);
    EXPECT_EQ(d_.conv_bytes_of(slots[1]), conv);
    for (const float x : d_.out(18 + 6, 6)) ASSERT_EQ(x, 0);
    for (const float x : d_.out(18, 6)) ASSERT_TRUE(std::isfinite(x));
  }

  KdaVerifyArgs verify_args(bool exporting) const {
    KdaVerifyArgs a{};
    a.weights = d_.weights(), a.rows = d_.rows(row_), a.offsets = offsets_.data(), a.slots = d_.slot_args();
    a.window = window(), a.commit = commit(exporting), a.batch = static_cast<int32_t>(p_.requests);
    a.launch.dependent = dependent ? 1 : 0, a.launch.early_state = early ? 1 : 0;
    a.launch.form = form;
    return a;
  }
  KdaCommitArgs commit_args(bool exporting) const {
    KdaCommitArgs a{};
    a.weights = d_.weights(), a.slots = d_.slot_args(), a.window = window(), a.commit = commit(exporting);
    a.batch = static_cast<int32_t>(p_.requests);
    return a;
  }
  void set_counts(const std::vector<int32_t>& accepted, const std::vector<int32_t>& offsets) const {
    accepted_.set(accepted);
    first_rows_.set(first_);
    offsets_.set(offsets);
  }

  void check(const VerifyCycle& cycle, const std::vector<int32_t>& offsets, const std::vector<int32_t>& exports,
             const std::string& what) {
    for (size_t r = 0; r < cycle.accepted.size(); ++r) {
      const std::string text = fmt::format("{} T {} H {} {} row {} request {} accepted {}", what, max_tokens_, p_.heads,
                                           p_.state_bf16 ? "bf16" : "f32", row_, r, cycle.accepted[r]);
      const int32_t slot = d_.slots[r];
      std::vector<float> out(static_cast<size_t>(std::max(max_tokens_, 1) * p_.width));
      if (!cycle.boundary.empty()) {
        RequestState s = committed_[r];
        p_.advance(first_[r], cycle.boundary[r], s, out.data());
        expect_state(exports[r], s, cycle.boundary[r], text + " export");
      }
      p_.advance(first_[r], cycle.accepted[r], committed_[r], out.data());
      committed_[r].state = expect_state(slot, committed_[r], cycle.accepted[r], text);
      first_[r] = static_cast<int32_t>(row_) + offsets[r];
      const int64_t count = offsets[r + 1] - offsets[r];
      if (count == 0) continue;
      RequestState s = committed_[r];
      p_.advance(first_[r], count, s, out.data());
      out.resize(static_cast<size_t>(count * p_.width));
      const double ratio = norm_ratio(d_.out(first_[r], count), out);
      EXPECT_LE(ratio, kOutTolerance) << text;
      if (worst != nullptr) worst->out = std::max(worst->out, ratio);
    }
  }

 private:
  std::vector<float> expect_state(int64_t slot, const RequestState& s, int32_t tokens, const std::string& text) {
    const std::vector<float> got = d_.state_of(slot);
    const double ratio = norm_ratio(got, s.state);
    EXPECT_LE(ratio, tokens == 0 ? 0 : state_tolerance(p_.state_bf16)) << text;
    EXPECT_TRUE(d_.conv_is(slot, s)) << text;
    if (worst != nullptr) worst->state = std::max(worst->state, ratio);
    return got;
  }
  // Requests have even slots; exports go to the odd ones from 3 on.
  int32_t free_slot(int64_t request) const {
    return static_cast<int32_t>(2 * request + 3) % static_cast<int32_t>(d_.slot_count());
  }
  KdaWindow window() const {
    KdaWindow w{};
    w.u = u_.data(), w.u_stride = window_stride_ + 8;
    w.max_tokens = max_tokens_;
    return w;
  }
  KdaCommit commit(bool exporting) const {
    const KdaRows rows = d_.rows(0);
    KdaCommit c{};
    c.accepted = accepted_.data(), c.first_rows = first_rows_.data();
    c.z = rows.z, c.z_stride = rows.z_stride;
    for (size_t i = 0; i < 3; ++i) c.x[i] = rows.x[i], c.x_stride[i] = rows.x_stride[i];
    if (exporting) c.boundary = boundary_.data(), c.export_slots = export_.data();
    return c;
  }

  static constexpr int32_t kNowhere = INT32_MIN / 2;  // no row that could be read: before the first window nothing is

  StepProblem p_;
  StepDevice d_;
  int max_tokens_;
  std::vector<RequestState> committed_;
  int64_t window_stride_;
  DeviceArray<float> u_;
  DeviceArray<int32_t> offsets_, accepted_, boundary_, export_, first_rows_;
  std::vector<int32_t> first_;  // row of each request's window; all rows are there to the end
  int64_t row_ = 0;
};

inline std::vector<int32_t> same(size_t n, int32_t value) { return std::vector<int32_t>(n, value); }

}  // namespace k3::ops::cuda
