// How fast batches are packed: it has to stay far above what a GPU trains on (hundreds of thousands of tokens a second).
#include <benchmark/benchmark.h>

#include <filesystem>
#include <random>

#include "k3/base/file.h"
#include "k3/train/data/packed_batches.h"
#include "k3/train/data/prepare/source_writer.h"

namespace k3::train {
namespace {

constexpr int64_t kVocab = 16384;

TokenShards make_source(const std::string& folder, SourceKind kind, int64_t documents, int64_t most_tokens) {
  DataManifest manifest;
  manifest.vocab = kVocab;
  SourceInfo info;
  info.name = std::string(kind_name(kind));
  info.kind = kind;
  SourceWriter writer(folder, info, kVocab, int64_t{1} << 22);
  std::mt19937 random(1);
  for (int64_t d = 0; d < documents; ++d) {
    DocumentIds document;
    document.ids.assign(2 + random() % static_cast<uint32_t>(most_tokens), static_cast<int32_t>(d % kVocab));
    if (kind == SourceKind::chat) document.learned.assign(document.ids.size(), 1);
    (void)writer.add(document);
  }
  (void)writer.finish();
  writer.keep();
  return *TokenShards::open(folder, manifest, writer.info());
}

void fill(benchmark::State& state, SourceKind kind, int64_t documents, int64_t most_tokens) {
  const std::string folder = (std::filesystem::temp_directory_path() / "k3-packed-batches-bench").string();
  (void)make_directories(folder);
  const TokenShards source = make_source(folder, kind, documents, most_tokens);
  PackOptions options;
  options.mixture = {{.source = &source}};
  options.seq_tokens = state.range(0);
  options.tokens_per_step = 65536;
  const PackedBatches batches = *PackedBatches::create(options);
  PackedBatch batch;
  int64_t step = 0;
  for (auto _ : state) batches.fill(step++, 0, batch);
  state.SetItemsProcessed(state.iterations() * options.tokens_per_step);
  std::filesystem::remove_all(folder);
}

void text(benchmark::State& state) { fill(state, SourceKind::text, 20'000, 1000); }
void chat(benchmark::State& state) { fill(state, SourceKind::chat, 50'000, 200); }
BENCHMARK(text)->Arg(1024)->Arg(8192);
BENCHMARK(chat)->Arg(1024);

}  // namespace
}  // namespace k3::train
