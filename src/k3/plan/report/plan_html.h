// Purpose:  a plan as one self-contained page: answers, frontier with the objective's box, memory and prefill time against
//           length, a step by parts, mechanisms, speculation, prefix cache; a second scenario beside it.
// Shapes:   none.
// Units:    seconds, bytes, tokens/s.
// Memory:   the text.
// Threads:  pure function.
// Errors:   none: a plan that does not fit gives a page that says what is missing.
// Source:   docs/planning.md.
#pragma once

#include <string>
#include <vector>

#include "k3/plan/report/plan_json.h"

namespace k3::plan {

std::string plan_html(const Plan& plan, const Plan* against);

// Each plot of the page as a file of its own, with its title and light and dark colours; none of a plan that does not fit.
struct SvgFile {
  std::string name, text;  // "frontier.svg"
};
std::vector<SvgFile> plan_svgs(const Plan& plan, const Plan* against);

}  // namespace k3::plan
