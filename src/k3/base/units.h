// Human sizes, counts and times: "8GiB" <-> 8589934592, "2.78T", "1.4 s".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "k3/base/result.h"

namespace k3 {

std::string format_bytes(int64_t bytes);     // binary units: "1.42 TiB", "69.1 MiB", "512 B"
std::string format_count(double count);      // "2.78 T", "104.19 B", "55.1 M", "912"
std::string format_grouped(int64_t count);   // "2,779,931,837,184"
std::string format_seconds(double seconds);  // "1.4 s", "12 ms", "3 min 20 s"

// Accepts 4096, 8GiB, 8G (binary), 1.5MB (decimal), case-insensitive. Negative or overflowing sizes are errors.
Result<int64_t> parse_bytes(std::string_view text);

}  // namespace k3
