#include "k3/format/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "k3/base/check.h"

namespace k3 {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they lie");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeader = 1 << 16;

// The text after `'key':` in the header's dictionary, spaces skipped.
std::optional<std::string_view> entry(std::string_view header, std::string_view key) {
  const std::string quoted = fmt::format("'{}':", key);
  size_t at = header.find(quoted);
  if (at == std::string_view::npos) return std::nullopt;
  at = header.find_first_not_of(' ', at + quoted.size());
  if (at == std::string_view::npos) return std::nullopt;
  return header.substr(at);
}

bool read_dim(std::string_view* text, int64_t* dim) {
  while (!text->empty() && text->front() == ' ') text->remove_prefix(1);
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *dim);
  if (error != std::errc() || *dim < 0) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  while (!text->empty() && text->front() == ' ') text->remove_prefix(1);
  return true;
}

struct NpyHeader {
  int64_t rows = 0, cols = 0, value_bytes = 0;
};

Result<NpyHeader> parse(std::string_view header, const std::string& path) {
  NpyHeader out;
  const auto descr = entry(header, "descr"), order = entry(header, "fortran_order");
  auto shape = entry(header, "shape");
  if (!descr || !order || !shape)
    return fail(Code::corrupt, "{}: the .npy header lacks descr, fortran_order or shape", path);
  if (descr->substr(0, 5) == "'<f4'") {
    out.value_bytes = 4;
  } else if (descr->substr(0, 5) == "'<f8'") {
    out.value_bytes = 8;
  } else {
    return fail(Code::unsupported, "{}: dtype {} is not '<f4' or '<f8'", path, descr->substr(0, descr->find(',')));
  }
  if (order->substr(0, 5) != "False") return fail(Code::unsupported, "{}: the matrix is not in C order", path);
  if (shape->front() != '(') return fail(Code::corrupt, "{}: malformed shape in the .npy header", path);
  std::string_view dims = shape->substr(1);
  const bool two = read_dim(&dims, &out.rows) && !dims.empty() && dims.front() == ',' &&
                   (dims.remove_prefix(1), read_dim(&dims, &out.cols)) && !dims.empty() && dims.front() == ')';
  if (!two) {
    return fail(Code::unsupported, "{}: shape {} is not that of a matrix", path, shape->substr(0, shape->find(')') + 1));
  }
  return out;
}

Result<size_t> header_size(std::string_view first, const std::string& path) {
  if (first.size() < 12 || first.substr(0, kMagic.size()) != kMagic)
    return fail(Code::corrupt, "{}: not an .npy file", path);
  const auto byte = [first](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(first[i])); };
  if (byte(6) == 1) return 10 + byte(8) + (byte(9) << 8);
  if (byte(6) == 2 || byte(6) == 3) return 12 + byte(8) + (byte(9) << 8) + (byte(10) << 16) + (byte(11) << 24);
  return fail(Code::unsupported, "{}: .npy version {}.{} is unknown", path, byte(6), byte(7));
}

}  // namespace

Result<NpyMatrix> read_npy(const std::string& path) {
  K3_TRY_ASSIGN(const File file, File::open(path));
  std::string header(static_cast<size_t>(std::min<int64_t>(file.size_bytes(), kMaxHeader)), '\0');
  K3_TRY(file.read_at(0, std::as_writable_bytes(std::span(header.data(), header.size()))));
  K3_TRY_ASSIGN(const size_t begin, header_size(header, path));
  if (begin > header.size()) return fail(Code::corrupt, "{}: the .npy header of {} bytes runs past the end", path, begin);
  const size_t text = header[6] == 1 ? 10 : 12;
  K3_TRY_ASSIGN(const NpyHeader shape, parse(std::string_view(header).substr(text, begin - text), path));
  int64_t count = 0, bytes = 0;
  if (__builtin_mul_overflow(shape.rows, shape.cols, &count) || __builtin_mul_overflow(count, shape.value_bytes, &bytes) ||
      bytes != file.size_bytes() - static_cast<int64_t>(begin)) {
    return fail(Code::corrupt, "{}: shape ({}, {}) does not match {} bytes of data", path, shape.rows, shape.cols,
                file.size_bytes() - static_cast<int64_t>(begin));
  }
  NpyMatrix matrix{shape.rows, shape.cols, std::vector<float>(static_cast<size_t>(count))};
  if (shape.value_bytes == 4) {
    K3_TRY(file.read_at(static_cast<int64_t>(begin), std::as_writable_bytes(std::span(matrix.values))));
  } else {
    std::vector<double> wide(matrix.values.size());
    K3_TRY(file.read_at(static_cast<int64_t>(begin), std::as_writable_bytes(std::span(wide))));
    std::transform(wide.begin(), wide.end(), matrix.values.begin(), [](double v) { return static_cast<float>(v); });
  }
  return matrix;
}

Result<NpyWriter> NpyWriter::create(const std::string& path, int64_t rows, int64_t cols) {
  K3_CHECK(rows >= 0 && cols >= 0, "shape ({}, {})", rows, cols);
  K3_TRY_ASSIGN(FileWriter file, FileWriter::create(path));
  std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  // NumPy pads with spaces and a newline so that the data starts at a multiple of 64.
  text.append(63 - (10 + text.size()) % 64, ' ').push_back('\n');
  std::string head(kMagic);
  head += {1, 0, static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  K3_TRY(file.write(head + text));
  return NpyWriter(std::move(file), rows * cols);
}

Status NpyWriter::append(std::span<const float> values) {
  K3_CHECK(static_cast<int64_t>(values.size()) <= remaining_, "{} values, {} remain", values.size(), remaining_);
  remaining_ -= static_cast<int64_t>(values.size());
  return file_.write(std::as_bytes(values));
}

Status NpyWriter::finish() {
  K3_CHECK(remaining_ == 0, "{} values were never written", remaining_);
  return file_.commit();
}

}  // namespace k3
