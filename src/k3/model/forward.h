// Purpose:  one step of the text model: tokens of a Batch in, logits of the wanted rows out.
// Shapes:   logits [batch.logit_rows, vocab] f32.
// Units:    none.
// Memory:   logits overwritten, caches advanced, scratch from the workspace.
// Threads:  one step at a time per Ctx and per cache.
// Errors:   none: token ids and cache room are checked by the caller (Model::check_ids, SequencePool::grow).
// Source:   model.md 3.1.
#pragma once

#include "k3/format/config.h"
#include "k3/model/batch.h"
#include "k3/model/weights.h"
#include "k3/ops/ctx.h"

namespace k3 {

void forward(const ops::Ctx& ctx, const Config& config, const WeightSet& weights, const Batch& batch, const Tensor& logits);

}  // namespace k3
