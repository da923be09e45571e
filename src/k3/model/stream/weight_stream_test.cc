// A model read from disk computes what the same model in memory computes, to the bit, whatever is read when; reads that fail
// fail the step and nothing else.
#include "k3/model/stream/weight_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "k3/base/file.h"
#include "k3/format/config_edit.h"
#include "k3/model/convert.h"
#include "k3/model/model.h"
#include "k3/model/stream/expert_stats.h"

namespace k3 {
namespace {

namespace fs = std::filesystem;
using Backend = DiskOptions::Backend;

std::string source(const std::string& relative) { return std::string(K3_SOURCE_DIR) + "/" + relative; }

ThreadPool& pool() {
  static ThreadPool threads(2);
  return threads;
}

struct RunSetup {
  ops::Policy policy = ops::Policy::exact;
  bool deterministic = true;
  int64_t chunk = 24, sequences = 1;
  DiskOptions disk = {};
  std::string expert_stats = {};
};

PlanRequest plan_request(const RunSetup& s, int64_t limit) {
  PlanRequest r;
  r.limit_bytes = limit;
  r.ctx_tokens = 256;
  r.sequences = s.sequences;
  r.chunk_tokens = s.chunk;
  r.logit_rows = 0;
  r.policy = s.policy;
  r.threads = 2;
  return r;
}

LoadOptions load_options(const RunSetup& s, int64_t limit) {
  LoadOptions options;
  options.ram_bytes = limit;
  options.run = plan_request(s, limit);
  options.stream.disk = s.disk;
  options.stream.expert_stats = s.expert_stats;
  return options;
}

// From the least that works to just below everything.
std::vector<int64_t> limits_of(const std::string& folder, const RunSetup& s) {
  Config config = load_config(folder).value();
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  resolve_by_tensors(checkpoint, config);
  const ModelBytes bytes = model_bytes(checkpoint, config, ExpertTable::build(checkpoint, config).value()).value();
  const auto plan = [&](int64_t limit) { return plan_memory(config, bytes, plan_request(s, limit)); };
  int64_t low = 0, high = int64_t{1} << 31;
  const auto bisect = [&](const auto& enough) {
    low = 0;
    high = int64_t{1} << 31;
    while (high - low > 4096) (enough((low + high) / 2) ? high : low) = (low + high) / 2;
    return high;
  };
  const int64_t least = bisect([&](int64_t limit) { return plan(limit).ok(); });
  const int64_t all = bisect([&](int64_t limit) { return plan(limit).ok() && plan(limit)->everything; });
  return {least, least + (all - least) / 2, all - 8192};
}

std::vector<int32_t> ids_for(const Config& config, size_t count) {
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i)
    ids[i] = static_cast<int32_t>((i * i * 31 + i * 7 + 3) % static_cast<size_t>(config.vocab_size));
  return ids;
}

Result<std::vector<float>> logits_of(Runner& runner, const std::vector<int32_t>& ids, int64_t chunk) {
  std::vector<float> out;
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
    const auto part = std::span(ids).subspan(begin, std::min(static_cast<size_t>(chunk), ids.size() - begin));
    const StepInput input{0, part, StepInput::Logits::all};
    K3_TRY_ASSIGN(const Tensor logits, runner.step(std::span(&input, 1)));
    out.insert(out.end(), logits.f32(), logits.f32() + logits.size());
  }
  return out;
}

Runner runner_of(const Model& model, const RunSetup& s) {
  RunnerOptions options;
  options.policy = s.policy;
  options.deterministic = s.deterministic;
  options.sequences = s.sequences;
  options.ctx_tokens = 256;
  options.chunk_tokens = s.chunk;
  return Runner::create(model, pool(), options).value();
}

