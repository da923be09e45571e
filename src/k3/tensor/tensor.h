// Shape, Tensor (a non-owning strided view) and Storage (owning memory).
//
// A Tensor is a pointer, a dtype, up to four dimensions and strides in elements; the last dimension is always
// contiguous. Copying one copies the view. Views of mutable and immutable data share the type: an op's header
// says what it writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "k3/base/check.h"
#include "k3/base/result.h"
#include "k3/tensor/device.h"
#include "k3/tensor/dtype.h"

namespace k3 {

struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};  // in elements

  // A contiguous row-major view.
  Tensor() = default;
  Tensor(void* data_, DType dtype_, std::initializer_list<int64_t> dims_);

  int64_t dim(int i) const { return dims[static_cast<size_t>(i < 0 ? i + rank : i)]; }
  int64_t stride(int i) const { return strides[static_cast<size_t>(i < 0 ? i + rank : i)]; }
  int64_t size() const;  // number of elements
  bool contiguous() const;
  explicit operator bool() const { return data != nullptr; }

  // The elements as T, which is what dtype says.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  float* f32() const {
    K3_DCHECK(dtype == DType::f32);
    return static_cast<float*>(data);
  }
  double* f64() const {
    K3_DCHECK(dtype == DType::f64);
    return static_cast<double*>(data);
  }
  // Start of index i of the leading dimension.
  float* row(int64_t i) const { return f32() + i * strides[0]; }

  Tensor slice(int64_t begin, int64_t end) const;           // rows [begin, end) of the leading dimension
  Tensor columns(int64_t begin, int64_t end) const;         // the same of the last dimension (keeps strides)
  Tensor at(int64_t i) const;                               // drops the leading dimension
  Tensor reshape(std::initializer_list<int64_t> to) const;  // contiguous views only
  std::string shape_text() const;                           // "[3, 128]"
};

// Owned bytes, aligned to 64 (2 MiB and transparent huge pages from 4 MiB up). Zeroed.
class Storage {
 public:
  Storage() = default;
  static Result<Storage> allocate(int64_t bytes);  // exhausted when the system has no memory
  // Address space whose pages cost memory only once touched (caches sized for the longest context).
  static Result<Storage> reserve(int64_t bytes);
  // Memory of a GPU (allocate, for the CPU), and host memory that copies to a GPU without staging (not zeroed).
  static Result<Storage> allocate_on(Device device, int64_t bytes);
  static Result<Storage> pinned(int64_t bytes);

  std::byte* data() const { return data_.get(); }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_.get(), static_cast<size_t>(size_bytes_)}; }

 private:
  struct Free {
    enum class Kind { heap, mapped, device, pinned };
    Kind kind;
    int64_t mapped_bytes;
    Free() : Free(Kind::heap) {}
    explicit Free(Kind kind_, int64_t mapped = 0) : kind(kind_), mapped_bytes(mapped) {}
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  int64_t size_bytes_ = 0;
};

// Scratch memory of a step: a bump allocator that keeps its blocks, so a second step of the same size allocates
// nothing. Not thread safe: ops take what they need before they enter a parallel region.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(Device device) : device_(device) {}
  Tensor tensor(std::initializer_list<int64_t> dims, DType dtype = DType::f32);  // uninitialised
  void* bytes(int64_t count);                                                    // 64-byte aligned
  Tensor tensor_like(const Tensor& other);                                       // its shape and dtype, contiguous

  // Everything taken inside a scope is given back at its end.
  class Scope {
   public:
    explicit Scope(Workspace& workspace);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_;
    int64_t used_;
  };

  // While retaining, scopes give nothing back: what a step's forward computes stays for its backward. The outer scope that
  // surrounds both frees it.
  void retain(bool on) { retain_ = on; }
  bool retaining() const { return retain_; }

  // One block that takes steps of up to so many bytes, now: a step inside it cannot run out of memory.
  Status reserve(int64_t bytes);

  int64_t peak_bytes() const { return peak_; }

 private:
  struct Block {
    Storage storage;
    int64_t used = 0;
  };
  Device device_;
  std::vector<Block> blocks_;
  size_t current_ = 0;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
  bool retain_ = false;
};

}  // namespace k3
