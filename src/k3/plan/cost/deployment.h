// Purpose:  a model on accelerators: what every formula of memory and time is given.
// Shapes:   none.
// Units:    as its parts.
// Memory:   plain values.
// Threads:  immutable by use.
// Errors:   none here; validate(deployment) (validate.h) comes before any formula that takes one.
// Source:   cost-model.md 1, 2, 7, 8.
#pragma once

#include "k3/plan/cost/counts.h"
#include "k3/plan/cost/layout.h"
#include "k3/plan/cost/precision.h"
#include "k3/plan/hardware/hardware.h"

namespace k3::plan {

struct Deployment {
  Counts counts;
  Hardware hardware;
  Efficiency efficiency;
  Layout layout;
  Precision precision;
};

// One term of a step on one accelerator. Seconds are those of the slower of the two roofs.
struct Part {
  double seconds = 0;
  double bytes = 0;  // read or written in HBM; of `communication`: moved over links
  double flops = 0;
};

struct NamedPart {
  const char* name;
  Part part;
};

}  // namespace k3::plan
