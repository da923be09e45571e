// Purpose:  the files of the built-in page: all of src/k3/server/web/assets, embedded by cmake/embed.cmake.
// Shapes:   none.
// Units:    none.
// Memory:   static.
// Threads:  any.
// Errors:   null for a path without a file.
// Source:   none.
#pragma once

#include <string_view>

namespace k3::server::web {

struct Asset {
  std::string_view path, content_type, bytes;  // "/" is index.html
};

const Asset* find_asset(std::string_view path);

// The page talks to its own server only, and runs no script and no style but its files.
inline constexpr std::string_view kContentSecurityPolicy =
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace k3::server::web
