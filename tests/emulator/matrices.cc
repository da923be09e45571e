// Matrices of 8 x 8 between shared memory and a warp: lane i gives the address of row i % 8 of matrix i / 8 and holds
// elements 2 (i % 4) + {0, 1} of row i / 4 of each.
#include <bit>
#include <cstring>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/kda/cuda/kda_prefill_words.cuh"
#include "tests/emulator/machine.h"

namespace k3::ops::cuda {
using namespace k3::emulator;  // NOLINT: the words are the machine's

uint32_t shared_address(const void* p) {
  const Block& block = *machine().self->block;
  const auto* const at = static_cast<const char*>(p);
  const bool variable = at >= variables().at && at < variables().at + variables().bytes;
  return address_of(block.number, static_cast<uint32_t>(at - (variable ? variables().at : block.memory)) +
                                      (variable ? kVariables : kWindowBase));
}

char* shared_at(uint32_t address, uint32_t bytes) { return shared_memory_at(address, bytes); }

namespace {

struct Rows {  // of one lane: an address, and registers
  uint32_t address;
  uint32_t* registers;
};
char* row_at(void* const (&all)[32], size_t matrix, size_t row) {
  return shared_memory_at(static_cast<const Rows*>(all[8 * matrix + row])->address, 16);
}
// Matrices of as many registers, to registers or (`store`) from them; trans: the register of a lane has a column's two
// elements.
template <int kCount, bool kStore, bool kTrans>
void exchange_matrices(void* const (&all)[32]) {
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t m = 0; m < kCount; ++m) {
      for (size_t c = 0; c < 2; ++c) {
        const size_t row = kTrans ? lane % 4 * 2 + c : lane / 4, column = kTrans ? lane / 4 : lane % 4 * 2 + c;
        char* const in_memory = row_at(all, m, row) + 2 * column;
        char* const in_register = reinterpret_cast<char*>(static_cast<const Rows*>(all[lane])->registers + m) + 2 * c;
        std::memcpy(kStore ? in_memory : in_register, kStore ? in_register : in_memory, 2);
      }
    }
  }
}
template <int kCount, bool kStore, bool kTrans>
void matrices(uint32_t address, const uint32_t* registers) {
  Rows mine{address, const_cast<uint32_t*>(registers)};
  warp_together(&mine, exchange_matrices<kCount, kStore, kTrans>);
}

}  // namespace

void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) { matrices<4, false, false>(address, r); }
void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) { matrices<4, false, true>(address, r); }
void ldmatrix_x2(uint32_t (&r)[2], uint32_t address) { matrices<2, false, false>(address, r); }
void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t address) { matrices<2, false, true>(address, r); }
void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) { matrices<4, true, false>(address, r); }
void stmatrix_x4_trans(uint32_t address, const uint32_t (&r)[4]) { matrices<4, true, true>(address, r); }
uint32_t movmatrix_trans(uint32_t x) {
  uint64_t all[32];
  const uint64_t lane = warp_exchange(x, all), column = lane / 4;
  uint32_t out = 0;
  for (uint64_t c = 0; c < 2; ++c) {
    const uint64_t row = lane % 4 * 2 + c, two = all[row * 4 + column / 2];
    out |= static_cast<uint32_t>(two >> (16 * (column % 2)) & 0xFFFF) << (16 * c);
  }
  return out;
}

// ---- products of a warp ----

namespace {

struct Fragments {
  float* d;
  const uint32_t *a, *b;
};
// Row and column of element i of a lane's accumulators.
constexpr size_t row_of(size_t lane, size_t i) { return lane / 4 + i / 2 * 8; }
constexpr size_t column_of(size_t lane, size_t i) { return lane % 4 * 2 + i % 2; }

// d (16 x 8) += a b
template <size_t kK>
void add_products(void* const (&all)[32], const float (&a)[16][kK], const float (&b)[kK][8]) {
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t i = 0; i < 4; ++i) {
      float sum = 0;
      for (size_t k = 0; k < kK; ++k) sum += a[row_of(lane, i)][k] * b[k][column_of(lane, i)];
      static_cast<const Fragments*>(all[lane])->d[i] += sum;
    }
  }
}
// half(register, 0 or 1): a number.
template <class Half>
void multiply_halves(void* const (&all)[32], const Half& half) {
  float a[16][16], b[16][8];
  for (size_t lane = 0; lane < 32; ++lane) {
    const auto& f = *static_cast<const Fragments*>(all[lane]);
    for (size_t i = 0; i < 4; ++i) {
      for (size_t c = 0; c < 2; ++c) {
        const size_t k = lane % 4 * 2 + c + i / 2 * 8;
        a[lane / 4 + i % 2 * 8][k] = half(f.a[i], c);
        if (i % 2 == 0) b[k][lane / 4] = half(f.b[i / 2], c);
      }
    }
  }
  add_products<16>(all, a, b);
}
void multiply_bf16(void* const (&all)[32]) {
  multiply_halves(all, [](uint32_t two, size_t c) { return c == 0 ? low_bf16(two) : high_bf16(two); });
}
void multiply_half(void* const (&all)[32]) {
  multiply_halves(all, [](uint32_t two, size_t c) { return half_of(two, static_cast<int>(c)); });
}
float to_tf32(uint32_t bits) { return std::bit_cast<float>(bits & 0xFFFFE000U); }
void multiply_tf32(void* const (&all)[32]) {
  float a[16][8], b[8][8];
  for (size_t lane = 0; lane < 32; ++lane) {
    const auto& f = *static_cast<const Fragments*>(all[lane]);
    for (size_t i = 0; i < 4; ++i) {
      const size_t k = lane % 4 + i / 2 * 4;
      a[lane / 4 + i % 2 * 8][k] = to_tf32(f.a[i]);
      if (i % 2 == 0) b[k][lane / 4] = to_tf32(f.b[i / 2]);
    }
  }
  add_products<8>(all, a, b);
}

}  // namespace

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Fragments mine{d, a, b};
  warp_together(&mine, multiply_bf16);
}
void mma_half(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Fragments mine{d, a, b};
  warp_together(&mine, multiply_half);
}
void mma_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  uint32_t a_bits[4], b_bits[2];
  std::memcpy(a_bits, a, sizeof a_bits);
  std::memcpy(b_bits, b, sizeof b_bits);
  Fragments mine{d, a_bits, b_bits};
  warp_together(&mine, multiply_tf32);
}
void mma_tf32_from_zero(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  for (float& x : d) x = 0;
  mma_tf32(d, a, b);
}

}  // namespace k3::ops::cuda
