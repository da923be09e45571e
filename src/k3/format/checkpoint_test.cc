#include "k3/format/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "k3/base/file.h"
#include "k3/format/checkpoint_cases.h"

namespace k3 {
namespace {

using testing_checkpoint::safetensors_file;
using testing_checkpoint::TempFolder;

const std::string kModels = K3_SOURCE_DIR "/tests/data/oracle-models/";

std::vector<std::string> model_folders() {
  std::vector<std::string> folders = {K3_SOURCE_DIR "/models/k3-mini"};
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (entry.is_directory()) folders.push_back(entry.path().string());
  }
  return folders;
}

std::string contents(const Checkpoint& checkpoint, std::string_view name) {
  const auto info = checkpoint.find(name);
  EXPECT_TRUE(info.ok()) << info.error().message;
  std::string bytes(static_cast<size_t>(info->size_bytes), '\0');
  const Status status = checkpoint.read(name, *info, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
  EXPECT_TRUE(status.ok()) << status.error().message;
  return bytes;
}

TEST(Checkpoint, ReadsEveryModelOfTheRepository) {
  const auto folders = model_folders();
  ASSERT_EQ(folders.size(), 11u);
  for (const std::string& folder : folders) {
    const auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const Status whole = checkpoint->verify_all();
    EXPECT_TRUE(whole.ok()) << whole.error().message;
    // The index read a second way: same names, and their sizes add up to its total.
    const auto index = nlohmann::json::parse(*read_file(folder + "/model.safetensors.index.json"));
    EXPECT_EQ(checkpoint->tensor_count(), static_cast<int64_t>(index["weight_map"].size()));
    int64_t bytes = 0;
    for (const auto& [name, shard] : index["weight_map"].items()) {
      const auto info = checkpoint->find(name);
      ASSERT_TRUE(info.ok()) << info.error().message;
      EXPECT_EQ(checkpoint->shard_file(info->shard), shard);
      EXPECT_EQ(info->count() * dtype_bytes(info->dtype), info->size_bytes);
      bytes += info->size_bytes;
    }
    EXPECT_EQ(bytes, index["metadata"]["total_size"].get<int64_t>()) << folder;
  }
}

TEST(Checkpoint, OpensASingleFileAndAnIndexFile) {
  const std::string folder = kModels + "k3-a";
  const auto whole = Checkpoint::open(folder);
  const auto index = Checkpoint::open(folder + "/model.safetensors.index.json");
  const auto single = Checkpoint::open(folder + "/model-00001-of-000001.safetensors");
  ASSERT_TRUE(whole.ok() && index.ok() && single.ok());
  EXPECT_EQ(whole->folder(), folder);
  EXPECT_EQ(single->folder(), folder);
  EXPECT_EQ(single->shard_file(0), "model-00001-of-000001.safetensors");
  EXPECT_EQ(single->tensor_count(), whole->tensor_count());
  const std::string name = "language_model.model.layers.0.mlp.down_proj.weight";
  EXPECT_TRUE(single->contains(name));
  EXPECT_FALSE(single->contains(name + "x"));
  EXPECT_EQ(contents(*single, name), contents(*whole, name));
  EXPECT_EQ(contents(*index, name), contents(*whole, name));
  // bytes as they lie in the file
  const auto info = single->find(name);
  EXPECT_EQ(info->dims, (std::vector<int64_t>{64, 96}));
  const auto file = read_file(folder + "/model-00001-of-000001.safetensors");
  EXPECT_EQ(file->substr(static_cast<size_t>(info->offset), static_cast<size_t>(info->size_bytes)), contents(*single, name));
  std::string part(10, '\0');
  ASSERT_TRUE(single->read_range(name, *info, 100, std::as_writable_bytes(std::span(part.data(), part.size()))).ok());
  EXPECT_EQ(part, contents(*single, name).substr(100, 10));
}

TEST(Checkpoint, FolderRules) {
  const TempFolder folder;
  const std::string file = safetensors_file(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "xy");
  folder.write("only.safetensors", file);
  const auto only = Checkpoint::open(folder.path());
  ASSERT_TRUE(only.ok()) << only.error().message;
  EXPECT_EQ(contents(*only, "a"), "xy");
  folder.write("model.safetensors", safetensors_file(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "z"));
  const auto single = Checkpoint::open(folder.path());
  ASSERT_TRUE(single.ok()) << single.error().message;
  EXPECT_TRUE(single->contains("b"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"only.safetensors"}})");
  const auto index = Checkpoint::open(folder.path());
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_TRUE(index->contains("a"));
  EXPECT_FALSE(index->contains("b"));
}

TEST(Checkpoint, AcceptsTheFormatsCorners) {
  const TempFolder folder;
  const char* header =
      R"( "scalar":{"dtype":"F32","shape":[],"data_offsets":[5,9]},"__metadata__":{"format":"pt","x":"\u00e9"},)"
      R"("empty":{"data_offsets":[5,5],"shape":[0,4611686018427387904],"dtype":"U8"},"extra":{"dtype":"U8",)"
      R"("shape":[5],"data_offsets":[0,5],"note":[1,{"a":null}]},"\u0077\ud83d\ude00":{"dtype":"C64","shape":[1],)"
      R"("data_offsets":[9,17]},"odd":{"dtype":"F4_E9","shape":[3],"data_offsets":[17,18]}})";
  folder.write("m.safetensors", safetensors_file("{" + std::string(header) + "   ", "abcde" + std::string(13, '\0')));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensor_count(), 5);
  EXPECT_EQ(checkpoint->find("scalar")->count(), 1);
  EXPECT_EQ(checkpoint->find("empty")->size_bytes, 0);
  EXPECT_EQ(checkpoint->find("empty")->count(), 0);
  EXPECT_EQ(contents(*checkpoint, "extra"), "abcde");
  EXPECT_EQ(contents(*checkpoint, "empty"), "");
  // A dtype nobody can hold is an error only for who asks for it.
  for (const auto& [name, dtype] : {std::pair("w\U0001F600", "C64"), std::pair("odd", "F4_E9")}) {
    const auto foreign = checkpoint->find(name);
    ASSERT_FALSE(foreign.ok());
    EXPECT_EQ(foreign.error().code, Code::unsupported);
    EXPECT_NE(foreign.error().message.find(dtype), std::string::npos) << foreign.error().message;
    EXPECT_NE(foreign.error().message.find(name), std::string::npos) << foreign.error().message;
  }
  EXPECT_TRUE(checkpoint->verify_all().ok());
}

