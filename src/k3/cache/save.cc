// A sequence as bytes: magic, identity, shape and length, the latents in use, the states, a checksum of all of it.
#include <algorithm>
#include <cstring>

#include "k3/base/hash/hash64.h"
#include "k3/cache/state.h"

namespace k3::cache {

namespace {

constexpr char kMagic[8] = {'k', '3', 's', 'e', 'q', '0', '0', '1'};
constexpr uint64_t kMostIdentityBytes = 1 << 16;

struct Head {
  int64_t tokens, mla_layers, latent_row_bytes, kda_layers, state_bytes, conv_bytes;
  bool operator==(const Head&) const = default;
};

Head head_of(const CacheShape& shape, int64_t tokens) {
  const LayerCounts& counts = shape.counts;
  return {tokens,
          counts.mla_layers,
          shape.latent_row_bytes(),
          counts.kda_layers,
          counts.state_elements * dtype_bytes(shape.dtypes.state),
          counts.conv_elements * dtype_bytes(shape.dtypes.conv)};
}

// A stretch of a page.
struct Piece {
  int64_t offset, bytes;
};

// Calls visit(page, pieces) for all that the content of a sequence consists of, in a fixed order.
template <class Visit>
Status visit_content(const CacheShape& shape, std::span<const int32_t> table, std::span<const int32_t> states, const Head& head,
                     Visit visit) {
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < head.tokens; first += shape.page_tokens) {
    const int64_t rows = std::min(shape.page_tokens, head.tokens - first);
    pieces.clear();
    for (int64_t layer = 0; layer < head.mla_layers; ++layer) {
      pieces.push_back({layer * shape.latent_layer_bytes(), rows * head.latent_row_bytes});
    }
    K3_TRY(visit(table[static_cast<size_t>(first / shape.page_tokens)], pieces));
  }
  for (size_t g = 0; g < states.size(); ++g) {
    pieces.clear();
    for (int64_t layer = 0; layer < shape.group_layers[g]; ++layer) {
      const int64_t state = layer * shape.layer_stride;
      pieces.push_back({state, head.state_bytes});
      pieces.push_back({state + shape.conv_offset, head.conv_bytes});
    }
    K3_TRY(visit(states[g], pieces));
  }
  return {};
}

}  // namespace

Status HybridCache::Impl::save(const Sequence& sequence, const std::function<Status(std::span<const std::byte>)>& write) {
  if (!pool.backed()) return fail(Code::unsupported, "a cache without memory has nothing to save");
  Hash64 digest;
  const auto put = [&](std::span<const std::byte> bytes) {
    digest.update(bytes);
    return write(bytes);
  };
  const Head head = head_of(shape, sequence.length);
  const uint64_t identity_bytes = options.identity.size();
  K3_TRY(put(std::as_bytes(std::span(kMagic))));
  K3_TRY(put(std::as_bytes(std::span(&identity_bytes, 1))));
  K3_TRY(put(std::as_bytes(std::span(options.identity))));
  K3_TRY(put(std::as_bytes(std::span(&head, 1))));
  PageMemory& memory = pool.memory();
  const auto save_page = [&](int32_t page, std::span<const Piece> pieces) -> Status {
    K3_TRY_ASSIGN(const auto images, memory.read(std::span(&page, 1)));
    for (const Piece& piece : pieces) K3_TRY(put(std::span(images.front() + piece.offset, static_cast<size_t>(piece.bytes))));
    return {};
  };
  K3_TRY(visit_content(shape, sequence.table, sequence.states, head, save_page));
  const uint64_t sum = digest.digest();
  return write(std::as_bytes(std::span(&sum, 1)));
}

Result<SequenceId> HybridCache::Impl::restore(int64_t tokens, const std::function<Status(std::span<std::byte>)>& read) {
  if (!pool.backed()) return fail(Code::unsupported, "a cache without memory cannot restore");
  if (tokens < 0) return fail(Code::invalid_argument, "a saved sequence of {} tokens", tokens);
  K3_TRY(check_fits(tokens, "a saved sequence"));
  Hash64 digest;
  const auto get = [&](std::span<std::byte> bytes) -> Status {
    K3_TRY(read(bytes));
    digest.update(bytes);
    return {};
  };
  char magic[sizeof kMagic];
  uint64_t identity_bytes = 0;
  K3_TRY(get(std::as_writable_bytes(std::span(magic))));
  if (std::memcmp(magic, kMagic, sizeof magic) != 0) return fail(Code::corrupt, "not a saved sequence");
  K3_TRY(get(std::as_writable_bytes(std::span(&identity_bytes, 1))));
  if (identity_bytes > kMostIdentityBytes) return fail(Code::corrupt, "a saved sequence with a name of {} bytes", identity_bytes);
  std::string identity(identity_bytes, '\0');
  K3_TRY(get(std::as_writable_bytes(std::span(identity))));
  if (identity != options.identity) return fail(Code::invalid_argument, "a sequence saved by another model or with other dtypes");
  Head head{};
  K3_TRY(get(std::as_writable_bytes(std::span(&head, 1))));
  if (head.tokens != tokens) return fail(Code::corrupt, "a saved sequence of {} tokens, not {}", head.tokens, tokens);
  if (!(head == head_of(shape, tokens))) return fail(Code::invalid_argument, "a sequence saved with another shape");

  const int64_t needed = shape.pages_for(tokens) + groups;
  if (needed > available_pages()) {
    return fail(Code::exhausted, "a saved sequence needs {} pages; {} of {} can be had now", needed, available_pages(), pool.count());
  }
  const SequenceId id = new_sequence();
  Sequence& sequence = live(id);
  for (int64_t slot = 0; slot < shape.pages_for(tokens); ++slot) sequence.table.push_back(take(PageUse::mla));
  for (int64_t g = 0; g < groups; ++g) sequence.states.push_back(take(PageUse::state));
  PageMemory& memory = pool.memory();
  const auto restore_page = [&](int32_t page, std::span<const Piece> pieces) -> Status {
    K3_TRY_ASSIGN(const auto images, memory.open(std::span(&page, 1)));
    for (const Piece& piece : pieces) {
      K3_TRY(get(std::span(images.front() + piece.offset, static_cast<size_t>(piece.bytes))));
      memory.store(0, piece.offset, piece.bytes);
    }
    return memory.status();
  };
  Status status = visit_content(shape, sequence.table, sequence.states, head, restore_page);
  if (status.ok()) {
    const uint64_t sum = digest.digest();
    uint64_t saved = 0;
    status = read(std::as_writable_bytes(std::span(&saved, 1)));
    if (status.ok() && saved != sum) status = fail(Code::corrupt, "a saved sequence is damaged: its checksum does not fit");
  }
  if (!status.ok()) {
    release(id);
    return std::move(status).take_error();
  }
  sequence.length = sequence.prompt_tokens = tokens;
  return id;
}

}  // namespace k3::cache
