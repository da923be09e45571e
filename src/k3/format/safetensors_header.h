// Internal to format.
//
// The header of one safetensors file as a pure function of its bytes and the file's length (the fuzz target calls
// it directly), and the recognition of files that are something else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/safetensors_names.h"
#include "k3/tensor/dtype.h"

namespace k3::safetensors {

constexpr int64_t kPrefixBytes = 8;  // little-endian length of the JSON text
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxRank = 16;

struct Record {
  static constexpr uint8_t kForeign = 0xFF;  // a dtype that this program cannot hold; `foreign` indexes its name
  int64_t begin = 0, end = 0;                // absolute in the file
  uint32_t first_dim = 0;                    // in Header::dims
  uint16_t foreign = 0;
  uint8_t rank = 0;
  uint8_t dtype = 0;
};

struct Header {
  NameTable names;
  std::vector<Record> records;  // by name id
  std::vector<int64_t> dims;
  std::vector<std::string> foreign_dtypes;
};

// What the first bytes of a file that is not safetensors suggest: a sentence with the way out, empty when unknown.
std::string container_hint(std::string_view first_bytes);

// The checked length of the JSON text; `first_bytes` are the first bytes of the file (8 to 64 of them).
Result<int64_t> header_bytes(std::string_view first_bytes, int64_t file_bytes, const std::string& file);

// Everything the format promises is checked: syntax, UTF-8, unique names, shapes, sizes against dtype and shape,
// and that the data covers the rest of the file exactly once.
Result<Header> parse_header(Text json, int64_t file_bytes, const std::string& file);

}  // namespace k3::safetensors
