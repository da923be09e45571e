// Every way of reading (io_uring and threads, with O_DIRECT and without) gives the bytes of the file at the place asked for
// and touches nothing beyond the slack; files that are short, damaged or exchanged are errors.
#include "k3/base/disk_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "k3/base/disk_rate.h"
#include "k3/base/file.h"
#include "k3/base/rng.h"

namespace k3 {
namespace {

namespace fs = std::filesystem;
using Backend = DiskOptions::Backend;

std::string random_text(int64_t bytes, uint64_t seed) {
  const Rng rng(seed, 0);
  std::string text(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(rng.bits(i));
  return text;
}

struct Way {
  Backend backend;
  bool direct;
  const char* folder;
};

class DiskReaderTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const std::string parent = GetParam().folder[0] != '\0' ? GetParam().folder : testing::TempDir();
    if (!fs::is_directory(parent)) GTEST_SKIP() << parent << " is not there";
    std::string name = (fs::path(parent) / "k3-disk-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    auto reader = DiskReader::create({.backend = GetParam().backend, .direct = GetParam().direct, .piece_bytes = 16384});
    if (!reader.ok()) GTEST_SKIP() << reader.error().message;
    reader_.emplace(*std::move(reader));
    text_ = random_text(300'001, 1);
    path_ = put("a", text_);
  }
  void TearDown() override {
    reader_.reset();
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  std::string put(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    EXPECT_TRUE(write_file(path, text).ok());
    return path;
  }
  Status read(int32_t file, int64_t offset, int64_t bytes) {
    std::vector<std::byte> memory(static_cast<size_t>(bytes + 2 * kDiskSlack));
    const DiskRequest request{file, offset, bytes, memory.data() + kDiskSlack};
    return reader_->start(std::span(&request, 1)).wait();
  }

  std::string folder_, path_, text_;
  std::optional<DiskReader> reader_;
};

TEST_P(DiskReaderTest, AnyRangeArrivesAtItsPlaceAndNothingBeyondTheSlackIsTouched) {
  const int32_t file = reader_->open(path_).value();
  const auto size = static_cast<int64_t>(text_.size());
  const std::pair<int64_t, int64_t> ranges[] = {{0, size},         {0, 1},      {size - 1, 1}, {511, 2},     {512, 512},
                                                {4095, 200'000},   {1, 16384},  {7, 40'000},   {16384, 16384}, {100, 0},
                                                {size - 5000, 5000}, {299'000, 3}};
  for (const int64_t shift : {0, 1, 13, 64, 4097}) {
    std::vector<DiskRequest> requests;
    std::vector<std::vector<std::byte>> memory;
    constexpr int64_t kFence = 64;
    for (const auto& [offset, bytes] : ranges) {
      memory.emplace_back(static_cast<size_t>(bytes + 2 * (kDiskSlack + kFence) + shift), std::byte{0x5A});
      requests.push_back({file, offset, bytes, memory.back().data() + kDiskSlack + kFence + shift});
    }
    const Status status = reader_->start(requests).wait();
    ASSERT_TRUE(status.ok()) << status.error().message;
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto [offset, bytes] = ranges[i];
      EXPECT_EQ(std::memcmp(requests[i].target, text_.data() + offset, static_cast<size_t>(bytes)), 0) << offset;
      for (int64_t f = 0; f < kFence; ++f) {
        EXPECT_EQ(memory[i][static_cast<size_t>(shift + f)], std::byte{0x5A});
        EXPECT_EQ(*(memory[i].end() - 1 - f), std::byte{0x5A});
      }
    }
  }
  EXPECT_GT(reader_->counters().read_bytes, 5 * size);
}

TEST_P(DiskReaderTest, ManyTicketsOfManyThreads) {
  const int32_t file = reader_->open(path_).value();
  std::vector<std::thread> threads;
  std::atomic<int> bad{0};
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Rng rng(t, 5);
      for (uint64_t i = 0; i < 60; ++i) {
        const auto offset = static_cast<int64_t>(rng.bits(2 * i) % 200'000);
        const auto bytes = static_cast<int64_t>(rng.bits(2 * i + 1) % 100'000 + 1);
        std::vector<std::byte> memory(static_cast<size_t>(bytes + 2 * kDiskSlack));
        const DiskRequest request{file, offset, bytes, memory.data() + kDiskSlack};
        DiskTicket ticket = reader_->start(std::span(&request, 1), i % 2 == 0 ? DiskPriority::urgent : DiskPriority::ahead);
        if (i % 7 == 0) continue;  // dropped: waits by itself before the memory goes
        if (!ticket.wait().ok() || std::memcmp(request.target, text_.data() + offset, static_cast<size_t>(bytes)) != 0) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad, 0);
}

TEST_P(DiskReaderTest, RangeBehindTheEndNamesFileOffsetAndLength) {
  const int32_t file = reader_->open(path_).value();
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{300'000, 2}, {400'000, 7}, {0, 900'000}}) {
    const Status status = read(file, offset, bytes);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::corrupt);
    for (const std::string& part : {path_, std::to_string(offset), std::to_string(bytes), std::string("ends at byte")}) {
      EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    }
  }
  EXPECT_TRUE(read(file, 0, 300'001).ok());  // the reader goes on
}

TEST_P(DiskReaderTest, FilesThatChangeUnderUsAreErrors) {
  const auto says = [&](const Status& status, const char* what) {
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_EQ(status.error().code, Code::corrupt);
    EXPECT_NE(status.error().message.find(what), std::string::npos) << status.error().message;
  };
  const std::string cut = put("cut", text_), written = put("written", text_), replaced = put("replaced", text_),
                    gone = put("gone", text_);
  std::vector<int32_t> files;
  for (const std::string& path : {cut, written, replaced, gone}) {
    files.push_back(reader_->open(path).value());
    EXPECT_TRUE(read(files.back(), 0, 1000).ok());
  }
  ASSERT_EQ(::truncate(cut.c_str(), 100'000), 0);
  says(read(files[0], 150'000, 1000), "had 300001 bytes when it was opened and has 100000 now");
  says(read(files[0], 0, 1000), "had 300001 bytes");
  std::fstream(written, std::ios::in | std::ios::out | std::ios::binary).write("x", 1);
  fs::last_write_time(written, fs::last_write_time(written) + std::chrono::seconds(1));
  says(read(files[1], 0, 1000), "was written to");
  put("new", text_);
  fs::rename(folder_ + "/new", replaced);
  says(read(files[2], 0, 1000), "was replaced");
  fs::remove(gone);
  says(read(files[3], 0, 1000), "is gone");
}

TEST_P(DiskReaderTest, WhatCannotBeOpened) {
  EXPECT_EQ(reader_->open(folder_ + "/none").error().code, Code::not_found);
  EXPECT_EQ(reader_->open(folder_).error().code, Code::invalid_argument);
  EXPECT_FALSE(reader_->direct(reader_->open(put("empty", "")).value()));
}

INSTANTIATE_TEST_SUITE_P(Ways, DiskReaderTest,
                         testing::Values(Way{Backend::ring, true, ""}, Way{Backend::ring, false, ""},
                                         Way{Backend::threads, true, ""}, Way{Backend::threads, false, ""},
                                         Way{Backend::ring, true, "/dev/shm"}, Way{Backend::threads, true, "/dev/shm"}));

// tmpfs has no O_DIRECT on many kernels; where it is refused the reads are buffered and say so.
TEST(DiskReader, AutomaticChoiceReadsEitherWay) {
  DiskReader reader = DiskReader::create().value();
  const std::string path = testing::TempDir() + "k3_disk_auto";
  ASSERT_TRUE(write_file(path, random_text(5000, 3)).ok());
  const int32_t file = reader.open(path).value();
  std::vector<std::byte> memory(static_cast<size_t>(5000 + 2 * kDiskSlack));
  const DiskRequest request{file, 17, 4000, memory.data() + kDiskSlack};
  EXPECT_TRUE(reader.start(std::span(&request, 1)).wait().ok());
  fs::remove(path);
}

TEST(DiskRate, MeasuresAndRefusesEmptyFiles) {
  const std::string path = testing::TempDir() + "k3_disk_rate";
  ASSERT_TRUE(write_file(path, random_text(3'000'000, 4)).ok());
  const DiskRate rate = measure_disk_read(path, 100'000, 0.02).value();
  EXPECT_GT(rate.sequential_bytes_per_second, 0);
  EXPECT_GT(rate.random_bytes_per_second, 0);
  ASSERT_TRUE(write_file(path, "").ok());
  EXPECT_EQ(measure_disk_read(path, 100'000, 0.02).error().code, Code::invalid_argument);
  fs::remove(path);
}

}  // namespace
}  // namespace k3
