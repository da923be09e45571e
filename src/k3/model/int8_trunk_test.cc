// The 8-bit trunk: what convert writes, what comes back, and checkpoints that lie about it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <set>

#include "k3/base/file.h"
#include "k3/format/config_edit.h"
#include "k3/model/checkpoint_test_util.h"
#include "k3/model/convert.h"
#include "k3/model/model.h"
#include "k3/model/params.h"
#include "k3/model/summary.h"
#include "k3/ops/int8/int8.h"

namespace k3 {
namespace {

const std::string kModel = std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/k3-a";

std::string scratch(const std::string& name) {
  const std::string folder = testing::TempDir() + "k3_int8_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// Converts a model folder with --trunk `dtype` as the command does.
std::string converted(const std::string& from, DType dtype, const std::string& name) {
  const std::string folder = scratch(name);
  Config config = load_config(from).value();
  const Checkpoint checkpoint = Checkpoint::open(from).value();
  resolve_by_tensors(checkpoint, config);
  ConvertOptions options;
  options.trunk = dtype;
  EXPECT_TRUE(convert_checkpoint(checkpoint, config, folder, options, {}).ok());
  const std::string json = read_file(from + "/config.json").value();
  EXPECT_TRUE(write_file(folder + "/config.json", set_trunk_packing(json, dtype == DType::i8).value()).ok());
  return folder;
}

TEST(Int8Trunk, LargeMatricesAreCodesAndScalesAndTheRestPasses) {
  const Tensors before = read_all(kModel), after = read_all(converted(kModel, DType::i8, "layout"));
  const Config config = load_config(kModel).value();
  std::set<std::string> packed;
  for_each_param(config, [&](const ParamFamily& family, int64_t layer, int64_t expert) {
    if (may_be_int8(family, config)) packed.insert(param_name(config, family.id, layer, expert));
  });
  ASSERT_GT(packed.size(), 20u);
  for (const char* never : {"kv_b_proj", "embed_tokens", "gate.weight", "norm", "conv1d", "experts.0.w1", "b_proj.weight"}) {
    for (const std::string& name : packed) {
      if (name.find("f_b_proj") != std::string::npos || name.find("q_b_proj") != std::string::npos) continue;
      EXPECT_EQ(name.find(never), std::string::npos) << name;
    }
  }
  EXPECT_EQ(after.size(), before.size() + packed.size());
  for (const auto& [name, stored] : before) {
    const Stored& now = after.at(name);
    if (!packed.contains(name)) {
      EXPECT_EQ(now.bytes, stored.bytes) << name;
      continue;
    }
    const int64_t rows = stored.spec.dims[0], cols = stored.spec.dims[1];
    const Stored& scales = after.at(name + "_scale");
    EXPECT_EQ(now.spec.dtype, DType::i8);
    EXPECT_EQ(now.spec.dims, stored.spec.dims);
    EXPECT_EQ(scales.spec.dtype, DType::u8);
    EXPECT_EQ(scales.spec.dims, (std::vector<int64_t>{rows, cols / 32}));
    std::vector<float> want(static_cast<size_t>(rows * cols)), got(want.size());
    convert_to_float(stored.bytes.data(), stored.spec.dtype, rows * cols, want.data());
    ops::int8_dequantise(reinterpret_cast<const int8_t*>(now.bytes.data()),
                         reinterpret_cast<const uint8_t*>(scales.bytes.data()), rows, cols, got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      const float step = ops::int8_factor(static_cast<uint8_t>(scales.bytes[i / 32]));
      ASSERT_LE(std::abs(got[i] - want[i]), step) << name << " " << i;
    }
  }
}

TEST(Int8Trunk, SizesFollowTheConfig) {
  const std::string folder = converted(kModel, DType::i8, "sizes");
  Config config = load_config(folder).value();
  EXPECT_TRUE(config.trunk_int8);
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  resolve_by_tensors(checkpoint, config);
  ModelSummary planned = summarise(config), stored = planned;
  ASSERT_TRUE(use_stored_sizes(checkpoint, config, stored).ok());
  EXPECT_EQ(planned.total.size_bytes, stored.total.size_bytes);
  EXPECT_EQ(planned.total.tensors, stored.total.tensors);
  int64_t visited = 0;
  for_each_tensor(config, [&](const ParamTensor& t) {
    visited += t.size_bytes();
    EXPECT_TRUE(checkpoint.contains(t.name)) << t.name;
  });
  EXPECT_EQ(visited, stored.total.size_bytes);
}

// Unpacking is exact in BF16, so the unpacked model packs to the same bytes again.
TEST(Int8Trunk, UnpacksAndPacksToTheSameBytes) {
  const std::string once = converted(kModel, DType::i8, "once"), plain = converted(once, DType::bf16, "plain");
  EXPECT_FALSE(load_config(plain).value().trunk_int8);
  const Tensors a = read_all(once), b = read_all(converted(plain, DType::i8, "twice"));
  ASSERT_EQ(a.size(), b.size());
  int64_t different = 0;
  for (const auto& [name, stored] : a) {
    // A group whose largest number was clamped may take a smaller scale; codes of all others stay.
    different += stored.bytes != b.at(name).bytes ? 1 : 0;
  }
  EXPECT_EQ(different, 0);
  EXPECT_EQ(read_all(converted(once, DType::i8, "again")).size(), a.size());
}

Error load_error(const std::function<void(Tensors&)>& change, bool marker = true) {
  const std::string from = converted(kModel, DType::i8, "good"), folder = scratch("lies");
  Tensors tensors = read_all(from);
  change(tensors);
  write_all(tensors, folder);
  const std::string json = read_file(from + "/config.json").value();
  EXPECT_TRUE(write_file(folder + "/config.json", set_trunk_packing(json, marker).value()).ok());
  ThreadPool pool(2);
  auto loaded = Model::load(folder, pool);
  EXPECT_FALSE(loaded.ok());
  return loaded.ok() ? Error{} : std::move(loaded).take_error();
}

void resize(Stored& stored, DType dtype, std::vector<int64_t> dims) {
  stored.spec.dtype = dtype;
  stored.spec.dims = std::move(dims);
  stored.bytes.resize(static_cast<size_t>(stored.spec.size_bytes()));
}

TEST(Int8Trunk, LiesAreNamed) {
  const std::string q = "language_model.model.layers.0.self_attn.q_proj.weight", scale = q + "_scale";
  const std::string embed = "language_model.model.embed_tokens.weight";
  const auto expect = [](const Error& error, Code code, const std::string& tensor, const std::string& says) {
    EXPECT_EQ(code_name(error.code), code_name(code)) << error.message;
    EXPECT_NE(error.message.find(tensor), std::string::npos) << error.message;
    EXPECT_NE(error.message.find(says), std::string::npos) << error.message;
  };
  expect(load_error([](Tensors&) {}, false), Code::corrupt, "q_proj", "no trunk_quantization");
  expect(load_error([&](Tensors& t) { t.erase(scale); }), Code::not_found, scale, "");
  expect(load_error([&](Tensors& t) { resize(t.at(scale), DType::u8, {96, 3}); }), Code::corrupt, scale, "[96, 3]");
  expect(load_error([&](Tensors& t) { resize(t.at(scale), DType::bf16, {96, 2}); }), Code::corrupt, scale, "BF16");
  expect(load_error([&](Tensors& t) { t.at(scale).bytes[7] = std::byte{255}; }), Code::corrupt, scale,
         "scale byte 7 is 255");
  expect(load_error([&](Tensors& t) { resize(t.at(q), DType::i8, {95, 64}); }), Code::corrupt, q, "[95, 64]");
  expect(load_error([&](Tensors& t) { resize(t.at(embed), DType::i8, t.at(embed).spec.dims); }), Code::unsupported, embed,
         "cannot be I8");
}

TEST(Int8Trunk, OnlyItsOwnFormatIsRead) {
  const std::string json = read_file(kModel + "/config.json").value();
  const auto with = [&](const std::string& value) {
    return parse_config(edit_config(json, std::vector<std::string>{"trunk_quantization.format=" + value}).value(), "c");
  };
  EXPECT_TRUE(with("mxint8").value().trunk_int8);
  EXPECT_EQ(with("int8-per-row").error().code, Code::unsupported);
  const std::string other = edit_config(json, std::vector<std::string>{"trunk_quantization.group_size=64"}).value();
  EXPECT_EQ(parse_config(other, "c").error().code, Code::corrupt);  // and no format
}

}  // namespace
}  // namespace k3
