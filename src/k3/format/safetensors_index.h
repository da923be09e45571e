// Internal to format.
//
// model.safetensors.index.json: {"metadata": {"total_size": n}, "weight_map": {tensor name: shard file}}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/safetensors_names.h"

namespace k3::safetensors {

struct Index {
  NameTable names;  // in file order, each with its shard
  std::vector<std::string> shard_files;
  std::optional<int64_t> total_size;
};

// Takes the text over: the names are packed inside it. `file` names it in messages.
Result<Index> parse_index(Text json, const std::string& file);

}  // namespace k3::safetensors
