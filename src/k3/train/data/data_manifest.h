// Purpose:  manifest.json of a folder that `k3 prepare` has written: vocabulary, sources, their shards and counts.
// Shapes:   none.
// Units:    tokens, documents, UTF-8 bytes.
// Memory:   owns everything.
// Threads:  immutable after load.
// Errors:   not_found for a folder without a manifest; corrupt naming file and field; unsupported for a later version.
// Source:   docs/training.md, section Data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::train {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kManifestVersion = 1;

enum class SourceKind { text, chat };  // text: documents [BOS] ids [EOS]; chat: rendered conversations with a loss mask
enum class Split { train, valid };
std::string_view kind_name(SourceKind kind);
std::string_view split_name(Split split);

struct ShardInfo {
  std::string file;  // within the folder; no path
  int64_t tokens = 0, documents = 0, file_bytes = 0;
  uint64_t hash = 0;  // of the whole file
};

struct SourceInfo {
  std::string name;  // letters, digits, . _ -; unique together with the split
  SourceKind kind = SourceKind::text;
  Split split = Split::train;
  int64_t documents = 0, tokens = 0, text_bytes = 0;
  int64_t loss_tokens = 0;  // chat: tokens of the assistant; text: all but [BOS]
  int64_t duplicates = 0, empty = 0;  // documents left out
  std::vector<ShardInfo> shards;
};

struct DataManifest {
  int64_t vocab = 0;  // ids are below it
  int32_t bos = 0, eos = 0, pad = 0, end_of_message = 0;
  std::string tokenizer_sha256;  // of tiktoken.model
  std::vector<SourceInfo> sources;

  const SourceInfo* find(std::string_view name, Split split) const;  // nullptr when absent
  std::string names(Split split) const;                              // "a, b, c" for messages
};

Result<DataManifest> load_manifest(const std::string& folder);
Result<DataManifest> parse_manifest(std::string_view json, std::string_view source);  // `source` is named in messages
std::string manifest_json(const DataManifest& manifest);

}  // namespace k3::train
