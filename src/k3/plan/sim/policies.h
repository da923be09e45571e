// Purpose:  checkpoint policies by name.
// Shapes:   every | end | end+N | end+second | end+second+N | serve (what k3 serve does); N tokens.
// Units:    tokens.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   invalid_argument for a name that is none and for an N that is no multiple of a block.
// Source:   cost-model.md 10.5; serving.md 3.2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "k3/cache/hybrid_cache.h"

namespace k3::plan {

Result<cache::CheckpointPolicy> checkpoint_policy(std::string_view name, int64_t block_tokens);

// "all", or names with commas between them.
Result<std::vector<std::string>> policy_names(std::string_view list, int64_t block_tokens);

}  // namespace k3::plan
