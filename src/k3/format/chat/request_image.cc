// Image parts: data URLs, sized from the image's header (api.md 3.2). Nothing is fetched and nothing is decoded.
#include <array>

#include "k3/format/chat/request_parts.h"

namespace k3 {
namespace {

constexpr int8_t kNotBase64 = -1;

constexpr std::array<int8_t, 256> base64_table() {
  std::array<int8_t, 256> table{};
  for (auto& entry : table) entry = kNotBase64;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i) table[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  return table;
}
constexpr std::array<int8_t, 256> kBase64 = base64_table();

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Percent escapes to bytes; anything else stays.
bool unescape(std::string_view text, std::string& out) {
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size() || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0) return false;
    out.push_back(static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])));
    i += 2;
  }
  return true;
}

// Line breaks are tolerated; padding may be missing, but when present it must be right and last.
bool decode_base64(std::string_view text, std::string& out) {
  uint32_t bits = 0;
  size_t digits = 0, padding = 0;
  out.reserve(text.size() / 4 * 3);
  for (const char c : text) {
    if (c == '\n' || c == '\r') continue;
    if (c == '=') {
      ++padding;
      continue;
    }
    const int8_t value = kBase64[static_cast<uint8_t>(c)];
    if (value == kNotBase64 || padding > 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    ++digits;
    const size_t place =
        (digits - 1) % 4;  // of this digit in its group: the byte ends 8 - 2 * (place + 1) bits above its low end
    if (place > 0) out.push_back(static_cast<char>(bits >> (6 - 2 * place) & 255));
  }
  const size_t tail = digits % 4;
  return tail != 1 && (padding == 0 || (padding < 3 && (tail + padding) % 4 == 0));
}

bool known_mime(std::string_view mime) {
  return mime == "image/png" || mime == "image/jpeg" || mime == "image/jpg" || mime == "image/webp";
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

}  // namespace

Result<ContentPart> parse_image_part(const JsonNode& part, const std::string& path) {
  const JsonNode* image = part.find_set("image_url");
  if (image == nullptr) return bad_field(path + ".image_url", "is missing");
  std::string where = path + ".image_url";
  const JsonNode* url = image;  // the plain string form is tolerated
  if (image->is_object()) {
    where += ".url";
    url = image->find_set("url");
    if (url == nullptr) return bad_field(where, "is missing");
  }
  if (!url->is_string()) return bad_field(where, "must be a string, not {}", json_kind_name(url->kind));
  const std::string_view text = url->text;
  if (lower(text.substr(0, 5)) != "data:") return bad_field(where, "invalid image: only data: URLs are read");
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos) return bad_field(where, "invalid image: the data: URL has no ','");
  const std::string header = lower(text.substr(5, comma - 5));
  const std::string mime = header.substr(0, header.find(';'));
  if (!known_mime(mime))
    return bad_field(where, "invalid image: the type is '{}', not one of image/png, image/jpeg, image/webp", mime);
  if (!header.ends_with(";base64")) return bad_field(where, "invalid image: the data: URL must be base64");

  ContentPart out;
  out.kind = ContentPart::Kind::image;
  std::string unescaped;
  if (!unescape(text.substr(comma + 1), unescaped) || !decode_base64(unescaped, out.image_bytes)) {
    return bad_field(where, "invalid image: the data is not base64");
  }
  K3_TRY_ASSIGN(out.image, read_image_header(out.image_bytes).with_context("invalid image").with_context(where));
  return out;
}

}  // namespace k3
