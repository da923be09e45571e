// Purpose:  choose the next token from one row of logits.
// Shapes:   logits [V] f32; history: token ids the penalties look at.
// Units:    temperature 0 means greedy; top_k 0, top_p 1 and min_p 0 switch their filter off.
// Memory:   a Sampler keeps scratch of V entries; the logits row is not changed.
// Threads:  one Sampler, one thread.
// Errors:   validate() answers invalid_argument naming the parameter; a Sampler takes validated parameters only.
//           sample() answers internal for NaN and +infinity (never a silent token) and when no token is left;
//           a logit of -infinity is a masked token.
// Source:   api.md 3. Order: repetition penalty (divide positive, multiply negative logits of ids in history),
//           presence and frequency penalties (generated ids only), logit bias, temperature, top_k, top_p, min_p
//           (relative to the largest probability). top_p keeps the smallest set of most probable tokens that holds at
//           least top_p of the mass left by top_k; equal probabilities: lowest ids first. A bias of -100 forbids,
//           one of +100 forces (only such ids stay). A mask comes last before the choice: what it leaves out is forbidden. Greedy takes the lowest id on ties. Random numbers are
//           Rng(seed, stream) at the step's counter, so a choice depends on nothing else. plain_row() hands a choice that needs no more than
//           temperature, top_k, top_p and min_p to a device: the same id but where the point falls within 1e-6 of a border
//           (cuda/sampling_cuda.h); greedy ones are always the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "k3/base/result.h"
#include "k3/base/rng.h"
#include "k3/ops/sampling/cuda/sampling_rule.h"

namespace k3::ops {

struct SamplingParams {
  float temperature = 1.0F;
  float top_p = 1.0F;
  int64_t top_k = 0;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias = {};

  Status validate(int64_t vocab) const;
};

class Sampler {
 public:
  Sampler(const SamplingParams& params, int64_t vocab, uint64_t stream = 0);

  // prompt and generated are the ids so far; counter is the number of tokens generated before.
  // mask: empty, or bit id % 32 of word id / 32 is set for every id that may come.
  Result<int32_t> sample(std::span<const float> logits, std::span<const int32_t> prompt, std::span<const int32_t> generated,
                         std::span<const uint32_t> mask = {});

  // What a device needs to choose from a row by itself; none with penalties or biases.
  std::optional<cuda::SampleRow> plain_row(uint64_t counter) const;

 private:
  bool plain() const;
  void penalise(std::span<const int32_t> prompt, std::span<const int32_t> generated);
  void bias();
  void forbid(std::span<const uint32_t> mask);
  void select_top_k();
  void filter_top_p();
  Result<int32_t> draw(float best, uint64_t counter);

  SamplingParams params_;
  Rng rng_;
  size_t vocab_ = 0;
  std::vector<float> scores_;    // adjusted logits
  std::vector<float> weights_;   // exp((score - best) / temperature) of the candidates
  std::vector<int32_t> order_;   // ids of the candidates, ascending (top_k only)
  std::vector<int32_t> picks_;   // scratch of top_p
  std::vector<int32_t> counts_;  // scratch of the penalties; zero between calls
};

// The id, or the errors that sample() has for such a row.
Result<int32_t> chosen_id(const cuda::ChosenRow& row);

// Lowest index of the largest logit; -1 when any is NaN.
int32_t argmax(std::span<const float> logits);

// No NaN and no infinity.
bool all_finite(std::span<const float> values);

// Natural logarithms of the model's own probabilities (temperature 1, nothing filtered), summed in double; `top` receives the
// `count` most probable ids, most probable first (equal ones: lowest id first).
class LogProbs {
 public:
  explicit LogProbs(std::span<const float> logits);
  float of(int32_t id) const { return logits_[static_cast<size_t>(id)] - log_sum_; }
  std::vector<std::pair<int32_t, float>> top(int64_t count) const;

 private:
  std::span<const float> logits_;
  float log_sum_ = 0;
};

}  // namespace k3::ops
