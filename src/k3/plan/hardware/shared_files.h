// Purpose:  the files of share/, embedded in the program by cmake/embed.cmake: hardware records, published measurements,
//           configs of known models.
// Shapes:   none.
// Units:    none.
// Memory:   static.
// Threads:  any.
// Errors:   null for a path without a file.
// Source:   none.
#pragma once

#include <span>
#include <string_view>

namespace k3::plan {

struct Asset {
  std::string_view path, content_type, bytes;  // path from share/, with a slash before it: "/hardware/h200.toml"
};

const Asset* find_asset(std::string_view path);
std::span<const Asset> all_assets();

}  // namespace k3::plan
