// A whole safetensors file in memory: prefix, header, data. What is accepted must hold together.
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/format/safetensors_header.h"

using k3::safetensors::Header;
using k3::safetensors::Record;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto file_bytes = static_cast<int64_t>(size);
  const auto length = k3::safetensors::header_bytes(file.substr(0, 64), file_bytes, "fuzz");
  if (!length.ok()) {
    K3_CHECK(k3::is_utf8(length.error().message));
    return 0;
  }
  auto text = k3::safetensors::Text::copy_of(file.substr(8, static_cast<size_t>(*length)));
  const auto header = k3::safetensors::parse_header(std::move(*text), file_bytes, "fuzz");
  if (!header.ok()) {
    K3_CHECK(k3::is_utf8(header.error().message) && header.error().message.size() < 2000);
    return 0;
  }
  const Header& h = *header;
  int64_t covered = 8 + *length;
  K3_CHECK(h.records.size() == h.names.size());
  for (uint32_t id = 0; id < h.names.size(); ++id) {
    const Record& record = h.records[id];
    K3_CHECK(h.names.find(h.names.name(id)) == id);
    K3_CHECK(k3::is_utf8(h.names.name(id)));
    K3_CHECK(record.begin >= 8 + *length && record.begin <= record.end && record.end <= file_bytes);
    K3_CHECK(record.first_dim + record.rank <= h.dims.size());
    if (record.dtype == Record::kForeign) K3_CHECK(record.foreign < h.foreign_dtypes.size());
    covered += record.end - record.begin;
  }
  K3_CHECK(covered == file_bytes);
  return 0;
}
