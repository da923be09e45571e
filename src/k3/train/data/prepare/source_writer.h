// Purpose:  gathers the documents of one source and writes them as shards.
// Shapes:   none.
// Units:    tokens.
// Memory:   one shard.
// Threads:  one at a time.
// Errors:   those of writing (exhausted: the disk is full), naming the file. A writer that is not finished removes its shards.
// Source:   shard_format.h.
#pragma once

#include <string>

#include "k3/base/result.h"
#include "k3/train/data/data_manifest.h"
#include "k3/train/data/prepare/document_ids.h"
#include "k3/train/data/shard_format.h"

namespace k3::train {

// What the names of a source's shards begin with.
std::string shard_name(const std::string& source, Split split);

class SourceWriter {
 public:
  // Shards are closed at the first document border at or after shard_tokens.
  SourceWriter(std::string folder, SourceInfo info, int64_t vocab, int64_t shard_tokens);
  SourceWriter(SourceWriter&& other) noexcept = default;
  SourceWriter& operator=(SourceWriter&&) = delete;
  ~SourceWriter();

  Status add(const DocumentIds& document);
  void count_duplicate() { ++info_.duplicates; }
  void count_empty() { ++info_.empty; }
  Status finish();             // writes what is left
  const SourceInfo& info() const { return info_; }
  void keep() { written_.clear(); }  // the shards stay

 private:
  Status write_shard();

  std::string folder_;
  SourceInfo info_;
  int64_t vocab_, shard_tokens_;
  ShardContent content_;
  std::vector<std::string> written_;  // to remove
};

}  // namespace k3::train
