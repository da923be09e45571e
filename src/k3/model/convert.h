// Purpose:  rewrites a checkpoint: expert packing, trunk dtype, number of shards.
// Shapes:   unchanged.
// Units:    bytes.
// Memory:   one tensor (of one expert matrix) at a time.
// Threads:  one caller.
// Errors:   those of Checkpoint and CheckpointWriter; invalid_argument for experts that cannot be packed
//           (width not a multiple of 32, values out of range), naming the tensor.
// Source:   model.md 2.5 and trap 16: tensors that need no change pass through byte for byte, and small F32
//           parameters keep their dtype whatever the trunk becomes.
#pragma once

#include <optional>
#include <string>

#include "k3/format/checkpoint.h"
#include "k3/format/config.h"
#include "k3/model/weights.h"

namespace k3 {

struct ConvertOptions {
  enum class Experts { keep, mxfp4, bf16 } experts = Experts::keep;
  std::optional<DType>
      trunk;  // bf16, f16 or f32 for what the released layout stores as BF16; i8: its large matrices (params.h)
  std::optional<int64_t> shards;  // absent: as many as the source
};

struct ConvertReport {
  int64_t tensors = 0, passed_through = 0, quantised = 0, dequantised = 0, recast = 0;
  int64_t source_bytes = 0, written_bytes = 0;
};

// Writes the tensors only; files beside them (config, tokenizer) are the caller's.
Result<ConvertReport> convert_checkpoint(const Checkpoint& source, const Config& config, const std::string& folder,
                                         const ConvertOptions& options, const LoadProgress& progress);

}  // namespace k3
