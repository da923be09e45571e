// A model of 20 GB in 8 GiB of GPU memory: logits against those of the whole model on the GPU, tokens a second against the bound of
// the bytes that it really had to read. Writes the model to the temporary folder (and removes it): 24 GB of disk or tmpfs.
//   k3_gpu_test --gtest_also_run_disabled_tests --gtest_filter='*TwentyGigabytes*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/rng.h"
#include "k3/base/units.h"
#include "k3/format/checkpoint.h"
#include "k3/model/init.h"
#include "k3/model/model.h"

namespace k3 {
namespace {

constexpr int64_t kVram = int64_t{8} << 30, kVocab = 12288, kCtx = 4096, kChunk = 2048, kPrompt = 2048, kWarm = 64, kSteps = 192;

// K3's kinds of layers: 16, 15 of them with 256 experts of 5 MB in MXFP4 or 128 of 9.4 MB in BF16.
std::string config_text(bool mxfp4) {
  const std::string text = R"json({"model_type":"kimi_linear","dtype":"bfloat16","hidden_size":2048,
"num_hidden_layers":16,"vocab_size":12288,"rms_norm_eps":1e-05,"hidden_act":"situ","num_attention_heads":16,"num_key_value_heads":16,
"q_lora_rank":768,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"mla_use_nope":true,
"num_experts_per_token":8,"num_shared_experts":2,"intermediate_size":8192,"routed_scaling_factor":1.0,
"moe_renormalize":true,"moe_router_activation_func":"sigmoid","use_grouped_topk":true,"num_expert_group":1,"topk_group":1,
"moe_layer_freq":1,"first_k_dense_replace":1,"num_nextn_predict_layers":0,"bos_token_id":0,"eos_token_id":1,
"tie_word_embeddings":false,"linear_attn_config":{"num_heads":16,"head_dim":128,"short_conv_kernel_size":4,
"full_attn_layers":[4,8,12,16],"kda_layers":[1,2,3,5,6,7,9,10,11,13,14,15],"gate_lower_bound":-5.0,"use_full_rank_gate":true},
"activation_situ_beta":4.0,"activation_situ_linear_beta":25.0,"mla_use_output_gate":true,"routed_expert_hidden_size":1024,
"latent_moe_use_norm":true,"attn_res_block_size":4,"max_position_embeddings":65536,"initializer_range":0.02,
"topk_method":"noaux_tc")json";
  if (!mxfp4) return text + R"json(,"num_experts":128,"moe_intermediate_size":1536})json";
  return text + R"json(,"num_experts":256,"moe_intermediate_size":3072,
"quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized",
"config_groups":{"group_0":{"format":"mxfp4-pack-quantized","targets":["Linear"],"input_activations":null,"output_activations":null,
"weights":{"num_bits":4,"type":"float","group_size":32,"strategy":"group","symmetric":true,"dynamic":false,"scale_dtype":"torch.uint8"}}},
"ignore":[]}})json";
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A checkpoint whose matrices are pieces of one block of random numbers: as fast as a file can be written.
Status write_checkpoint(const Config& config, const std::string& folder) {
  std::vector<ParamTensor> tensors;
  for_each_tensor(config, [&](const ParamTensor& t) { tensors.push_back(t); });
  K3_TRY_ASSIGN(CheckpointWriter writer, CheckpointWriter::create(folder, shard_plan(tensors, 16)));
  constexpr size_t kBlock = size_t{4} << 20, kPeriod = kBlock - 4099;  // numbers; an odd period, so that pieces differ
  const Rng rng(9, 1);
  std::vector<float> normal(kBlock);
  rng.fill_normal(0, config.initializer_range, normal);
  std::vector<std::byte> block(2 * kBlock), codes(2 * kBlock), scales(2 * kBlock);
  convert_from_float(normal.data(), DType::bf16, static_cast<int64_t>(kBlock), block.data());
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::byte>(rng.bits(i) & 255);
    scales[i] = static_cast<std::byte>(119 + rng.bits(i + codes.size()) % 3);
  }
  size_t at = 0;
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (const ParamTensor& t : tensors) {
    const auto count = static_cast<size_t>(t.params), size = static_cast<size_t>(t.size_bytes());
    bytes.resize(size);
    const std::vector<std::byte>* from = t.dtype == DType::u8 ? (t.params == 0 ? &scales : &codes) : &block;
    if (t.dtype == DType::u8 || (t.family->init == ParamInit::normal && t.dtype == DType::bf16)) {
      for (size_t done = 0; done < size;) {
        const size_t begin = at % kPeriod * 2, piece = std::min(size - done, from->size() - begin);
        std::memcpy(bytes.data() + done, from->data() + begin, piece);
        done += piece;
        at += piece / 2 + 7;
      }
    } else {
      const float value = t.family->init == ParamInit::ones ? 1.0F : t.family->init == ParamInit::conv ? 0.3F : t.family->init == ParamInit::dt_bias ? -4.0F : 0.0F;
      values.assign(count, value);
      for (size_t i = 0; t.family->init == ParamInit::normal && i < count; ++i) values[i] = normal[(at + i) % kBlock];
      at += count;
      convert_from_float(values.data(), t.dtype, t.params, bytes.data());
    }
    K3_TRY(writer.append(t.name, bytes));
  }
  return writer.finish();
}

