// The text of `k3 bench --quality` when no file is given: enough to compare settings of one model with each other, far too
// little to compare models.
#pragma once

#include <string_view>

namespace k3::cli {

extern const std::string_view kQualityText;

}  // namespace k3::cli
