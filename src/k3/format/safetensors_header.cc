#include "k3/format/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "k3/format/safetensors_scan.h"

namespace k3::safetensors {
namespace {

// Element sizes of the format's other dtypes: such tensors may lie in a file as long as nobody asks for them.
constexpr std::array<std::pair<std::string_view, int64_t>, 10> kForeignBytes = {{{"BOOL", 1},
                                                                                 {"I8", 1},
                                                                                 {"F8_E5M2", 1},
                                                                                 {"F8_E8M0", 1},
                                                                                 {"I16", 2},
                                                                                 {"U16", 2},
                                                                                 {"U32", 4},
                                                                                 {"F64", 8},
                                                                                 {"U64", 8},
                                                                                 {"C64", 8}}};

class HeaderParser {
 public:
  HeaderParser(Text json, int64_t file_bytes, const std::string& file)
      : file_(file),
        data_begin_(kPrefixBytes + static_cast<int64_t>(json.size())),
        file_bytes_(file_bytes),
        scan_(json.data(), json.size()) {
    header_.names = NameTable(std::move(json));  // the bytes stay where they are
  }

  Result<Header> run() {
    std::string_view name;
    if (header_.names.text_bytes() == 0 || header_.names.text()[0] != '{') {
      return fail(Code::corrupt, "{}: the header does not begin with '{{'", file_);
    }
    scan_.begin_object();
    while (scan_.next_member(&name)) {
      if (name == "__metadata__") {
        K3_TRY(read_metadata());
      } else {
        K3_TRY(read_tensor(name));
      }
    }
    if (!scan_.failed()) scan_.finish();
    if (scan_.failed()) return syntax_error();
    K3_TRY(check_coverage());
    header_.names.shrink();
    header_.records.shrink_to_fit();
    header_.dims.shrink_to_fit();
    return std::move(header_);
  }

 private:
  struct Fields {
    bool dtype = false, shape = false, offsets = false;
    std::string_view dtype_name;
    int64_t begin = 0, end = 0;
  };

  Error syntax_error() const { return fail(Code::corrupt, "{}: header: {}", file_, scan_.message()); }
  Error syntax_error(std::string_view name) const {
    return fail(Code::corrupt, "{}: tensor '{}': header: {}", file_, shown(name), scan_.message());
  }
  template <class... Args>
  Error lie(std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Code::corrupt, "{}: tensor '{}': {}", file_, shown(name), fmt::format(format, std::forward<Args>(args)...));
  }

  Status read_metadata() {
    if (std::exchange(metadata_seen_, true)) return fail(Code::corrupt, "{}: header: __metadata__ appears twice", file_);
    std::string_view key, text;
    scan_.begin_object();
    while (scan_.next_member(&key)) {
      if (!scan_.read_string(&text)) break;
    }
    if (scan_.failed()) return fail(Code::corrupt, "{}: header: __metadata__: {}", file_, scan_.message());
    return {};
  }

  Status read_tensor(std::string_view name) {
    if (name.empty()) return fail(Code::corrupt, "{}: header: a tensor has an empty name", file_);
    if (name.size() > NameTable::kMaxNameBytes)
      return lie(name, "the name is longer than {} bytes", NameTable::kMaxNameBytes);
    Record record;
    record.first_dim = static_cast<uint32_t>(header_.dims.size());
    Fields fields;
    std::string_view key;
    scan_.begin_object();
    while (scan_.next_member(&key)) K3_TRY(read_field(name, key, &fields));
    if (scan_.failed()) return syntax_error(name);
    if (!fields.dtype) return lie(name, "has no dtype");
    if (!fields.shape) return lie(name, "has no shape");
    if (!fields.offsets) return lie(name, "has no data_offsets");
    record.rank = static_cast<uint8_t>(header_.dims.size() - record.first_dim);
    K3_TRY(check_size(name, fields, &record));
    if (!header_.names.add(name, 0)) return lie(name, "the name appears twice in the header");
    header_.records.push_back(record);
    return {};
  }

