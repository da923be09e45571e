#include "k3/format/image_header.h"

#include <gtest/gtest.h>

namespace k3 {
namespace {

using namespace std::string_literals;

std::string big32(uint32_t n) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(n >> shift & 255));
  return out;
}
std::string png(uint32_t width, uint32_t height) {
  return "\x89PNG\r\n\x1A\n"s + big32(13) + "IHDR" + big32(width) + big32(height) + "\x08\x02\x00\x00\x00"s + big32(0);
}
std::string jpeg(char frame, uint16_t width, uint16_t height) {
  const std::string comment = "\xFF\xFE\x00\x05xyz"s;
  const auto half = [](uint16_t n) { return big32(n).substr(2); };
  return "\xFF\xD8"s + comment + "\xFF\xFF"s + frame + half(17) + "\x08"s + half(height) + half(width) +
         std::string(10, '\0');
}
std::string webp(const std::string& chunk, const std::string& body) {
  return "RIFF\0\0\0\0WEBP"s + chunk + std::string(4, '\0') + body;
}

void expect_size(const std::string& bytes, int64_t width, int64_t height, ImageKind kind) {
  const auto header = read_image_header(bytes);
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->width, width);
  EXPECT_EQ(header->height, height);
  EXPECT_EQ(header->kind, kind);
}

TEST(ImageHeader, ReadsTheSize) {
  expect_size(png(640, 480), 640, 480, ImageKind::png);
  expect_size(jpeg('\xC0', 640, 480), 640, 480, ImageKind::jpeg);
  expect_size(jpeg('\xC2', 1, 65535), 1, 65535, ImageKind::jpeg);  // progressive
  expect_size(webp("VP8X", std::string(4, '\0') + "\x7F\x02\x00\xDF\x01\x00"s), 640, 480, ImageKind::webp);
  expect_size(webp("VP8L", "\x2F\x7F\xC2\x77\x00"s + std::string(5, '\0')), 640, 480, ImageKind::webp);
  expect_size(webp("VP8 ", "\0\0\0\x9D\x01\x2A\x80\x02\xE0\x01"s), 640, 480, ImageKind::webp);
}

TEST(ImageHeader, RefusesBadHeaders) {
  struct Bad {
    const char* name;
    std::string bytes;
    const char* fact;
  };
  const Bad cases[] = {
      {"empty", "", "is empty"},
      {"text", "hello world", "not a PNG, JPEG or WebP"},
      {"cut PNG", png(4, 4).substr(0, 20), "cut short"},
      {"PNG without IHDR", "\x89PNG\r\n\x1A\n"s + std::string(40, 'x'), "does not start with IHDR"},
      {"zero width", png(0, 4), "0 x 4"},
      {"wide", png(65536, 1), "each side"},
      {"too many pixels", png(65535, 65535), "over the limit"},
      {"cut JPEG", jpeg('\xC0', 4, 4).substr(0, 12), "cut short"},
      {"JPEG without frame", "\xFF\xD8\xFF\xDA\x00\x02"s, "no frame header"},
      {"JPEG without marker", "\xFF\xD8xx", "no marker at byte 2"},
      {"JPEG segment of length 1", "\xFF\xD8\xFF\xE0\x00\x01"s, "has length 1"},
      {"JPEG table in place of a frame", jpeg('\xC4', 4, 4), ""},
      {"zero JPEG height", jpeg('\xC0', 4, 0), "4 x 0"},
      {"unknown WebP chunk", webp("ABCD", std::string(20, '\0')), "unknown chunk"},
      {"cut WebP", webp("VP8X", ""), "cut short"},
      {"WebP without key frame", webp("VP8 ", std::string(20, '\0')), "no key frame"},
  };
  for (const Bad& item : cases) {
    const auto header = read_image_header(item.bytes);
    ASSERT_FALSE(header.ok()) << item.name;
    EXPECT_EQ(header.error().code, Code::invalid_argument);
    EXPECT_NE(header.error().message.find(item.fact), std::string::npos) << item.name << ": " << header.error().message;
  }
  EXPECT_TRUE(read_image_header(png(100, 100), 10000).ok());
  EXPECT_FALSE(read_image_header(png(100, 101), 10000).ok());
}

TEST(ImageTokens, FollowTheGeometry) {
  EXPECT_EQ(image_tokens(1, 1), 1);
  EXPECT_EQ(image_tokens(28, 28), 1);
  EXPECT_EQ(image_tokens(29, 28), 2);
  EXPECT_EQ(image_tokens(56, 40), 4);
  EXPECT_EQ(image_tokens(640, 480), 23 * 18);
  EXPECT_EQ(image_tokens(3584, 3584), 16384);  // the largest image that is not scaled
  EXPECT_EQ(image_tokens(7168, 28), 256);      // 512 patches on a side
  EXPECT_EQ(image_tokens(14336, 56), 256);     // scaled by one half
  EXPECT_EQ(image_tokens(65535, 1), 256);      // a side never falls below one pixel
  for (int64_t w = 1; w < 20000; w += 977) {
    for (int64_t h = 1; h < 20000; h += 1013) {
      const int64_t n = image_tokens(w, h);
      EXPECT_GE(n, 1);
      EXPECT_LE(n, 16384 + 512) << w << " x " << h;  // padding adds at most half a cell a row and column
    }
  }
}

}  // namespace
}  // namespace k3
