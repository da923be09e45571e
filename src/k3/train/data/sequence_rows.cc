#include "k3/train/data/sequence_rows.h"

#include <algorithm>
#include <map>

#include "k3/train/data/permutation.h"

namespace k3::train {
namespace {

constexpr int32_t kNoLoss = -1;

// All conversations as pieces of at most seq_tokens, the longest first, equal ones in their order.
std::vector<Piece> cut_conversations(const TokenShards& source, int64_t seq_tokens) {
  std::vector<Piece> pieces;
  pieces.reserve(static_cast<size_t>(source.documents()));
  int64_t begin = 0;
  for (int64_t d = 0; d < source.documents(); ++d) {
    const int64_t end = source.document_begin(d + 1);
    for (; begin < end; begin += pieces.back().size) pieces.push_back({begin, std::min(seq_tokens, end - begin)});
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.size > b.size; });
  return pieces;
}

}  // namespace

RowFiller::RowFiller(PackedBatch& batch, int64_t sequences, int64_t seq_tokens, int32_t pad) : batch_(batch), pad_(pad) {
  const auto size = static_cast<size_t>(sequences * seq_tokens);
  batch.sequences = sequences;
  batch.seq_tokens = seq_tokens;
  batch.tokens.resize(size);
  batch.targets.resize(size);
  batch.offsets.clear();
  batch.loss_tokens = batch.padding_tokens = 0;
}

void RowFiller::begin_row(int64_t row) {
  at_ = row * batch_.seq_tokens;
  row_end_ = at_ + batch_.seq_tokens;
}

void RowFiller::add(const TokenShards& source, Piece piece, bool learn_all) {
  K3_CHECK(piece.size > 0 && at_ + piece.size <= row_end_, "a piece of {} at {} of a row to {}", piece.size, at_, row_end_);
  const int64_t document_end = source.document_begin(source.document_at(piece.begin) + 1);
  const bool goes_on = piece.begin + piece.size < document_end;
  ids_.resize(static_cast<size_t>(piece.size + (goes_on ? 1 : 0)));
  source.copy_ids(piece.begin, ids_);
  const bool masked = source.has_mask() && !learn_all;
  if (masked) {
    mask_.resize(ids_.size());
    source.copy_mask(piece.begin, mask_);
  }
  batch_.offsets.push_back(at_);
  for (size_t i = 0; i < static_cast<size_t>(piece.size); ++i) {
    const bool learned = i + 1 < ids_.size() && (!masked || mask_[i + 1] != 0);
    batch_.tokens[static_cast<size_t>(at_) + i] = ids_[i];
    batch_.targets[static_cast<size_t>(at_) + i] = learned ? ids_[i + 1] : kNoLoss;
    batch_.loss_tokens += learned ? 1 : 0;
  }
  at_ += piece.size;
}

void RowFiller::end_row() {
  if (at_ == row_end_) return;
  batch_.offsets.push_back(at_);
  batch_.padding_tokens += row_end_ - at_;
  std::fill(batch_.tokens.begin() + at_, batch_.tokens.begin() + row_end_, pad_);
  std::fill(batch_.targets.begin() + at_, batch_.targets.begin() + row_end_, kNoLoss);
  at_ = row_end_;
}

void RowFiller::finish() { batch_.offsets.push_back(batch_.sequences * batch_.seq_tokens); }

StreamWindows::StreamWindows(const TokenShards& source, int64_t seq_tokens)
    : source_(&source),
      seq_tokens_(seq_tokens),
      count_(std::max<int64_t>(1, source.tokens() / seq_tokens)),
      slack_(std::max<int64_t>(0, source.tokens() - count_ * seq_tokens)) {}

void StreamWindows::pieces(int64_t window, uint64_t epoch_key, std::vector<Piece>& out) const {
  const auto shift = static_cast<int64_t>(mix_key({epoch_key}) % static_cast<uint64_t>(slack_ + 1));
  int64_t at = shift + window * seq_tokens_;
  const int64_t end = std::min(at + seq_tokens_, source_->tokens());
  out.clear();
  for (int64_t document = source_->document_at(at); at < end; ++document) {
    const int64_t stop = std::min(end, source_->document_begin(document + 1));
    out.push_back({at, stop - at});
    at = stop;
  }
}

ChatBins::ChatBins(const TokenShards& source, int64_t seq_tokens) {
  const std::vector<Piece> sorted = cut_conversations(source, seq_tokens);
  std::vector<int64_t> bin_of(sorted.size());
  std::map<int64_t, std::vector<int64_t>> open;  // bins by the room that they have left
  int64_t bins = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const auto fit = open.lower_bound(sorted[i].size);
    int64_t left = seq_tokens;
    if (fit == open.end()) {
      bin_of[i] = bins++;
    } else {
      left = fit->first;
      bin_of[i] = fit->second.back();
      fit->second.pop_back();
      if (fit->second.empty()) open.erase(fit);
    }
    left -= sorted[i].size;
    if (left > 0) open[left].push_back(bin_of[i]);
  }
  bin_begin_.assign(static_cast<size_t>(bins) + 1, 0);
  for (const int64_t bin : bin_of) ++bin_begin_[static_cast<size_t>(bin) + 1];
  for (size_t b = 1; b < bin_begin_.size(); ++b) bin_begin_[b] += bin_begin_[b - 1];
  pieces_.resize(sorted.size());
  std::vector<int64_t> next(bin_begin_.begin(), bin_begin_.end() - 1);
  for (size_t i = 0; i < sorted.size(); ++i) pieces_[static_cast<size_t>(next[static_cast<size_t>(bin_of[i])]++)] = sorted[i];
}

void ChatBins::pieces(int64_t bin, std::vector<Piece>& out) const {
  const auto b = static_cast<size_t>(bin);
  out.assign(pieces_.begin() + bin_begin_[b], pieces_.begin() + bin_begin_[b + 1]);
}

}  // namespace k3::train