  Status read_field(std::string_view name, std::string_view key, Fields* fields) {
    if (key == "dtype") {
      if (std::exchange(fields->dtype, true)) return lie(name, "dtype appears twice");
      scan_.read_string(&fields->dtype_name);
    } else if (key == "shape") {
      if (std::exchange(fields->shape, true)) return lie(name, "shape appears twice");
      return read_shape(name);
    } else if (key == "data_offsets") {
      if (std::exchange(fields->offsets, true)) return lie(name, "data_offsets appears twice");
      return read_offsets(name, fields);
    } else {
      scan_.skip_value();
    }
    return {};
  }

  Status read_shape(std::string_view name) {
    const size_t first = header_.dims.size();
    scan_.begin_array();
    while (scan_.next_element()) {
      int64_t dim = 0;
      if (!scan_.read_count(&dim)) break;
      if (header_.dims.size() - first == static_cast<size_t>(kMaxRank)) {
        return lie(name, "the shape has more than {} dimensions", kMaxRank);
      }
      header_.dims.push_back(dim);
    }
    if (scan_.failed()) return fail(Code::corrupt, "{}: tensor '{}': shape: {}", file_, shown(name), scan_.message());
    return {};
  }

  Status read_offsets(std::string_view name, Fields* fields) {
    int count = 0;
    scan_.begin_array();
    while (scan_.next_element()) {
      int64_t value = 0;
      if (!scan_.read_count(&value)) break;
      (count == 0 ? fields->begin : fields->end) = value;
      if (++count > 2) break;
    }
    if (scan_.failed()) {
      return fail(Code::corrupt, "{}: tensor '{}': data_offsets: {}", file_, shown(name), scan_.message());
    }
    if (count != 2) return lie(name, "data_offsets must hold two numbers");
    return {};
  }

  static std::optional<int64_t> element_bytes(std::string_view dtype) {
    if (const auto known = dtype_from_name(dtype)) return dtype_bytes(*known);
    for (const auto& [foreign, bytes] : kForeignBytes) {
      if (foreign == dtype) return bytes;
    }
    return std::nullopt;
  }

  std::string shape_text(const Record& record) const {
    return fmt::format("[{}]", fmt::join(header_.dims.begin() + record.first_dim,
                                         header_.dims.begin() + record.first_dim + record.rank, ", "));
  }

  Status check_size(std::string_view name, const Fields& fields, Record* record) {
    const int64_t data_bytes = file_bytes_ - data_begin_;
    if (fields.begin > fields.end) return lie(name, "data_offsets [{}, {}] run backwards", fields.begin, fields.end);
    if (fields.end > data_bytes) {
      return lie(name,
                 "the data ends at byte {} of a data section of {} bytes; the file may be cut short (download it again)",
                 fields.end, data_bytes);
    }
    record->begin = data_begin_ + fields.begin;
    record->end = data_begin_ + fields.end;
    if (const auto known = dtype_from_name(fields.dtype_name)) {
      record->dtype = static_cast<uint8_t>(*known);
    } else {
      K3_TRY(remember_foreign(name, fields.dtype_name, record));
    }
    const std::optional<int64_t> bytes = element_bytes(fields.dtype_name);
    // The product without the zero dimensions must fit, so that no caller's partial product can overflow.
    int64_t product = bytes.value_or(1);
    bool empty = false;
    for (uint8_t i = 0; i < record->rank; ++i) {
      const int64_t dim = header_.dims[record->first_dim + i];
      if (dim == 0) {
        empty = true;
      } else if (__builtin_mul_overflow(product, dim, &product)) {
        return lie(name, "the shape {} overflows 63 bits", shape_text(*record));
      }
    }
    const int64_t wanted = empty ? 0 : product;
    if (bytes && wanted != fields.end - fields.begin) {
      return lie(name, "{} {} needs {} bytes, data_offsets give {}", shown(fields.dtype_name), shape_text(*record), wanted,
                 fields.end - fields.begin);
    }
    return {};
  }

  Status remember_foreign(std::string_view name, std::string_view dtype, Record* record) {
    record->dtype = Record::kForeign;
    auto& known = header_.foreign_dtypes;
    const auto found = std::find(known.begin(), known.end(), dtype);
    record->foreign = static_cast<uint16_t>(found - known.begin());
    if (found != known.end()) return {};
    if (known.size() == 64) return lie(name, "more than 64 unknown dtypes in one file ('{}')", shown(dtype));
    known.emplace_back(dtype);
    return {};
  }

