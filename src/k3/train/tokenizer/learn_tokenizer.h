// Purpose:  files of text to a tokenizer in the released layout: tiktoken.model and, beside it, tokenizer_config.json,
//           chat_format.json and generation_config.json as a small K3 checkpoint has them.
// Shapes:   none.
// Units:    bytes of the files as they lie on disk for progress.
// Memory:   the distinct words of the texts (some 100 MB for 250 MB of mixed text), one batch of documents.
// Threads:  counts on the pool; the result does not depend on the number of threads or the order of the files.
// Errors:   invalid_argument for options and texts that give too few ranks; those of DocumentReader; exhausted: disk full.
// Source:   model.md 5.1 (ids of the specials follow the ranks at K3's offsets), 5.2.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/base/threads.h"
#include "k3/train/tokenizer/bpe_trainer.h"

namespace k3::train {

inline constexpr int64_t kSpecialTokens = 256;

struct WeightedFile {
  std::string path;
  double weight = 1;  // each occurrence counts so much; whole thousandths
};

struct LearnOptions {
  std::vector<WeightedFile> files;
  int64_t vocab = 0;  // ranks and the 256 specials
  double least_count = 2;
};

struct LearnReport {
  BpeRanks ranks;
  int64_t documents = 0, words = 0, file_bytes = 0;
  double bytes_per_token = 0;  // of the texts, weighted
};

struct LearnProgress {
  std::function<void(int64_t done, int64_t total)> reading;  // bytes
  std::function<void(int64_t ranks, int64_t total)> merging;
};

Result<LearnReport> learn_tokenizer(const LearnOptions& options, ThreadPool& pool, const LearnProgress& progress = {});

// "base64 rank" a line.
std::string tiktoken_text(const std::vector<std::string>& tokens);
// {"added_tokens_decoder": ...} with K3's named specials above `ranks`.
std::string tokenizer_config_text(int64_t ranks);
// The fixed sentences of the chat format in words of our own; thinking is off unless a request asks for it.
std::string chat_format_text();
std::string generation_config_text(int64_t ranks);

// All four into the folder, tiktoken.model last.
Status write_tokenizer(const std::string& folder, const std::vector<std::string>& tokens);

}  // namespace k3::train
