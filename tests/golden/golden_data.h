// Golden values written by independent programs (tools/oracle): loading and comparing.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "k3/base/threads.h"
#include "k3/format/npy.h"
#include "k3/model/model.h"

namespace k3::golden {

inline std::string source_path(const std::string& relative) { return std::string(K3_SOURCE_DIR) + "/" + relative; }

inline nlohmann::json read_json(const std::string& relative) {
  std::ifstream in(source_path(relative));
  EXPECT_TRUE(in.good()) << relative;
  return nlohmann::json::parse(in);
}

inline std::vector<int32_t> ids_of(const nlohmann::json& list) { return list.get<std::vector<int32_t>>(); }

inline ThreadPool& test_pool(int threads = 2) {
  static ThreadPool two(2);
  static ThreadPool one(1);
  static ThreadPool three(3);
  return threads == 1 ? one : threads == 3 ? three : two;
}

// Loads once per test program.
inline const Model& model_of(const std::string& relative) {
  static std::map<std::string, std::unique_ptr<Model>> cache;
  std::unique_ptr<Model>& slot = cache[relative];
  if (!slot) slot = std::make_unique<Model>(Model::load(source_path(relative), test_pool()).value());
  return *slot;
}

struct RunSetup {
  ops::Policy policy = ops::Policy::exact;
  bool deterministic = false;
  ops::Isa isa = ops::detect_isa();
  int threads = 2;
};

inline Runner make_runner(const Model& model, const RunSetup& setup, int64_t sequences = 1, int64_t ctx = 2048) {
  RunnerOptions options;
  options.policy = setup.policy;
  options.deterministic = setup.deterministic;
  options.isa = setup.isa;
  options.sequences = sequences;
  options.ctx_tokens = ctx;
  return Runner::create(model, test_pool(setup.threads), options).value();
}

// Logits of every position, the ids fed in chunks of the given sizes (the last repeats).
inline std::vector<float> all_logits(const Model& model, const std::vector<int32_t>& ids, const RunSetup& setup,
                                     const std::vector<int64_t>& chunks) {
  Runner runner = make_runner(model, setup);
  std::vector<float> out;
  int64_t begin = 0;
  for (size_t c = 0; begin < static_cast<int64_t>(ids.size()); ++c) {
    const int64_t size = chunks[std::min(c, chunks.size() - 1)];
    const int64_t end = std::min<int64_t>(begin + size, static_cast<int64_t>(ids.size()));
    const StepInput input{0, std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                          StepInput::Logits::all};
    const Tensor logits = runner.step(std::span(&input, 1)).value();
    out.insert(out.end(), logits.f32(), logits.f32() + logits.size());
    begin = end;
  }
  return out;
}

inline std::vector<float> whole_logits(const Model& model, const std::vector<int32_t>& ids, const RunSetup& setup) {
  return all_logits(model, ids, setup, {static_cast<int64_t>(ids.size())});
}

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return worst;
}

inline int32_t argmax_of(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

inline std::vector<int32_t> greedy(const Model& model, const std::vector<int32_t>& prompt, int64_t count,
                                   const RunSetup& setup) {
  Runner runner = make_runner(model, setup);
  std::span<const float> logits = runner.feed(0, prompt).value();
  std::vector<int32_t> out;
  while (static_cast<int64_t>(out.size()) < count) {
    out.push_back(argmax_of(logits));
    logits = runner.feed(0, std::span(&out.back(), 1)).value();
  }
  return out;
}

}  // namespace k3::golden
