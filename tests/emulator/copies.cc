// The copy engine: boxes of tensor maps, bytes and stores to the other block of a cluster.
#include <cstring>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/tensor_map.h"
#include "tests/emulator/machine.h"

namespace k3::emulator {
void bytes_have_come(uint32_t address, uint32_t bytes);
}

namespace k3::ops::cuda {
using namespace k3::emulator;  // NOLINT: the words are the machine's

static_assert(sizeof(MapShape) <= sizeof(CUtensorMap));
int encode_map(CUtensorMap* map, const MapShape& shape) {
  std::memcpy(map, &shape, sizeof shape);
  return 0;
}

namespace {

// Element (x, y, z) of BF16, zero outside.
uint16_t element(const MapShape& m, int64_t x, int64_t y, int64_t z) {
  if (x < 0 || x >= m.sizes[0] || y < 0 || y >= m.sizes[1]) return 0;
  if (m.rank == 3 && (z < 0 || z >= m.sizes[2])) return 0;
  return static_cast<const uint16_t*>(m.base)[x + y * m.strides[1] + (m.rank == 3 ? z * m.strides[2] : 0)];
}

// A box to the same place of every block of `blocks` (a bit a rank), each told by its own barrier.
void load_box(uint32_t to, const void* map, int x, int y, int z, uint32_t bar, unsigned blocks) {
  MapShape m;
  std::memcpy(&m, map, sizeof m);
  const auto bytes = static_cast<uint32_t>(m.box[0] * m.box[1] * 2);
  if (offset_of(to) % 128 != 0) fail_thread("a box at an address that is not aligned to 128 bytes");
  shared_memory_at(to, bytes);
  later(machine().options.late_copies, [=] {
    for (uint32_t rank = 0; rank < machine().blocks.size(); ++rank) {
      if ((blocks >> rank & 1) == 0) continue;
      for (int row = 0; row < m.box[1]; ++row) {
        for (int i = 0; i < m.box[0]; ++i) {
          const uint16_t v = element(m, x + i, y + row, z);
          const uint32_t at = swizzled(address_of(rank, offset_of(to) + static_cast<uint32_t>(row * 128 + i * 2)));
          std::memcpy(shared_memory_at(at, 2), &v, 2);
        }
      }
      bytes_have_come(address_of(rank, offset_of(bar)), bytes);
    }
  });
}
unsigned this_block() { return 1U << machine().self->block->rank; }

}  // namespace

void tma_load_2d(uint32_t to, const void* map, int x, int y, uint32_t bar) { load_box(to, map, x, y, 0, bar, this_block()); }
void tma_load_3d(uint32_t to, const void* map, int x, int y, int z, uint32_t bar) {
  load_box(to, map, x, y, z, bar, this_block());
}
void tma_load_3d_multicast(uint32_t to, const void* map, int x, int y, int z, uint32_t bar, uint16_t blocks) {
  load_box(to, map, x, y, z, bar, blocks);
}

void cluster_store_async(uint32_t to, float4 v, uint32_t bar) {
  later(machine().options.late_copies, [=] {
    std::memcpy(shared_memory_at(to, 16), &v, 16);
    bytes_have_come(bar, 16);
  });
}
void cluster_copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t bar) {
  later(machine().options.late_copies, [=] {
    std::memcpy(shared_memory_at(to, bytes), shared_memory_at(from, bytes), bytes);
    bytes_have_come(bar, bytes);
  });
}

}  // namespace k3::ops::cuda
