#include "k3/format/image_header.h"

#include <algorithm>
#include <cmath>

namespace k3 {
namespace {

constexpr int64_t kMaxSide = 65535;

uint32_t byte_at(std::string_view bytes, size_t pos) { return static_cast<uint8_t>(bytes[pos]); }
uint32_t big16(std::string_view bytes, size_t pos) { return byte_at(bytes, pos) << 8 | byte_at(bytes, pos + 1); }
uint32_t big32(std::string_view bytes, size_t pos) { return big16(bytes, pos) << 16 | big16(bytes, pos + 2); }
uint32_t little16(std::string_view bytes, size_t pos) { return byte_at(bytes, pos) | byte_at(bytes, pos + 1) << 8; }
uint32_t little24(std::string_view bytes, size_t pos) { return little16(bytes, pos) | byte_at(bytes, pos + 2) << 16; }

Error cut(std::string_view kind) { return fail(Code::invalid_argument, "the {} header is cut short", kind); }

Result<ImageHeader> read_png(std::string_view bytes) {
  if (bytes.size() < 33) return cut("PNG");  // signature, length, IHDR, 13 bytes, checksum
  if (bytes.substr(12, 4) != "IHDR" || big32(bytes, 8) != 13)
    return fail(Code::invalid_argument, "the PNG does not start with IHDR");
  return ImageHeader{big32(bytes, 16), big32(bytes, 20), ImageKind::png};
}

// Frame headers are C0 to CF but for C4 (tables), C8 (reserved) and CC (arithmetic conditioning).
bool is_frame_header(uint32_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

Result<ImageHeader> read_jpeg(std::string_view bytes) {
  size_t pos = 2;
  while (true) {
    if (pos + 2 > bytes.size()) return cut("JPEG");
    if (byte_at(bytes, pos) != 0xFF) return fail(Code::invalid_argument, "the JPEG has no marker at byte {}", pos);
    const uint32_t marker = byte_at(bytes, pos + 1);
    if (marker == 0xFF) {  // fill byte
      ++pos;
      continue;
    }
    pos += 2;
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) continue;  // markers without a body
    if (marker == 0xD9 || marker == 0xDA)
      return fail(Code::invalid_argument, "the JPEG has no frame header before its data");
    if (pos + 2 > bytes.size()) return cut("JPEG");
    const size_t length = big16(bytes, pos);
    if (length < 2) return fail(Code::invalid_argument, "the JPEG segment at byte {} has length {}", pos, length);
    if (is_frame_header(marker)) {
      if (length < 8 || pos + 7 > bytes.size()) return cut("JPEG");
      return ImageHeader{big16(bytes, pos + 5), big16(bytes, pos + 3), ImageKind::jpeg};
    }
    pos += length;
  }
}

Result<ImageHeader> read_webp(std::string_view bytes) {
  if (bytes.size() < 30) return cut("WebP");
  const std::string_view chunk = bytes.substr(12, 4);
  if (chunk == "VP8X") return ImageHeader{little24(bytes, 24) + 1, little24(bytes, 27) + 1, ImageKind::webp};
  if (chunk == "VP8L") {
    if (byte_at(bytes, 20) != 0x2F) return fail(Code::invalid_argument, "the WebP has no lossless signature");
    const uint32_t bits = little16(bytes, 21) | little16(bytes, 23) << 16;
    return ImageHeader{(bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, ImageKind::webp};
  }
  if (chunk == "VP8 ") {
    if (bytes.substr(23, 3) != "\x9D\x01\x2A") return fail(Code::invalid_argument, "the WebP has no key frame");
    return ImageHeader{little16(bytes, 26) & 0x3FFF, little16(bytes, 28) & 0x3FFF, ImageKind::webp};
  }
  return fail(Code::invalid_argument, "the WebP starts with an unknown chunk");
}

Result<ImageHeader> read_any(std::string_view bytes) {
  if (bytes.empty()) return fail(Code::invalid_argument, "the image is empty");
  if (bytes.starts_with("\x89PNG\r\n\x1A\n")) return read_png(bytes);
  if (bytes.starts_with("\xFF\xD8")) return read_jpeg(bytes);
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") return read_webp(bytes);
  return fail(Code::invalid_argument, "the data is not a PNG, JPEG or WebP image");
}

}  // namespace

Result<ImageHeader> read_image_header(std::string_view bytes, int64_t max_pixels) {
  K3_TRY_ASSIGN(const ImageHeader header, read_any(bytes));
  if (header.width < 1 || header.height < 1 || header.width > kMaxSide || header.height > kMaxSide) {
    return fail(Code::invalid_argument, "the image is {} x {} pixels; each side must be 1 to {}", header.width,
                header.height, kMaxSide);
  }
  if (header.width * header.height > max_pixels) {
    return fail(Code::invalid_argument, "the image has {} x {} pixels, over the limit of {}", header.width, header.height,
                max_pixels);
  }
  return header;
}

int64_t image_tokens(int64_t width, int64_t height) {
  constexpr int64_t kPatch = 14, kCell = 28, kMaxPatches = 65536, kMaxPatchesPerSide = 512;
  const auto w = static_cast<double>(width), h = static_cast<double>(height);
  const auto patches = static_cast<double>(std::max<int64_t>(1, width / kPatch) * std::max<int64_t>(1, height / kPatch));
  constexpr double kSide = static_cast<double>(kMaxPatchesPerSide * kPatch);
  const double scale = std::min({1.0, std::sqrt(static_cast<double>(kMaxPatches) / patches), kSide / w, kSide / h});
  const auto cells = [&](double side) {
    const int64_t scaled = std::min(std::max<int64_t>(1, static_cast<int64_t>(side * scale)), kMaxPatchesPerSide * kPatch);
    return (scaled + kCell - 1) / kCell;
  };
  return cells(w) * cells(h);
}

}  // namespace k3
