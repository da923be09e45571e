// SHA-256 (FIPS 180-4), for check values of text; not a tool for secrets.
#pragma once

#include <string>
#include <string_view>

namespace k3 {

// 64 lower-case hex digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace k3
