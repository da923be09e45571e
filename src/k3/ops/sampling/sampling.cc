#include "k3/ops/sampling/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "k3/base/check.h"
#include "k3/ops/cpu/vec_apply.h"
#include "k3/ops/cpu/vec_portable.h"

namespace k3::ops {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr float kBiasLimit = 100.0F;  // at the limits a bias forbids or forces

Status in_range(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return fail(Code::invalid_argument, "{} is {}, must be from {} to {}", name, value, low, high);
}

// Largest value of a row, or NaN when any entry is NaN.
float row_max(const float* x, size_t count) {
  using V = VecPortable;
  V::F best = V::set(kForbidden);
  V::F nan = V::zero();  // becomes NaN with the first NaN: 0 * x would miss none, but infinities are legal here
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const V::F v = V::load(x + i);
    best = V::max(v, best);
    nan = v == v ? nan : v;
  }
  float result = V::max_lane(best);
  bool bad = false;
  for (int lane = 0; lane < 4; ++lane) bad = bad || std::isnan(nan[lane]);
  for (; i < count; ++i) {
    bad = bad || std::isnan(x[i]);
    result = std::max(result, x[i]);
  }
  return bad ? std::numeric_limits<float>::quiet_NaN() : result;
}

Error nothing_allowed() {
  return fail(Code::internal, "no token is allowed: every logit is -infinity or forbidden (logit_bias, structured output)");
}

}  // namespace

namespace {

int32_t first_of(std::span<const float> values, float value) {
  const auto it = std::find(values.begin(), values.end(), value);
  return it == values.end() ? -1 : static_cast<int32_t>(it - values.begin());
}

}  // namespace

int32_t argmax(std::span<const float> logits) {
  const float best = row_max(logits.data(), logits.size());
  return std::isnan(best) ? -1 : first_of(logits, best);
}

LogProbs::LogProbs(std::span<const float> logits) : logits_(logits) {
  const float best = row_max(logits.data(), logits.size());
  double sum = 0;
  constexpr size_t kBlock = 256;
  float e[kBlock];
  for (size_t i = 0; i < logits.size(); i += kBlock) {
    const size_t n = std::min(kBlock, logits.size() - i);
    for (size_t j = 0; j < n; ++j) e[j] = logits[i + j] - best;
    vec_apply_portable(VecFn::exp, e, static_cast<int64_t>(n), e);
    for (size_t j = 0; j < n; ++j) sum += static_cast<double>(e[j]);
  }
  log_sum_ = best + static_cast<float>(std::log(sum));
}

std::vector<std::pair<int32_t, float>> LogProbs::top(int64_t count) const {
  if (count <= 0) return {};
  std::vector<int32_t> ids(logits_.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto n = std::min(static_cast<size_t>(count), ids.size());
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n), ids.end(), better);
  std::vector<std::pair<int32_t, float>> out;
  for (size_t i = 0; i < n; ++i) out.emplace_back(ids[i], of(ids[i]));
  return out;
}

bool all_finite(std::span<const float> values) {
  // By bits: a chain of FP additions would take four cycles a number.
  constexpr uint32_t kExponent = 0x7F800000;
  constexpr size_t kBlock = 16;
  uint32_t bad[kBlock] = {};
  const auto check = [](float x) -> uint32_t { return (std::bit_cast<uint32_t>(x) & kExponent) == kExponent ? 1 : 0; };
  size_t i = 0;
  for (; i + kBlock <= values.size(); i += kBlock) {
    for (size_t j = 0; j < kBlock; ++j) bad[j] |= check(values[i + j]);
  }
  for (; i < values.size(); ++i) bad[0] |= check(values[i]);
  return std::all_of(std::begin(bad), std::end(bad), [](uint32_t b) { return b == 0; });
}

Status SamplingParams::validate(int64_t vocab) const {
  constexpr double kLarge = 1e9;
  K3_TRY(in_range("temperature", static_cast<double>(temperature), 0, kLarge));
  K3_TRY(in_range("top_p", static_cast<double>(top_p), 0, 1));
  if (top_p == 0.0F) return fail(Code::invalid_argument, "top_p is 0, must be greater than 0 and at most 1");
  if (top_k < 0) return fail(Code::invalid_argument, "top_k is {}, must be 0 (off) or positive", top_k);
  K3_TRY(in_range("min_p", static_cast<double>(min_p), 0, 1));
  K3_TRY(in_range("repetition_penalty", static_cast<double>(repetition_penalty), 0, kLarge));
  if (repetition_penalty == 0.0F)
    return fail(Code::invalid_argument, "repetition_penalty is 0, must be positive (1 is off)");
  K3_TRY(in_range("presence_penalty", static_cast<double>(presence_penalty), -2, 2));
  K3_TRY(in_range("frequency_penalty", static_cast<double>(frequency_penalty), -2, 2));
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab) {
      return fail(Code::invalid_argument, "logit_bias: token id {} is not in 0..{}", id, vocab - 1);
    }
    if (!(std::abs(bias) <= kBiasLimit)) {
      return fail(Code::invalid_argument, "logit_bias: bias {} of token id {} must be from -100 to 100", bias, id);
    }
  }
  return {};
}

