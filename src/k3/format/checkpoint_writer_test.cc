#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "k3/format/checkpoint.h"
#include "k3/format/checkpoint_cases.h"

namespace k3 {
namespace {

using testing_checkpoint::TempFolder;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

const std::vector<std::vector<TensorSpec>> kPlan = {{{"b", DType::bf16, {2, 3}}, {"a \"quoted\" \u00e9", DType::u8, {5}}},
                                                    {{"none", DType::f32, {0, 4}}, {"scalar", DType::i64, {}}}};

TEST(CheckpointWriter, WritesTheReleasedLayout) {
  const TempFolder folder;
  const std::string out = folder.file("new/sub");
  {
    auto writer = CheckpointWriter::create(out, kPlan);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    ASSERT_TRUE(writer->append("b", bytes_of("0123")).ok());  // in pieces
    ASSERT_TRUE(writer->append("b", bytes_of("456789AB")).ok());
    ASSERT_TRUE(writer->append("a \"quoted\" \u00e9", bytes_of("vwxyz")).ok());
    EXPECT_TRUE(path_exists(out + "/model-00001-of-000002.safetensors"));
    EXPECT_FALSE(path_exists(out + "/model.safetensors.index.json"));
    ASSERT_TRUE(writer->append("none", {}).ok());
    ASSERT_TRUE(writer->append("scalar", bytes_of("abcdefgh")).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
  EXPECT_EQ(files_in(out), (std::set<std::string>{"model-00001-of-000002.safetensors", "model-00002-of-000002.safetensors",
                                                  "model.safetensors.index.json"}));
  const auto index = nlohmann::ordered_json::parse(*read_file(out + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 12 + 5 + 0 + 8);
  EXPECT_EQ(index["weight_map"].dump(),
            "{\"a \\\"quoted\\\" \u00e9\":\"model-00001-of-000002.safetensors\",\"b\":\"model-00001-of-000002.safetensors\","
            "\"none\":\"model-00002-of-000002.safetensors\",\"scalar\":\"model-00002-of-000002.safetensors\"}");
  const std::string shard = *read_file(out + "/model-00001-of-000002.safetensors");
  const auto header_bytes = static_cast<unsigned char>(shard[0]) + 256u * static_cast<unsigned char>(shard[1]);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_EQ(shard.substr(8 + header_bytes), "0123456789ABvwxyz");
  EXPECT_EQ(nlohmann::json::parse(shard.substr(8, header_bytes))["__metadata__"]["format"], "pt");

  const auto back = Checkpoint::open(out);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_TRUE(back->verify_all().ok());
  EXPECT_EQ(back->tensor_count(), 4);
  EXPECT_EQ(back->find("b")->dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(back->find("b")->dtype, DType::bf16);
  EXPECT_EQ(back->find("none")->size_bytes, 0);
  std::string text(5, '\0');
  const auto info = back->find("a \"quoted\" \u00e9");
  ASSERT_TRUE(info.ok());
  ASSERT_TRUE(back->read("a", *info, std::as_writable_bytes(std::span(text.data(), text.size()))).ok());
  EXPECT_EQ(text, "vwxyz");
}

TEST(CheckpointWriter, CopiesAModelByteForByte) {
  const auto source = Checkpoint::open(K3_SOURCE_DIR "/tests/data/oracle-models/k3-c");
  ASSERT_TRUE(source.ok());
  std::vector<std::vector<TensorSpec>> plan(static_cast<size_t>(source->shard_count()));
  for (size_t shard = 0; shard < plan.size(); ++shard) {  // file order
    const std::string path = join_path(source->folder(), source->shard_file(static_cast<int32_t>(shard)));
    const auto one = Checkpoint::open(path);
    ASSERT_TRUE(one.ok());
    one->for_each_name([&](std::string_view name, int32_t) {
      const auto info = one->find(name);
      plan[shard].push_back({std::string(name), info->dtype, info->dims});
    });
  }
  const TempFolder folder;
  auto writer = CheckpointWriter::create(folder.path(), plan);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (const auto& shard : plan) {
    for (const TensorSpec& tensor : shard) {
      const auto info = source->find(tensor.name);
      std::vector<std::byte> bytes(static_cast<size_t>(info->size_bytes));
      ASSERT_TRUE(source->read(tensor.name, *info, bytes).ok());
      ASSERT_TRUE(writer->append(tensor.name, bytes).ok());
    }
  }
  ASSERT_TRUE(writer->finish().ok());
  for (int32_t i = 0; i < source->shard_count(); ++i) {
    EXPECT_EQ(*read_file(join_path(folder.path(), source->shard_file(i))),
              *read_file(join_path(source->folder(), source->shard_file(i))))
        << source->shard_file(i);
  }
}

TEST(CheckpointWriter, OneShardIsNumberedToo) {
  const TempFolder folder;
  auto writer = CheckpointWriter::create(folder.path(), {{{"only", DType::u8, {0}}}});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(files_in(folder.path()),
            (std::set<std::string>{"model-00001-of-000001.safetensors", "model.safetensors.index.json"}));
}

TEST(CheckpointWriter, AnAbandonedWriteLeavesNoIndexAndNoHalfFile) {
  const TempFolder folder;
  folder.write("model.safetensors.index.json", "{}");  // of an older checkpoint in the same place
  {
    auto writer = CheckpointWriter::create(folder.path(), kPlan);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    ASSERT_TRUE(writer->append("b", bytes_of("0123")).ok());
  }
  EXPECT_EQ(files_in(folder.path()), std::set<std::string>{});
}

TEST(CheckpointWriter, ImpossiblePlansAreRefused) {
  const TempFolder folder;
  const auto refused = [&](std::vector<std::vector<TensorSpec>> plan, const char* fact) {
    const auto writer = CheckpointWriter::create(folder.path(), std::move(plan));
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.error().code, Code::invalid_argument);
    EXPECT_NE(writer.error().message.find(fact), std::string::npos) << writer.error().message;
  };
  refused({{{"x", DType::u8, {1}}}, {{"x", DType::u8, {1}}}}, "'x' appears twice");
  refused({{{"", DType::u8, {1}}}}, "no name");
  refused({{{"a\xff", DType::u8, {1}}}}, "not UTF-8");
  refused({{{"__metadata__", DType::u8, {1}}}}, "cannot hold");
  refused({{{"x", DType::f32, {int64_t{1} << 62}}}}, "impossible");
  refused({{{"x", DType::f32, {-1}}}}, "impossible");
}

TEST(CheckpointWriter, AFolderThatCannotBeMadeIsNamed) {
  const TempFolder folder;
  folder.write("file", "");
  const auto writer = CheckpointWriter::create(folder.file("file/sub"), kPlan);
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.error().message.find(folder.file("file/sub")), std::string::npos) << writer.error().message;
}

TEST(CheckpointWriter, AFailedWriteNamesTensorAndFileAndLeavesNothing) {
  const TempFolder folder;
  // A file size limit stands in for a full disk: the write fails in the middle of the tensor.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  rlimit limit = old_limit;
  limit.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &limit);
  Status status;
  {
    auto writer = CheckpointWriter::create(folder.path(), {{{"large", DType::u8, {4 << 20}}}});
    if (writer.ok()) status = writer->append("large", std::vector<std::byte>(4 << 20));
  }
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(status.ok());
  for (const std::string& part :
       {std::string("'large'"), folder.file("model-00001-of-000001.safetensors"), std::string("cannot write")}) {
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  }
  EXPECT_EQ(files_in(folder.path()), std::set<std::string>{});
}

TEST(CheckpointWriterDeathTest, BreakingThePlanIsAProgrammerError) {
  const TempFolder folder;
  auto writer = CheckpointWriter::create(folder.path(), kPlan);
  ASSERT_TRUE(writer.ok());
  EXPECT_DEATH(static_cast<void>(writer->append("scalar", bytes_of("abcdefgh"))), "'b' is next");
  EXPECT_DEATH(static_cast<void>(writer->append("b", bytes_of("0123456789ABC"))), "of 12 bytes");
  EXPECT_DEATH(static_cast<void>(writer->finish()), "before tensor 'b'");
}

}  // namespace
}  // namespace k3
