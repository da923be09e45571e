#include "k3/base/stream/input_stream.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <vector>

#include "k3/base/file.h"

namespace k3 {
namespace {

constexpr std::array<unsigned char, 4> kZstdMagic = {0x28, 0xB5, 0x2F, 0xFD};
constexpr size_t kBlockBytes = size_t{1} << 18;

}  // namespace

struct InputStream::Impl {
  explicit Impl(File opened) : file(std::move(opened)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { ZSTD_freeDStream(zstd); }

  Result<size_t> read_plain(std::span<char> bytes);
  Result<size_t> read_zstd(std::span<char> bytes);
  Status refill();

  File file;
  ZSTD_DStream* zstd = nullptr;  // of a compressed file
  std::vector<char> block;
  size_t block_at = 0;
  int64_t taken = 0;  // bytes of the file read into block
  int64_t given = 0;
  bool frame_open = false;
};

InputStream::InputStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
InputStream::InputStream(InputStream&&) noexcept = default;
InputStream& InputStream::operator=(InputStream&&) noexcept = default;
InputStream::~InputStream() = default;

Result<InputStream> InputStream::open(const std::string& path) {
  K3_TRY_ASSIGN(File file, File::open(path));
  auto impl = std::make_unique<Impl>(std::move(file));
  std::array<unsigned char, 4> magic{};
  if (impl->file.size_bytes() >= static_cast<int64_t>(magic.size())) {
    K3_TRY(impl->file.read_at(0, std::as_writable_bytes(std::span(magic))));
  }
  if (magic == kZstdMagic) {
    impl->zstd = ZSTD_createDStream();
    if (impl->zstd == nullptr) return fail(Code::exhausted, "{}: no memory to unpack it", path);
  }
  return InputStream(std::move(impl));
}

Status InputStream::Impl::refill() {
  const auto left = static_cast<size_t>(file.size_bytes() - taken);
  block.resize(std::min(left, kBlockBytes));
  block_at = 0;
  K3_TRY(file.read_at(taken, std::as_writable_bytes(std::span(block))));
  taken += static_cast<int64_t>(block.size());
  return {};
}

Result<size_t> InputStream::Impl::read_plain(std::span<char> bytes) {
  const size_t size = std::min(bytes.size(), static_cast<size_t>(file.size_bytes() - taken));
  K3_TRY(file.read_at(taken, std::as_writable_bytes(bytes.first(size))));
  taken += static_cast<int64_t>(size);
  return size;
}

Result<size_t> InputStream::Impl::read_zstd(std::span<char> bytes) {
  ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
  while (out.pos < out.size) {
    if (block_at == block.size()) K3_TRY(refill());
    if (block.empty() && !frame_open) break;
    const size_t before = out.pos;
    ZSTD_inBuffer in{block.data(), block.size(), block_at};
    const size_t hint = ZSTD_decompressStream(zstd, &out, &in);
    const int64_t offset = taken - static_cast<int64_t>(block.size() - in.pos);
    if (ZSTD_isError(hint)) {
      return fail(Code::corrupt, "{}: damaged zstd data near byte {}: {}", file.path(), offset, ZSTD_getErrorName(hint));
    }
    if (block.empty() && out.pos == before) {
      return fail(Code::corrupt, "{}: the zstd data ends in the middle, at byte {}; the file was cut short", file.path(), offset);
    }
    block_at = in.pos;
    frame_open = hint != 0;
  }
  return out.pos;
}

Result<size_t> InputStream::read(std::span<char> bytes) {
  K3_TRY_ASSIGN(const size_t size, impl_->zstd != nullptr ? impl_->read_zstd(bytes) : impl_->read_plain(bytes));
  impl_->given += static_cast<int64_t>(size);
  return size;
}

const std::string& InputStream::path() const { return impl_->file.path(); }
bool InputStream::compressed() const { return impl_->zstd != nullptr; }
int64_t InputStream::file_bytes() const { return impl_->file.size_bytes(); }
int64_t InputStream::file_position() const { return impl_->taken; }
int64_t InputStream::position() const { return impl_->given; }

}  // namespace k3
