// What tests of the simulator share: a small shape, a clock of round numbers, traces of the test data.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "k3/base/stream/input_stream.h"
#include "k3/plan/sim/fleet.h"

namespace k3::test {

// 1 s a step, and 1 ms for each token of a prompt.
class RoundClock final : public plan::StepClock {
 public:
  double step_seconds(std::span<const plan::StepPart> parts) const override {
    double seconds = 1;
    for (const plan::StepPart& part : parts) seconds += part.decode ? 0 : 1e-3 * static_cast<double>(part.new_tokens);
    return seconds;
  }
};

// Every number of a step makes a difference, and sums of such numbers do not round the same way in another order.
class FussyClock final : public plan::StepClock {
 public:
  double step_seconds(std::span<const plan::StepPart> parts) const override {
    double seconds = 0.0031;
    for (const plan::StepPart& part : parts) {
      seconds += 1.7e-4 * static_cast<double>(part.new_tokens) + 3.3e-9 * static_cast<double>(part.history_tokens) + (part.decode ? 1e-3 / 7 : 2e-3 / 3);
    }
    return seconds;
  }
};

// Two MLA layers and six of KDA in three groups; blocks of so many tokens.
inline cache::CacheShape small_shape(int64_t block_tokens = 128) { return cache::make_shape({2, 6, 5000, 100, 8}, {}, block_tokens).value(); }

inline plan::SimScenario small_scenario(int64_t pages, std::shared_ptr<const plan::StepClock> clock = std::make_shared<RoundClock>(),
                                     int64_t block_tokens = 128) {
  plan::SimScenario s;
  s.engine.shape = small_shape(block_tokens);
  s.engine.pool_bytes = pages * s.engine.shape.page_bytes;
  s.engine.core.block_tokens = block_tokens;
  s.engine.core.ctx_tokens = 1 << 20;
  s.engine.core.step_tokens = 1 << 20;
  s.engine.core.keep_idle = false;
  s.engine.policy = {true, false, 0, false, false};
  s.engine.clock = std::move(clock);
  return s;
}

inline std::string unpacked(const std::string& name) {
  InputStream stream = InputStream::open(std::string(K3_SOURCE_DIR) + "/tests/data/traces/" + name).value();
  std::string text;
  for (std::vector<char> part(1 << 20);;) {
    const size_t got = stream.read(part).value();
    text.append(part.data(), got);
    if (got < part.size()) return text;
  }
}

inline plan::Workload workload_of(std::string text, const TraceWorkload& cut = {}, bool answers_continue = true) {
  TraceReader reader = TraceReader::of_text(std::move(text), "trace").value();
  return plan::make_workload(workload_from_trace(reader, cut).value(), answers_continue).value();
}

// A request without a session; equal ids are equal prompts as far as the shorter one goes.
inline PlannedRequest lone(int64_t input_tokens, int64_t output_tokens, uint64_t id, double at_seconds) {
  PlannedRequest out;
  out.at_s = at_seconds;
  out.input_tokens = input_tokens;
  out.output_tokens = output_tokens;
  out.prompt = {{id, input_tokens}};
  return out;
}

inline plan::SimResult run(const plan::SimScenario& scenario, const std::vector<PlannedRequest>& requests) {
  return plan::simulate(scenario, plan::make_workload(requests).value()).value();
}

}  // namespace k3::test
