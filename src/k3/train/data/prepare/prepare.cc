#include "k3/train/data/prepare/prepare.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "k3/base/file.h"
#include "k3/base/hash/hash64.h"
#include "k3/base/hash/sha256.h"
#include "k3/format/chat/chat.h"
#include "k3/format/tokenizer.h"
#include "k3/train/data/prepare/document_ids.h"
#include "k3/train/data/prepare/document_reader.h"
#include "k3/train/data/prepare/source_writer.h"

namespace k3::train {
namespace {

constexpr size_t kBatchBytes = size_t{16} << 20;
constexpr size_t kBatchDocuments = 8192;
constexpr const char* kTokenizerFiles[] = {"tiktoken.model", "tokenizer_config.json", "chat_format.json", "encoding_k3.py",
                                           "generation_config.json"};

// 128 bits of a text: two different texts that share them are not to be expected in any corpus.
using TextHash = std::array<uint64_t, 2>;

TextHash hash_text(std::string_view text) {
  TextHash out{};
  for (uint64_t seed = 0; seed < out.size(); ++seed) {
    Hash64 hash(seed);
    hash.update(std::as_bytes(std::span(text.data(), text.size())));
    out[seed] = hash.digest();
  }
  return out;
}

struct Item {
  Document document;
  TextHash hash{};
  DocumentIds ids;
  Status status;
};

class Preparer {
 public:
  Preparer(const PrepareOptions& options, ThreadPool& pool, const std::function<void(int64_t, int64_t)>& progress)
      : options_(options), pool_(pool), progress_(progress) {}

  Result<DataManifest> run() {
    K3_TRY(check_options());
    K3_TRY(load_tokenizer());
    K3_TRY(open_folder());
    for (const std::string& file : options_.valid) K3_TRY(read_file_documents(file, Split::valid));
    for (const std::string& file : options_.train) K3_TRY(read_file_documents(file, Split::train));
    for (SourceWriter& writer : writers_) {
      K3_TRY(writer.finish());
      manifest_.sources.push_back(writer.info());
    }
    K3_TRY(copy_tokenizer());
    K3_TRY(write_file(join_path(options_.out, kManifestName), manifest_json(manifest_)));
    for (SourceWriter& writer : writers_) writer.keep();
    return std::move(manifest_);
  }

 private:
  Status check_options() {
    if (options_.train.empty() && options_.valid.empty()) return fail(Code::invalid_argument, "no files to prepare");
    if (!(options_.holdout >= 0 && options_.holdout <= 0.5)) {
      return fail(Code::invalid_argument, "a hold-out of {}; give 0 to 0.5", options_.holdout);
    }
    if (options_.shard_tokens < 1 || options_.shard_tokens > kMostShardTokens / 2) {
      return fail(Code::invalid_argument, "shards of {} tokens; give 1 to {}", options_.shard_tokens, kMostShardTokens / 2);
    }
    std::map<std::string, std::string> names;  // of shards, which a source shares with no other: NAME.valid is a name, too
    const auto add = [&](const std::string& file, Split split) -> Status {
      const std::string name = source_name(file);
      const auto [found, added] = names.emplace(shard_name(name, split), file);
      if (added) return {};
      return fail(Code::invalid_argument, "{} and {} would both have shards {}-00000.k3t (source {} of the split {}); rename one", found->second, file,
                  found->first, name, split_name(split));
    };
    for (const std::string& file : options_.valid) K3_TRY(add(file, Split::valid));
    for (const std::string& file : options_.train) {
      K3_TRY(add(file, Split::train));
      if (options_.holdout > 0) K3_TRY(add(file, Split::valid));
    }
    for (const auto* files : {&options_.valid, &options_.train}) {
      for (const std::string& file : *files) {
        K3_TRY_ASSIGN(const DocumentReader reader, DocumentReader::open(file));  // a missing file is found before the work
        total_bytes_ += reader.file_bytes();
      }
    }
    return {};
  }

  Status load_tokenizer() {
    K3_TRY_ASSIGN(tokenizer_, Tokenizer::load(options_.tokenizer));
    const auto id = [&](std::string_view name) -> Result<int32_t> {
      if (const auto found = tokenizer_->special(name)) return *found;
      return fail(Code::unsupported, "{}: the tokenizer has no special token {} (tokenizer_config.json names them)",
                  options_.tokenizer, name);
    };
    manifest_.vocab = tokenizer_->vocab_size();
    K3_TRY_ASSIGN(manifest_.bos, id("[BOS]"));
    K3_TRY_ASSIGN(manifest_.eos, id("[EOS]"));
    K3_TRY_ASSIGN(manifest_.pad, id("[PAD]"));
    manifest_.end_of_message = tokenizer_->special("<|end_of_msg|>").value_or(manifest_.eos);
    const std::string model = is_directory(options_.tokenizer) ? join_path(options_.tokenizer, "tiktoken.model") : options_.tokenizer;
    K3_TRY_ASSIGN(const std::string ranks, read_file(model));
    manifest_.tokenizer_sha256 = sha256_hex(ranks);
    return {};
  }

