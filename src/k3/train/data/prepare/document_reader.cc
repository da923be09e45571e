#include "k3/train/data/prepare/document_reader.h"

#include <algorithm>

#include "k3/base/utf8.h"

namespace k3::train {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr std::string_view kBlanks = " \t\r\n\f\v";

void strip(std::string& text) {
  const size_t end = text.find_last_not_of(kBlanks);
  text.erase(end == std::string::npos ? 0 : end + 1);
  text.erase(0, std::min(text.find_first_not_of(kBlanks), text.size()));
}

bool is_document_end(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  return line == kDocumentEnd;
}

bool drop_ending(std::string_view& name, std::string_view ending) {
  if (!name.ends_with(ending)) return false;
  name.remove_suffix(ending.size());
  return true;
}

}  // namespace

Result<SourceKind> kind_of_file(const std::string& path) {
  std::string_view name = path;
  drop_ending(name, ".zst");
  if (name.ends_with(".txt")) return SourceKind::text;
  if (name.ends_with(".jsonl")) return SourceKind::chat;
  return fail(Code::unsupported, "{}: neither .txt nor .jsonl (with or without .zst): the ending says what is in the file", path);
}

std::string source_name(const std::string& path) {
  std::string_view name = path;
  name.remove_prefix(std::min(name.rfind('/') + 1, name.size()));
  drop_ending(name, ".zst");
  if (!drop_ending(name, ".txt")) drop_ending(name, ".jsonl");
  std::string out(name);
  for (char& c : out) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!plain) c = '-';
  }
  if (out.empty() || out[0] == '.') out.insert(0, "_");
  return out.substr(0, 64);
}

Result<DocumentReader> DocumentReader::open(const std::string& path) {
  K3_TRY_ASSIGN(const SourceKind kind, kind_of_file(path));
  K3_TRY_ASSIGN(InputStream stream, InputStream::open(path));
  return DocumentReader(std::move(stream), kind);
}

Result<bool> DocumentReader::next_line(std::string& line) {
  const size_t before = line.size();
  for (;;) {
    const size_t newline = buffer_.find('\n', buffer_at_);
    const size_t stop = newline == std::string::npos ? buffer_.size() : newline + 1;
    line.append(buffer_, buffer_at_, stop - buffer_at_);
    buffer_at_ = stop;
    if (static_cast<int64_t>(line.size()) > kMostDocumentBytes) {
      return fail(Code::exhausted, "{}: a document at byte {} is longer than {} bytes; divide it with lines {}", path(), offset_,
                  kMostDocumentBytes, kDocumentEnd);
    }
    if (newline != std::string::npos) break;
    if (at_end_) break;
    buffer_.resize(kBufferBytes);
    K3_TRY_ASSIGN(const size_t size, stream_.read(buffer_));
    at_end_ = size < buffer_.size();
    buffer_.resize(size);
    buffer_at_ = 0;
  }
  offset_ += static_cast<int64_t>(line.size() - before);
  line_ += line.size() > before ? 1 : 0;
  return line.size() > before;
}

Status DocumentReader::check(const Document& document) const {
  const size_t bad = utf8_valid_prefix(document.text);
  if (bad == document.text.size()) return {};
  return fail(Code::corrupt, "{}: not UTF-8: byte {:02x} at offset {} of the{} text", path(),
              static_cast<uint8_t>(document.text[bad]), document.offset + static_cast<int64_t>(bad),
              stream_.compressed() ? " unpacked" : "");
}

Result<bool> DocumentReader::next(Document& document) {
  document.text.clear();
  document.line = line_ + 1;
  document.offset = offset_;
  for (bool any = false;;) {
    const size_t begin = document.text.size();
    K3_TRY_ASSIGN(const bool more, next_line(document.text));
    if (!more && !any) return false;
    any = true;
    // A mark of some editors, which is no part of the JSON.
    if (kind_ == SourceKind::chat && line_ == 1 && document.text.starts_with("\xEF\xBB\xBF")) document.text.erase(0, 3);
    const bool end_line = kind_ == SourceKind::text && more && is_document_end(std::string_view(document.text).substr(begin));
    if (end_line) document.text.resize(begin);
    if (!more || end_line || kind_ == SourceKind::chat) break;
  }
  K3_TRY(check(document));
  strip(document.text);
  return true;
}

}  // namespace k3::train
