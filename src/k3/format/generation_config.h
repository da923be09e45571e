// Purpose:  the sampling defaults and end tokens a checkpoint recommends (generation_config.json).
// Shapes:   none.
// Units:    none.
// Memory:   plain values.
// Threads:  pure function.
// Errors:   corrupt naming the file and field; a missing file gives empty defaults.
// Source:   model.md 5.4: generation stops at eos_token_id of this file, not at the tokenizer's [EOS].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k;
};

Result<GenerationConfig> load_generation_config(const std::string& folder);

}  // namespace k3