  Status load_chat_format() {
    if (chat_format_) return {};
    K3_TRY_ASSIGN(chat_format_, ChatFormat::load(options_.tokenizer, *tokenizer_));
    return {};
  }

  Status open_folder() {
    const std::string manifest = join_path(options_.out, kManifestName);
    if (path_exists(manifest)) {
      if (!options_.force) {
        return fail(Code::invalid_argument, "{} holds prepared data; --force replaces it, or choose another folder", options_.out);
      }
      // Shards that the new manifest does not name go with the old one.
      if (const auto old = load_manifest(options_.out); old.ok()) {
        for (const SourceInfo& source : old->sources) {
          for (const ShardInfo& shard : source.shards) remove(join_path(options_.out, shard.file));
        }
      }
      remove(manifest);
    }
    return make_directories(options_.out);
  }

  static void remove(const std::string& path) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }

  size_t open_writer(const std::string& file, SourceKind kind, Split split) {
    SourceInfo info;
    info.name = source_name(file);
    info.kind = kind;
    info.split = split;
    writers_.emplace_back(options_.out, std::move(info), manifest_.vocab, options_.shard_tokens);
    return writers_.size() - 1;
  }

  Status read_file_documents(const std::string& file, Split split) {
    K3_TRY_ASSIGN(DocumentReader reader, DocumentReader::open(file));
    if (reader.kind() == SourceKind::chat) K3_TRY(load_chat_format());
    const size_t writer = open_writer(file, reader.kind(), split);
    const bool divide = split == Split::train && options_.holdout > 0;
    const size_t held_out = divide ? open_writer(file, reader.kind(), Split::valid) : writer;
    std::vector<Item> items;
    for (bool more = true; more;) {
      items.clear();
      size_t bytes = 0;
      while (more && bytes < kBatchBytes && items.size() < kBatchDocuments) {
        Item item;
        K3_TRY_ASSIGN(more, reader.next(item.document));
        bytes += item.document.text.size();
        if (more) items.push_back(std::move(item));
      }
      encode(items, reader.kind());
      for (Item& item : items) K3_TRY(take(item, reader, writer, held_out));
      if (progress_) progress_(done_bytes_ + reader.file_position(), total_bytes_);
    }
    done_bytes_ += reader.file_bytes();
    return {};
  }

  void encode(std::vector<Item>& items, SourceKind kind) {
    std::atomic<size_t> next = 0;
    pool_.run([&](int) {
      for (size_t i = next++; i < items.size(); i = next++) items[i].status = encode_one(items[i], kind);
    });
  }

  Status encode_one(Item& item, SourceKind kind) const {
    const std::string_view text = item.document.text;
    if (text.empty()) return {};
    item.hash = hash_text(text);
    if (kind == SourceKind::text) {
      K3_TRY_ASSIGN(item.ids, text_ids(*tokenizer_, text, manifest_.bos, manifest_.eos));
      return {};
    }
    K3_TRY_ASSIGN(const ChatRequest conversation, parse_conversation(text));
    K3_TRY_ASSIGN(item.ids, chat_ids(*tokenizer_, *chat_format_, conversation));
    return {};
  }

  Status take(Item& item, const DocumentReader& reader, size_t writer, size_t held_out) {
    if (!item.status.ok()) {
      return std::move(item.status).with_context(fmt::format("{}: line {}", reader.path(), item.document.line));
    }
    if (item.document.text.empty()) {
      writers_[writer].count_empty();
      return {};
    }
    if (!seen_.insert(item.hash).second) {
      writers_[writer].count_duplicate();
      return {};
    }
    const bool hold = static_cast<double>(item.hash[1]) * 0x1p-64 < options_.holdout;
    return writers_[hold ? held_out : writer].add(item.ids);
  }

  Status copy_tokenizer() {
    if (!is_directory(options_.tokenizer)) return {};
    for (const char* name : kTokenizerFiles) {
      const std::string from = join_path(options_.tokenizer, name), to = join_path(options_.out, name);
      std::error_code same;
      if (!path_exists(from) || std::filesystem::equivalent(from, to, same)) continue;
      K3_TRY_ASSIGN(const std::string text, read_file(from));
      K3_TRY(write_file(to, text));
    }
    return {};
  }

  const PrepareOptions& options_;
  ThreadPool& pool_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
  DataManifest manifest_;
  std::vector<SourceWriter> writers_;
  std::set<TextHash> seen_;
  int64_t done_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace

Result<DataManifest> prepare_data(const PrepareOptions& options, ThreadPool& pool,
                                  const std::function<void(int64_t, int64_t)>& progress) {
  return Preparer(options, pool, progress).run();
}

}  // namespace k3::train