// Bytes a second of copies of 256 MiB, the median of some.
double copy_rate(std::byte* to, const std::byte* from) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const StreamHandle stream = make_stream().value();
  const EventHandle begin = make_event().value(), end = make_event().value();
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    K3_CHECK(record(begin, stream.get()).ok() && copy_async(to, from, kBytes, stream.get()).ok() && record(end, stream.get()).ok(), "copy");
    seconds.push_back(seconds_between(begin, end).value());
  }
  std::sort(seconds.begin(), seconds.end());
  return static_cast<double>(kBytes) / seconds[4];
}

struct Speeds {
  std::vector<float> logits;
  double prompt_seconds = 0, step_seconds = 0;
  ops::ExpertStoreStats prompt, steps;  // of the timed parts
};

ops::ExpertStoreStats stats_of(const Model& model) { return model.expert_store_stats().value().value_or(ops::ExpertStoreStats()); }
ops::ExpertStoreStats between(const ops::ExpertStoreStats& a, const ops::ExpertStoreStats& b) {
  ops::ExpertStoreStats d = b;
  d.wanted -= a.wanted, d.missing -= a.missing, d.admitted -= a.admitted, d.staged_bytes -= a.staged_bytes, d.staged_wanted -= a.staged_wanted;
  return d;
}

// A prompt twice (the first time kernels are loaded), then single tokens.
Speeds run(const Model& model, ThreadPool& pool) {
  RunnerOptions options;
  options.ctx_tokens = kCtx;
  options.chunk_tokens = kChunk;
  options.policy = ops::Policy::bf16;
  Result<Runner> runner = Runner::create(model, pool, options);
  K3_CHECK(runner.ok(), "{}", runner.error().message);
  const Rng rng(11, 5);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kPrompt + kWarm + kSteps; ++i) {
    ids.push_back(static_cast<int32_t>(rng.uniform(static_cast<uint64_t>(i)) * static_cast<double>(kVocab)));
  }
  Speeds s;
  const auto feed = [&](int64_t from, int64_t count) {
    const auto rows = runner->feed(0, std::span(ids).subspan(static_cast<size_t>(from), static_cast<size_t>(count)));
    K3_CHECK(rows.ok(), "{}", rows.error().message);
    s.logits.insert(s.logits.end(), rows->begin(), rows->end());
  };
  for (int i = 0; i < 2; ++i) {
    runner->reset(0);
    const ops::ExpertStoreStats before = stats_of(model);
    const double begin = now();
    feed(0, kPrompt);
    s.prompt_seconds = now() - begin;
    s.prompt = between(before, stats_of(model));
  }
  for (int64_t i = 0; i < kWarm; ++i) feed(kPrompt + i, 1);
  const ops::ExpertStoreStats before = stats_of(model);
  const double begin = now();
  for (int64_t i = 0; i < kSteps; ++i) feed(kPrompt + kWarm + i, 1);
  s.step_seconds = (now() - begin) / static_cast<double>(kSteps);
  s.steps = between(before, stats_of(model));
  return s;
}

class LargerThanGpuSlow : public testing::TestWithParam<bool> {};

