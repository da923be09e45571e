// Purpose:  view types through which history enters the ops: latent pages, state slots, block tables.
// Shapes:   one PagedKv is one MLA layer's cache of one sequence: rows of `width` numbers (latent, then the
//           shared key); one StateSlots is one KDA layer's recurrent and conv state of all sequences.
// Units:    strides in elements.
// Memory:   plain pointers and strides, owned by a pool or by model/sequence; ops read and write through them.
// Threads:  rows and slots of different sequences may be written concurrently.
// Errors:   none.
// Source:   serving.md 2; model.md 3.3 (V-first state layout), 3.4.
#pragma once

#include <cstddef>
#include <cstdint>

#include "k3/tensor/dtype.h"

namespace k3::ops {

struct PagedKv {
  void* base = nullptr;
  DType dtype = DType::f32;  // f32, bf16 or f8_e4m3
  int64_t width = 0;         // kv_lora_rank + qk_rope_head_dim
  int64_t page_tokens = 0;
  int64_t page_stride = 0;  // elements from page to page
  int64_t row_stride = 0;   // elements from token to token inside a page
  const int32_t* block_table = nullptr;

  int64_t row_offset(int64_t token) const {
    return block_table[token / page_tokens] * page_stride + token % page_tokens * row_stride;
  }
  float* row_f32(int64_t token) const { return static_cast<float*>(base) + row_offset(token); }
  uint16_t* row_bf16(int64_t token) const { return static_cast<uint16_t*>(base) + row_offset(token); }
  uint8_t* row_f8(int64_t token) const { return static_cast<uint8_t*>(base) + row_offset(token); }
  void* row(int64_t token) const { return static_cast<std::byte*>(base) + row_offset(token) * dtype_bytes(dtype); }
};

// The latent caches of all sequences of a step, as GPU kernels read them.
struct PagedTable {
  void* base = nullptr;
  DType dtype = DType::bf16;
  int64_t width = 0, page_tokens = 0, page_stride = 0, row_stride = 0;  // as in PagedKv
  int64_t pages = 0;                                                    // of the pool
  const int32_t* tables = nullptr;  // [B, table_stride] page numbers, device memory
  int64_t table_stride = 0;
};

struct StateSlots {
  void* recurrent = nullptr;           // [slots, H, Dv, Dk] recurrent_dtype, V-first
  DType recurrent_dtype = DType::f32;  // f32 or bf16
  int64_t recurrent_stride = 0;        // elements from slot to slot
  void* conv = nullptr;           // [slots, 3 (q, k, v), K - 1 (oldest first), H * D] conv_dtype
  DType conv_dtype = DType::f32;  // f32 or bf16
  int64_t conv_stride = 0;
  const int32_t* slots = nullptr;  // [B] slot of each sequence of the step, in the memory of the caches

  void* recurrent_at(int64_t slot) const {
    return static_cast<std::byte*>(recurrent) + slot * recurrent_stride * dtype_bytes(recurrent_dtype);
  }
  void* conv_at(int64_t slot) const { return static_cast<std::byte*>(conv) + slot * conv_stride * dtype_bytes(conv_dtype); }
  void* recurrent_of(int64_t sequence) const { return recurrent_at(slots[sequence]); }
  void* conv_of(int64_t sequence) const { return conv_at(slots[sequence]); }
};

// A copy of both states of a sequence after so many tokens of the step goes to this slot.
struct StateExport {
  int64_t sequence = 0;  // of the step
  int64_t tokens = 0;    // 1 .. its tokens in the step
  int32_t slot = 0;
};

// The same as GPU kernels read it.
struct DeviceExport {
  int32_t sequence = 0, tokens = 0, slot = 0;
};
struct DeviceExports {  // in device memory, as records and as columns
  const DeviceExport* records = nullptr;
  const int32_t *sequences = nullptr, *tokens = nullptr, *slots = nullptr;
};

}  // namespace k3::ops
