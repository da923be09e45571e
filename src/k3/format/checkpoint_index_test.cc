// The index of the released K3 checkpoint, generated: its size, and what opening it costs in heap.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "k3/base/file.h"
#include "k3/format/checkpoint.h"
#include "k3/format/checkpoint_cases.h"
#include "k3/format/config.h"

namespace k3 {
namespace {

using testing_checkpoint::TempFolder;

// Tensor names and one-based shards of the released layout (model.md 2.1 to 2.3).
std::vector<std::pair<std::string, int>> k3_names(const Config& c) {
  std::vector<std::pair<std::string, int>> names;
  const std::string top = "language_model.model.";
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const int shard = static_cast<int>(i) + 1;
    const std::string layer = fmt::format("{}layers.{}.", top, i);
    const auto add = [&](std::string_view name) { names.emplace_back(layer + std::string(name), shard); };
    for (const char* norm : {"input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm",
                             "self_attention_res_proj", "mlp_res_proj"}) {
      add(fmt::format("{}.weight", norm));
    }
    if (c.is_kda(i)) {
      for (const char* name : {"q_proj", "k_proj", "v_proj", "g_proj", "o_proj", "q_conv1d", "k_conv1d", "v_conv1d",
                               "f_a_proj", "f_b_proj", "b_proj", "o_norm"}) {
        add(fmt::format("self_attn.{}.weight", name));
      }
      add("self_attn.A_log");
      add("self_attn.dt_bias");
    } else {
      for (const char* name : {"q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj",
                               "g_proj", "o_proj"}) {
        add(fmt::format("self_attn.{}.weight", name));
      }
    }
    if (!c.is_moe(i)) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) add(fmt::format("mlp.{}.weight", name));
      continue;
    }
    const std::string moe = "block_sparse_moe.";
    for (const char* name : {"gate.weight", "gate.e_score_correction_bias", "routed_expert_down_proj.weight",
                             "routed_expert_up_proj.weight", "routed_expert_norm.weight", "shared_experts.gate_proj.weight",
                             "shared_experts.up_proj.weight", "shared_experts.down_proj.weight"}) {
      add(moe + name);
    }
    for (int64_t e = 0; e < c.num_experts; ++e) {
      for (const char* w : {"w1", "w2", "w3"}) {
        add(fmt::format("{}experts.{}.{}.weight_packed", moe, e, w));
        add(fmt::format("{}experts.{}.{}.weight_scale", moe, e, w));
      }
    }
  }
  for (const char* name : {"embed_tokens", "norm", "output_attn_res_norm", "output_attn_res_proj"}) {
    names.emplace_back(fmt::format("{}{}.weight", top, name), 94);
  }
  names.emplace_back("language_model.lm_head.weight", 94);
  for (const char* name : {"proj.0", "proj.2", "post_norm"})
    names.emplace_back(fmt::format("mm_projector.{}.weight", name), 95);
  for (int b = 0; b < 27; ++b) {
    for (const char* name : {"norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1"}) {
      names.emplace_back(fmt::format("vision_tower.encoder.blocks.{}.{}.weight", b, name), 96);
    }
  }
  for (const char* name : {"patch_embed.proj", "patch_embed.pos_emb", "encoder.final_layernorm"}) {
    names.emplace_back(fmt::format("vision_tower.{}.weight", name), 96);
  }
  return names;
}

std::string k3_index(std::vector<std::pair<std::string, int>> names) {
  std::sort(names.begin(), names.end());  // as the published file is
  std::string text = "{\n  \"metadata\": {\n    \"total_size\": 1560860324864\n  },\n  \"weight_map\": {\n";
  for (size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("    \"{}\": \"model-{:05}-of-000096.safetensors\"{}\n", names[i].first, names[i].second,
                        i + 1 < names.size() ? "," : "");
  }
  return text + "  }\n}\n";
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHeapIsMeasured = false;  // the sanitizers' allocators do not answer mallinfo2
#else
constexpr bool kHeapIsMeasured = true;
#endif

int64_t heap_bytes() {
  const auto info = mallinfo2();
  return static_cast<int64_t>(info.uordblks) + static_cast<int64_t>(info.hblkhd);
}

class K3Index : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto config = load_config(K3_SOURCE_DIR "/tests/data/configs/k3.json");
    ASSERT_TRUE(config.ok()) << config.error().message;
    names_ = new std::vector(k3_names(*config));
    folder_ = new TempFolder;
    folder_->write("model.safetensors.index.json", k3_index(*names_));
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete names_;
  }
  static TempFolder* folder_;
  static std::vector<std::pair<std::string, int>>* names_;
};

