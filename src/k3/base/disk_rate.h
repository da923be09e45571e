// How fast a file can be read past the page cache, in the way that weights are read: the ceiling of a model that is larger
// than memory. Sequential: pieces of 1 MiB in order. Random: ranges of `range_bytes` (an expert) at random places.
// Errors: those of DiskReader. Files smaller than a range are read whole; small files say little.
#pragma once

#include <cstdint>
#include <string>

#include "k3/base/result.h"

namespace k3 {

struct DiskRate {
  double sequential_bytes_per_second = 0, random_bytes_per_second = 0;
  bool direct = false, ring = false;  // O_DIRECT, io_uring
};

// Takes about 2 * seconds.
Result<DiskRate> measure_disk_read(const std::string& path, int64_t range_bytes = int64_t{2} << 20, double seconds = 1.0);

}  // namespace k3
