#include "k3/train/data/data_manifest.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/format/json/json_tree.h"
#include "k3/format/tokenizer/rank_table.h"
#include "k3/train/data/shard_format.h"
#include "k3/train/json_number.h"

namespace k3::train {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;
constexpr size_t kMaxNameBytes = 128;

// Reads the fields of one object; the first failure is kept and names file and field.
class FieldReader {
 public:
  FieldReader(const JsonNode& node, std::string_view source, std::string path)
      : node_(node), source_(source), path_(std::move(path)) {
    if (!node.is_object()) fail_field("", "expected an object");
  }

  const JsonNode* get(std::string_view key, JsonNode::Kind kind) {
    const JsonNode* field = node_.find(key);
    if (field != nullptr && field->kind == kind) return field;
    fail_field(key, field == nullptr ? "is missing" : fmt::format("expected {}", json_kind_name(kind)));
    return nullptr;
  }
  std::string text(std::string_view key) {
    const JsonNode* field = get(key, JsonNode::Kind::string);
    return field != nullptr ? field->text : std::string();
  }
  int64_t number(std::string_view key, int64_t least, int64_t most) {
    const JsonNode* field = get(key, JsonNode::Kind::number);
    if (field == nullptr) return least;
    if (const std::optional<int64_t> value = json_whole(field); value && *value >= least && *value <= most) return *value;
    fail_field(key, fmt::format("{} is no whole number from {} to {}", field->raw, least, most));
    return least;
  }
  uint64_t hash(std::string_view key) {
    const std::string digits = text(key);
    uint64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
    if (digits.size() != 16 || error != std::errc() || stop != end) fail_field(key, "expected 16 hexadecimal digits");
    return value;
  }
  void fail_field(std::string_view key, std::string_view why) {
    if (status_.ok()) {
      status_ = fail(Code::corrupt, "{}: {}{}{}: {}", source_, path_, path_.empty() || key.empty() ? "" : ".", key, why);
    }
  }
  Status take() { return std::move(status_); }
  const std::string& path() const { return path_; }

 private:
  const JsonNode& node_;
  std::string_view source_;
  std::string path_;
  Status status_;
};

bool is_plain_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' && std::all_of(name.begin(), name.end(), plain);
}

Result<ShardInfo> parse_shard_info(const JsonNode& node, std::string_view source, const std::string& path) {
  FieldReader in(node, source, path);
  ShardInfo shard;
  K3_TRY(in.take());
  shard.file = in.text("file");
  shard.tokens = in.number("tokens", 0, kMostShardTokens);
  shard.documents = in.number("documents", 0, shard.tokens);
  shard.file_bytes = in.number("bytes", 0, INT64_MAX);
  shard.hash = in.hash("xxh3");
  if (!is_plain_name(shard.file)) in.fail_field("file", "expected a file name of letters, digits, '.', '_' and '-'");
  K3_TRY(in.take());
  return shard;
}

// Counts of a source that its shards must add up to.
Status check_sums(const SourceInfo& info, FieldReader& in) {
  int64_t tokens = 0, documents = 0;
  for (const ShardInfo& shard : info.shards) {
    tokens += shard.tokens;
    documents += shard.documents;
    if (tokens > kMostShardTokens) break;
  }
  if (tokens != info.tokens) in.fail_field("tokens", fmt::format("{}, but the shards have {}", info.tokens, tokens));
  if (documents != info.documents) in.fail_field("documents", fmt::format("{}, but the shards have {}", info.documents, documents));
  return in.take();
}

Result<SourceInfo> parse_source(const JsonNode& node, std::string_view source, const std::string& path) {
  FieldReader in(node, source, path);
  K3_TRY(in.take());
  SourceInfo info;
  info.name = in.text("name");
  const std::string kind = in.text("kind"), split = in.text("split");
  info.kind = kind == "chat" ? SourceKind::chat : SourceKind::text;
  info.split = split == "valid" ? Split::valid : Split::train;
  info.tokens = in.number("tokens", 0, kMostShardTokens);
  info.documents = in.number("documents", 0, info.tokens);
  info.text_bytes = in.number("text_bytes", 0, INT64_MAX);
  info.loss_tokens = in.number("loss_tokens", 0, info.tokens);
  info.duplicates = in.number("duplicates", 0, INT64_MAX);
  info.empty = in.number("empty", 0, INT64_MAX);
  const JsonNode* shards = in.get("shards", JsonNode::Kind::array);
  if (!is_plain_name(info.name)) in.fail_field("name", "expected letters, digits, '.', '_' and '-'");
  if (kind != kind_name(info.kind)) in.fail_field("kind", "expected text or chat");
  if (split != split_name(info.split)) in.fail_field("split", "expected train or valid");
  K3_TRY(in.take());
  for (size_t i = 0; i < shards->items.size(); ++i) {
    K3_TRY_ASSIGN(ShardInfo shard, parse_shard_info(shards->items[i], source, fmt::format("{}.shards[{}]", path, i)));
    info.shards.push_back(std::move(shard));
  }
  K3_TRY(check_sums(info, in));
  return info;
}

