// Purpose:  the one gate before the cost formulas: what a person, a file or a sweep asks for is possible, or named as not.
// Shapes:   none.
// Units:    as the structs.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   invalid_argument with the field, its value and what would do: a cell of hardware or efficiency that is zero,
//           negative, not finite or beyond any machine; a layout that does not divide heads, experts or layers; a batch that
//           is empty or beyond any machine. unsupported: a model without KDA or without MLA layers (the formulas compare the
//           two caches), tp-sliced experts over several attention groups. Nothing reaches a CHECK.
// Source:   cost-model.md 2, 7, 8; the bounds are a thousand times what exists.
#pragma once

#include "k3/base/result.h"
#include "k3/plan/cost/decode.h"
#include "k3/plan/cost/deployment.h"
#include "k3/plan/cost/prefill.h"
#include "k3/plan/cost/service.h"

namespace k3::plan {

Status validate(const Hardware& hardware);
Status validate(const Efficiency& efficiency);
Status validate(const Precision& precision);
Status validate(const Counts& counts);
Status validate(const Layout& layout, const Counts& counts);
Status validate(const Deployment& deployment);  // all of the above

Status validate(const DecodeBatch& batch);
Status validate(const PrefillBatch& batch);
Status validate(const ClosedLoad& load);

}  // namespace k3::plan
