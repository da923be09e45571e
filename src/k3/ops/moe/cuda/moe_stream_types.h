// Internal to ops/moe. The parameters of its kernels, free of everything that .cu files cannot take; the contracts are
// moe_plan_cuda.h, moe_stream_pack.h and moe_stream_cuda.h.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace k3::ops::cuda {

// ---- moe_plan_cuda.h ----

inline constexpr int kMoeMaxExperts = 1024;

// Rows [row, row + rows) of one expert; in order of experts, then rows; rows <= tile_rows.
struct MoeTile {
  int32_t expert, row, rows, reserved;  // expert: local
};

struct MoePlanCuda {
  const int32_t* ids = nullptr;  // global expert numbers; those outside [first_expert, first_expert + experts) are dropped
  const int32_t* token_count = nullptr;  // on the device; null: `tokens`
  int tokens = 0;                        // at most this many; fixes the launch
  int topk = 1, experts = 0, first_expert = 0;
  int tile_rows = 64;
  // Outputs; any may be null except offsets.
  int32_t* offsets = nullptr;     // [experts + 1] first row of each expert
  int32_t* row_slot = nullptr;    // [tokens * topk]
  int32_t* slot_row = nullptr;    // [tokens * topk]
  MoeTile* tiles = nullptr;       // [moe_max_tiles], aligned to 16 bytes
  int32_t* tile_count = nullptr;  // [1]
  void* workspace = nullptr;
};

constexpr int64_t kMoePlanTokens = 512;  // of a block of moe_plan

// ---- moe_stream_pack.h ----

enum class MoeWeights { bf16, mxfp4 };

constexpr int64_t moe_chunk_columns(MoeWeights kind) { return kind == MoeWeights::mxfp4 ? 256 : 128; }
constexpr int64_t moe_chunk_bytes(MoeWeights kind) { return kind == MoeWeights::mxfp4 ? 2176 : 4096; }
// Of a packed matrix of `rows` rows (w13: 2 F) and `cols` columns.
constexpr int64_t moe_packed_bytes(MoeWeights kind, int64_t rows, int64_t cols) {
  return (rows + 15) / 16 * ((cols + moe_chunk_columns(kind) - 1) / moe_chunk_columns(kind)) * moe_chunk_bytes(kind);
}

// Bit of a packed word that holds bit `bit` (3: sign) of code j = 0..7 (column 8 t + j). Codes 0..5 are where one shift by
// 0, 3 or 6 and one mask make two BF16 of them; 6 and 7 fill the gaps so that one product shifts all of their pieces into
// place.
constexpr int mxfp4_word_bit(int j, int bit) {
  const int high = 16 * (j & 1);
  if (j < 6) return (bit == 3 ? 15 : 6 + bit) - 3 * (j / 2) + high;
  constexpr int kGap[4] = {13, 14, 10, 11};
  return kGap[bit] + 16 - high;
}

// One expert's matrices in the checkpoint's layout, on the device: bf16 [rows, cols], or codes [rows, cols / 2] and scales
// [rows, cols / 32]. Writes `packed` and, for mxfp4, factors[0..2] (of w1, w2, w3; f32).
struct MoePack {
  MoeWeights kind = MoeWeights::mxfp4;
  int width = 0, hidden = 0;  // R, F
  const void *w1 = nullptr, *w2 = nullptr, *w3 = nullptr;
  const uint8_t *s1 = nullptr, *s2 = nullptr, *s3 = nullptr;
  void* w13_packed = nullptr;
  void* w2_packed = nullptr;
  float* factors = nullptr;
};

// Where the experts of a layer lie when not all of them are on the GPU: expert e at slots + slot[e] * expert_bytes, or, if
// slot[e] < 0, at host + e * expert_bytes, pinned memory that kernels read over the bus. w2 of an expert follows its w13.
struct MoePlaces {
  const int32_t* slot = nullptr;  // [experts], on the device; null: all are in one bank
  const uint8_t *slots = nullptr, *host = nullptr;
  int64_t expert_bytes = 0;
};

// The experts of one layer on one GPU.
struct MoeExpertsCuda {
  MoeWeights kind = MoeWeights::mxfp4;
  int experts = 0, width = 0, hidden = 0;
  const void* w13 = nullptr;       // expert e at e * moe_packed_bytes(kind, 2 * hidden, width)
  const void* w2 = nullptr;        // expert e at e * moe_packed_bytes(kind, width, hidden)
  const float* factors = nullptr;  // mxfp4: [experts, 4]: of w1, w2, w3, unused
  MoePlaces places = {};           // instead of w13 and w2
  explicit operator bool() const {
    return (places.slot != nullptr || (w13 != nullptr && w2 != nullptr)) && (kind == MoeWeights::bf16 || factors != nullptr);
  }
};

// ---- moe_stream_cuda.h ----

struct MoeGlu {
  bool situ = false;      // else SwiGLU
  float beta = 1;         // situ
  float linear_beta = 0;  // situ; 0: up passes through
};

struct MoeCombineCuda {
  const float* slot_out = nullptr;
  const int32_t* ids = nullptr;
  const float* weights = nullptr;        // [tokens, topk]
  const int32_t* token_count = nullptr;  // as above; rows beyond it are not written
  int tokens = 0, topk = 1, width = 0, experts = 0, first_expert = 0;
  void* out = nullptr;                // [tokens, R] bf16; may be null
  float* out_f32 = nullptr;           // the sum before its rounding, for partial sums; may be null
  const void* add = nullptr;          // bf16 [tokens, R], added before the rounding, in `out` alone; not with a norm
  const void* norm_weight = nullptr;  // [R]: out = norm of the rounded sum; null: the rounded sum
  bool norm_f32 = false;              // the norm's weight is f32, else bf16
  float eps = 1e-5F;
};

