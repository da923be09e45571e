// Any bytes as an image header: a size within the limits, or an error.
#include "k3/base/check.h"
#include "k3/format/image_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = k3::read_image_header({reinterpret_cast<const char*>(data), size});
  if (!header.ok()) return 0;
  K3_CHECK(header->width >= 1 && header->height >= 1 && header->width * header->height <= k3::kMaxImagePixels, "size");
  const int64_t tokens = k3::image_tokens(header->width, header->height);
  K3_CHECK(tokens >= 1 && tokens <= 16384 + 512, "{} tokens for {} x {}", tokens, header->width, header->height);
  return 0;
}
