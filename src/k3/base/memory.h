// How much memory this process may still take: the system's estimate, cut by the limits of its control groups (v1 and
// v2), so that a container of 8 GiB on a large machine is seen as what it is.
#pragma once

#include <cstdint>
#include <string>

namespace k3 {

int64_t available_memory_bytes();  // a very large number when nothing can be read

// For tests: the same from a given root ("" is the real one) and control-group membership file.
int64_t available_memory_bytes(const std::string& root);

}  // namespace k3
