// Purpose:  backends of mxfp4_dequantise.
// Shapes:   groups of 32 values: 16 packed bytes, one scale byte, 32 floats each.
// Units:    as mxfp4.h.
// Memory:   out is overwritten.
// Threads:  pure functions.
// Errors:   none.
// Source:   mxfp4.h.
#pragma once

#include <cstdint>

namespace k3::ops {

void mxfp4_groups_portable(const uint8_t* packed, const uint8_t* scales, int64_t groups, float* out) noexcept;
void mxfp4_groups_avx2(const uint8_t* packed, const uint8_t* scales, int64_t groups, float* out) noexcept;
void mxfp4_groups_avx512(const uint8_t* packed, const uint8_t* scales, int64_t groups, float* out) noexcept;

}  // namespace k3::ops
