// Purpose:  a text that changes whenever a checkpoint does, for caches that outlive the process.
// Shapes:   none.
// Units:    none.
// Memory:   reads config.json and the sizes and times of the weight files, not the weights.
// Threads:  pure.
// Errors:   none: a file that cannot be read makes the text unique to this call.
// Source:   serving.md 3.1 (extra keys). A copy of a checkpoint with new file times counts as another one: that costs a cold
//           cache, the opposite mistake would cost wrong answers.
#pragma once

#include <string>

namespace k3 {

std::string model_identity(const std::string& folder);  // 64 hex digits

}  // namespace k3
