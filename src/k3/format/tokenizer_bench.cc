// Tokenizer throughput, one thread. The mixed text is the file named by K3_BENCH_TEXT, or README files, code, JSON and
// CJK words of the repository; the long-run cases have no place to split before the 25,000 character cut.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "k3/base/file.h"
#include "k3/base/rng.h"
#include "k3/base/utf8.h"
#include "k3/format/tokenizer.h"
#include "k3/format/tokenizer/pattern_pcre2.h"
#include "k3/format/tokenizer/pattern_scan.h"

namespace k3 {
namespace {

constexpr const char* kReleased = K3_SOURCE_DIR "/tests/data/tokenizer";
constexpr const char* kMini = K3_SOURCE_DIR "/models/k3-mini";

std::string mixed_text() {
  if (const char* path = std::getenv("K3_BENCH_TEXT")) return read_file(path).value();
  std::string part;
  for (const char* name : {"/models/k3-mini/README.md", "/tests/data/tokenizer/README.md", "/src/k3/base/threads.h",
                           "/src/k3/format/tokenizer.cc", "/models/k3-mini/golden/golden.json"}) {
    part += read_file(std::string(K3_SOURCE_DIR) + name).value();
  }
  // Files of the repository, and after each round of them a fifth as much of the vocabulary's Han and kana entries.
  const Tokenizer tokenizer = Tokenizer::load(kReleased).value();
  std::string text;
  int32_t id = 0;
  while (text.size() < (size_t{1} << 20)) {
    text += part;
    const size_t end = text.size() + part.size() / 5;
    for (; text.size() < end; id = (id + 97) % tokenizer.base_count()) {
      const std::string_view token = tokenizer.bytes(id);
      if (is_utf8(token) && static_cast<uint8_t>(token[0]) >= 0xE3) text += token;
    }
  }
  return text;
}

std::string long_text(int kind) {
  constexpr size_t kBytes = size_t{1} << 20;
  const Rng rng(1, 1);
  std::string text;
  for (uint64_t i = 0; text.size() < kBytes; ++i) {
    const uint32_t r = rng.bits(i);
    if (kind == 0) text += 'a';
    if (kind == 1) text += static_cast<char>('a' + r % 26);
    if (kind == 2) append_utf8(text, 0x4E00 + r % 0x51A5);
    if (kind == 3) text += ' ';
    if (kind == 4) text += "!#$%&*+-/<=>?@^_|~"[r % 18];
    if (kind == 5) append_utf8(text, 0x10000 + r % 0x8000);
  }
  return text;
}

void encode(benchmark::State& state, const char* folder, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::load(folder).value();
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer.encode(text, ids).value();
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["bytes_per_id"] = static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

void BM_mixed_released(benchmark::State& state) { encode(state, kReleased, mixed_text()); }
void BM_mixed_mini(benchmark::State& state) { encode(state, kMini, mixed_text()); }
void BM_long_run(benchmark::State& state) { encode(state, kReleased, long_text(static_cast<int>(state.range(0)))); }

void BM_split_pcre2(benchmark::State& state) {
  const std::string text = mixed_text();
  std::vector<size_t> ends;
  for (auto _ : state) {
    ends.clear();
    split_by_pcre2(text, ends).value();
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["bytes_per_piece"] = static_cast<double>(text.size()) / static_cast<double>(ends.size());
}

void BM_split_scan(benchmark::State& state) {
  const std::string text = mixed_text();
  std::vector<size_t> ends;
  for (auto _ : state) {
    ends.clear();
    split_by_scan(text, ends);
    benchmark::DoNotOptimize(ends.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}

void BM_decode_stream(benchmark::State& state) {
  const Tokenizer tokenizer = Tokenizer::load(kReleased).value();
  const std::vector<int32_t> ids = tokenizer.encode(mixed_text()).value();
  for (auto _ : state) {
    StreamDecoder decoder(tokenizer);
    for (const int32_t id : ids) benchmark::DoNotOptimize(decoder.push(id));
  }
  state.SetItemsProcessed(static_cast<int64_t>(ids.size()) * state.iterations());
}

void BM_load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(kReleased).value());
}

BENCHMARK(BM_mixed_released)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_mixed_mini)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_long_run)->DenseRange(0, 5)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_split_pcre2)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_split_scan)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_decode_stream)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace k3

BENCHMARK_MAIN();
