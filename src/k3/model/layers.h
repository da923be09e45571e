// Purpose:  the layer functions: written once, forward only, for every phase and device.
// Shapes:   x: the site whose out [T, hidden] is the input, computed by the layer's first products; without a prefix: the input is
//           there. out [T, hidden] f32. With x.out_rest the input has two rows, and so has what the last product of a token mixer meets.
// Units:    none.
// Memory:   out is overwritten; caches of the batch are advanced; scratch from the workspace.
// Threads:  one step at a time per Ctx.
// Errors:   moe_layer: those of reading experts; else none: arguments are checked by the loader and the ops.
// Source:   model.md 3.3-3.6.
#pragma once

#include "k3/format/config.h"
#include "k3/model/batch.h"
#include "k3/model/stream/weight_stream.h"
#include "k3/model/weights.h"
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/ctx.h"
#include "k3/ops/situ_glu/situ_glu.h"

namespace k3 {

void kda_layer(const ops::Ctx& ctx, const Config& config, const KdaWeights& w, const Batch& batch, const LayerCache& cache,
               const ops::AttnResSite& x, const Tensor& out);
void mla_layer(const ops::Ctx& ctx, const Config& config, const MlaWeights& w, const Batch& batch, const LayerCache& cache,
               const ops::AttnResSite& x, const Tensor& out);
void mlp_layer(const ops::Ctx& ctx, const ops::Glu& activation, const MlpWeights& w, const ops::AttnResSite& x, const Tensor& out);
// `stream` holds the routed experts of layer `l` where they are not all in memory (w.experts is empty then).
Status moe_layer(const ops::Ctx& ctx, const Config& config, const MoeWeights& w, int64_t l, WeightStream* stream,
                 const ops::AttnResSite& x, const Tensor& out);

ops::Glu activation_of(const Config& config);

}  // namespace k3
