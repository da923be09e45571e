// Purpose:  edits of a config.json that keep everything else of it as it is, in order.
// Shapes:   none.
// Units:    none.
// Memory:   text in, text out.
// Threads:  pure functions.
// Errors:   invalid_argument naming the assignment or the path; corrupt for text that is not JSON.
// Source:   model.md 1.3 (quantization_config), the released layout.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "k3/base/result.h"

namespace k3 {

// Each assignment is "field=value" or "dotted.path=value"; the value is JSON, or else taken as a string. A bare
// name means the field of that name wherever the config has it (text_config and top level alike, then
// linear_attn_config, vision_config); of names the config lacks only those of its optional fields are added, to the
// text config, and those in `addable`, to the top level. In a path the number of an item stands for it: "phases.0.steps".
// Lowering num_hidden_layers trims both layer lists.
Result<std::string> edit_config(std::string_view json, std::span<const std::string> assignments,
                                std::span<const std::string_view> addable = {});

// Drops vision_config and the vision fields of the top level.
Result<std::string> remove_vision(std::string_view json);

// Writes or removes the quantization_config of packed MXFP4 experts.
Result<std::string> set_expert_packing(std::string_view json, bool mxfp4);

// The dtype that a config states, wherever and under whichever of its two names; one that states none gets "dtype".
Result<std::string> set_dtype(std::string_view json, std::string_view dtype);

// Writes or removes the trunk_quantization of matrices in 8 bits.
Result<std::string> set_trunk_packing(std::string_view json, bool int8);

}  // namespace k3
