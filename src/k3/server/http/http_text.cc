// The parts of HTTP that are text: status lines, request ids, paths.
#include <fmt/format.h>

#include <atomic>
#include <chrono>

#include "k3/base/rng.h"
#include "k3/base/utf8.h"
#include "k3/server/http/http.h"

namespace k3::http {
namespace {

constexpr size_t kMostIdBytes = 128;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::string_view RequestHead::header(std::string_view lower_name) const {
  for (const Header& header : headers) {
    if (header.name == lower_name) return header.value;
  }
  return {};
}

std::string_view status_text(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
  }
  return "Status";
}

std::string harmless_request_id(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || c == '-' || c == '_' || c == '.' || c == ':') out.push_back(c);
    if (out.size() == kMostIdBytes) break;
  }
  return out;
}

std::string new_request_id() {
  static const uint64_t kStart = random_seed();
  static std::atomic<uint64_t> next{0};
  return fmt::format("req-{:016x}{:08x}", kStart, next.fetch_add(1) & 0xffffffffU);
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.") || address.starts_with("::ffff:127.");
}

std::optional<std::string> decode_path(std::string_view raw) {
  std::string out;
  for (size_t i = 0; i < raw.size(); ++i) {
    char c = raw[i];
    if (c == '%') {
      if (i + 2 >= raw.size()) return std::nullopt;
      const int high = hex_digit(raw[i + 1]), low = hex_digit(raw[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) return std::nullopt;
    out.push_back(c);
  }
  if (!is_utf8(out)) return std::nullopt;
  return out;
}

}  // namespace k3::http
