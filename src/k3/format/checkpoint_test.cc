#include "k3/format/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace k3 {
namespace {

const std::string kModels = K3_SOURCE_DIR "/tests/data/oracle-models/";

TEST(Checkpoint, ReadsEveryModelOfTheRepository) {
  std::vector<std::string> folders = {K3_SOURCE_DIR "/models/k3-mini"};
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (entry.is_directory()) folders.push_back(entry.path().string());
  }
  ASSERT_EQ(folders.size(), 11u);
  for (const std::string& folder : folders) {
    const auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const Status whole = checkpoint->verify_all();
    EXPECT_TRUE(whole.ok()) << whole.error().message;
    int64_t bytes = 0;
    checkpoint->for_each_name([&](std::string_view name, int32_t shard) {
      const auto info = checkpoint->find(name);
      ASSERT_TRUE(info.ok()) << info.error().message;
      EXPECT_EQ(info->shard, shard);
      EXPECT_EQ(info->count() * dtype_bytes(info->dtype), info->size_bytes);
      bytes += info->size_bytes;
    });
    EXPECT_GT(bytes, 100'000) << folder;
  }
}

}  // namespace
}  // namespace k3