  // The format has no holes: sorted by offset, the tensors tile the data section.
  Status check_coverage() const {
    const auto& records = header_.records;
    std::vector<uint32_t> order(records.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto before = [&records](uint32_t a, uint32_t b) {
      return std::pair(records[a].begin, records[a].end) < std::pair(records[b].begin, records[b].end);
    };
    if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
    int64_t at = data_begin_;
    std::string_view previous;
    for (const uint32_t id : order) {
      const Record& record = records[id];
      const std::string_view name = header_.names.name(id);
      if (record.begin < at) {
        return lie(name, "its data overlaps that of tensor '{}' ({} bytes)", shown(previous), at - record.begin);
      }
      if (record.begin > at) {
        return lie(name, "{} bytes before its data belong to no tensor (the format allows no holes)", record.begin - at);
      }
      at = record.end;
      previous = name;
    }
    if (at != file_bytes_) {
      return fail(Code::corrupt, "{}: the last {} bytes of the file belong to no tensor{}", file_, file_bytes_ - at,
                  previous.empty() ? std::string() : fmt::format(" (the data ends with tensor '{}')", shown(previous)));
    }
    return {};
  }

  const std::string& file_;
  int64_t data_begin_, file_bytes_;
  JsonScanner scan_;
  Header header_;
  bool metadata_seen_ = false;
};

}  // namespace

std::string container_hint(std::string_view bytes) {
  const auto starts = [bytes](std::string_view magic) { return bytes.substr(0, magic.size()) == magic; };
  if (starts("GGUF")) return "this is a GGUF file; k3 reads the released safetensors checkpoint, not a conversion of it";
  if (starts("PK\x03\x04") || (bytes.size() > 1 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5)) {
    return "this looks like a PyTorch checkpoint; convert it to safetensors first (safetensors.torch.save_file)";
  }
  if (starts("\x89HDF")) return "this is an HDF5 file; convert it to safetensors first";
  if (starts("\x93NUMPY")) return "this is a NumPy array, not a checkpoint";
  if (starts("version https://git-lfs")) return "this is a Git LFS pointer, not the file itself; run `git lfs pull`";
  if (starts("<!") || starts("<html"))
    return "this is a web page, probably saved by a failed download; download the file again";
  return {};
}

Result<int64_t> header_bytes(std::string_view first_bytes, int64_t file_bytes, const std::string& file) {
  uint64_t length = UINT64_MAX;
  if (first_bytes.size() >= static_cast<size_t>(kPrefixBytes)) {
    length = 0;
    for (size_t i = 0; i < static_cast<size_t>(kPrefixBytes); ++i) {
      length |= static_cast<uint64_t>(static_cast<unsigned char>(first_bytes[i])) << 8 * i;
    }
    const int64_t most = std::min(file_bytes - kPrefixBytes, kMaxHeaderBytes);
    if (length <= static_cast<uint64_t>(most)) return static_cast<int64_t>(length);
  }
  // Only an impossible length is taken as the magic of another container: some lengths spell one by chance.
  if (const std::string hint = container_hint(first_bytes); !hint.empty()) {
    return fail(Code::unsupported, "{}: not a safetensors file: {}", file, hint);
  }
  if (first_bytes.size() < static_cast<size_t>(kPrefixBytes)) {
    return fail(Code::corrupt, "{}: {} bytes are too few for a safetensors file; it may be cut short (download it again)",
                file, file_bytes);
  }
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return fail(Code::corrupt, "{}: the header length {} is more than the limit of {} bytes: not a safetensors file", file,
                length, kMaxHeaderBytes);
  }
  return fail(Code::corrupt, "{}: the header length {} runs past the end of the file ({} bytes); it may be cut short", file,
              length, file_bytes);
}

Result<Header> parse_header(Text json, int64_t file_bytes, const std::string& file) {
  return HeaderParser(std::move(json), file_bytes, file).run();
}

}  // namespace k3::safetensors