TEST(Checkpoint, EveryDtypeIsRead) {
  const TempFolder folder;
  std::string header = "{", data;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::u8, DType::i32, DType::i64, DType::f64}) {
    const size_t begin = data.size();
    data.append(static_cast<size_t>(3 * dtype_bytes(dtype)), static_cast<char>('a' + static_cast<int>(dtype)));
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[3],"data_offsets":[{},{}]}})", header.size() > 1 ? "," : "",
                          dtype_name(dtype), dtype_name(dtype), begin, data.size());
  }
  folder.write("m.safetensors", safetensors_file(header + "}", data));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::u8, DType::i32, DType::i64, DType::f64}) {
    EXPECT_EQ(checkpoint->find(dtype_name(dtype))->dtype, dtype);
    EXPECT_EQ(contents(*checkpoint, dtype_name(dtype)),
              std::string(static_cast<size_t>(3 * dtype_bytes(dtype)), static_cast<char>('a' + static_cast<int>(dtype))));
  }
}

TEST(Checkpoint, ReadsATensorOver2GiB) {
  const TempFolder folder;
  constexpr int64_t kRows = 41'000'000, kBytes = kRows * 64;  // 2.6 GB, in a sparse file
  const std::string header = fmt::format(
      R"({{"big":{{"dtype":"BF16","shape":[{},32],"data_offsets":[0,{}]}},"end":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}}}})",
      kRows, kBytes, kBytes, kBytes + 4);
  const std::string head = safetensors_file(header, "");
  folder.write("m.safetensors", head);
  const std::string path = folder.file("m.safetensors");
  std::filesystem::resize_file(path, head.size() + static_cast<size_t>(kBytes) + 4);
  FILE* file = fopen(path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  for (const int64_t at : {int64_t{0}, (int64_t{1} << 31) - 1, int64_t{1} << 31, kBytes - 1, kBytes + 3}) {
    ASSERT_EQ(fseeko(file, static_cast<off_t>(static_cast<int64_t>(head.size()) + at), SEEK_SET), 0);
    fputc(static_cast<int>(at % 200 + 1), file);
  }
  fclose(file);
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto info = checkpoint->find("big");
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_EQ(info->size_bytes, kBytes);
  for (const int64_t at : {int64_t{0}, (int64_t{1} << 31) - 1, int64_t{1} << 31, kBytes - 1}) {
    std::byte byte{};
    ASSERT_TRUE(checkpoint->read_range("big", *info, at, std::span(&byte, 1)).ok());
    EXPECT_EQ(std::to_integer<int64_t>(byte), at % 200 + 1);
  }
  EXPECT_EQ(contents(*checkpoint, "end").back(), static_cast<char>((kBytes + 3) % 200 + 1));
}

TEST(Checkpoint, AFileCutShortUnderUsIsAnError) {
  const TempFolder folder;
  folder.write("a.safetensors",
               safetensors_file(R"({"w":{"dtype":"U8","shape":[8000],"data_offsets":[0,8000]}})", std::string(8000, 'x')));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto info = checkpoint->find("w");
  ASSERT_TRUE(info.ok());
  std::filesystem::resize_file(folder.file("a.safetensors"), 4000);
  std::vector<std::byte> bytes(8000);
  const Status status = checkpoint->read("w", *info, bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::corrupt);
  for (const char* part : {"'w'", "a.safetensors", "ends at byte 4000"}) {
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  }
}

TEST(Checkpoint, AMissingShardHindersOnlyItsTensors) {
  const TempFolder folder;
  folder.write("a.safetensors", safetensors_file(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1"));
  folder.write(
      "model.safetensors.index.json",
      R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors","z":"c.safetensors"},"metadata":{"total_size":3}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(contents(*checkpoint, "x"), "1");
  ASSERT_EQ(checkpoint->shard_count(), 3);
  EXPECT_TRUE(checkpoint->shard_present(0));
  EXPECT_FALSE(checkpoint->shard_present(1));
  EXPECT_TRUE(checkpoint->contains("y"));
  const auto missing = checkpoint->find("y");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::not_found);
  for (const char* part : {"'y'", "b.safetensors", "2 of 3 shards are missing"}) {
    EXPECT_NE(missing.error().message.find(part), std::string::npos) << missing.error().message;
  }
  const Status whole = checkpoint->verify_all();
  ASSERT_FALSE(whole.ok());
  EXPECT_EQ(whole.error().code, Code::not_found);
}

TEST(Checkpoint, ShardHeadersAreReadWhenFirstAskedFor) {
  const TempFolder folder;
  folder.write("a.safetensors", safetensors_file(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1"));
  folder.write("b.safetensors", "garbage that is no header");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_TRUE(checkpoint->find("x").ok());
  const auto broken = checkpoint->find("y");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, Code::corrupt);
  EXPECT_NE(broken.error().message.find("b.safetensors"), std::string::npos);
}

TEST(Checkpoint, ManyThreadsMayAskAtOnce) {
  const auto checkpoint = Checkpoint::open(kModels + "k3-b");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  std::vector<std::string> names;
  checkpoint->for_each_name([&](std::string_view name, int32_t) { names.emplace_back(name); });
  std::vector<int64_t> sums(8);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < names.size(); ++i) {
        const std::string& name = names[(i * 7919 + t * 31) % names.size()];
        const auto info = checkpoint->find(name);
        if (!info.ok()) continue;
        std::vector<std::byte> bytes(static_cast<size_t>(info->size_bytes));
        if (checkpoint->read(name, *info, bytes).ok()) sums[t] += info->size_bytes + std::to_integer<int64_t>(bytes[0]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(sums[0], 2'000'000);
  for (const int64_t sum : sums) EXPECT_EQ(sum, sums[0]);
}

TEST(Checkpoint, ScaleBytesOver252AreNamed) {
  std::vector<std::byte> scales(12 * 5, std::byte{252});
  EXPECT_TRUE(check_scales("f", "t", scales, 12).ok());
  EXPECT_TRUE(check_scales("f", "t", {}, 12).ok());
  for (const int value : {253, 254, 255}) {
    auto bad = scales;
    bad[29] = static_cast<std::byte>(value);
    bad[40] = std::byte{255};
    const Status status = check_scales("shard.safetensors", "experts.0.w1.weight_scale", bad, 12);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::corrupt);
    for (const std::string& part : {std::string("shard.safetensors"), std::string("experts.0.w1.weight_scale"),
                                    fmt::format("scale byte {}", value), std::string("row 2, group 5")}) {
      EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    }
  }
}

}  // namespace
}  // namespace k3