void expect_same_bits_at_every_size(const std::string& folder) {
  const Model whole = Model::load(folder, pool()).value();
  const std::vector<int32_t> ids = ids_for(whole.config(), 30);
  for (const RunSetup& setup :
       {RunSetup{}, RunSetup{.policy = ops::Policy::bf16}, RunSetup{.policy = ops::Policy::bf16, .deterministic = false}}) {
    for (const int64_t limit : limits_of(folder, setup)) {
      auto loaded = Model::load(folder, pool(), load_options(setup, limit));
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      ASSERT_TRUE(loaded->plan() && !loaded->plan()->everything) << limit;
      Runner runner = runner_of(*loaded, setup);
      // The plan may have shortened the chunk: the same chunks in memory, since only `deterministic` does not care.
      const int64_t chunk = runner.options().chunk_tokens;
      Runner reference = runner_of(whole, setup);
      std::vector<float> expected = logits_of(reference, ids, chunk).value();
      auto got = logits_of(runner, ids, chunk);
      ASSERT_TRUE(got.ok()) << got.error().message;
      EXPECT_EQ(*got, expected) << limit;
      // Token by token: experts come one by one and in other orders.
      runner.reset(0);
      reference.reset(0);
      expected = logits_of(reference, ids, 1).value();
      EXPECT_EQ(logits_of(runner, ids, 1).value(), expected) << limit;
      EXPECT_LE(runner.ctx().workspace->peak_bytes(), loaded->plan()->scratch_bytes) << limit;
      const StreamStats stats = *loaded->stream_stats();
      EXPECT_EQ(stats.tokens, 60);
      EXPECT_GT(stats.read_bytes, 0);
    }
  }
}

class Streamed : public testing::TestWithParam<std::string> {};

TEST_P(Streamed, SameBitsAtEveryMemorySize) { expect_same_bits_at_every_size(source(GetParam())); }

// Converts a model folder as `convert --trunk int8` does.
std::string with_int8_trunk(const std::string& from, const std::string& name) {
  const std::string folder = testing::TempDir() + "k3_stream_int8_" + name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  Config config = load_config(from).value();
  const Checkpoint checkpoint = Checkpoint::open(from).value();
  resolve_by_tensors(checkpoint, config);
  ConvertOptions options;
  options.trunk = DType::i8;
  EXPECT_TRUE(convert_checkpoint(checkpoint, config, folder, options, {}).ok());
  const std::string json = read_file(join_path(from, "config.json")).value();
  EXPECT_TRUE(write_file(join_path(folder, "config.json"), set_trunk_packing(json, true).value()).ok());
  return folder;
}

TEST(WeightStream, EightBitTrunkHasTheSameBitsToo) {
  for (const std::string model : {"models/k3-mini", "tests/data/oracle-models/k3-a", "tests/data/oracle-models/kl-a"}) {
    SCOPED_TRACE(model);
    const std::string folder = with_int8_trunk(source(model), "bits");
    expect_same_bits_at_every_size(folder);
    // What the config says and what the files hold are of one size.
    Config config = load_config(folder).value();
    const Checkpoint checkpoint = Checkpoint::open(folder).value();
    resolve_by_tensors(checkpoint, config);
    const ModelBytes planned = model_bytes(config);
    const ModelBytes stored = model_bytes(checkpoint, config, ExpertTable::build(checkpoint, config).value()).value();
    EXPECT_EQ(stored.lm_head, planned.lm_head);
    EXPECT_EQ(stored.lm_head_row, planned.lm_head_row);
    EXPECT_EQ(stored.lm_head_scales, planned.lm_head_scales);
  }
}

