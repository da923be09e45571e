// Purpose:  float32 matrices in NumPy's .npy files: golden logits in, dumps out.
// Shapes:   [rows, cols], row-major.
// Units:    none.
// Memory:   the writer streams rows; the reader returns the whole matrix.
// Threads:  none shared.
// Errors:   corrupt: not an .npy file, a header that contradicts the file's length. unsupported: another dtype than
//           '<f4' or '<f8' (narrowed to float), Fortran order, other than two dimensions. not_found, exhausted: as
//           of files. K3_CHECK: more or fewer rows appended than announced.
// Source:   NumPy's format description, versions 1.0 to 3.0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "k3/base/file.h"
#include "k3/base/result.h"

namespace k3 {

struct NpyMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // [rows, cols]

  std::span<const float> row(int64_t i) const {
    return std::span(values).subspan(static_cast<size_t>(i * cols), static_cast<size_t>(cols));
  }
};

Result<NpyMatrix> read_npy(const std::string& path);

class NpyWriter {
 public:
  static Result<NpyWriter> create(const std::string& path, int64_t rows, int64_t cols);
  Status append(std::span<const float> values);  // whole rows, or any part of the remaining values
  Status finish();                               // without it no file appears

 private:
  NpyWriter(FileWriter file, int64_t count) : file_(std::move(file)), remaining_(count) {}
  FileWriter file_;
  int64_t remaining_;
};

}  // namespace k3
