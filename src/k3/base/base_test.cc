// Result, units, UTF-8, JSON writer and rng.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/progress.h"
#include "k3/base/result.h"
#include "k3/base/rng.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"

namespace k3 {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return fail(Code::invalid_argument, "{} is odd", n);
  return n / 2;
}

Result<int> quarter(int n) {
  K3_TRY_ASSIGN(const int h, half(n));
  return half(h);
}

TEST(Result, CarriesValueOrErrorWithContext) {
  EXPECT_EQ(quarter(8).value(), 2);
  const auto bad = quarter(6).with_context("outer");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, Code::invalid_argument);
  EXPECT_EQ(bad.error().message, "outer: 3 is odd");
}

TEST(Units, FormatsAndParsesSizes) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(int64_t{8} << 30), "8.00 GiB");
  EXPECT_EQ(format_count(2779931837184.0), "2.78 T");
  EXPECT_EQ(format_grouped(2779931837184), "2,779,931,837,184");
  EXPECT_EQ(format_grouped(-1234), "-1,234");
  EXPECT_EQ(parse_bytes("8GiB").value(), int64_t{8} << 30);
  EXPECT_EQ(parse_bytes("1.5 MB").value(), 1500000);
  EXPECT_EQ(parse_bytes("4096").value(), 4096);
  for (const char* bad : {"", "GiB", "-1", "8QiB", "1e300GiB", "nan", "8GiBs"}) EXPECT_FALSE(parse_bytes(bad).ok()) << bad;
}

TEST(Units, SecondsOfAnySizeAreSaid) {
  EXPECT_EQ(format_seconds(59.94), "59.9 s");
  EXPECT_EQ(format_seconds(3599), "59 min 59 s");
  EXPECT_EQ(format_seconds(7260), "2 h 1 min");
  EXPECT_EQ(format_seconds(1e300), "2.78e+296 h");
  EXPECT_EQ(format_seconds(INFINITY), "inf h");
}

TEST(Utf8, LengthCountsCodePoints) {
  EXPECT_EQ(utf8_length(""), 0);
  EXPECT_EQ(utf8_length("aé你😀"), 4);
}

TEST(Utf8, ValidatesStrictly) {
  EXPECT_TRUE(is_utf8("a\xC3\xA4\xE4\xBD\xA0\xF0\x9F\x99\x82"));
  EXPECT_FALSE(is_utf8("\xC0\x80"));          // overlong
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));      // surrogate
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_FALSE(is_utf8("\xE4\xBD"));          // cut
  EXPECT_EQ(utf8_incomplete_suffix("a\xE4\xBD"), 2U);
  EXPECT_EQ(utf8_incomplete_suffix("a\xE4\xBD\xA0"), 0U);
  EXPECT_EQ(utf8_incomplete_suffix("a\xF0\x9F\x99"), 3U);
  EXPECT_EQ(utf8_incomplete_suffix("a\xBD"), 0U);
  EXPECT_EQ(utf8_repair("a\xE4\xBDz"), "a\xEF\xBF\xBDz");
}

TEST(JsonWriter, NestsAndEscapes) {
  JsonWriter w;
  w.begin_object().field("a", 1).key("b").begin_array().value("x\"\n\x01").value(0.1).value(std::nan("")).end_array();
  w.key("c").begin_object().end_object().end_object();
  EXPECT_EQ(w.text(), "{\"a\":1,\"b\":[\"x\\\"\\n\\u0001\",0.1,null],\"c\":{}}");
}

TEST(Rng, IsPhiloxAndIndependentOfOrder) {
  // Known answer of Random123 for philox4x32-10 with zero counter and key.
  const auto zero = philox4x32({0, 0, 0, 0}, {0, 0});
  EXPECT_EQ(zero[0], 0x6627e8d5U);
  EXPECT_EQ(zero[1], 0xe169c58dU);
  EXPECT_EQ(zero[2], 0xbc57ac4cU);
  EXPECT_EQ(zero[3], 0x9b00dbd8U);
  const Rng rng(7, 1);
  const double late = rng.normal(1000000);
  EXPECT_EQ(late, Rng(7, 1).normal(1000000));
  EXPECT_NE(late, Rng(7, 2).normal(1000000));
  std::vector<float> bulk(7);
  rng.fill_normal(3, 2.0, bulk);
  for (size_t i = 0; i < bulk.size(); ++i) EXPECT_EQ(bulk[i], static_cast<float>(rng.normal(3 + i) * 2.0));
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    const double x = rng.normal(i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 20000, 0, 0.03);
  EXPECT_NEAR(squares / 20000, 1, 0.05);
}

