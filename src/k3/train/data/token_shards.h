// Purpose:  the ids of one prepared source, mapped from its shards: a stream of tokens with document borders, loss mask and
//           UTF-8 byte counts.
// Shapes:   positions 0 .. tokens() - 1 run over all shards of the source; documents 0 .. documents() - 1.
// Units:    tokens, bytes.
// Memory:   the files are mapped (pages come and go with use). A file that is cut short while mapped ends the program with
//           SIGBUS: do not write into a prepared folder that is in use (`k3 prepare` replaces files, it never changes them).
// Threads:  immutable after open; any number of readers.
// Errors:   open reads every byte once (gigabytes a second from the page cache): not_found for a missing file; corrupt naming file
//           and offset: wrong magic, size, hash, borders that do not ascend, ids beyond the vocabulary, counts other than the
//           manifest's. Nothing read afterwards can fail.
// Source:   docs/training.md, section Data (layout of a shard: shard_format.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "k3/base/result.h"
#include "k3/train/data/data_manifest.h"

namespace k3::train {

class TokenShards {
 public:
  static Result<TokenShards> open(const std::string& folder, const DataManifest& manifest, const SourceInfo& source);
  TokenShards(TokenShards&&) noexcept;
  TokenShards& operator=(TokenShards&&) noexcept;
  ~TokenShards();

  const SourceInfo& info() const;
  int64_t tokens() const;
  int64_t documents() const;
  bool has_mask() const;  // a chat source

  int64_t document_begin(int64_t document) const;  // document in [0, documents()]; the last one is tokens()
  int64_t document_at(int64_t position) const;     // the document that holds this token
  int64_t document_bytes(int64_t document) const;  // UTF-8 bytes of the text (chat: of what the assistant says)

  // ids of [begin, begin + out.size()).
  void copy_ids(int64_t begin, std::span<int32_t> out) const;
  // 1 where the token is to be learned. Text sources: 1 everywhere except [BOS].
  void copy_mask(int64_t begin, std::span<uint8_t> out) const;

 private:
  struct Impl;
  explicit TokenShards(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3::train
