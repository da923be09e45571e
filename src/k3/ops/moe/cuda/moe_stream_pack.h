// Purpose:  how expert weights lie in device memory, and their way there from a checkpoint's layout.
// Shapes:   per expert w13 = units of 16 rows: 8 rows of w1 (8u..8u+7), then the same 8 of w3; w2 = units of 16 rows of w2.
//           A unit is K / block chunks, block = 256 columns (mxfp4) or 128 (bf16); what lies beyond the matrix is zero.
//           In a chunk, of lane l = 4 g + t of a warp (g = row of 8, t = 0..3): what mma.m16n8k16 wants as A fragments when
//           K is taken in this order: of columns 32 q + 8 t + (0..7) the first four belong to the first product of group q,
//           the others to the second; so the B fragments of a group are the 16 bytes x[n = g][32 q + 8 t ..] of each lane.
//           bf16, 4096 bytes: [q 0..3][half 0..1][lane][8 columns]; half 0 is row g, half 1 row g + 8.
//           mxfp4, 2176 bytes: 128 of scales [g][q 0..7][half], byte = s' + 126, then codes [q / 2][lane][q % 2][half] of
//           32 bits, the 8 codes of a lane, bits as mxfp4_word_bit says.
// Units:    value = code * 2^(s' - 127) * factor; factor = 2^k of the expert and matrix, k = max(0, largest scale - 128),
//           s' = max(0, s - k). k is 0 in every known checkpoint; the products need an exponent field below 255.
// Memory:   the packed bytes of all experts lie at one stride, 128-byte aligned; factors aligned to 16. Sources may be freed
//           after the stream has run.
// Threads:  stream order.
// Errors:   K3_CHECK on shapes: F and R multiples of 8 (bf16) or 32 (mxfp4); CudaStatus of the launch.
// Source:   kernels.md 7, model.md 2.5. Exact: unpacked values are bit for bit those of mxfp4_dequantise for scale bytes up
//           to 128, and with a factor for those at most 128 below the matrix's largest (lower ones count as that lowest).
#pragma once

#include <cstdint>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

CudaStatus moe_pack_cuda(const MoePack& pack, Stream stream);

// The inverse, for tests and for kernels that want plain rows: out [rows, cols] bf16 of a packed matrix, without its factor.
// w13: rows = 2 F, w1's rows first.
CudaStatus moe_unpack_cuda(MoeWeights kind, const void* packed, bool w13, int rows, int cols, void* out, Stream stream);

}  // namespace k3::ops::cuda
