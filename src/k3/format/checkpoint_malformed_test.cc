// Every lie a checkpoint can tell, each refused with its code and a message that names file, tensor and fact.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "k3/format/checkpoint.h"
#include "k3/format/checkpoint_cases.h"

namespace k3 {
namespace {

using testing_checkpoint::length_prefix;
using testing_checkpoint::safetensors_file;
using testing_checkpoint::TempFolder;

struct BadFile {
  const char* what;
  std::string bytes;
  Code code;
  std::vector<std::string> parts;  // besides the file's name
};

void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.what; }

// One tensor 'w' of the given fields over `data_bytes` bytes.
std::string one(const std::string& fields, size_t data_bytes) {
  return safetensors_file("{\"w\":{" + fields + "}}", std::string(data_bytes, 'd'));
}

std::string two(const std::string& a, const std::string& b, size_t data_bytes) {
  return safetensors_file("{\"first\":{\"dtype\":\"U8\"," + a + "},\"second\":{\"dtype\":\"U8\"," + b + "}}",
                          std::string(data_bytes, 'd'));
}

const std::string kPickle("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);

std::vector<BadFile> bad_files() {
  return {
      {"empty file", "", Code::corrupt, {"0 bytes", "cut short"}},
      {"too short", "abc", Code::corrupt, {"3 bytes"}},
      {"GGUF", std::string("GGUF\x03\0\0\0\x10\0\0\0", 12), Code::unsupported, {"GGUF", "safetensors"}},
      {"PyTorch zip", "PK\x03\x04" + std::string(30, 'z'), Code::unsupported, {"PyTorch", "convert it to safetensors"}},
      {"PyTorch pickle", kPickle, Code::unsupported, {"PyTorch", "convert it to safetensors"}},
      {"Git LFS pointer",
       "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
       Code::unsupported,
       {"git lfs pull"}},
      {"web page", "<!DOCTYPE html><html>404</html>", Code::unsupported, {"download"}},
      {"header over the file", length_prefix(1000) + "{}", Code::corrupt, {"1000", "past the end", "10 bytes"}},
      {"header over the limit", length_prefix(uint64_t{1} << 40) + "{}", Code::corrupt, {"1099511627776", "limit"}},
      {"header length 2^64-1", std::string(8, '\xff') + "{}", Code::corrupt, {"limit"}},
      {"empty header", length_prefix(0), Code::corrupt, {"does not begin"}},
      {"header an array", safetensors_file("[]", ""), Code::corrupt, {"does not begin"}},
      {"header cut", safetensors_file(R"({"w":{"dtype":"U8","sh)", ""), Code::corrupt, {"'w'", "ends inside"}},
      {"garbage after the header", safetensors_file("{}x", ""), Code::corrupt, {"after the end"}},
      {"trailing comma",
       safetensors_file(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],}})", "x"),
       Code::corrupt,
       {"'w'", "quotes"}},
      {"bad UTF-8 in a name",
       safetensors_file("{\"w\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "x"),
       Code::corrupt,
       {"UTF-8"}},
      {"overlong UTF-8", safetensors_file("{\"w\xc0\xaf\":{}}", ""), Code::corrupt, {"UTF-8"}},
      {"half a surrogate pair", safetensors_file(R"({"w\ud800":{}})", ""), Code::corrupt, {"surrogate"}},
      {"bad escape", safetensors_file(R"({"w\x":{}})", ""), Code::corrupt, {"escape"}},
      {"control character", safetensors_file("{\"w\n\":{}}", ""), Code::corrupt, {"control character"}},
      {"empty name",
       safetensors_file(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"),
       Code::corrupt,
       {"empty name"}},
      {"metadata not a map", safetensors_file(R"({"__metadata__":3})", ""), Code::corrupt, {"__metadata__"}},
      {"metadata twice",
       safetensors_file(R"({"__metadata__":{},"__metadata__":{}})", ""),
       Code::corrupt,
       {"__metadata__", "twice"}},
      {"metadata value",
       safetensors_file(R"({"__metadata__":{"a":1}})", ""),
       Code::corrupt,
       {"__metadata__", "expected a string"}},
      {"too deep",
       safetensors_file("{\"w\":{\"x\":" + std::string(60, '[') + std::string(60, ']') + "}}", ""),
       Code::corrupt,
       {"levels deep"}},
      {"no dtype", one(R"("shape":[1],"data_offsets":[0,1])", 1), Code::corrupt, {"'w'", "no dtype"}},
      {"no shape", one(R"("dtype":"U8","data_offsets":[0,1])", 1), Code::corrupt, {"'w'", "no shape"}},
      {"no offsets", one(R"("dtype":"U8","shape":[1])", 1), Code::corrupt, {"'w'", "no data_offsets"}},
      {"dtype twice",
       one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "dtype", "twice"}},
      {"dtype a number",
       one(R"("dtype":5,"shape":[1],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "expected a string"}},
      {"shape a string",
       one(R"("dtype":"U8","shape":"1","data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "shape", "an array"}},
      {"negative dimension",
       one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "shape", "negative"}},
      {"fractional dimension",
       one(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "shape", "fraction"}},
      {"dimension over 63 bits",
       one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "63 bits"}},
      {"shape overflow",
       one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "overflows", "[4294967296, 4294967296]"}},
      {"byte size overflow",
       one(R"("dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "overflows"}},
      {"overflow hidden by a zero",
       one(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])", 0),
       Code::corrupt,
       {"'w'", "overflows"}},
      {"seventeen dimensions",
       one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])", 1),
       Code::corrupt,
       {"'w'", "16 dimensions"}},
      {"one offset", one(R"("dtype":"U8","shape":[1],"data_offsets":[1])", 1), Code::corrupt, {"'w'", "two numbers"}},
      {"three offsets", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])", 1), Code::corrupt, {"'w'", "two numbers"}},
      {"backward offsets", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1), Code::corrupt, {"'w'", "backwards"}},
      {"negative offset",
       one(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])", 1),
       Code::corrupt,
       {"'w'", "data_offsets", "negative"}},
      {"data past the end",
       one(R"("dtype":"U8","shape":[8],"data_offsets":[0,8])", 7),
       Code::corrupt,
       {"'w'", "ends at byte 8", "7 bytes"}},
      {"size against shape",
       one(R"("dtype":"BF16","shape":[3,2],"data_offsets":[0,10])", 10),
       Code::corrupt,
       {"'w'", "BF16 [3, 2] needs 12 bytes", "give 10"}},
      {"size of a foreign dtype",
       one(R"("dtype":"F64","shape":[2],"data_offsets":[0,10])", 10),
       Code::corrupt,
       {"'w'", "F64", "16 bytes"}},
      {"overlap",
       two(R"("shape":[4],"data_offsets":[0,4])", R"("shape":[4],"data_offsets":[2,6])", 6),
       Code::corrupt,
       {"'second'", "overlaps", "'first'", "2 bytes"}},
      {"same bytes twice",
       two(R"("shape":[4],"data_offsets":[0,4])", R"("shape":[4],"data_offsets":[0,4])", 4),
       Code::corrupt,
       {"'second'", "overlaps"}},
      {"hole",
       two(R"("shape":[2],"data_offsets":[0,2])", R"("shape":[2],"data_offsets":[3,5])", 5),
       Code::corrupt,
       {"'second'", "1 bytes before", "no holes"}},
      {"hole at the start", one(R"("dtype":"U8","shape":[2],"data_offsets":[1,3])", 3), Code::corrupt, {"'w'", "no holes"}},
      {"data after the last tensor",
       one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])", 5),
       Code::corrupt,
       {"'w'", "last 3 bytes"}},
      {"data without tensors", safetensors_file("{}", "xx"), Code::corrupt, {"last 2 bytes"}},
      {"duplicate name",
       safetensors_file(
           R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0077":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           "xy"),
       Code::corrupt,
       {"'w'", "twice"}},
      {"name over 64 KiB",
       safetensors_file("{\"" + std::string(70000, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"),
       Code::corrupt,
       {"nnnn", "longer than 65535"}},
  };
}

void expect_refused(const Error& error, const std::string& file, const BadFile& bad) {
  EXPECT_EQ(error.code, bad.code) << error.message;
  EXPECT_NE(error.message.find(file), std::string::npos) << error.message;
  for (const std::string& part : bad.parts) {
    EXPECT_NE(error.message.find(part), std::string::npos) << "lacks: " << part << "\nmessage: " << error.message;
  }
  EXPECT_LT(error.message.size(), 900u) << "too long to read";
}

class MalformedFile : public testing::TestWithParam<BadFile> {};

TEST_P(MalformedFile, IsRefusedAlone) {
  const TempFolder folder;
  folder.write("bad.safetensors", GetParam().bytes);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_FALSE(checkpoint.ok());
  expect_refused(checkpoint.error(), folder.file("bad.safetensors"), GetParam());
}

TEST_P(MalformedFile, IsRefusedAsAShard) {
  const TempFolder folder;
  folder.write("bad.safetensors", GetParam().bytes);
  folder.write("model.safetensors.index.json", R"({"weight_map":{"w":"bad.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto info = checkpoint->find("w");
  ASSERT_FALSE(info.ok());
  expect_refused(info.error(), folder.file("bad.safetensors"), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, MalformedFile, testing::ValuesIn(bad_files()));

struct BadIndex {
  const char* what;
  std::string text;
  Code code;
  std::vector<std::string> parts;
};

void PrintTo(const BadIndex& bad, std::ostream* out) { *out << bad.what; }

std::vector<BadIndex> bad_indexes() {
  return {
      {"empty", "", Code::corrupt, {"an object"}},
      {"no weight_map", R"({"metadata":{"total_size":5}})", Code::corrupt, {"no weight_map"}},
      {"weight_map twice", R"({"weight_map":{},"weight_map":{}})", Code::corrupt, {"weight_map", "twice"}},
      {"weight_map an array", R"({"weight_map":[]})", Code::corrupt, {"an object"}},
      {"duplicate name",
       R"({"weight_map":{"a.b":"x.safetensors","a\u002eb":"y.safetensors"}})",
       Code::corrupt,
       {"'a.b'", "twice"}},
      {"shard a number", R"({"weight_map":{"w":1}})", Code::corrupt, {"'w'", "expected a string"}},
      {"shard outside",
       R"({"weight_map":{"w":"../secret.safetensors"}})",
       Code::corrupt,
       {"'w'", "'../secret.safetensors'", "plain"}},
      {"shard absolute", R"({"weight_map":{"w":"/etc/passwd"}})", Code::corrupt, {"'w'", "/etc/passwd"}},
      {"shard is ..", R"({"weight_map":{"w":".."}})", Code::corrupt, {"'w'", "'..'"}},
      {"shard empty", R"({"weight_map":{"w":""}})", Code::corrupt, {"'w'", "plain"}},
      {"shard with a zero byte", R"({"weight_map":{"w":"a\u0000b"}})", Code::corrupt, {"'w'", "plain"}},
      {"empty name", R"({"weight_map":{"":"a.safetensors"}})", Code::corrupt, {"empty tensor name"}},
      {"bad UTF-8", "{\"weight_map\":{\"w\xff\":\"a.safetensors\"}}", Code::corrupt, {"UTF-8"}},
      {"cut short", R"({"weight_map":{"w":"a.safetensors")", Code::corrupt, {"ends inside"}},
      {"text after", R"({"weight_map":{}} {})", Code::corrupt, {"after the end"}},
      {"total_size negative",
       R"({"metadata":{"total_size":-5},"weight_map":{}})",
       Code::corrupt,
       {"total_size", "negative"}},
      {"too deep", "{\"x\":" + std::string(40, '[') + std::string(40, ']') + "}", Code::corrupt, {"levels deep"}},
      {"Git LFS pointer", "version https://git-lfs.github.com/spec/v1\n", Code::unsupported, {"git lfs pull"}},
  };
}

class MalformedIndex : public testing::TestWithParam<BadIndex> {};

TEST_P(MalformedIndex, IsRefused) {
  const TempFolder folder;
  folder.write("model.safetensors.index.json", GetParam().text);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_FALSE(checkpoint.ok());
  expect_refused(checkpoint.error(), folder.file("model.safetensors.index.json"),
                 BadFile{GetParam().what, "", GetParam().code, GetParam().parts});
}

INSTANTIATE_TEST_SUITE_P(All, MalformedIndex, testing::ValuesIn(bad_indexes()));

const std::string kGood = safetensors_file(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");

TEST(MalformedFolder, TheIndexNamesATensorItsShardLacks) {
  const TempFolder folder;
  folder.write("a.safetensors", kGood);
  folder.write("model.safetensors.index.json", R"({"weight_map":{"w":"a.safetensors","v":"a.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_TRUE(checkpoint->find("w").ok());
  const BadFile expected{"", "", Code::corrupt, {"'v'", "'a.safetensors'", "does not hold it"}};
  expect_refused(checkpoint->find("v").error(), folder.file("model.safetensors.index.json"), expected);
  expect_refused(checkpoint->verify_all().error(), folder.file("model.safetensors.index.json"), expected);
}

TEST(MalformedFolder, ATensorLiesInTwoShards) {
  const TempFolder folder;
  folder.write("a.safetensors", kGood);
  folder.write(
      "b.safetensors",
      safetensors_file(
          R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"v":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          "xy"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"w":"a.safetensors","v":"b.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  expect_refused(checkpoint->verify_all().error(), folder.file("b.safetensors"),
                 BadFile{"", "", Code::corrupt, {"'w'", "another shard"}});
}

TEST(MalformedFolder, AFifoIsNotWaitedFor) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo(folder.file("model.safetensors").c_str(), 0600), 0);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_FALSE(checkpoint.ok());
  expect_refused(checkpoint.error(), folder.file("model.safetensors"),
                 BadFile{"", "", Code::invalid_argument, {"not a regular file"}});
}

TEST(MalformedFolder, SaysWhatItFoundInstead) {
  const auto refused = [](const TempFolder& folder, Code code, const std::vector<std::string>& parts) {
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_FALSE(checkpoint.ok());
    expect_refused(checkpoint.error(), folder.path(), BadFile{"", "", code, parts});
  };
  const TempFolder empty, several, pytorch, gguf, other;
  refused(empty, Code::not_found, {"it is empty"});
  several.write("a.safetensors", kGood);
  several.write("b.safetensors", kGood);
  refused(several, Code::not_found, {"2 safetensors files", "a.safetensors, b.safetensors", "index"});
  pytorch.write("pytorch_model.bin", "");
  refused(pytorch, Code::unsupported, {"pytorch_model.bin", "PyTorch", "convert it to safetensors"});
  gguf.write("model-q4.gguf", "");
  refused(gguf, Code::unsupported, {"model-q4.gguf", "GGUF"});
  other.write("config.json", "{}");
  refused(other, Code::not_found, {"it holds config.json"});
  const auto none = Checkpoint::open(empty.file("absent"));
  ASSERT_FALSE(none.ok());
  expect_refused(none.error(), empty.file("absent"), BadFile{"", "", Code::not_found, {"no such file or folder"}});
}

}  // namespace
}  // namespace k3
