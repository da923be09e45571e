// The text of model.safetensors.index.json.
#include <cstdint>
#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/format/safetensors_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto text = k3::safetensors::Text::copy_of({reinterpret_cast<const char*>(data), size});
  const auto index = k3::safetensors::parse_index(std::move(*text), "fuzz");
  if (!index.ok()) {
    K3_CHECK(k3::is_utf8(index.error().message) && index.error().message.size() < 2000);
    return 0;
  }
  for (const std::string& file : index->shard_files) {
    K3_CHECK(!file.empty() && file != ".." && file.find('/') == std::string::npos && file.find('\0') == std::string::npos);
  }
  for (uint32_t id = 0; id < index->names.size(); ++id) {
    K3_CHECK(index->names.find(index->names.name(id)) == id);
    K3_CHECK(k3::is_utf8(index->names.name(id)));
    K3_CHECK(index->names.shard(id) < index->shard_files.size());
  }
  return 0;
}
