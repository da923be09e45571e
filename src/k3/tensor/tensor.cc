#include "k3/tensor/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "k3/base/units.h"

namespace k3 {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kDeviceAlign = 256;  // bulk copies and tensor maps want 128
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMinBlock = int64_t{1} << 20;

}  // namespace

Tensor::Tensor(void* data_, DType dtype_, std::initializer_list<int64_t> dims_)
    : data(data_), dtype(dtype_), rank(static_cast<int>(dims_.size())) {
  K3_CHECK(rank <= kMaxRank);
  std::copy(dims_.begin(), dims_.end(), dims.begin());
  int64_t step = 1;
  for (int i = rank; i-- > 0;) {
    strides[static_cast<size_t>(i)] = step;
    step *= dims[static_cast<size_t>(i)];
  }
}

int64_t Tensor::size() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dim(i);
  return n;
}

bool Tensor::contiguous() const {
  int64_t step = 1;
  for (int i = rank; i-- > 0;) {
    if (dim(i) != 1 && stride(i) != step) return false;
    step *= dim(i);
  }
  return true;
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  K3_DCHECK(rank >= 1 && 0 <= begin && begin <= end && end <= dims[0], "slice {}..{} of {}", begin, end, shape_text());
  Tensor out = *this;
  out.data = static_cast<std::byte*>(data) + begin * strides[0] * dtype_bytes(dtype);
  out.dims[0] = end - begin;
  return out;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  K3_DCHECK(rank >= 1 && 0 <= begin && begin <= end && end <= dim(-1), "columns {}..{} of {}", begin, end, shape_text());
  Tensor out = *this;
  out.data = static_cast<std::byte*>(data) + begin * dtype_bytes(dtype);
  out.dims[static_cast<size_t>(rank - 1)] = end - begin;
  return out;
}

Tensor Tensor::at(int64_t i) const {
  K3_DCHECK(rank >= 1 && 0 <= i && i < dims[0]);
  Tensor out;
  out.data = static_cast<std::byte*>(data) + i * strides[0] * dtype_bytes(dtype);
  out.dtype = dtype;
  out.rank = rank - 1;
  std::copy(dims.begin() + 1, dims.end(), out.dims.begin());
  std::copy(strides.begin() + 1, strides.end(), out.strides.begin());
  return out;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> to) const {
  Tensor out(data, dtype, to);
  K3_CHECK(contiguous() && out.size() == size(), "reshape {} to {}", shape_text(), out.shape_text());
  return out;
}

std::string Tensor::shape_text() const {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(dim(i));
  return text + "]";
}

void Storage::Free::operator()(std::byte* p) const {
  switch (kind) {
    case Kind::heap: std::free(p); break;
    case Kind::mapped: ::munmap(p, static_cast<size_t>(mapped_bytes)); break;
    case Kind::device: device_free(p); break;
    case Kind::pinned: pinned_free(p); break;
  }
}

Result<Storage> Storage::allocate_on(Device device, int64_t bytes) {
  if (!device.is_cuda() || bytes == 0) return allocate(bytes);
  K3_TRY_ASSIGN(std::byte* const memory, device_allocate(device, bytes));
  Storage out;
  out.data_ = std::unique_ptr<std::byte[], Free>(memory, Free(Free::Kind::device));
  out.size_bytes_ = bytes;
  return out;
}

Result<Storage> Storage::pinned(int64_t bytes) {
  if (bytes == 0) return Storage();
  K3_TRY_ASSIGN(std::byte* const memory, pinned_allocate(bytes));
  Storage out;
  out.data_ = std::unique_ptr<std::byte[], Free>(memory, Free(Free::Kind::pinned));
  out.size_bytes_ = bytes;
  return out;
}

Result<Storage> Storage::reserve(int64_t bytes) {
  Storage out;
  if (bytes == 0) return out;
  void* memory = bytes < 0 ? MAP_FAILED
                           : ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return fail(Code::exhausted, "no address space for {}", format_bytes(bytes));
  out.data_ = std::unique_ptr<std::byte[], Free>(static_cast<std::byte*>(memory), Free(Free::Kind::mapped, bytes));
  out.size_bytes_ = bytes;
  return out;
}

