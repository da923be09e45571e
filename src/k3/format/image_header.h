// Purpose:  width and height of an encoded image (PNG, JPEG, WebP) from its header alone, and the number of image
//           tokens that this size costs.
// Shapes:   none.
// Units:    pixels; tokens (one token is a cell of 28 x 28 pixels).
// Memory:   reads the bytes in place, allocates nothing.
// Threads:  pure functions.
// Errors:   invalid_argument: unknown or cut header, a size of zero, or a size over the limits. Nothing is decoded.
// Source:   api.md 3.2 (limits), model.md 4.1 (geometry, exact).
#pragma once

#include <cstdint>
#include <string_view>

#include "k3/base/result.h"

namespace k3 {

enum class ImageKind { png, jpeg, webp };

struct ImageHeader {
  int64_t width = 0, height = 0;
  ImageKind kind = ImageKind::png;
};

inline constexpr int64_t kMaxImagePixels = int64_t{64} << 20;

Result<ImageHeader> read_image_header(std::string_view bytes, int64_t max_pixels = kMaxImagePixels);

// <|media_pad|> tokens of an image of this size, after the resize and the padding of the processor.
int64_t image_tokens(int64_t width, int64_t height);

}  // namespace k3
