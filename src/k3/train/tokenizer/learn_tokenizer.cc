#include "k3/train/tokenizer/learn_tokenizer.h"

#include <atomic>
#include <cmath>

#include "k3/format/tokenizer/rank_table.h"
#include "k3/train/data/prepare/document_ids.h"
#include "k3/train/data/prepare/document_reader.h"

namespace k3::train {
namespace {

constexpr size_t kBatchBytes = size_t{16} << 20;
constexpr size_t kBatchDocuments = 8192;
constexpr double kMostWeight = 1000;

Result<int64_t> count_of(const WeightedFile& file) {
  const double scaled = file.weight * static_cast<double>(kCountUnit);
  if (!(file.weight > 0) || file.weight > kMostWeight || std::llround(scaled) == 0) {
    return fail(Code::invalid_argument, "{}: a weight of {}; give 0.001 to {}", file.path, file.weight, kMostWeight);
  }
  return std::llround(scaled);
}

Status check_options(const LearnOptions& options) {
  const int64_t least = kByteRanks + kSpecialTokens;
  if (options.vocab < least || options.vocab > kMaxVocab) {
    return fail(Code::invalid_argument, "a vocabulary of {}; give {} (the bytes and {} specials) to {}", options.vocab, least,
                kSpecialTokens, kMaxVocab);
  }
  if (!(options.least_count > 0 && options.least_count < 1e9)) {
    return fail(Code::invalid_argument, "a least count of {}; give more than 0", options.least_count);
  }
  if (options.files.empty()) return fail(Code::invalid_argument, "no files to learn from");
  return {};
}

// Counts the words of files on all threads, a table each.
class WordReader {
 public:
  WordReader(ThreadPool& pool, ChatFormat format)
      : pool_(pool), format_(std::move(format)), tables_(static_cast<size_t>(pool.size())) {}

  Status read(const WeightedFile& file, const std::function<void(int64_t)>& progress) {
    K3_TRY_ASSIGN(const int64_t count, count_of(file));
    K3_TRY_ASSIGN(DocumentReader reader, DocumentReader::open(file.path));
    for (bool more = true; more;) {
      std::vector<Document> batch;
      size_t bytes = 0;
      while (more && bytes < kBatchBytes && batch.size() < kBatchDocuments) {
        Document document;
        K3_TRY_ASSIGN(more, reader.next(document));
        bytes += document.text.size();
        if (more) batch.push_back(std::move(document));
      }
      K3_TRY(count_batch(batch, reader, count));
      documents_ += static_cast<int64_t>(batch.size());
      if (progress) progress(reader.file_position());
    }
    return {};
  }

  WordCounts take() {
    for (size_t i = 1; i < tables_.size(); ++i) tables_[0].add(std::exchange(tables_[i], {}));
    return std::move(tables_[0]);
  }
  int64_t documents() const { return documents_; }

 private:
  Status count_batch(const std::vector<Document>& batch, const DocumentReader& reader, int64_t count) {
    std::vector<Status> status(batch.size());
    std::atomic<size_t> next = 0;
    pool_.run([&](int worker) {
      WordCounts& table = tables_[static_cast<size_t>(worker)];
      for (size_t i = next++; i < batch.size(); i = next++) status[i] = count_document(batch[i], reader.kind(), count, table);
    });
    for (size_t i = 0; i < batch.size(); ++i) {
      K3_TRY(std::move(status[i]).with_context(fmt::format("{}: line {}", reader.path(), batch[i].line)));
    }
    return {};
  }

  // Of a conversation all segments of its prompt, tags among them: every message needs those.
  Status count_document(const Document& document, SourceKind kind, int64_t count, WordCounts& table) const {
    if (document.text.empty()) return {};
    if (kind == SourceKind::text) {
      table.add_text(document.text, count);
      return {};
    }
    K3_TRY_ASSIGN(const ChatRequest conversation, parse_conversation(document.text));
    K3_TRY_ASSIGN(const Prompt prompt, format_.render(conversation));
    for (const Segment& segment : prompt.segments) {
      if (segment.kind == Segment::Kind::text) table.add_text(segment.text, count);
    }
    return {};
  }

  ThreadPool& pool_;
  ChatFormat format_;
  std::vector<WordCounts> tables_;
  int64_t documents_ = 0;
};

}  // namespace

Result<LearnReport> learn_tokenizer(const LearnOptions& options, ThreadPool& pool, const LearnProgress& progress) {
  K3_TRY(check_options(options));
  LearnReport report;
  for (const WeightedFile& file : options.files) {
    K3_TRY(count_of(file));
    K3_TRY_ASSIGN(const DocumentReader reader, DocumentReader::open(file.path));
    report.file_bytes += reader.file_bytes();
  }
  K3_TRY_ASSIGN(ChatFormat format, ChatFormat::from_json(ChatFormat::Kind::xtml, chat_format_text(), "chat_format.json"));
  WordReader reader(pool, std::move(format));
  int64_t done = 0;
  for (const WeightedFile& file : options.files) {
    int64_t within = 0;
    K3_TRY(reader.read(file, [&](int64_t position) {
      within = position;
      if (progress.reading) progress.reading(done + position, report.file_bytes);
    }));
    done += within;
  }
  const WordCounts words = reader.take();
  report.documents = reader.documents();
  report.words = words.words();
  const BpeOptions bpe{options.vocab - kSpecialTokens, std::llround(options.least_count * static_cast<double>(kCountUnit))};
  K3_TRY_ASSIGN(report.ranks, train_bpe(words, bpe, [&](int64_t ranks) {
                  if (progress.merging) progress.merging(ranks, bpe.ranks);
                }));
  if (report.ranks.text_tokens > 0) {
    report.bytes_per_token = static_cast<double>(report.ranks.text_bytes) / static_cast<double>(report.ranks.text_tokens);
  }
  return report;
}

}  // namespace k3::train
