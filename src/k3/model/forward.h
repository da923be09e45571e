// Purpose:  one step of the text model: tokens of a Batch in, logits of the wanted rows out.
// Shapes:   logits [batch.logit_rows, vocab] f32.
// Units:    none.
// Memory:   logits overwritten, caches advanced, scratch from the workspace.
// Threads:  one step at a time per Ctx and per cache.
// Errors:   with all weights in memory none; else those of WeightStream: the step is half done then, and so are the caches.
//           Token ids and cache room are checked by the caller (Model::check_ids, SequencePool::room).
// Source:   model.md 3.1.
#pragma once

#include "k3/format/config.h"
#include "k3/model/batch.h"
#include "k3/model/stream/weight_stream.h"
#include "k3/ops/ctx.h"

namespace k3 {

Status forward(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch,
               const Tensor& logits);

// In training, and where it measures losses: the last layer's input for all tokens, hidden [T, hidden_size], before lm_head. No
// cache is read or written; every sequence of the batch begins at its first token (history 0). With a tape the workspace retains,
// and the batch and its spans must live until the backward is done.
Status forward_hidden(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch, const Tensor& hidden);

}  // namespace k3