TEST(WeightStream, AScaleOfTheHeadThatIsNoNumberIsRefused) {
  const std::string folder = with_int8_trunk(source("models/k3-mini"), "bad_scale");
  const RunSetup setup;
  const int64_t limit = limits_of(folder, setup)[0];
  {
    const Checkpoint checkpoint = Checkpoint::open(folder).value();
    const TensorInfo scales = checkpoint.find("language_model.lm_head.weight_scale").value();
    std::fstream file(join_path(folder, checkpoint.shard_file(scales.shard)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(scales.offset + 5);
    file.put('\xFF');
  }
  const auto loaded = Model::load(folder, pool(), load_options(setup, limit));
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, Code::corrupt);
  EXPECT_NE(loaded.error().message.find("lm_head.weight_scale': scale byte 5 is 255"), std::string::npos)
      << loaded.error().message;
}

INSTANTIATE_TEST_SUITE_P(Models, Streamed,
                         testing::Values("models/k3-mini", "tests/data/oracle-models/k3-a", "tests/data/oracle-models/k3-b",
                                         "tests/data/oracle-models/kl-a", "tests/data/oracle-models/mix-a",
                                         "tests/data/oracle-models/mix-b"));

TEST(WeightStream, EveryWayOfReadingGivesTheSameBits) {
  const std::string folder = source("models/k3-mini");
  const Model whole = Model::load(folder, pool()).value();
  RunSetup setup;
  const std::vector<int32_t> ids = ids_for(whole.config(), 30);
  Runner reference = runner_of(whole, setup);
  const std::vector<float> expected = logits_of(reference, ids, 16).value();
  for (const Backend backend : {Backend::ring, Backend::threads}) {
    if (backend == Backend::ring && !DiskReader::create({.backend = Backend::ring}).ok()) continue;
    for (const bool direct : {true, false}) {
      setup.disk.backend = backend;
      setup.disk.direct = direct;
      setup.disk.piece_bytes = 65536;
      const Model model = Model::load(folder, pool(), load_options(setup, limits_of(folder, setup)[0])).value();
      Runner runner = runner_of(model, setup);
      EXPECT_EQ(logits_of(runner, ids, 16).value(), expected);
    }
  }
}

TEST(WeightStream, ExpertStatsAreWrittenAndWarmTheNextRun) {
  const std::string folder = source("models/k3-mini"), path = testing::TempDir() + "k3_expert_stats.json";
  fs::remove(path);
  RunSetup setup;
  setup.expert_stats = path;
  const int64_t limit = limits_of(folder, setup)[1];
  const std::vector<int32_t> ids = ids_for(load_config(folder).value(), 40);
  // What loading has read: with the file, the hot experts, too. (Misses are no measure: they depend on how far reading ahead
  // got, hence on the clock.)
  int64_t loaded[2] = {0, 0};
  std::vector<float> logits[2];
  for (int run = 0; run < 2; ++run) {
    const Model model = Model::load(folder, pool(), load_options(setup, limit)).value();
    loaded[run] = model.stream_stats()->read_bytes;
    Runner runner = runner_of(model, setup);
    logits[run] = logits_of(runner, ids, 1).value();
    ASSERT_TRUE(model.save_expert_stats().ok());
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_GT(loaded[1], loaded[0]);
  const Config config = load_config(folder).value();
  const std::vector<uint64_t> counts = read_expert_stats(path, config.num_hidden_layers, config.num_experts).value();
  uint64_t sum = 0;
  for (const uint64_t count : counts) sum += count;
  const int64_t moe_layers = config.num_hidden_layers - config.first_k_dense_replace;
  EXPECT_EQ(sum, static_cast<uint64_t>(2 * 40 * moe_layers * config.num_experts_per_token));  // of two runs
  // A folder that does not exist is refused before anything is computed.
  setup.expert_stats = path + ".none/stats.json";
  auto nowhere = Model::load(folder, pool(), load_options(setup, limit));
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.error().code, Code::not_found);
  EXPECT_NE(nowhere.error().message.find(path + ".none"), std::string::npos) << nowhere.error().message;
  setup.expert_stats = path;
  // A file that is none, and one of another model.
  ASSERT_TRUE(write_file(path, "{\"k3_expert_stats\": 1, \"layers\": 9").ok());
  auto bad = Model::load(folder, pool(), load_options(setup, limit));
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, Code::corrupt);
  EXPECT_NE(bad.error().message.find(path), std::string::npos) << bad.error().message;
  ASSERT_TRUE(write_expert_stats(path, 2, 3, std::vector<uint64_t>(6, 1)).ok());
  bad = Model::load(folder, pool(), load_options(setup, limit));
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, Code::invalid_argument);
  fs::remove(path);
}

TEST(ExpertStats, EveryDamageIsAnError) {
  const std::string path = testing::TempDir() + "k3_expert_stats_bad.json";
  const auto error_of = [&](const std::string& text) {
    EXPECT_TRUE(write_file(path, text).ok());
    auto read = read_expert_stats(path, 1, 2);
    EXPECT_FALSE(read.ok()) << text;
    return read.ok() ? Code::internal : read.error().code;
  };
  const std::string good = R"({"k3_expert_stats":1,"layers":1,"experts":2,"counts":[[3,4]]})";
  ASSERT_TRUE(write_file(path, good).ok());
  EXPECT_EQ(read_expert_stats(path, 1, 2).value(), (std::vector<uint64_t>{3, 4}));
  for (const char* text : {"", "[]", "{}", "nonsense", R"({"k3_expert_stats":1})",
                           R"({"k3_expert_stats":1,"layers":1,"experts":2,"counts":[[3]]})",
                           R"({"k3_expert_stats":1,"layers":1,"experts":2,"counts":[[3,-4]]})",
                           R"({"k3_expert_stats":1,"layers":1,"experts":2,"counts":[[3,1e300]]})",
                           R"({"k3_expert_stats":1,"layers":1,"experts":2,"counts":[[3,4.5]]})",
                           R"({"k3_expert_stats":1,"layers":1,"experts":2,"counts":[[3,99999999999999999999]]})",
                           R"({"k3_expert_stats":1,"layers":1,"experts":2,"counts":[]})"}) {
    EXPECT_EQ(error_of(text), Code::corrupt) << text;
  }
  EXPECT_EQ(error_of(R"({"k3_expert_stats":2,"layers":1,"experts":2,"counts":[[3,4]]})"), Code::unsupported);
  EXPECT_EQ(error_of(R"({"k3_expert_stats":1,"layers":3,"experts":2,"counts":[[3,4]]})"), Code::invalid_argument);
  fs::remove(path);
}

