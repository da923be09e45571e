#include "k3/engine/slot_file.h"

#include <cstring>

namespace k3 {
namespace {

constexpr std::string_view kMagic = "K3SLOT1\n";
constexpr uint64_t kMostHeaderBytes = uint64_t{64} << 20;  // 1M tokens are 4 MiB

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

class HeaderWriter {
 public:
  template <class T>
  void number(T value) {
    const auto bytes = bytes_of(value);
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void string(const std::string& s) {
    number(static_cast<uint32_t>(s.size()));
    text_ += s;
  }
  void ids(const std::vector<int32_t>& v) {
    number(static_cast<uint64_t>(v.size()));
    text_.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(int32_t));
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_.data(), text_.size())); }

 private:
  std::string text_;
};

class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}
  template <class T>
  bool number(T& value) {
    if (text_.size() < sizeof(T)) return false;
    std::memcpy(&value, text_.data(), sizeof(T));
    text_.remove_prefix(sizeof(T));
    return true;
  }
  bool string(std::string& s) {
    uint32_t size = 0;
    if (!number(size) || text_.size() < size) return false;
    s = text_.substr(0, size);
    text_.remove_prefix(size);
    return true;
  }
  bool ids(std::vector<int32_t>& v) {
    uint64_t count = 0;
    if (!number(count) || text_.size() / sizeof(int32_t) < count) return false;
    v.resize(static_cast<size_t>(count));
    if (count > 0) std::memcpy(v.data(), text_.data(), v.size() * sizeof(int32_t));
    text_.remove_prefix(v.size() * sizeof(int32_t));
    return true;
  }
  bool at_end() const { return text_.empty(); }

 private:
  std::string_view text_;
};

uint64_t check_value(std::span<const std::byte> bytes) {
  Hash64 hash;
  hash.update(bytes);
  return hash.digest();
}

}  // namespace

Result<int64_t> write_slot_file(const std::string& path, const SlotHeader& header,
                                const std::function<Status(const ByteSink&)>& content) {
  HeaderWriter writer;
  writer.string(header.identity);
  writer.string(header.salt);
  writer.number(static_cast<uint64_t>(header.prompt_tokens));
  writer.number(static_cast<uint64_t>(header.cached_tokens));
  writer.ids(header.tokens);
  K3_TRY_ASSIGN(FileWriter file, FileWriter::create(path));
  K3_TRY(file.write(kMagic));
  K3_TRY(file.write(bytes_of(static_cast<uint64_t>(writer.bytes().size()))));
  K3_TRY(file.write(writer.bytes()));
  K3_TRY(file.write(bytes_of(check_value(writer.bytes()))));
  Hash64 hash;
  K3_TRY(content([&](std::span<const std::byte> bytes) {
    hash.update(bytes);
    return file.write(bytes);
  }));
  K3_TRY(file.write(bytes_of(hash.digest())));
  const int64_t size = file.written_bytes();
  K3_TRY(file.commit());
  return size;
}

Result<SlotFileReader> SlotFileReader::open(const std::string& path, const std::string& identity) {
  K3_TRY_ASSIGN(File file, File::open(path));
  const auto corrupt = [&](std::string_view what) { return fail(Code::corrupt, "{}: {}", path, what); };
  char magic[8];
  uint64_t size = 0, stored = 0;
  if (file.size_bytes() < 24) return corrupt("too short for a saved slot");
  K3_TRY(file.read_at(0, std::as_writable_bytes(std::span(magic))));
  if (std::string_view(magic, 8) != kMagic) return corrupt("not a saved slot");
  K3_TRY(file.read_at(8, std::as_writable_bytes(std::span(&size, 1))));
  if (size > kMostHeaderBytes || static_cast<int64_t>(size) > file.size_bytes() - 32) {
    return corrupt("its header does not fit the file");
  }
  std::string text(static_cast<size_t>(size), '\0');
  K3_TRY(file.read_at(16, std::as_writable_bytes(std::span(text.data(), text.size()))));
  K3_TRY(file.read_at(16 + static_cast<int64_t>(size), std::as_writable_bytes(std::span(&stored, 1))));
  if (check_value(std::as_bytes(std::span(text.data(), text.size()))) != stored) return corrupt("its header is damaged");
  SlotHeader header;
  uint64_t prompt = 0, cached = 0;
  HeaderReader reader(text);
  if (!reader.string(header.identity) || !reader.string(header.salt) || !reader.number(prompt) || !reader.number(cached) ||
      !reader.ids(header.tokens) || !reader.at_end()) {
    return corrupt("its header cannot be read");
  }
  if (header.identity != identity) {
    return fail(Code::invalid_argument, "{}: saved by another model or with other cache settings", path);
  }
  header.prompt_tokens = static_cast<int64_t>(prompt);
  header.cached_tokens = static_cast<int64_t>(cached);
  return SlotFileReader(std::move(file), std::move(header), 24 + static_cast<int64_t>(size));
}

Status SlotFileReader::read(std::span<std::byte> bytes) {
  K3_TRY(file_.read_at(at_, bytes));
  hash_.update(bytes);
  at_ += static_cast<int64_t>(bytes.size());
  return {};
}

void SlotFileReader::rewind() {
  at_ = content_at_;
  hash_ = Hash64();
}

Status SlotFileReader::finish() {
  uint64_t stored = 0;
  if (file_.size_bytes() != at_ + 8) return fail(Code::corrupt, "{}: {} bytes, not {}", file_.path(), file_.size_bytes(), at_ + 8);
  K3_TRY(file_.read_at(at_, std::as_writable_bytes(std::span(&stored, 1))));
  if (stored != hash_.digest()) return fail(Code::corrupt, "{}: its content is damaged", file_.path());
  return {};
}

}  // namespace k3