Sampler::Sampler(const SamplingParams& params, int64_t vocab, uint64_t stream) : params_(params), rng_(params.seed, stream) {
  K3_CHECK(vocab > 0, "sampler of {} tokens", vocab);
  vocab_ = static_cast<size_t>(vocab);
}

// scores_ = logits after the penalties; counts_ is zero before and after.
void Sampler::penalise(std::span<const int32_t> prompt, std::span<const int32_t> generated) {
  counts_.resize(vocab_);
  const auto known = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < vocab_; };
  if (params_.repetition_penalty != 1.0F) {
    for (const auto ids : {prompt, generated}) {
      for (const int32_t id : ids) {
        if (!known(id) || counts_[static_cast<size_t>(id)]++ != 0) continue;
        float& score = scores_[static_cast<size_t>(id)];
        score = score > 0 ? score / params_.repetition_penalty : score * params_.repetition_penalty;
      }
    }
    for (const auto ids : {prompt, generated}) {
      for (const int32_t id : ids) {
        if (known(id)) counts_[static_cast<size_t>(id)] = 0;
      }
    }
  }
  if (params_.presence_penalty == 0.0F && params_.frequency_penalty == 0.0F) return;
  for (const int32_t id : generated) {
    if (known(id)) ++counts_[static_cast<size_t>(id)];
  }
  for (const int32_t id : generated) {
    if (!known(id) || counts_[static_cast<size_t>(id)] == 0) continue;
    int32_t& count = counts_[static_cast<size_t>(id)];
    scores_[static_cast<size_t>(id)] -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    count = 0;
  }
}

// Biases onto scores_. One of +100 forces: only ids that have it stay.
void Sampler::bias() {
  bool forced = false;
  for (const auto& [id, bias] : params_.logit_bias) {
    float& score = scores_[static_cast<size_t>(id)];
    score = bias <= -kBiasLimit ? kForbidden : score + bias;
    forced = forced || bias >= kBiasLimit;
  }
  if (!forced) return;
  std::vector<std::pair<int32_t, float>> kept;
  for (const auto& [id, bias] : params_.logit_bias) {
    if (bias >= kBiasLimit) kept.emplace_back(id, scores_[static_cast<size_t>(id)]);
  }
  std::fill(scores_.begin(), scores_.end(), kForbidden);
  for (const auto& [id, score] : kept) scores_[static_cast<size_t>(id)] = score;
}

void Sampler::forbid(std::span<const uint32_t> mask) {
  K3_CHECK(mask.size() * 32 >= vocab_, "mask of {} words for {} tokens", mask.size(), vocab_);
  for (size_t i = 0; i < vocab_; i += 32) {
    const uint32_t word = mask[i / 32];
    if (word == ~uint32_t{0}) continue;
    for (size_t j = i; j < std::min(vocab_, i + 32); ++j) {
      if ((word >> (j - i) & 1) == 0) scores_[j] = kForbidden;
    }
  }
}

// order_ = ids (ascending) of the top_k best scores; equal scores: lowest ids first.
void Sampler::select_top_k() {
  const auto k = static_cast<size_t>(params_.top_k);
  if (k >= vocab_) {
    order_.resize(vocab_);
    for (size_t i = 0; i < vocab_; ++i) order_[i] = static_cast<int32_t>(i);
    return;
  }
  // The k-th largest of the maxima of blocks bounds the k-th largest score from below, so few entries remain.
  constexpr size_t kBlock = 64;
  float bound = kForbidden;
  if (k <= vocab_ / kBlock) {
    weights_.clear();
    for (size_t i = 0; i < vocab_; i += kBlock) {
      weights_.push_back(*std::max_element(scores_.begin() + static_cast<ptrdiff_t>(i),
                                           scores_.begin() + static_cast<ptrdiff_t>(std::min(vocab_, i + kBlock))));
    }
    std::nth_element(weights_.begin(), weights_.begin() + static_cast<ptrdiff_t>(k - 1), weights_.end(), std::greater<>());
    bound = weights_[k - 1];
  }
  order_.clear();
  for (size_t i = 0; i < vocab_; ++i) {
    if (scores_[i] >= bound) order_.push_back(static_cast<int32_t>(i));
  }
  const auto better = [&](int32_t a, int32_t b) {
    const float x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(k - 1), order_.end(), better);
  order_.resize(k);
  std::sort(order_.begin(), order_.end());
}

