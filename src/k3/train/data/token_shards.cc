#include "k3/train/data/token_shards.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "k3/base/file.h"
#include "k3/train/data/shard_format.h"

namespace k3::train {
namespace {

// A file mapped for reading; empty files are not mapped.
class Mapping {
 public:
  static Result<Mapping> open(const std::string& path) {
    K3_TRY_ASSIGN(const File file, File::open(path));
    const auto size = static_cast<size_t>(file.size_bytes());
    if (size == 0) return Mapping(nullptr, 0);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    if (data == MAP_FAILED) return fail(Code::exhausted, "{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
    return Mapping(data, size);
  }
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  Mapping(void* data, size_t size) : data_(data), size_(size) {}
  void* data_;
  size_t size_;
};

struct Shard {
  Mapping mapping;
  ShardView view;
  int64_t first_token = 0, first_document = 0;
};

Result<Shard> open_shard(const std::string& folder, const DataManifest& manifest, const SourceInfo& source, const ShardInfo& info) {
  const std::string path = join_path(folder, info.file);
  K3_TRY_ASSIGN(Mapping mapping, Mapping::open(path));
  K3_TRY_ASSIGN(const ShardView view, parse_shard(mapping.bytes(), path));
  const ShardHeader& header = view.header;
  if (header.tokens != info.tokens || header.documents != info.documents) {
    return fail(Code::corrupt, "{}: {} tokens in {} documents, but {} says {} in {}; run `k3 prepare` again", path, header.tokens,
                header.documents, kManifestName, info.tokens, info.documents);
  }
  if (header.vocab != manifest.vocab || header.has_mask != (source.kind == SourceKind::chat)) {
    return fail(Code::corrupt, "{}: its vocabulary or kind is another than in {}; run `k3 prepare` again", path, kManifestName);
  }
  if (hash_bytes(mapping.bytes()) != info.hash) {
    return fail(Code::corrupt, "{}: another file than the one in {} (its hash differs); run `k3 prepare` again", path, kManifestName);
  }
  return Shard{std::move(mapping), view, 0, 0};
}

}  // namespace

struct TokenShards::Impl {
  SourceInfo info;
  int32_t bos = 0;
  std::vector<Shard> shards;  // none is empty

  const Shard& of_token(int64_t position) const {
    return *std::prev(std::upper_bound(shards.begin(), shards.end(), position,
                                       [](int64_t at, const Shard& shard) { return at < shard.first_token; }));
  }
  const Shard& of_document(int64_t document) const {
    return *std::prev(std::upper_bound(shards.begin(), shards.end(), document,
                                       [](int64_t at, const Shard& shard) { return at < shard.first_document; }));
  }

  // Calls copy(view, begin within the shard, count, places done before) for each shard that [begin, begin + size) touches.
  template <class Copy>
  void over(int64_t begin, int64_t size, Copy copy) const {
    K3_CHECK(begin >= 0 && size >= 0 && begin + size <= info.tokens, "tokens {} + {} of {}", begin, size, info.tokens);
    for (int64_t done = 0; done < size;) {
      const Shard& shard = of_token(begin + done);
      const int64_t at = begin + done - shard.first_token;
      const int64_t count = std::min(size - done, shard.view.header.tokens - at);
      copy(shard.view, at, count, done);
      done += count;
    }
  }
};

TokenShards::TokenShards(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenShards::TokenShards(TokenShards&&) noexcept = default;
TokenShards& TokenShards::operator=(TokenShards&&) noexcept = default;
TokenShards::~TokenShards() = default;

Result<TokenShards> TokenShards::open(const std::string& folder, const DataManifest& manifest, const SourceInfo& source) {
  auto impl = std::make_unique<Impl>();
  impl->info = source;
  impl->bos = manifest.bos;
  impl->shards.reserve(source.shards.size());
  int64_t tokens = 0, documents = 0;
  for (const ShardInfo& info : source.shards) {
    K3_TRY_ASSIGN(Shard shard, open_shard(folder, manifest, source, info));
    shard.first_token = tokens;
    shard.first_document = documents;
    tokens += info.tokens;
    documents += info.documents;
    if (info.tokens > 0) impl->shards.push_back(std::move(shard));
  }
  if (tokens != source.tokens || documents != source.documents) {
    return fail(Code::corrupt, "{}: source {}: {} tokens, but the shards have {}", folder, source.name, source.tokens, tokens);
  }
  return TokenShards(std::move(impl));
}

const SourceInfo& TokenShards::info() const { return impl_->info; }
int64_t TokenShards::tokens() const { return impl_->info.tokens; }
int64_t TokenShards::documents() const { return impl_->info.documents; }
bool TokenShards::has_mask() const { return impl_->info.kind == SourceKind::chat; }

int64_t TokenShards::document_begin(int64_t document) const {
  K3_CHECK(document >= 0 && document <= documents(), "document {} of {}", document, documents());
  if (document == documents()) return tokens();
  const Shard& shard = impl_->of_document(document);
  const int64_t within = document - shard.first_document;
  return shard.first_token + (within == 0 ? 0 : static_cast<int64_t>(shard.view.ends[within - 1]));
}

int64_t TokenShards::document_at(int64_t position) const {
  K3_CHECK(position >= 0 && position < tokens(), "token {} of {}", position, tokens());
  const Shard& shard = impl_->of_token(position);
  const uint64_t* ends = shard.view.ends;
  const auto within = static_cast<uint64_t>(position - shard.first_token);
  return shard.first_document + (std::upper_bound(ends, ends + shard.view.header.documents, within) - ends);
}

int64_t TokenShards::document_bytes(int64_t document) const {
  K3_CHECK(document >= 0 && document < documents(), "document {} of {}", document, documents());
  const Shard& shard = impl_->of_document(document);
  return static_cast<int64_t>(shard.view.text_bytes[document - shard.first_document]);
}

void TokenShards::copy_ids(int64_t begin, std::span<int32_t> out) const {
  impl_->over(begin, static_cast<int64_t>(out.size()), [&](const ShardView& view, int64_t at, int64_t count, int64_t done) {
    for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(done + i)] = view.id(at + i);
  });
}

void TokenShards::copy_mask(int64_t begin, std::span<uint8_t> out) const {
  impl_->over(begin, static_cast<int64_t>(out.size()), [&](const ShardView& view, int64_t at, int64_t count, int64_t done) {
    for (int64_t i = 0; i < count; ++i) {
      out[static_cast<size_t>(done + i)] = view.mask != nullptr ? view.learned(at + i) : view.id(at + i) != impl_->bos;
    }
  });
}

}  // namespace k3::train
