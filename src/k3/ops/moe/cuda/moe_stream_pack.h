// Purpose:  how expert weights lie in device memory, and their way there from a checkpoint's layout.
// Shapes:   per expert w13 = units of 16 rows: 8 rows of w1 (8u..8u+7), then the same 8 of w3; w2 = units of 16 rows of w2.
//           A unit is K / block chunks, block = 256 columns (mxfp4) or 128 (bf16); rows and columns beyond the matrix are zero.
//           In a chunk, of lane l = 4 g + t of a warp (g = row of 8, t = 0..3): what mma.m16n8k16 wants as A fragments when K is taken
//           in this order: of columns 32 q + 8 t + (0..7) the first four belong to the first product of group q, the others to the
//           second; so the B fragments of a group are the 16 bytes x[n = g][32 q + 8 t ..] of each lane.
//           bf16, 4096 bytes: [q 0..3][half 0..1][lane][8 columns]; half 0 is row g, half 1 row g + 8.
//           mxfp4, 2176 bytes: 128 of scales [g][q 0..7][half], byte = s' + 126, then codes [q / 2][lane][q % 2][half] of 32 bits,
//           the 8 codes of a lane, bits as mxfp4_word_bit says.
// Units:    value = code * 2^(s' - 127) * factor; factor = 2^k of the expert and matrix, k = max(0, largest scale byte - 128),
//           s' = max(0, s - k). k is 0 in every known checkpoint; the products need an exponent field below 255.
// Memory:   the packed bytes of all experts lie at one stride; 128-byte aligned. Sources may be freed after the stream has run.
// Threads:  stream order.
// Errors:   K3_CHECK on shapes: F and R multiples of 8 (bf16) or 32 (mxfp4); CudaStatus of the launch.
// Source:   kernels.md 7, model.md 2.5. Exact: unpacked values are bit for bit those of mxfp4_dequantise for scale bytes up to 128,
//           and with a factor for those that are not more than 127 + 128 below the expert's largest.
#pragma once

#include <cstdint>

#include "k3/ops/cuda/launch.h"

namespace k3::ops::cuda {

enum class MoeWeights { bf16, mxfp4 };

constexpr int64_t moe_chunk_columns(MoeWeights kind) { return kind == MoeWeights::mxfp4 ? 256 : 128; }
constexpr int64_t moe_chunk_bytes(MoeWeights kind) { return kind == MoeWeights::mxfp4 ? 2176 : 4096; }
// Of a packed matrix of `rows` rows (w13: 2 F) and `cols` columns.
constexpr int64_t moe_packed_bytes(MoeWeights kind, int64_t rows, int64_t cols) {
  return (rows + 15) / 16 * ((cols + moe_chunk_columns(kind) - 1) / moe_chunk_columns(kind)) * moe_chunk_bytes(kind);
}

// Bit of a packed word that holds bit `bit` (3: sign) of code j = 0..7 (column 8 t + j). Codes 0..5 are where one shift by 0, 3 or 6
// and one mask make two BF16 of them; 6 and 7 fill the gaps so that one product shifts all of their pieces into place.
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
CudaStatus moe_pack_cuda(const MoePack& pack, Stream stream);

// The experts of one layer on one GPU.
struct MoeExpertsCuda {
  MoeWeights kind = MoeWeights::mxfp4;
  int experts = 0, width = 0, hidden = 0;
  const void* w13 = nullptr;  // expert e at e * moe_packed_bytes(kind, 2 * hidden, width)
  const void* w2 = nullptr;   // expert e at e * moe_packed_bytes(kind, width, hidden)
  const float* factors = nullptr;  // mxfp4: [experts, 4]: of w1, w2, w3, unused
};

// The inverse, for tests and for kernels that want plain rows: out [rows, cols] bf16 of a packed matrix, without its factor.
// w13: rows = 2 F, w1's rows first.
CudaStatus moe_unpack_cuda(MoeWeights kind, const void* packed, bool w13, int rows, int cols, void* out, Stream stream);

}  // namespace k3::ops::cuda