std::string hex16(uint64_t value) { return fmt::format("{:016x}", value); }

void write_source(JsonWriter& w, const SourceInfo& info) {
  w.begin_object().field("name", info.name).field("kind", kind_name(info.kind)).field("split", split_name(info.split));
  w.field("documents", info.documents).field("tokens", info.tokens).field("text_bytes", info.text_bytes);
  w.field("loss_tokens", info.loss_tokens).field("duplicates", info.duplicates).field("empty", info.empty);
  w.key("shards").begin_array();
  for (const ShardInfo& shard : info.shards) {
    w.begin_object().field("file", shard.file).field("tokens", shard.tokens).field("documents", shard.documents);
    w.field("bytes", shard.file_bytes).field("xxh3", hex16(shard.hash)).end_object();
  }
  w.end_array().end_object();
}

}  // namespace

std::string_view kind_name(SourceKind kind) { return kind == SourceKind::chat ? "chat" : "text"; }
std::string_view split_name(Split split) { return split == Split::valid ? "valid" : "train"; }

const SourceInfo* DataManifest::find(std::string_view name, Split split) const {
  const auto found =
      std::find_if(sources.begin(), sources.end(), [&](const SourceInfo& s) { return s.name == name && s.split == split; });
  return found == sources.end() ? nullptr : &*found;
}

std::string DataManifest::names(Split split) const {
  std::string out;
  for (const SourceInfo& info : sources) {
    if (info.split == split) out += (out.empty() ? "" : ", ") + info.name;
  }
  return out.empty() ? "none" : out;
}

Result<DataManifest> parse_manifest(std::string_view json, std::string_view source) {
  auto parsed = parse_json(json);
  if (!parsed.ok()) return fail(Code::corrupt, "{}: {}", source, parsed.error().message);
  FieldReader in(*parsed, source, "");
  K3_TRY(in.take());
  if (in.text("format") != "k3 data") in.fail_field("format", "expected \"k3 data\": is this the manifest of `k3 prepare`?");
  const int64_t version = in.number("version", 1, INT64_MAX);
  K3_TRY(in.take());
  if (version > kManifestVersion) {
    return fail(Code::unsupported, "{}: version {} is unknown here (known: {})", source, version, kManifestVersion);
  }
  DataManifest manifest;
  manifest.vocab = in.number("vocab", 1, kMaxVocab);
  const auto id = [&](std::string_view key) { return static_cast<int32_t>(in.number(key, 0, manifest.vocab - 1)); };
  manifest.bos = id("bos");
  manifest.eos = id("eos");
  manifest.pad = id("pad");
  manifest.end_of_message = id("end_of_message");
  manifest.tokenizer_sha256 = in.text("tokenizer_sha256");
  const JsonNode* sources = in.get("sources", JsonNode::Kind::array);
  K3_TRY(in.take());
  std::set<std::pair<std::string, Split>> seen;
  for (size_t i = 0; i < sources->items.size(); ++i) {
    const std::string path = fmt::format("sources[{}]", i);
    K3_TRY_ASSIGN(SourceInfo info, parse_source(sources->items[i], source, path));
    if (!seen.emplace(info.name, info.split).second) {
      return fail(Code::corrupt, "{}: {}: source {} of split {} appears twice", source, path, info.name, split_name(info.split));
    }
    manifest.sources.push_back(std::move(info));
  }
  return manifest;
}

Result<DataManifest> load_manifest(const std::string& folder) {
  const std::string path = join_path(folder, kManifestName);
  if (!path_exists(path)) {
    return fail(Code::not_found, "{}: no {}: no prepared data, or `k3 prepare` did not finish; run it (again)", folder, kManifestName);
  }
  K3_TRY_ASSIGN(const std::string json, read_file(path, kMaxManifestBytes));
  return parse_manifest(json, path);
}

std::string manifest_json(const DataManifest& manifest) {
  JsonWriter w(1);
  w.begin_object().field("format", "k3 data").field("version", kManifestVersion).field("vocab", manifest.vocab);
  w.field("bos", int64_t{manifest.bos}).field("eos", int64_t{manifest.eos}).field("pad", int64_t{manifest.pad});
  w.field("end_of_message", int64_t{manifest.end_of_message}).field("tokenizer_sha256", manifest.tokenizer_sha256);
  w.key("sources").begin_array();
  for (const SourceInfo& info : manifest.sources) write_source(w, info);
  w.end_array().end_object();
  return w.text() + "\n";
}

}  // namespace k3::train
