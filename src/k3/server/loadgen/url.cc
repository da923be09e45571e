#include "k3/server/loadgen/url.h"

#include <algorithm>
#include <charconv>

namespace k3::server {
namespace {

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string Url::authority() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? "[" + host + "]:" + port : host + ":" + port;
}

Result<Url> parse_url(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return fail(Code::invalid_argument, "'{}' is no address like http://127.0.0.1:8000: {}", text, why);
  };
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    return fail(Code::unsupported, "{}: no TLS here; give the http:// address behind the TLS proxy", text);
  }
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.find("://") != std::string_view::npos) return wrong("only http:// is known");
  if (!printable(rest)) return wrong("blanks or foreign characters");
  Url url;
  const size_t slash = rest.find('/');
  std::string_view path = slash == std::string_view::npos ? std::string_view() : rest.substr(slash);
  std::string_view authority = rest.substr(0, slash);
  if (path.find_first_of("?#") != std::string_view::npos) return wrong("a query or a fragment");
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  url.prefix = std::string(path);
  size_t colon = authority.rfind(':');
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return wrong("'[' without ']'");
    url.host = std::string(authority.substr(1, end - 1));
    colon = end + 1 < authority.size() ? end + 1 : std::string_view::npos;
    if (colon != std::string_view::npos && authority[colon] != ':') return wrong("text behind ']'");
  } else {
    url.host = std::string(authority.substr(0, colon));
  }
  if (url.host.empty() || url.host.find('@') != std::string::npos) return wrong("no host");
  url.port = colon == std::string_view::npos ? "80" : std::string(authority.substr(colon + 1));
  int port = 0;
  const auto [end, error] = std::from_chars(url.port.data(), url.port.data() + url.port.size(), port);
  if (error != std::errc() || end != url.port.data() + url.port.size() || port < 1 || port > 65535) return wrong("no port");
  return url;
}

}  // namespace k3::server
