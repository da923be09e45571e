#include "k3/train/data/eval_windows.h"

#include <algorithm>

#include "k3/train/data/permutation.h"
#include "k3/train/data/sequence_rows.h"

namespace k3::train {
namespace {

constexpr uint64_t kSpreadKey = 1;  // any constant: the same documents every time

int64_t predicted_in(const TokenShards& source, int64_t document) {
  const int64_t begin = source.document_begin(document), size = source.document_begin(document + 1) - begin;
  if (!source.has_mask()) return size - 1;
  std::vector<uint8_t> mask(static_cast<size_t>(size));
  source.copy_mask(begin, mask);
  return std::count(mask.begin() + 1, mask.end(), uint8_t{1});
}

// Whole documents, spread evenly, as long as they fit; at least one.
std::vector<int64_t> choose_documents(const TokenShards& source, int64_t most_tokens) {
  const int64_t count = source.documents();
  const Permutation spread(count, kSpreadKey);
  std::vector<int64_t> chosen;
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t document = spread(i), tokens = most_tokens > 0 ? predicted_in(source, document) : 0;
    if (most_tokens > 0 && total + tokens > most_tokens) continue;
    total += tokens;
    chosen.push_back(document);
  }
  if (chosen.empty()) chosen.push_back(spread(0));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

Result<EvalWindows> EvalWindows::create(const TokenShards& source, int32_t pad, int64_t window_tokens, int64_t most_tokens) {
  constexpr int64_t kMostWindow = int64_t{1} << 31;
  if (window_tokens < 2 || window_tokens > kMostWindow) {
    return fail(Code::invalid_argument, "evaluation windows of {} tokens; give 2 to {}", window_tokens, kMostWindow);
  }
  if (source.documents() == 0) return fail(Code::invalid_argument, "source {} has no documents to evaluate on", source.info().name);
  EvalWindows eval;
  eval.source_ = &source;
  eval.pad_ = pad;
  eval.window_tokens_ = window_tokens;
  for (const int64_t document : choose_documents(source, most_tokens)) eval.add_document(document);
  eval.place_windows();
  return eval;
}

void EvalWindows::add_document(int64_t document) {
  const int64_t begin = source_->document_begin(document);
  const int64_t inputs = source_->document_begin(document + 1) - begin - 1;  // the last token is predicted only
  for (int64_t at = 0; at < inputs; at += window_tokens_) windows_.push_back({begin + at, std::min(window_tokens_, inputs - at)});
  ++documents_;
  predicted_tokens_ += predicted_in(*source_, document);
  text_bytes_ += source_->document_bytes(document);
}

void EvalWindows::place_windows() {
  row_begin_.assign(1, 0);
  int64_t room = window_tokens_;
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (windows_[i].size > room) {
      row_begin_.push_back(static_cast<int64_t>(i));
      room = window_tokens_;
    }
    room -= windows_[i].size;
  }
  if (!windows_.empty()) row_begin_.push_back(windows());
}

void EvalWindows::fill(int64_t first, int64_t count, PackedBatch& out) const {
  K3_CHECK(first >= 0 && count >= 1, "rows {} + {}", first, count);
  RowFiller filler(out, count, window_tokens_, pad_);
  for (int64_t row = 0; row < count; ++row) {
    filler.begin_row(row);
    if (first + row < rows()) {
      const auto r = static_cast<size_t>(first + row);
      for (int64_t w = row_begin_[r]; w < row_begin_[r + 1]; ++w) {
        const Window& window = windows_[static_cast<size_t>(w)];
        filler.add(*source_, {window.begin, window.size}, /*learn_all=*/false);
      }
    }
    filler.end_row();
  }
  filler.finish();
}

}  // namespace k3::train