TEST(File, ShortFileIsCorruptNotASignal) {
  const std::string path = testing::TempDir() + "k3_file_test";
  ASSERT_TRUE(write_file(path, "0123456789").ok());
  const File file = File::open(path).value();
  ASSERT_EQ(truncate(path.c_str(), 4), 0);
  std::vector<std::byte> bytes(8);
  const Status status = file.read_at(0, bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::corrupt);
  EXPECT_NE(status.error().message.find(path), std::string::npos);
  EXPECT_EQ(File::open(path + ".absent").error().code, Code::not_found);
}

TEST(File, AFailedWriteSaysWhyAndAFullDiskIsNotABrokenFile) {
  const std::string text(100000, 'a');
  const auto bytes = std::as_bytes(std::span(text));
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const Status on_full = write_all(full, "the file", bytes);
  ASSERT_FALSE(on_full.ok());
  EXPECT_EQ(Code::exhausted, on_full.error().code);
  EXPECT_NE(std::string::npos, on_full.error().message.find("the file")) << on_full.error().message;
  EXPECT_TRUE(write_all(full, "the file", {}).ok()) << "nothing to write";
  ::close(full);

  int ends[2];
  ASSERT_EQ(0, ::pipe2(ends, O_CLOEXEC));
  ::close(ends[0]);
  ::close(ends[1]);
  const Status on_closed = write_all(ends[1], "the file", bytes);
  ASSERT_FALSE(on_closed.ok());
  EXPECT_EQ(Code::unavailable, on_closed.error().code);
}

TEST(File, WhatAPipeTakesInPartsIsWrittenWhole) {
  std::string text(300000, 'a');  // more than a pipe holds
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 23);
  int ends[2];
  ASSERT_EQ(0, ::pipe2(ends, O_CLOEXEC));
  std::thread writer([&] {
    EXPECT_TRUE(write_all(ends[1], "pipe", std::as_bytes(std::span(text))).ok());
    ::close(ends[1]);
  });
  std::string read;
  char part[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof(part))) > 0;) read.append(part, static_cast<size_t>(n));
  writer.join();
  ::close(ends[0]);
  EXPECT_TRUE(text == read);
}

TEST(File, UnfinishedFilesCanBeRemoved) {
  const std::string path = testing::TempDir() + "k3_unfinished", temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  ASSERT_TRUE(write_file(path, "old").ok());
  {
    auto first = FileWriter::create(path);
    ASSERT_TRUE(first.ok());
    FileWriter moved(std::move(*first));
    ASSERT_TRUE(moved.write("new").ok());
    ASSERT_TRUE(path_exists(temporary));
    remove_unfinished_files();
    EXPECT_FALSE(path_exists(temporary));
    EXPECT_FALSE(moved.commit().ok());
  }
  EXPECT_EQ(*read_file(path), "old");
  remove_unfinished_files();  // of a writer that is gone: nothing
  ASSERT_TRUE(write_file(path, "new").ok());
  remove_unfinished_files();
  EXPECT_EQ(*read_file(path), "new");
}

TEST(Progress, LineFitsTheTerminal) {
  Progress bar("perplexity", 1612, "tokens", /*enabled=*/false);
  bar.update(384);
  for (int columns = 1; columns <= 200; ++columns) {
    const std::string line = bar.line(columns, /*colour=*/false);
    EXPECT_LT(utf8_length(line), columns) << line;
    EXPECT_EQ(line.find("24 %") != std::string::npos, columns >= 18) << columns << line;
  }
}

}  // namespace
}  // namespace k3
