// Opening an index of 497,220 names and asking for each.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "k3/format/checkpoint.h"
#include "k3/format/checkpoint_cases.h"

namespace k3 {
namespace {

using testing_checkpoint::TempFolder;

std::string expert_name(int64_t i) {
  return fmt::format("language_model.model.layers.{}.block_sparse_moe.experts.{}.w{}.weight_{}", i / 5376, i / 6 % 896,
                     i / 2 % 3 + 1, i % 2 ? "scale" : "packed");
}

constexpr int64_t kNames = 497'220;

const TempFolder& index_folder() {
  static const TempFolder folder;
  static const bool made = [] {
    std::string text = R"({"metadata":{"total_size":0},"weight_map":{)";
    for (int64_t i = 0; i < kNames; ++i) {
      text +=
          fmt::format("{}\n    \"{}\": \"model-{:05}-of-000096.safetensors\"", i ? "," : "", expert_name(i), i / 5376 + 1);
    }
    folder.write("model.safetensors.index.json", text + "}}");
    return true;
  }();
  static_cast<void>(made);
  return folder;
}

void BM_OpenIndex(benchmark::State& state) {
  const TempFolder& folder = index_folder();
  for (auto _ : state) {
    auto checkpoint = Checkpoint::open(folder.path());
    benchmark::DoNotOptimize(checkpoint);
  }
}
BENCHMARK(BM_OpenIndex)->Unit(benchmark::kMillisecond);

void BM_Contains(benchmark::State& state) {
  const auto checkpoint = Checkpoint::open(index_folder().path());
  std::vector<std::string> names;
  for (int64_t i = 0; i < 4096; ++i) names.push_back(expert_name(i * 7919 % kNames));
  size_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(checkpoint->contains(names[i++ % names.size()]));
}
BENCHMARK(BM_Contains);

}  // namespace
}  // namespace k3
