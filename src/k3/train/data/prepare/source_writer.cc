#include "k3/train/data/prepare/source_writer.h"

#include <algorithm>
#include <filesystem>

#include "k3/base/file.h"

namespace k3::train {

std::string shard_name(const std::string& source, Split split) { return split == Split::valid ? source + ".valid" : source; }

SourceWriter::SourceWriter(std::string folder, SourceInfo info, int64_t vocab, int64_t shard_tokens)
    : folder_(std::move(folder)), info_(std::move(info)), vocab_(vocab), shard_tokens_(shard_tokens) {}

SourceWriter::~SourceWriter() {
  std::error_code ignored;
  for (const std::string& path : written_) std::filesystem::remove(path, ignored);
}

Status SourceWriter::add(const DocumentIds& document) {
  content_.ids.insert(content_.ids.end(), document.ids.begin(), document.ids.end());
  content_.learned.insert(content_.learned.end(), document.learned.begin(), document.learned.end());
  content_.ends.push_back(content_.ids.size());
  content_.text_bytes.push_back(static_cast<uint64_t>(document.text_bytes));
  ++info_.documents;
  info_.tokens += static_cast<int64_t>(document.ids.size());
  info_.text_bytes += document.text_bytes;
  info_.loss_tokens += info_.kind == SourceKind::chat ? std::count(document.learned.begin(), document.learned.end(), uint8_t{1})
                                                      : static_cast<int64_t>(document.ids.size()) - 1;
  return static_cast<int64_t>(content_.ids.size()) >= shard_tokens_ ? write_shard() : Status();
}

Status SourceWriter::write_shard() {
  ShardInfo shard;
  shard.file = fmt::format("{}-{:05}.k3t", shard_name(info_.name, info_.split), info_.shards.size());
  shard.tokens = static_cast<int64_t>(content_.ids.size());
  shard.documents = static_cast<int64_t>(content_.ends.size());
  const std::string bytes = encode_shard(content_, vocab_);
  content_ = {};
  shard.file_bytes = static_cast<int64_t>(bytes.size());
  shard.hash = hash_bytes(std::as_bytes(std::span(bytes)));
  const std::string path = join_path(folder_, shard.file);
  K3_TRY(write_file(path, bytes));
  written_.push_back(path);
  info_.shards.push_back(std::move(shard));
  return {};
}

Status SourceWriter::finish() { return content_.ids.empty() ? Status() : write_shard(); }

}  // namespace k3::train
