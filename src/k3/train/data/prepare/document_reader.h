// Purpose:  the documents of a text file, one after another: .txt (a document ends at a line <|endoftext|> or at the end of the
//           file) or .jsonl (a conversation a line), as they are or packed with zstd (a further .zst in the name is ignored).
// Shapes:   none.
// Units:    bytes.
// Memory:   one document at a time.
// Threads:  one at a time.
// Errors:   not_found; corrupt naming the file and the offset in its (unpacked) text: damaged or cut zstd, text that is not UTF-8;
//           exhausted for a document above kMostDocumentBytes; unsupported for another ending.
// Source:   docs/training.md, section Data. Blanks around a document do not belong to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "k3/base/result.h"
#include "k3/base/stream/input_stream.h"
#include "k3/train/data/data_manifest.h"

namespace k3::train {

inline constexpr std::string_view kDocumentEnd = "<|endoftext|>";
inline constexpr int64_t kMostDocumentBytes = int64_t{1} << 30;

// The kind that follows from a file's name.
Result<SourceKind> kind_of_file(const std::string& path);
// The name without folders and endings, with '-' for what a source's name may not hold.
std::string source_name(const std::string& path);

struct Document {
  std::string text;   // of a conversation the JSON line; may be empty
  int64_t line = 0;   // where it begins, from 1
  int64_t offset = 0;
};

class DocumentReader {
 public:
  static Result<DocumentReader> open(const std::string& path);

  Result<bool> next(Document& document);  // false: there is no other
  SourceKind kind() const { return kind_; }
  const std::string& path() const { return stream_.path(); }
  int64_t file_bytes() const { return stream_.file_bytes(); }
  int64_t file_position() const { return stream_.file_position(); }

 private:
  DocumentReader(InputStream stream, SourceKind kind) : stream_(std::move(stream)), kind_(kind) {}
  Result<bool> next_line(std::string& line);  // appends it with its newline
  Status check(const Document& document) const;

  InputStream stream_;
  SourceKind kind_;
  std::string buffer_;
  size_t buffer_at_ = 0;
  int64_t line_ = 0, offset_ = 0;  // of what next_line gives next
  bool at_end_ = false;
};

}  // namespace k3::train