TempFolder* K3Index::folder_ = nullptr;
std::vector<std::pair<std::string, int>>* K3Index::names_ = nullptr;

TEST_F(K3Index, HasTheReleasedSize) {
  EXPECT_EQ(names_->size(), 497'220u);
  const auto file = File::open(folder_->file("model.safetensors.index.json"));
  ASSERT_TRUE(file.ok());
  EXPECT_NEAR(static_cast<double>(file->size_bytes()), 59'764'096.0, 200.0);
}

TEST_F(K3Index, AnswersForEveryName) {
  const auto checkpoint = Checkpoint::open(folder_->path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensor_count(), 497'220);
  ASSERT_EQ(checkpoint->shard_count(), 96);
  int64_t found = 0;
  for (const auto& [name, shard] : *names_) found += checkpoint->contains(name);
  EXPECT_EQ(found, 497'220);
  EXPECT_FALSE(checkpoint->contains("language_model.model.layers.1.block_sparse_moe.experts.896.w1.weight_packed"));
  std::vector<int64_t> per_shard(96);
  checkpoint->for_each_name([&](std::string_view, int32_t shard) { ++per_shard[static_cast<size_t>(shard)]; });
  for (int32_t i = 0; i < 96; ++i) {
    const int number = std::atoi(checkpoint->shard_file(i).c_str() + 6);
    EXPECT_EQ(per_shard[static_cast<size_t>(i)],
              std::count_if(names_->begin(), names_->end(), [number](const auto& n) { return n.second == number; }));
    EXPECT_FALSE(checkpoint->shard_present(i));
  }
}

// The whole checkpoint with tensors of no bytes: 96 headers of the real length, every name in its place.
TEST_F(K3Index, AnswersFromEveryHeader) {
  std::vector<std::string> headers(96, "{\"__metadata__\":{\"format\":\"pt\"}");
  for (const auto& [name, shard] : *names_) {
    headers[static_cast<size_t>(shard - 1)] +=
        fmt::format(",\"{}\":{{\"dtype\":\"U8\",\"shape\":[{},0],\"data_offsets\":[0,0]}}", name, shard);
  }
  const TempFolder folder;
  std::filesystem::copy(folder_->file("model.safetensors.index.json"), folder.file("model.safetensors.index.json"));
  for (size_t i = 0; i < headers.size(); ++i) {
    folder.write(fmt::format("model-{:05}-of-000096.safetensors", i + 1),
                 testing_checkpoint::safetensors_file(headers[i] + "}", ""));
  }
  headers = {};
  const int64_t before = heap_bytes();
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const Status whole = checkpoint->verify_all();
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  int64_t right = 0;
  for (const auto& [name, shard] : *names_) right += checkpoint->find(name)->dims == std::vector<int64_t>{shard, 0};
  EXPECT_EQ(right, 497'220);
  if (kHeapIsMeasured) {
    const int64_t retained = heap_bytes() - before;
    std::printf("retained with every header parsed: %.1f MB\n", static_cast<double>(retained) / 1e6);
    EXPECT_LE(retained, 100'000'000);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(K3Index, RetainsAtMost100MB) {
  malloc_trim(0);
  const int64_t before = heap_bytes();
  const auto checkpoint = Checkpoint::open(folder_->path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const int64_t retained = heap_bytes() - before;
  std::printf("retained: %.1f MB\n", static_cast<double>(retained) / 1e6);
  EXPECT_LE(retained, 100'000'000);
  EXPECT_GT(retained, 20'000'000);  // the names are held: a broken measure would show nothing
}

int64_t status_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field, 0) == 0) return std::atoll(line.c_str() + std::strlen(field)) * 1024;
  }
  return -1;
}

// The high-water mark of a fresh child: what is resident at the worst moment of opening, over what was before.
TEST_F(K3Index, GrowsByAtMost200MB) {
  malloc_trim(0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int64_t before = status_bytes("VmRSS:");
    const bool opened = Checkpoint::open(folder_->path()).ok();
    const int64_t growth = opened && before > 0 ? status_bytes("VmHWM:") - before : -1;
    const bool sent = write(ends[1], &growth, sizeof growth) == sizeof growth;
    _exit(sent ? 0 : 1);
  }
  int64_t growth = -1;
  EXPECT_EQ(read(ends[0], &growth, sizeof growth), static_cast<ssize_t>(sizeof growth));
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  std::printf("peak growth: %.1f MB\n", static_cast<double>(growth) / 1e6);
  EXPECT_LE(growth, 200'000'000);
  EXPECT_GT(growth, 50'000'000);  // the text itself
}
#endif

}  // namespace
}  // namespace k3