TEST_P(LargerThanGpuSlow, DISABLED_TwentyGigabytes) {
  if (!device_memory(Device{0}).ok()) GTEST_SKIP() << "no GPU";
  ThreadPool pool(available_threads());
  const std::string folder = testing::TempDir() + "k3_twenty_gigabytes";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(write_file(folder + "/config.json", config_text(GetParam())).ok());
  const Config config = load_config(folder).value();
  double begin = now();
  const Status written = write_checkpoint(config, folder);
  ASSERT_TRUE(written.ok()) << written.error().message;
  fmt::print("written in {:.1f} s\n", now() - begin);

  double bus = 0, memory = 0;
  {
    const Storage pinned = Storage::pinned(int64_t{256} << 20).value();
    const Storage a = Storage::allocate_on(Device{0}, int64_t{256} << 20).value(), b = Storage::allocate_on(Device{0}, int64_t{256} << 20).value();
    bus = copy_rate(a.data(), pinned.data());
    memory = 2 * copy_rate(a.data(), b.data());
  }
  const int64_t free_before = device_memory(Device{0}).value().free_bytes;
  LoadOptions options;
  options.device = Device{0};
  options.run.ctx_tokens = kCtx;
  options.run.chunk_tokens = kChunk;
  options.vram_bytes = kVram;
  options.on_plan = [](const std::vector<PlanLine>& lines, int64_t) {
    for (const PlanLine& l : lines) fmt::print("  {:<26} {:>10}  {}\n", l.what, format_bytes(l.bytes), l.remark);
  };
  Speeds cached, whole;
  double trunk = 0;
  {
    begin = now();
    Result<Model> model = Model::load(folder, pool, options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    fmt::print("loaded in {:.1f} s\n", now() - begin);
    trunk = static_cast<double>(model->weights().size_bytes - config.vocab_size * config.hidden_size * 2);
    cached = run(*model, pool);
    const int64_t used = free_before - device_memory(Device{0}).value().free_bytes;
    fmt::print("GPU memory beside the context: {}\n", format_bytes(used));
    EXPECT_LE(used, kVram);
  }
  options.vram_bytes.reset();
  {
    begin = now();
    Result<Model> model = Model::load(folder, pool, options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    fmt::print("whole model loaded in {:.1f} s\n", now() - begin);
    whole = run(*model, pool);
  }
  std::filesystem::remove_all(folder);

  ASSERT_EQ(cached.logits.size(), whole.logits.size());
  EXPECT_EQ(std::memcmp(cached.logits.data(), whole.logits.data(), whole.logits.size() * 4), 0);
  const ops::ExpertStoreStats& s = cached.steps;
  const double expert = static_cast<double>(s.expert_bytes), missing = static_cast<double>(s.missing) * expert / static_cast<double>(kSteps),
               there = static_cast<double>(s.wanted - s.missing) * expert / static_cast<double>(kSteps);
  const double bound = missing / bus + (there + trunk) / memory;
  fmt::print("pinned copy {:.2f} GB/s, memory {:.0f} GB/s\n", bus * 1e-9, memory * 1e-9);
  fmt::print("decode: {:.1f} tokens/s, bound {:.1f} ({:.1f} MB of missing experts a token, {:.0f} % of experts there, {:.1f} MB from memory): {:.1f} % of the bound; whole model {:.1f} tokens/s\n",
             1 / cached.step_seconds, 1 / bound, missing * 1e-6, 100 * there / (there + missing), (there + trunk) * 1e-6, 100 * bound / cached.step_seconds,
             1 / whole.step_seconds);
  const double staged = static_cast<double>(cached.prompt.staged_bytes);
  fmt::print("prompt of {}: {:.0f} tokens/s, bound {:.0f} ({:.2f} GB over the bus): {:.1f} %; whole model {:.0f} tokens/s\n", kPrompt,
             static_cast<double>(kPrompt) / cached.prompt_seconds, static_cast<double>(kPrompt) / (staged / bus), staged * 1e-9,
             100 * staged / bus / cached.prompt_seconds, static_cast<double>(kPrompt) / whole.prompt_seconds);
}

INSTANTIATE_TEST_SUITE_P(Experts, LargerThanGpuSlow, testing::Bool(), [](const auto& p) { return p.param ? "mxfp4" : "bf16"; });

}  // namespace
}  // namespace k3