Result<Storage> Storage::allocate(int64_t bytes) {
  Storage out;
  if (bytes == 0) return out;
  const bool large = bytes >= 2 * kHugePage;
  const int64_t align = large ? kHugePage : kAlign;
  // A size beyond the address space would overflow the rounding below.
  const bool absurd = bytes < 0 || bytes > (int64_t{1} << 46);
  const int64_t rounded = absurd ? 0 : (bytes + align - 1) / align * align;
  void* memory = absurd ? nullptr : std::aligned_alloc(static_cast<size_t>(align), static_cast<size_t>(rounded));
  if (memory == nullptr) return fail(Code::exhausted, "no memory for {}", format_bytes(bytes));
  if (large) {
    // Fresh large mappings are zero already; touching them here would defeat lazy placement.
    ::madvise(memory, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  }
  std::memset(memory, 0, static_cast<size_t>(rounded));
  out.data_.reset(static_cast<std::byte*>(memory));
  out.size_bytes_ = bytes;
  return out;
}

Status Workspace::reserve(int64_t bytes) {
  K3_CHECK(in_use_ == 0, "a workspace in use cannot be reserved anew");
  K3_TRY_ASSIGN(Storage storage, Storage::allocate_on(device_, bytes));
  blocks_.clear();
  blocks_.push_back({std::move(storage), 0});
  current_ = 0;
  return {};
}

void* Workspace::bytes(int64_t count) {
  const int64_t align = device_.is_cuda() ? kDeviceAlign : kAlign;
  const int64_t rounded = std::max<int64_t>(align, (count + align - 1) / align * align);
  while (current_ < blocks_.size() && blocks_[current_].used + rounded > blocks_[current_].storage.size_bytes()) ++current_;
  if (current_ == blocks_.size()) {
    const int64_t last = blocks_.empty() ? 0 : blocks_.back().storage.size_bytes();
    auto storage = Storage::allocate_on(device_, std::max({rounded, kMinBlock, 2 * last}));
    // Twice the last block is for fewer blocks later, not a need.
    if (!storage.ok()) storage = Storage::allocate_on(device_, rounded);
    if (!storage.ok()) end_exhausted(storage.error().message + " of scratch; shorter chunks or fewer threads need less");
    blocks_.push_back({*std::move(storage), 0});
  }
  Block& block = blocks_[current_];
  void* out = block.storage.data() + block.used;
  block.used += rounded;
  in_use_ += rounded;
  peak_ = std::max(peak_, in_use_);
  return out;
}

Tensor Workspace::tensor(std::initializer_list<int64_t> dims, DType dtype) {
  Tensor out(nullptr, dtype, dims);
  out.data = bytes(out.size() * dtype_bytes(dtype));
  return out;
}

Tensor Workspace::tensor_like(const Tensor& other) {
  Tensor out = other;
  out.data = bytes(other.size() * dtype_bytes(other.dtype));
  for (int64_t i = other.rank - 1, stride = 1; i >= 0; stride *= out.dim(static_cast<int>(i)), --i) {
    out.strides[static_cast<size_t>(i)] = stride;
  }
  return out;
}

Workspace::Scope::Scope(Workspace& workspace)
    : workspace_(workspace),
      block_(workspace.current_),
      used_(workspace.current_ < workspace.blocks_.size() ? workspace.blocks_[workspace.current_].used : 0) {}

Workspace::Scope::~Scope() {
  if (workspace_.retain_) return;
  for (size_t i = workspace_.blocks_.size(); i-- > block_;) {
    Block& block = workspace_.blocks_[i];
    const int64_t keep = i == block_ ? used_ : 0;
    workspace_.in_use_ -= block.used - keep;
    block.used = keep;
  }
  workspace_.current_ = block_;
}

}  // namespace k3
