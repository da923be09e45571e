// The text of a training config. What is accepted keeps the promises that the trainer relies on.
#include <cmath>
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/train/run/train_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto result = k3::train::parse_train_config({reinterpret_cast<const char*>(data), size}, "/nowhere/fuzz.json");
  if (!result.ok()) {
    K3_CHECK(k3::is_utf8(result.error().message), "{}", result.error().message);
    return 0;
  }
  const k3::train::TrainConfig& c = *result;
  K3_CHECK(!c.phases.empty() && c.phases.front().new_schedule && !c.tokenizer.empty() && !c.data.empty());
  K3_CHECK(c.start_sha256.empty() || !c.start.empty());
  for (const k3::train::Phase& phase : c.phases) {
    K3_CHECK(phase.steps >= 0 && phase.sequence_tokens >= 2 && phase.micro_batches >= 1 && !phase.sources.empty());
    K3_CHECK(phase.tokens_per_step > 0 && phase.tokens_per_step % (phase.sequence_tokens * phase.micro_batches) == 0);
    K3_CHECK(std::isfinite(phase.learning_rate) && (!phase.mxfp4_experts || c.model.experts_mxfp4));
  }
  const int64_t total = c.total_steps();
  K3_CHECK(total >= 0);
  for (const int64_t step : {int64_t{0}, total / 2, total}) K3_CHECK(c.place(step).phase < c.phases.size() && c.place(step).first_step <= step);
  K3_CHECK(c.recipe.clip > 0 && c.sample.tokens >= 1 && c.evaluate_every >= 0 && c.checkpoint_every >= 0);
  return 0;
}
