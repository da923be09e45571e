// Purpose:  text files to a prepared folder: shards of ids, counts, manifest, and the tokenizer's files beside them.
// Shapes:   none.
// Units:    bytes of the files as they lie on disk for progress.
// Memory:   some 16 MiB of text and its ids for each batch, one shard a source, 16 bytes a document for duplicates.
// Threads:  encodes on the pool; one call at a time into one folder.
// Errors:   invalid_argument for options; not_found; corrupt naming file and line or offset; exhausted for a full disk. The
//           manifest is written last and removed first, so a folder with a manifest is whole; after a failure no shard remains.
// Source:   docs/training.md, section Data. A document whose text was seen before, in whatever file, is dropped; held-out files
//           are read first, so no text of theirs is trained on. Which documents --holdout takes follows from their text alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/base/threads.h"
#include "k3/train/data/data_manifest.h"

namespace k3::train {

struct PrepareOptions {
  std::string tokenizer;           // folder with tiktoken.model, tokenizer_config.json, chat_format.json
  std::string out;
  std::vector<std::string> train, valid;  // files
  double holdout = 0;              // part of the training documents that is held out, 0 to 0.5
  int64_t shard_tokens = int64_t{1} << 25;
  bool force = false;              // replace prepared data
};

Result<DataManifest> prepare_data(const PrepareOptions& options, ThreadPool& pool,
                                  const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace k3::train