// Routing in the same launch (router.h), for calls that moe_stream_routes.
struct MoeRouteCuda {
  const float* logits = nullptr;  // [tokens, experts]
  const float* bias = nullptr;    // [experts] or null
  int experts = 0;                // of all ranks
  bool renormalise = true;
  float scale = 1;
};

// A product that is added to the sum before its rounding: hidden w^T, the shared experts' second half. For calls in order (few
// tokens) without a norm.
struct MoeSharedCuda {
  const void* w = nullptr;       // bf16 [R, columns]
  const void* hidden = nullptr;  // bf16 [tokens, columns]
  int columns = 0;               // multiple of 8
};

struct MoeStreamCuda {
  MoeExpertsCuda weights;
  MoeGlu glu;
  const void* z = nullptr;       // [tokens, R] bf16
  const int32_t* ids = nullptr;  // [tokens, topk] global; those outside [first_expert, first_expert + experts) are left out
  const int32_t* token_count = nullptr;  // on the device; null: `tokens`
  int tokens = 0, topk = 1, first_expert = 0;
  MoeRouteCuda route = {};    // with logits: in place of ids, and of the sum's weights
  MoeSharedCuda shared = {};  // with w: what moe_stream_takes_shared
  float* slot_out = nullptr;  // [tokens * topk, R]
  void* workspace = nullptr;
  // The sum in the same launch, when sum.out or sum.out_f32 is set; of `sum` only weights, out, out_f32, add, norm_weight,
  // norm_f32 and eps are read.
  MoeCombineCuda sum = {};
};

// How one call runs. tile: token columns of a product; per: chunks of a copy; in_order: no plan, the tokens themselves are
// the columns.
struct MoeStreamConfig {
  int tile = 8, warps = 16, stages = 4, per = 1, grid = 1;
  bool in_order = false;
  int max_tiles = 0;  // of one block
  int b_bytes = 0, route_at = 0, shared_bytes = 0;
};

// Division of numbers below 2^32 / by.
struct MoeDivisor {
  uint32_t by = 1, magic = 0;
  MoeDivisor() = default;
  explicit MoeDivisor(int d)
      : by(static_cast<uint32_t>(d)),
        magic(d == 1 ? 0 : static_cast<uint32_t>((uint64_t{1} << 32) / static_cast<uint32_t>(d) + 1)) {}
};

// [0]: z to activation (gate and up); [1]: activation to slot_out (down).
struct MoeStreamPass {
  const void* packed[2];
  MoePlaces places;
  int columns[2], units[2], chunks[2];  // K, of 16 packed rows, of a unit
  MoeDivisor by_units[2], by_chunks[2];
  const float* factors;
  const void* z;
  void* hidden;  // [tokens * topk, F] bf16
  float* slot_out;
  const int32_t *ids, *token_count, *row_slot, *tile_count;
  const MoeTile* tiles;
  int32_t* counters;  // zero between calls: blocks done, blocks gone, then units of each tile's activation that are there
  MoeGlu glu;
  MoeRouteCuda route;
  MoeSharedCuda shared;
  int shared_at;  // of its weights' rows and sums in shared memory
  int tokens, topk, first_expert, experts, max_tiles, b_bytes, route_at;  // route_at: of MoeRouteShared
  MoeCombineCuda sum;
};

// ---- moe_fetch_cuda.h ----

// Counts of a layer since its table was made.
struct MoeFetchCounts {
  uint64_t wanted, missing, admitted;  // experts that steps read; of them in host memory; of those, copied to a slot
};

struct MoeFetch {
  const int32_t* ids = nullptr;  // [tokens, topk] global
  int tokens = 0, topk = 1, first_expert = 0, experts = 0;
  bool admit = true;          // else only counts
  MoePlaces places;           // of `slots` slots from first_slot on, those of this layer; places.slot is written
  int first_slot = 0, slots = 0;
  int32_t* slot = nullptr;    // places.slot
  int32_t* owner = nullptr;   // [slots] expert, or -1
  float* score = nullptr;     // [experts] uses, older ones count less
  float keep = 1;             // of a score from call to call
  uint64_t* uses = nullptr;   // [experts] all of them, or null
  MoeFetchCounts* counts = nullptr;
  int32_t* list = nullptr;    // [1 + 2 * slots] scratch: how many, then expert and slot of each
};

// ---- launchers (cudaError_t) ----

int moe_plan_launch(const MoePlanCuda& plan, CUstream_st* stream);
int moe_pack_launch(const MoePack& pack, CUstream_st* stream);
int moe_stream_launch(MoeWeights kind, const MoeStreamConfig& config, const MoeStreamPass& pass, CUstream_st* stream);
int moe_fetch_launch(const MoeFetch& fetch, CUstream_st* stream);
int moe_combine_launch(const MoeCombineCuda& combine, CUstream_st* stream);
int moe_unpack_launch(MoeWeights kind, const void* packed, bool w13, int rows, int cols, void* out, CUstream_st* stream);

}  // namespace k3::ops::cuda
