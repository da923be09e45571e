#include "k3/format/tokenizer.h"

#include "k3/base/file.h"
#include "k3/base/utf8.h"
#include "k3/format/tokenizer/bpe.h"
#include "k3/format/tokenizer/chunks.h"
#include "k3/format/tokenizer/pattern_scan.h"
#include "k3/format/tokenizer/rank_table.h"
#include "k3/format/tokenizer/special_tokens.h"

namespace k3 {
namespace {

constexpr const char* kModelName = "tiktoken.model";
constexpr const char* kConfigName = "tokenizer_config.json";
// The rank hash is larger than the caches near the core; its first access is started this many pieces early.
constexpr size_t kPrefetchPieces = 8;
constexpr int64_t kMaxModelBytes = int64_t{256} << 20, kMaxConfigBytes = int64_t{64} << 20;

}  // namespace

struct Tokenizer::Impl {
  RankTable ranks;
  SpecialTokens specials;

  void encode_valid(std::string_view text, std::vector<int32_t>& out) const;
  static Result<std::unique_ptr<Impl>> build(std::string_view model, std::string_view model_name, std::string_view config,
                                             std::string_view config_name);
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer::Impl>> Tokenizer::Impl::build(std::string_view model, std::string_view model_name,
                                                                std::string_view config, std::string_view config_name) {
  K3_TRY_ASSIGN(RankTable ranks, RankTable::parse(model, model_name));
  K3_TRY_ASSIGN(SpecialTokens specials, SpecialTokens::parse(config, ranks.size(), config_name));
  return std::make_unique<Impl>(Impl{std::move(ranks), std::move(specials)});
}

Result<Tokenizer> Tokenizer::from_text(std::string_view tiktoken_model, std::string_view tokenizer_config_json,
                                       std::string_view source) {
  K3_TRY_ASSIGN(auto impl, Impl::build(tiktoken_model, join_path(source, kModelName), tokenizer_config_json,
                                       join_path(source, kConfigName)));
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  const bool folder = is_directory(path);
  const std::string model_path = folder ? join_path(path, kModelName) : path;
  const std::string config_path = folder ? join_path(path, kConfigName) : "";
  K3_TRY_ASSIGN(const std::string model, read_file(model_path, kMaxModelBytes));
  std::string config;
  if (folder && path_exists(config_path)) {
    K3_TRY_ASSIGN(config, read_file(config_path, kMaxConfigBytes));
    if (config.empty()) return fail(Code::corrupt, "{}: the file is empty", config_path);
  }
  K3_TRY_ASSIGN(auto impl, Impl::build(model, model_path, config, config_path));
  return Tokenizer(std::move(impl));
}

void Tokenizer::Impl::encode_valid(std::string_view text, std::vector<int32_t>& out) const {
  thread_local std::vector<size_t> chunks, pieces;
  chunks.clear();
  split_chunks(text, chunks);
  size_t begin = 0;
  for (const size_t end : chunks) {
    const std::string_view chunk = text.substr(begin, end - begin);
    pieces.assign(1, 0);  // piece i is [pieces[i], pieces[i + 1])
    split_by_scan(chunk, pieces);
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      if (const size_t ahead = i + kPrefetchPieces; ahead + 1 < pieces.size()) {
        ranks.prefetch(chunk.data() + pieces[ahead], pieces[ahead + 1] - pieces[ahead]);
      }
      encode_piece(ranks, chunk.substr(pieces[i], pieces[i + 1] - pieces[i]), out);
    }
    begin = end;
  }
}

Status Tokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  if (const size_t bad = utf8_valid_prefix(text); bad != text.size()) {
    return fail(Code::invalid_argument, "text is not UTF-8: byte {:02x} at offset {}", static_cast<uint8_t>(text[bad]), bad);
  }
  impl_->encode_valid(text, out);
  return {};
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  K3_TRY(encode(text, out));
  return out;
}

Status Tokenizer::encode_with_specials(std::string_view text, std::vector<int32_t>& out) const {
  if (const size_t bad = utf8_valid_prefix(text); bad != text.size()) {
    return fail(Code::invalid_argument, "text is not UTF-8: byte {:02x} at offset {}", static_cast<uint8_t>(text[bad]), bad);
  }
  size_t pos = 0;
  while (const auto match = impl_->specials.next(text, pos)) {
    impl_->encode_valid(text.substr(pos, match->begin - pos), out);
    out.push_back(match->id);
    pos = match->begin + match->size;
  }
  impl_->encode_valid(text.substr(pos), out);
  return {};
}

std::string_view Tokenizer::bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return is_special(id) ? impl_->specials.name(id) : impl_->ranks.bytes(static_cast<uint32_t>(id));
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_specials) const {
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    if (id < 0 || id >= vocab_size()) {
      return fail(Code::invalid_argument, "id {} at position {} is outside the vocabulary of {}", id, i, vocab_size());
    }
    if (!skip_specials || !is_special(id)) out.append(bytes(id));
  }
  return out;
}

int32_t Tokenizer::base_count() const { return impl_->ranks.size(); }
int32_t Tokenizer::vocab_size() const { return impl_->ranks.size() + impl_->specials.size(); }
std::optional<int32_t> Tokenizer::special(std::string_view name) const { return impl_->specials.find(name); }

std::string StreamDecoder::push(int32_t id) {
  if (id < 0 || tokenizer_->is_special(id)) return {};
  pending_.append(tokenizer_->bytes(id));
  const size_t waiting = utf8_incomplete_suffix(pending_);
  std::string out = utf8_repair(std::string_view(pending_).substr(0, pending_.size() - waiting));
  pending_.erase(0, pending_.size() - waiting);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = utf8_repair(pending_);
  pending_.clear();
  return out;
}

}  // namespace k3
