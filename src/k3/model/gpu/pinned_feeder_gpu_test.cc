// Loading onto a GPU: parts that are under way at the same time end as a whole model, or as the first error, wherever it is found.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "k3/model/checkpoint_test_util.h"
#include "k3/model/gpu/gpu_model_test_util.h"

namespace k3 {
namespace {

TEST(GpuLoading, DamageIsFoundInEveryLayerAndNothingHangs) {
  if (!gpu_present()) GTEST_SKIP() << "no GPU";
  ThreadPool pool(4);
  const std::string good = write_random_model(pool, "k3_gpu_loading"), bad = good + "_bad";
  std::filesystem::create_directories(bad);
  ASSERT_TRUE(write_file(bad + "/config.json", kRandomConfig).ok());
  const Tensors tensors = read_all(good);
  LoadOptions options;
  options.device = Device{0};
  int64_t scales = 0;
  for (const auto& [name, stored] : tensors) {
    if (!name.ends_with("experts.3.w2.weight_scale")) continue;
    ++scales;
    Tensors damaged = tensors;
    damaged.at(name).bytes[1] = std::byte{253};
    write_all(damaged, bad);
    const Result<Model> model = Model::load(bad, pool, options);
    ASSERT_FALSE(model.ok()) << name;
    EXPECT_EQ(model.error().code, Code::corrupt);
    EXPECT_NE(model.error().message.find(name), std::string::npos) << model.error().message;
  }
  EXPECT_EQ(scales, 8);
  int64_t seen = 0, of = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, seen);
    seen = done;
    of = total;
  };
  const Result<Model> model = Model::load(good, pool, options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_LE(seen, of);
  EXPECT_GT(seen, 0);
  std::filesystem::remove_all(good);
  std::filesystem::remove_all(bad);
}

}  // namespace
}  // namespace k3
