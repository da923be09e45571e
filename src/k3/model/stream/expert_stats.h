// Purpose:  which experts a model has used, in a small JSON file that is read at the next start.
// Shapes:   counts [layers * experts].
// Units:    tokens.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   corrupt: not such a file; invalid_argument: of a model of other sizes. Messages name the file. The file is
//           written whole or not at all.
// Source:   {"k3_expert_stats": 1, "layers": L, "experts": E, "counts": [[E numbers] x L]}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

Result<std::vector<uint64_t>> read_expert_stats(const std::string& path, int64_t layers, int64_t experts);
// That the file can be written at the end: said before anything is read, not when what was learned would be lost.
Status check_expert_stats_path(const std::string& path);
Status write_expert_stats(const std::string& path, int64_t layers, int64_t experts, const std::vector<uint64_t>& counts);

}  // namespace k3
