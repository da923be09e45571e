// Internal to ops/mla. The arguments of mla_cuda.h, apart from it because .cu files include them.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

// A pool of pages and the pages of each request: token i of request s is row i % page_tokens of page table[s * table_stride
// + i / page_tokens].
struct LatentPages {
  void* base = nullptr;
  int64_t page_stride = 0, row_stride = 0;
  int64_t pages = 0;        // of the pool
  int64_t page_tokens = 0;  // a multiple of 16
  const int32_t* table = nullptr;
  int64_t table_stride = 0;
};

struct LatentAppend {
  const void* kv = nullptr;  // [T, 576]
  int64_t kv_stride = 0;
  const void* norm_weight = nullptr;  // [512] BF16, or FP32
  bool norm_f32 = false;
  float eps = 0;
  int64_t tokens = 0, batch = 0;
  const int32_t* offsets = nullptr;  // [B + 1] device; rows from offsets[B] on are padding
  const int32_t* history = nullptr;  // [B] device: tokens of a request before this step
  LatentPages pages;
};

// Pages to rows: token i of request s is row offsets[s] + i - first of `out` [tokens, 576], if it has such a row.
struct LatentGather {
  void* out = nullptr;
  int64_t out_stride = 0, tokens = 0, batch = 0, first = 0;
  const int32_t* offsets = nullptr;  // [B + 1] device
  LatentPages pages;
};

// query [T, H, 576] = [W_uk^T q_nope | q_rope].
struct MlaAbsorb {
  const void* q = nullptr;  // [T, H, 192]
  int64_t q_stride = 0;     // of a token
  const void* kv_b = nullptr;
  void* query = nullptr;
  int64_t tokens = 0, heads = 0;
};

// out [T, H * 128] = (W_uv ol) * sigmoid(gate); gate [T, H * 128], null: 1.
struct MlaValues {
  const void* ol = nullptr;  // [T, H, 512]
  const void* kv_b = nullptr;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t tokens = 0, heads = 0;
  void* out_rest = nullptr;  // as out, its stride: what rounding cuts off out; null: nowhere
};

// Query token t of a request that has n in this step sees cached tokens < length - n + t + 1.
struct MlaDecode {
  const void* query = nullptr;       // [T, H, 576], absorbed
  const int32_t* lengths = nullptr;  // [B] device: cached tokens of a request, those of this step included
  const int32_t* offsets = nullptr;  // [B + 1] device: its query tokens; null: each has max_query_tokens
  int64_t batch = 0, heads = 0, max_query_tokens = 1;
  int64_t query_tokens = 0;  // T
  LatentPages pages;
  void* ol = nullptr;    // [T, H, 512]
  bool ol_f32 = false;   // else BF16
  float* lse = nullptr;  // [T, H] or null
  void* workspace = nullptr;
};

// What runs for a shape on a device.
struct MlaDecodeConfig {
  bool hopper = false;
  int row_tile = 0;     // query rows (token, head) a block holds
  int pair = 1;         // blocks of a worker, each with its own row tile and half of the copying
  bool halves = false;  // two blocks of a worker share row tile and cached tokens and have half of the columns each
  int row_tiles = 0;    // times pair: of a request
  int workers = 0;      // among which the cached tokens are divided
  int min_tiles = 0;    // tiles of 64 tokens a worker takes at least of a request it shares
};

inline constexpr int kFusedCounters = 3;
// All of a layer between its products, for one sequence: append, absorb, decode and values in one launch.
struct MlaFused {
  LatentAppend append;  // of it kv, kv_stride, norm_weight, norm_f32, eps
  const void* q = nullptr;  // [T, H, 192]
  int64_t q_stride = 0;
  const void* kv_b = nullptr;
  const int32_t* lengths = nullptr;  // [1] device: cached tokens with those of this step
  const int32_t* offsets = nullptr;  // [2] device: tokens of the step; null: `tokens`
  int64_t tokens = 0, heads = 0;
  LatentPages pages;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  void* out_rest = nullptr;  // likewise
  void* workspace = nullptr;
  int32_t* counters = nullptr;  // kFusedCounters, zero before and after
};

struct MlaFusedConfig {
  bool usable = false;
  int row_tile = 0;  // query rows, padded
  int blocks = 0;
  int units = 0;  // of 8 a head: 64 latents of the absorbed query, 16 columns of the output
};

// Causal attention over expanded keys and values, packed: query i of request s (n of them) sees its keys < m - n + i + 1 of
// m.
struct MlaPrefill {
  const void* q = nullptr;  // [T, H, 192]
  int64_t q_stride = 0;
  const void* expanded = nullptr;  // [S, H * 256]: kv_b times the latent rows of all requests, one after another
  int64_t expanded_stride = 0;
  const void* shared_keys = nullptr;  // [S, 64]: the last 64 of the latent rows
  int64_t shared_stride = 0;
  const int32_t* query_offsets = nullptr;              // [B + 1] device
  const int32_t* key_offsets = nullptr;                // [B + 1] device
  int64_t batch = 0, heads = 0, tokens = 0, keys = 0;  // tokens, keys: T and S, upper bounds of what the offsets say
  const void* gate = nullptr;                          // [T, H * 128] or null: out is multiplied by sigmoid(gate)
  int64_t gate_stride = 0;
  void* out = nullptr;  // [T, H * 128]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [T, H] or null
  // Keys in parts, one call after another: `expanded` and `shared_keys` have the rows [first_key, first_key + keys) of all requests'
  // keys. Of a request with keys in several parts lse and this [T, H * 128] hold what its queries have so far; out is written by the
  // part with its last key. Null: one part with all keys.
  float* so_far = nullptr;
  int64_t first_key = 0;
};

}  // namespace k3::ops::cuda
