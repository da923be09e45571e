// Purpose:  the element-wise steps between ops on the GPU: add, sigmoid gate, casts, gathers of rows.
// Shapes:   rows [T, N], strided, N a multiple of 8, rows aligned to 16 bytes; bf16, casts also f32; index [T] i32 in
//           device memory.
// Units:    strides in elements.
// Memory:   out is overwritten; it may be x or y (gather: neither).
// Threads:  asynchronous on the stream; no workspace.
// Errors:   K3_CHECK on shapes and alignment; an index outside [0, x_rows) gives a row of zeros.
// Source:   model.md 3.1, 3.4. add, casts and gathers are exact up to one rounding to BF16 (bit equal to the CPU's); the
//           gate y * sigmoid(x) is FP32, rounded once: norm ratio 3e-3.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/elementwise/cuda/elementwise_args.h"

namespace k3::ops::cuda {

CudaStatus add_cuda(const RowPair& a, Stream stream);            // out = x + y
CudaStatus sigmoid_gate_cuda(const RowPair& a, Stream stream);   // out = y * sigmoid(x); any N and stride, slower off eight
CudaStatus convert_cuda(const RowCopy& a, Stream stream);        // out = x in out's type
CudaStatus gather_rows_cuda(const RowGather& a, Stream stream);  // out[i] = x[index[i]]

}  // namespace k3::ops::cuda
