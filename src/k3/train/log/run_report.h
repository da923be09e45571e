// Purpose:  one self-contained HTML page of a training run: curves, evaluations, samples, config.
// Shapes:   none.
// Units:    those of the records.
// Memory:   the page as a string.
// Threads:  pure function.
// Errors:   none.
// Source:   base/report (inline SVG, light and dark, readable on a phone).
#pragma once

#include <string>

#include "k3/train/log/run_log.h"

namespace k3::train {

std::string run_report(const RunFacts& facts, const RunHistory& history);

}  // namespace k3::train