// Sets the weight of every entry outside the smallest set that holds top_p of the mass to 0. Equal weights: earlier entries
// first. A selection by halves: the set is found without sorting.
void Sampler::filter_top_p() {
  double total = 0;
  for (const float w : weights_) total += static_cast<double>(w);
  // All entries below `small` together weigh less than what is cut, so the set lies among the others.
  const double small = (1.0 - static_cast<double>(params_.top_p)) * total / static_cast<double>(weights_.size());
  picks_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (static_cast<double>(weights_[i]) >= small) picks_.push_back(static_cast<int32_t>(i));
  }
  const auto better = [&](int32_t a, int32_t b) {
    const float x = weights_[static_cast<size_t>(a)], y = weights_[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  double target = static_cast<double>(params_.top_p) * total;
  auto begin = picks_.begin(), end = picks_.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, better);
    double sum = 0;
    for (auto it = begin; it != middle; ++it) sum += static_cast<double>(weights_[static_cast<size_t>(*it)]);
    if (sum >= target) {
      end = middle;
    } else {
      target -= sum;
      begin = middle;
    }
  }
  if (begin == picks_.end()) return;
  const int32_t last = *begin;  // the last entry that belongs to the set
  const float bound = weights_[static_cast<size_t>(last)];
  for (size_t i = 0; i < weights_.size(); ++i) {
    const bool kept = weights_[i] > bound || (weights_[i] == bound && static_cast<int32_t>(i) <= last);
    if (!kept) weights_[i] = 0.0F;
  }
}

Result<int32_t> Sampler::draw(float best, uint64_t counter) {
  const bool all = params_.top_k == 0;
  if (!all) select_top_k();
  const size_t count = all ? vocab_ : order_.size();
  weights_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const float score = scores_[all ? i : static_cast<size_t>(order_[i])];
    weights_[i] = (score - best) / params_.temperature;
  }
  // One arithmetic on every processor, so that a seed means the same choice everywhere.
  vec_apply_portable(VecFn::exp, weights_.data(), static_cast<int64_t>(count), weights_.data());
  if (params_.top_p < 1.0F) filter_top_p();
  if (params_.min_p > 0.0F) {
    for (float& w : weights_) w = w >= params_.min_p ? w : 0.0F;  // the largest weight is 1
  }
  double total = 0;
  for (const float w : weights_) total += static_cast<double>(w);
  const double point = rng_.uniform(counter) * total;
  double sum = 0;
  size_t chosen = 0;
  for (size_t i = 0; i < count; ++i) {
    if (weights_[i] == 0.0F) continue;
    chosen = i;  // the last entry with weight, should rounding leave the point at the end
    sum += static_cast<double>(weights_[i]);
    if (sum > point) break;
  }
  return all ? static_cast<int32_t>(chosen) : order_[chosen];
}

bool Sampler::plain() const {
  return params_.repetition_penalty == 1.0F && params_.presence_penalty == 0.0F && params_.frequency_penalty == 0.0F && params_.logit_bias.empty();
}

std::optional<cuda::SampleRow> Sampler::plain_row(uint64_t counter) const {
  if (!plain()) return {};
  const auto top_k = static_cast<int32_t>(std::min(params_.top_k, static_cast<int64_t>(vocab_)));
  return cuda::SampleRow{params_.temperature, params_.top_p, params_.min_p, top_k, rng_.uniform(counter)};
}

Result<int32_t> chosen_id(const cuda::ChosenRow& row) {
  if ((row.flags & cuda::kSampleBroken) != 0) return fail(Code::internal, "the logits contain NaN or infinity: the model's numbers are broken");
  if ((row.flags & cuda::kSampleNoToken) != 0) return nothing_allowed();
  return row.id;
}

Result<int32_t> Sampler::sample(std::span<const float> logits, std::span<const int32_t> prompt,
                                std::span<const int32_t> generated, std::span<const uint32_t> mask) {
  K3_CHECK(logits.size() == vocab_, "sample: {} logits, vocabulary of {}", logits.size(), vocab_);
  const bool plain = this->plain() && mask.empty();
  const float raw = row_max(logits.data(), logits.size());
  if (std::isnan(raw)) return fail(Code::internal, "the logits contain NaN: the model's numbers are broken");
  if (raw == std::numeric_limits<float>::infinity()) return fail(Code::internal, "the logits contain infinity");
  if (plain && params_.temperature == 0.0F && raw != kForbidden) return first_of(logits, raw);
  scores_.assign(logits.begin(), logits.end());
  penalise(prompt, generated);
  bias();
  if (!mask.empty()) forbid(mask);
  const float best = plain ? raw : row_max(scores_.data(), scores_.size());
  if (!(best > kForbidden)) return nothing_allowed();
  if (params_.temperature == 0.0F) return first_of(scores_, best);
  return draw(best, generated.size());
}

}  // namespace k3::ops
