// Purpose:  files of saved sequences: tokens and cache content, exact to the bit.
// Shapes:   none.
// Units:    bytes, tokens.
// Memory:   streams; tokens alone are held.
// Threads:  none of its own.
// Errors:   write: exhausted for a full disk; the file appears whole or not at all. read: corrupt for a file that is damaged or
//           cut short (header and content carry check values), invalid_argument for one of another model or other settings.
// Source:   api.md 1 (slots). Layout, little-endian: "K3SLOT1\n", header bytes u64, header, check value of the header u64,
//           content, check value of the content u64. Header: identity, salt (each u32 length and bytes), prompt tokens u64,
//           cached tokens u64, token count u64, token ids i32.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "k3/base/file.h"
#include "k3/base/hash/hash64.h"

namespace k3 {

struct SlotHeader {
  std::string identity, salt;
  int64_t prompt_tokens = 0, cached_tokens = 0;
  std::vector<int32_t> tokens;
};

using ByteSink = std::function<Status(std::span<const std::byte>)>;
using ByteSource = std::function<Status(std::span<std::byte>)>;

// Returns the file's bytes.
Result<int64_t> write_slot_file(const std::string& path, const SlotHeader& header,
                                const std::function<Status(const ByteSink&)>& content);

class SlotFileReader {
 public:
  static Result<SlotFileReader> open(const std::string& path, const std::string& identity);
  const SlotHeader& header() const { return header_; }
  int64_t file_bytes() const { return file_.size_bytes(); }
  Status read(std::span<std::byte> bytes);  // content, in order
  void rewind();                            // to the beginning of the content
  Status finish();                          // everything was read and the check value is right

 private:
  SlotFileReader(File file, SlotHeader header, int64_t at) : file_(std::move(file)), header_(std::move(header)), content_at_(at), at_(at) {}
  File file_;
  SlotHeader header_;
  int64_t content_at_ = 0, at_ = 0;
  Hash64 hash_;
};

}  // namespace k3
