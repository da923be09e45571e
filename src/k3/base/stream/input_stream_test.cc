#include "k3/base/stream/input_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zstd.h>

#include <filesystem>

#include "k3/base/file.h"

namespace k3 {
namespace {

std::string zstd_of(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string some_text(size_t size) {
  std::string text;
  for (uint32_t i = 0; text.size() < size; ++i) text += std::to_string(i * 2654435761U) + " ";
  text.resize(size);
  return text;
}

class InputStreamTest : public ::testing::Test {
 protected:
  std::string put(const std::string& bytes) {
    const std::string path = ::testing::TempDir() + "/input_stream_test." + std::to_string(::getpid());
    EXPECT_TRUE(write_file(path, bytes).ok());
    return path;
  }
  // The whole file in pieces of `step` bytes.
  static Result<std::string> all(const std::string& path, size_t step) {
    K3_TRY_ASSIGN(InputStream stream, InputStream::open(path));
    std::string out;
    std::string piece(step, '\0');
    for (;;) {
      K3_TRY_ASSIGN(const size_t size, stream.read(piece));
      out.append(piece, 0, size);
      EXPECT_EQ(stream.position(), static_cast<int64_t>(out.size()));
      if (size < step) return out;
    }
  }
};

TEST_F(InputStreamTest, GivesPlainAndCompressedBytes) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, size_t{4}, size_t{5000}, size_t{1} << 20}) {
    const std::string text = some_text(size);
    for (const size_t step : {size_t{1} << 10, size_t{777}, size_t{1} << 21}) {
      EXPECT_EQ(*all(put(text), step), text);
      EXPECT_EQ(*all(put(zstd_of(text)), step), text);
      EXPECT_EQ(*all(put(zstd_of(text) + zstd_of("tail")), step), text + "tail");
    }
  }
}

TEST_F(InputStreamTest, RefusesCutAndDamagedData) {
  const std::string packed = zstd_of(some_text(200'000));
  for (const size_t keep : {size_t{4}, size_t{5}, size_t{1000}, packed.size() - 1}) {
    const auto result = all(put(packed.substr(0, keep)), 4096);
    ASSERT_FALSE(result.ok()) << keep;
    EXPECT_EQ(result.error().code, Code::corrupt);
    EXPECT_NE(result.error().message.find("at byte"), std::string::npos) << result.error().message;
  }
  std::string bad = packed;
  bad.append("garbage after the frame");
  EXPECT_EQ(all(put(bad), 4096).error().code, Code::corrupt);
  EXPECT_EQ(all("/no/such/file", 10).error().code, Code::not_found);
}

}  // namespace
}  // namespace k3