// A copy of k3-mini that may be damaged while it runs.
class Damaged : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "k3-damaged-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const auto& entry : fs::directory_iterator(source("models/k3-mini"))) {
      if (entry.is_regular_file()) fs::copy_file(entry.path(), fs::path(folder_) / entry.path().filename());
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  // The n-th of its weight files, from 1.
  std::string name(size_t number) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(source("models/k3-mini"))) {
      if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names.at(number - 1);
  }
  std::string shard(size_t number) const { return folder_ + "/" + name(number); }
  Model load(const RunSetup& setup, size_t which = 0) {
    return Model::load(folder_, pool(), load_options(setup, limits_of(folder_, setup)[which])).value();
  }
  // After `damage` in the middle of a run, a step fails with these facts and its sequence is refused until it is reset.
  void expect_failure(const std::function<void()>& damage, const std::vector<std::string>& facts) {
    RunSetup setup;
    setup.sequences = 2;
    const Model model = load(setup);
    Runner runner = runner_of(model, setup);
    const std::vector<int32_t> ids = ids_for(model.config(), 12);
    const StepInput first{0, std::span(ids).first(4)}, other{1, std::span(ids).first(4)};
    ASSERT_TRUE(runner.step(std::span(&first, 1)).ok());
    ASSERT_TRUE(runner.step(std::span(&other, 1)).ok());
    damage();
    Error error;
    for (size_t at = 4; at < ids.size(); ++at) {
      const StepInput next{0, std::span(ids).subspan(at, 1)};
      if (auto step = runner.step(std::span(&next, 1)); !step.ok()) {
        error = std::move(step).take_error();
        break;
      }
    }
    EXPECT_FALSE(error.message.empty()) << "no step failed";
    for (const std::string& fact : facts) EXPECT_NE(error.message.find(fact), std::string::npos) << error.message;
    const StepInput again{0, std::span(ids).first(1)};
    const auto refused = runner.step(std::span(&again, 1));
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("reset"), std::string::npos) << refused.error().message;
    EXPECT_EQ(runner.length(1), 4);
  }

  std::string folder_;
};

TEST_F(Damaged, ShardCutDuringTheRun) {
  expect_failure([&] { ASSERT_EQ(::truncate(shard(2).c_str(), 1'000'000), 0); },
                 {name(2), "when it was opened", "tensor '"});
}

TEST_F(Damaged, ShardReplacedDuringTheRun) {
  expect_failure(
      [&] {
        fs::copy_file(shard(3), folder_ + "/new");
        fs::rename(folder_ + "/new", shard(3));
      },
      {name(3), "replaced", "tensor '"});
}

