// The address of an endpoint: http://host:port/prefix/v1. No TLS: https is refused with a message.
#pragma once

#include <string>
#include <string_view>

#include "k3/base/result.h"

namespace k3::server {

struct Url {
  std::string host, port;  // host without the brackets of IPv6
  std::string prefix;      // "" or "/prefix", without /v1

  std::string authority() const;  // host:port, for the Host header and for messages
  std::string target(std::string_view route) const { return prefix + "/v1" + std::string(route); }
};

// "localhost:8000", "http://host", "http://[::1]:8000/v1/", "http://host/prefix".
Result<Url> parse_url(std::string_view text);

}  // namespace k3::server
