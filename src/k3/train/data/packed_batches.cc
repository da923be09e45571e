#include "k3/train/data/packed_batches.h"

#include <cmath>
#include <variant>

#include "k3/train/data/mixture.h"
#include "k3/train/data/permutation.h"
#include "k3/train/data/sequence_rows.h"

namespace k3::train {
namespace {

constexpr int64_t kMostStepTokens = int64_t{1} << 31;

Status check_sizes(const PackOptions& o) {
  if (o.seq_tokens < 2 || o.seq_tokens > kMostStepTokens) {
    return fail(Code::invalid_argument, "sequences of {} tokens; give 2 to {}", o.seq_tokens, kMostStepTokens);
  }
  if (o.world < 1 || o.rank < 0 || o.rank >= o.world || o.micro_batches < 1) {
    return fail(Code::invalid_argument, "rank {} of {} ranks, {} micro-batches", o.rank, o.world, o.micro_batches);
  }
  if (o.world > kMostStepTokens || o.micro_batches > kMostStepTokens / o.world) {
    return fail(Code::invalid_argument, "{} ranks times {} micro-batches are too many", o.world, o.micro_batches);
  }
  const int64_t unit = o.world * o.micro_batches;
  if (o.tokens_per_step < 1 || o.tokens_per_step > kMostStepTokens || o.tokens_per_step % o.seq_tokens != 0 ||
      o.tokens_per_step / o.seq_tokens % unit != 0) {
    return fail(Code::invalid_argument,
                "{} tokens a step are no whole number of sequences of {} tokens for each of {} ranks x {} micro-batches; give a "
                "multiple of {} up to {}",
                o.tokens_per_step, o.seq_tokens, o.world, o.micro_batches,
                o.seq_tokens <= kMostStepTokens / unit ? o.seq_tokens * unit : kMostStepTokens, kMostStepTokens);
  }
  return {};
}

Status check_mixture(const std::vector<MixtureEntry>& mixture) {
  if (mixture.empty()) return fail(Code::invalid_argument, "the mixture has no source");
  for (const MixtureEntry& entry : mixture) {
    if (entry.source == nullptr) return fail(Code::invalid_argument, "an entry of the mixture has no source");
    const std::string& name = entry.source->info().name;
    if (entry.source->tokens() == 0) return fail(Code::invalid_argument, "source {} of the mixture is empty", name);
    if (!(entry.weight >= 0) || !std::isfinite(entry.weight)) {
      return fail(Code::invalid_argument, "source {}: a weight of {}; give 0 or more", name, entry.weight);
    }
    if (entry.share && !(*entry.share >= 0 && *entry.share <= 1)) {
      return fail(Code::invalid_argument, "source {}: a share of {}; give 0 to 1", name, *entry.share);
    }
  }
  return {};
}

// Shares that are given, then the rest by weight x sequences of an epoch.
Result<std::vector<double>> mixture_shares(const std::vector<MixtureEntry>& mixture, const std::vector<int64_t>& epoch_sequences) {
  constexpr double kSlack = 1e-6;  // of shares that are written with a few decimals
  double given = 0, weights = 0;
  for (size_t i = 0; i < mixture.size(); ++i) {
    if (mixture[i].share) {
      given += *mixture[i].share;
    } else {
      weights += mixture[i].weight * static_cast<double>(epoch_sequences[i]);
    }
  }
  if (given > 1 + kSlack) return fail(Code::invalid_argument, "the shares of the mixture add up to {}; give 1 at most", given);
  if (weights == 0 && given < 1 - kSlack) {
    return fail(Code::invalid_argument, "the shares of the mixture add up to {} and no other source has a weight; give 1 in all", given);
  }
  const double rest = std::max(0.0, 1 - given);
  std::vector<double> shares;
  for (size_t i = 0; i < mixture.size(); ++i) {
    const double weighted = weights > 0 ? mixture[i].weight * static_cast<double>(epoch_sequences[i]) / weights * rest : 0;
    shares.push_back(mixture[i].share ? *mixture[i].share : weighted);
  }
  return shares;
}

}  // namespace

struct PackedBatches::Impl {
  using Sequences = std::variant<StreamWindows, ChatBins>;

  Impl(PackOptions o, std::vector<Sequences> s, Mixture m) : options(std::move(o)), sequences(std::move(s)), mixture(std::move(m)) {}