TEST_F(Damaged, ShardWrittenToDuringTheRun) {
  expect_failure(
      [&] {
        std::fstream file(shard(1), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(200'000);
        file.write("xxxx", 4);
        file.close();
        fs::last_write_time(shard(1), fs::last_write_time(shard(1)) + std::chrono::seconds(2));
      },
      {name(1), "written to", "tensor '"});
}

TEST_F(Damaged, ShardGoneDuringTheRun) {
  expect_failure([&] { fs::remove(shard(4)); }, {name(4), "gone", "tensor '"});
}

// A bad scale in one expert: only steps that route to it fail, with the tensor's name; other sequences go on, to the same
// logits as ever; the broken sequence works again after a reset when its tokens avoid the expert.
TEST_F(Damaged, BadScaleOfAStreamedExpert) {
  RunSetup setup;
  setup.sequences = 2;
  const std::string clean = source("models/k3-mini");
  // An expert of the second layer that token a uses and token b does not.
  const int32_t a = 500, b = 900;
  const Config config = load_config(clean).value();
  ASSERT_TRUE(config.is_moe(1));
  const auto used_by = [&](int32_t token) {
    RunSetup counting = setup;
    counting.expert_stats = folder_ + "/stats.json";
    fs::remove(counting.expert_stats);
    const Model model = Model::load(clean, pool(), load_options(counting, limits_of(clean, setup)[0])).value();
    Runner runner = runner_of(model, setup);
    EXPECT_TRUE(runner.feed(0, std::span(&token, 1)).ok());
    EXPECT_TRUE(model.save_expert_stats().ok());
    return read_expert_stats(counting.expert_stats, config.num_hidden_layers, config.num_experts).value();
  };
  const std::vector<uint64_t> by_a = used_by(a), by_b = used_by(b);
  int64_t expert = -1;
  for (int64_t e = 0; e < config.num_experts; ++e) {
    const auto k = static_cast<size_t>(config.num_experts + e);
    if (by_a[k] > 0 && by_b[k] == 0) expert = e;
  }
  ASSERT_GE(expert, 0) << "choose other tokens";
  const std::string name =
      "language_model.model.layers.1.block_sparse_moe.experts." + std::to_string(expert) + ".w2.weight_scale";
  {
    const Checkpoint checkpoint = Checkpoint::open(folder_).value();
    const TensorInfo info = checkpoint.find(name).value();
    std::fstream file(folder_ + "/" + checkpoint.shard_file(info.shard), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(info.offset + 7);
    file.put(static_cast<char>(255));
  }
  const Model model = load(setup);
  Runner runner = runner_of(model, setup);
  ASSERT_TRUE(runner.feed(1, std::span(&b, 1)).ok());
  const auto failed = runner.feed(0, std::span(&a, 1));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::corrupt);
  EXPECT_NE(failed.error().message.find(name), std::string::npos) << failed.error().message;
  EXPECT_NE(failed.error().message.find("255"), std::string::npos) << failed.error().message;
  EXPECT_EQ(runner.feed(0, std::span(&b, 1)).error().code, Code::unavailable);
  runner.reset(1);
  const auto go_on = runner.feed(1, std::span(&b, 1));
  ASSERT_TRUE(go_on.ok());
  const std::vector<float> after(go_on->begin(), go_on->end());
  const Model whole = Model::load(clean, pool()).value();
  Runner reference = runner_of(whole, setup);
  const auto expected = reference.feed(0, std::span(&b, 1)).value();
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), after.begin(), after.end()));
  runner.reset(0);
  EXPECT_TRUE(runner.feed(0, std::span(&b, 1)).ok());
}

TEST_F(Damaged, ShardTooShortIsRefusedAtLoad) {
  RunSetup setup;
  const int64_t limit = limits_of(folder_, setup)[0];
  fs::resize_file(shard(2), fs::file_size(shard(2)) - 1);
  const auto loaded = Model::load(folder_, pool(), load_options(setup, limit));
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, Code::corrupt);
}

TEST(WeightStream, LimitsThatCannotBeKeptAreRefused) {
  const std::string folder = source("models/k3-mini");
  RunSetup setup;
  const auto tiny = Model::load(folder, pool(), load_options(setup, 1 << 20));
  ASSERT_FALSE(tiny.ok());
  EXPECT_EQ(tiny.error().code, Code::exhausted);
  const auto huge = Model::load(folder, pool(), load_options(setup, int64_t{1} << 60));
  ASSERT_FALSE(huge.ok());
  EXPECT_NE(huge.error().message.find("control groups"), std::string::npos) << huge.error().message;
  // A runner or a step that the plan has no room for.
  const Model model = Model::load(folder, pool(), load_options(setup, limits_of(folder, setup)[0])).value();
  RunnerOptions wide;
  wide.sequences = 2;
  wide.ctx_tokens = 256;
  EXPECT_EQ(Runner::create(model, pool(), wide).error().code, Code::exhausted);
  Runner runner = runner_of(model, setup);
  const std::vector<int32_t> many(100, 5);
  const StepInput input{0, many};
  EXPECT_EQ(runner.step(std::span(&input, 1)).error().code, Code::exhausted);
  EXPECT_EQ(runner.length(0), 0);
}

}  // namespace
}  // namespace k3
