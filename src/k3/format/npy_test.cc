#include "k3/format/npy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "k3/format/checkpoint_cases.h"

namespace k3 {
namespace {

std::string temp_path(const std::string& name) {
  static const testing_checkpoint::TempFolder folder;
  return folder.file(name);
}

std::string npy(int version, const std::string& header, const std::string& data) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(version);
  text += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) text += static_cast<char>(header.size() >> 8 * i & 0xFF);
  return text + header + data;
}

TEST(Npy, ReadsGoldenLogits) {
  const auto matrix = read_npy(K3_SOURCE_DIR "/tests/data/oracle-models/k3-a/golden_logits.npy");
  ASSERT_TRUE(matrix.ok()) << matrix.error().message;
  EXPECT_EQ(matrix->rows, 32);
  EXPECT_EQ(matrix->cols, 160);
  double squares = 0;
  for (const float v : matrix->values) squares += static_cast<double>(v) * v;
  EXPECT_NEAR(std::sqrt(squares / (32 * 160)), 2.0, 0.3);  // the logits were made with an RMS of 2.0
}

TEST(Npy, WritesWhatItReads) {
  const std::string path = temp_path("out.npy");
  std::vector<float> values(15);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i) - 0.7f;
  {
    auto writer = NpyWriter::create(path, 3, 5);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    ASSERT_TRUE(writer->append(std::span(values).first(5)).ok());
    EXPECT_FALSE(path_exists(path));  // appears whole or not at all
    ASSERT_TRUE(writer->append(std::span(values).subspan(5)).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
  const auto text = read_file(path);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ((text->size() - 60) % 64, 0u);  // 15 values after a header of a multiple of 64
  const auto matrix = read_npy(path);
  ASSERT_TRUE(matrix.ok()) << matrix.error().message;
  EXPECT_EQ(matrix->rows, 3);
  EXPECT_EQ(matrix->cols, 5);
  EXPECT_EQ(matrix->values, values);
  EXPECT_EQ(matrix->row(2)[4], values[14]);
}

TEST(Npy, ReadsDoublesAndVersion2) {
  const std::string path = temp_path("wide.npy");
  const double values[2] = {1.5, -2.25};
  std::string data(16, '\0');
  std::memcpy(data.data(), values, 16);
  ASSERT_TRUE(write_file(path, npy(2, "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }\n", data)).ok());
  const auto matrix = read_npy(path);
  ASSERT_TRUE(matrix.ok()) << matrix.error().message;
  EXPECT_EQ(matrix->values, (std::vector<float>{1.5f, -2.25f}));
}

TEST(Npy, RefusesWhatItCannotRead) {
  const std::string path = temp_path("bad.npy");
  const std::string four(4, '\0');
  const auto refused = [&](const std::string& bytes, Code code, const char* fact) {
    ASSERT_TRUE(write_file(path, bytes).ok());
    const auto matrix = read_npy(path);
    ASSERT_FALSE(matrix.ok()) << fact;
    EXPECT_EQ(matrix.error().code, code) << matrix.error().message;
    EXPECT_NE(matrix.error().message.find(path), std::string::npos);
    EXPECT_NE(matrix.error().message.find(fact), std::string::npos) << matrix.error().message;
  };
  refused("", Code::corrupt, "not an .npy file");
  refused("some other text", Code::corrupt, "not an .npy file");
  refused(npy(9, "{}", four), Code::unsupported, "version 9");
  refused(npy(1, "{}", four), Code::corrupt, "lacks descr");
  refused(npy(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1), }", four), Code::unsupported, "'<i4'");
  refused(npy(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }", four), Code::unsupported, "C order");
  refused(npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", four), Code::unsupported, "(1,)");
  refused(npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, -1), }", four), Code::unsupported, "(1, -1)");
  refused(npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }", four), Code::corrupt,
          "does not match 4 bytes");
  refused(npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", four), Code::corrupt,
          "does not match");
  refused(npy(2, std::string(70000, ' '), four), Code::corrupt, "runs past");
  const auto none = read_npy("/nonexistent.npy");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::not_found);
}

}  // namespace
}  // namespace k3