  int64_t epoch_sequences(size_t entry) const {
    return std::visit([](const auto& s) { return s.count(); }, sequences[entry]);
  }

  void fill_row(int64_t n, RowFiller& rows, std::vector<Piece>& pieces) const {
    const Mixture::Draw draw = mixture.draw(n);
    const auto entry = static_cast<size_t>(draw.source);
    const int64_t count = epoch_sequences(entry);
    const uint64_t key =
        mix_key({options.seed, options.phase, static_cast<uint64_t>(entry), static_cast<uint64_t>(draw.index / count)});
    const int64_t which = Permutation(count, key)(draw.index % count);
    if (const auto* windows = std::get_if<StreamWindows>(&sequences[entry])) {
      windows->pieces(which, key, pieces);
    } else {
      std::get<ChatBins>(sequences[entry]).pieces(which, pieces);
    }
    const MixtureEntry& from = options.mixture[entry];
    for (const Piece& piece : pieces) rows.add(*from.source, piece, from.learn_all);
  }

  PackOptions options;
  std::vector<Sequences> sequences;  // of each entry of the mixture
  Mixture mixture;
  std::vector<double> shares;
};

PackedBatches::PackedBatches(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PackedBatches::PackedBatches(PackedBatches&&) noexcept = default;
PackedBatches& PackedBatches::operator=(PackedBatches&&) noexcept = default;
PackedBatches::~PackedBatches() = default;

Result<PackedBatches> PackedBatches::create(PackOptions options) {
  K3_TRY(check_sizes(options));
  K3_TRY(check_mixture(options.mixture));
  std::vector<Impl::Sequences> sequences;
  std::vector<int64_t> counts;
  for (const MixtureEntry& entry : options.mixture) {
    if (entry.source->has_mask()) {
      sequences.emplace_back(ChatBins(*entry.source, options.seq_tokens));
    } else {
      sequences.emplace_back(StreamWindows(*entry.source, options.seq_tokens));
    }
    counts.push_back(std::visit([](const auto& s) { return s.count(); }, sequences.back()));
  }
  K3_TRY_ASSIGN(std::vector<double> shares, mixture_shares(options.mixture, counts));
  K3_TRY_ASSIGN(Mixture mixture, Mixture::create(shares));
  auto impl = std::make_unique<Impl>(std::move(options), std::move(sequences), std::move(mixture));
  const int64_t period = impl->mixture.period();
  for (size_t i = 0; i < shares.size(); ++i) {
    impl->shares.push_back(static_cast<double>(impl->mixture.drawn(static_cast<int>(i), period)) / static_cast<double>(period));
  }
  return PackedBatches(std::move(impl));
}

const PackOptions& PackedBatches::options() const { return impl_->options; }
int64_t PackedBatches::sequences_per_step() const { return impl_->options.tokens_per_step / impl_->options.seq_tokens; }
int64_t PackedBatches::sequences() const {
  return sequences_per_step() / (impl_->options.world * impl_->options.micro_batches);
}
std::vector<double> PackedBatches::shares() const { return impl_->shares; }

void PackedBatches::fill(int64_t step, int64_t micro, PackedBatch& out) const {
  const PackOptions& o = impl_->options;
  K3_CHECK(step >= 0 && micro >= 0 && micro < o.micro_batches, "step {}, micro-batch {} of {}", step, micro, o.micro_batches);
  const int64_t first = step * sequences_per_step() + (o.rank * o.micro_batches + micro) * sequences();
  RowFiller rows(out, sequences(), o.seq_tokens, o.pad);
  std::vector<Piece> pieces;
  for (int64_t row = 0; row < sequences(); ++row) {
    rows.begin_row(row);
    impl_->fill_row(first + row, rows, pieces);
    rows.end_row();
  }
  rows.finish();
}

std::vector<double> PackedBatches::epochs_before(int64_t step) const {
  std::vector<double> epochs;
  for (size_t i = 0; i < impl_->sequences.size(); ++i) {
    const int64_t drawn = impl_->mixture.drawn(static_cast<int>(i), step * sequences_per_step());
    epochs.push_back(static_cast<double>(drawn) / static_cast<double>(impl_->epoch_sequences(i)));
  }
  return epochs;
}

}  // namespace k3::train
