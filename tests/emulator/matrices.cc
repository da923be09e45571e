// Matrices of 8 x 8 between shared memory and a warp: lane i gives the address of row i % 8 of matrix i / 8 and holds
// elements 2 (i % 4) + {0, 1} of row i / 4 of each.
#include <cstring>

#include "k3/ops/cuda/ptx.cuh"
#include "tests/emulator/machine.h"

namespace k3::ops::cuda {
using namespace k3::emulator;  // NOLINT: the words are the machine's

namespace {
void whole_warp() {
  uint64_t all[32];
  warp_exchange(0, all);
}
}  // namespace

uint32_t shared_address(const void* p) {
  const Block& block = *machine().self->block;
  return address_of(block.rank, static_cast<uint32_t>(static_cast<const char*>(p) - block.memory) + kWindowBase);
}

void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  uint64_t rows[32];
  const uint64_t lane = warp_exchange(address, rows);
  for (size_t m = 0; m < 4; ++m)
    std::memcpy(&r[m], shared_memory_at(static_cast<uint32_t>(rows[8 * m + lane / 4]), 16) + lane % 4 * 4, 4);
  whole_warp();
}
void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  uint64_t rows[32];
  const uint64_t lane = warp_exchange(address, rows);
  for (size_t m = 0; m < 4; ++m)
    std::memcpy(shared_memory_at(static_cast<uint32_t>(rows[8 * m + lane / 4]), 16) + lane % 4 * 4, &r[m], 4);
  whole_warp();
}
void stmatrix_x4_trans(uint32_t address, const uint32_t (&r)[4]) {
  uint64_t rows[32];
  const uint64_t lane = warp_exchange(address, rows);
  for (size_t m = 0; m < 4; ++m) {
    for (size_t c = 0; c < 2; ++c) {
      const auto x = static_cast<uint16_t>(r[m] >> (16 * c));
      std::memcpy(shared_memory_at(static_cast<uint32_t>(rows[8 * m + lane % 4 * 2 + c]), 16) + lane / 4 * 2, &x, 2);
    }
  }
  whole_warp();
}
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

}  // namespace k3::ops::cuda
