// Purpose:  a matrix parameter as ops see it: bytes, scales and how to read them.
// Shapes:   data [rows = out, cols = in] row-major in the scheme's packing.
// Units:    MXFP4 scale byte s means 2^(s-127); that of i8 2^(s-133) (int8.h). MXFP4 codes lie in the order of memory
//           (mxfp4.h), not of files.
// Memory:   non-owning; the bytes are immutable after load.
// Threads:  any number of readers.
// Errors:   none here; the loader refuses scale bytes >= 253 (mxfp4) and 255 (i8).
// Source:   model.md 2.5.
#pragma once

#include <cstdint>

namespace k3::ops {

enum class Scheme { f32, bf16, f16, mxfp4, i8, f64 };  // f64: the reference of training alone

struct Weight {
  const void* data = nullptr;
  const uint8_t* scales = nullptr;  // mxfp4 and i8: [rows, cols / 32]
  Scheme scheme = Scheme::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  explicit operator bool() const { return data != nullptr; }
};

constexpr int64_t scheme_row_bytes(Scheme scheme, int64_t cols) {
  switch (scheme) {
    case Scheme::f32: return cols * 4;
    case Scheme::bf16:
    case Scheme::f16: return cols * 2;
    case Scheme::mxfp4: return cols / 2;
    case Scheme::i8: return cols;
    case Scheme::f64: return cols * 8;
  }
  return 0;
}

constexpr bool scheme_has_scales(Scheme scheme) { return scheme == Scheme::mxfp4 || scheme == Scheme::i8; }

// Rows [begin, end) of a weight (for example the key rows of one head in kv_b_proj).
inline Weight weight_rows(const Weight& w, int64_t begin, int64_t end) {
  Weight out = w;
  out.data = static_cast<const uint8_t*>(w.data) + begin * scheme_row_bytes(w.scheme, w.cols);
  if (w.scales != nullptr) out.scales = w.scales + begin * (w.cols / 32);
  out.rows = end - begin;
  return out;
}

}  // namespace k3::ops
