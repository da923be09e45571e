// The copy engine: boxes of tensor maps, bytes, stores to other blocks of a cluster; cp.async.
#include <array>
#include <cstring>

#include "k3/ops/cuda/multicast.cuh"
#include "k3/ops/cuda/once.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/tensor_map.h"
#include "tests/emulator/machine.h"

namespace k3::emulator {
void bytes_have_come(uint32_t address, uint32_t bytes);
void arrive(uint32_t address, uint32_t times = 1);
}  // namespace k3::emulator

namespace k3::ops::cuda {
using namespace k3::emulator;  // NOLINT: the words are the machine's

namespace {

struct Map {
  bool of_lines = false;
  union {
    MapShape boxes;
    LineMapShape lines;
  };
  Map() : boxes() {}
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));
Map map_at(const void* at) {
  Map m;
  std::memcpy(static_cast<void*>(&m), at, sizeof m);
  return m;
}

// Element (x, y, z) of BF16, null: outside.
uint16_t* element(const MapShape& m, int64_t x, int64_t y, int64_t z) {
  if (x < 0 || x >= m.sizes[0] || y < 0 || y >= m.sizes[1]) return nullptr;
  if (m.rank == 3 && (z < 0 || z >= m.sizes[2])) return nullptr;
  return static_cast<uint16_t*>(const_cast<void*>(m.base)) + x + y * m.strides[1] + (m.rank == 3 ? z * m.strides[2] : 0);
}

unsigned this_block() { return 1U << cluster_rank(); }
// f(number of the block) for each bit of `blocks`, a rank of the cluster that begins at block `first`.
template <class F>
void for_blocks(uint32_t first, unsigned blocks, const F& f) {
  for (uint32_t rank = 0; rank < machine().cluster; ++rank) {
    if ((blocks >> rank & 1) != 0) f(first + rank);
  }
}
// write(to) makes bytes in the same place of every block of `blocks`, each of which is told by its own barrier.
template <class Write>
void load(uint32_t to, uint32_t bytes, uint32_t bar, unsigned blocks, const Write& write) {
  shared_memory_at(to, bytes);
  later(machine().options.late_copies, [=, first = machine().self->block->first] {
    for_blocks(first, blocks, [&](uint32_t block) {
      write(address_of(block, offset_of(to)));
      bytes_have_come(address_of(block, offset_of(bar)), bytes);
    });
  });
}

void load_box(uint32_t to, const void* map, int x, int y, int z, uint32_t bar, unsigned blocks) {
  const MapShape m = map_at(map).boxes;
  const auto bytes = static_cast<uint32_t>(m.box[0] * m.box[1] * 2);
  if (offset_of(to) % 128 != 0) fail_thread("a box at an address that is not aligned to 128 bytes");
  load(to, bytes, bar, blocks, [=](uint32_t at) {
    for (int row = 0; row < m.box[1]; ++row) {
      for (int i = 0; i < m.box[0]; ++i) {
        const uint16_t* const v = element(m, x + i, y + row, z);
        const uint32_t place = swizzled(at + static_cast<uint32_t>(row * 128 + i * 2));
        std::memset(shared_memory_at(place, 2), 0, 2);
        if (v != nullptr) std::memcpy(shared_memory_at(place, 2), v, 2);
      }
    }
  });
}
void load_lines(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar, unsigned blocks) {
  const LineMapShape m = map_at(map).lines;
  if (!map_at(map).of_lines || offset_of(to) % 128 != 0) fail_thread("lines of another map, or to no place for them");
  load(to, static_cast<uint32_t>(m.box_lines * m.box_rows * 128), bar, blocks, [=](uint32_t at) {
    for (int64_t r = row; r < row + m.box_rows; ++r) {
      for (int64_t l = line; l < line + m.box_lines; ++l, at += 128) {
        char* const place = shared_memory_at(at, 128);
        std::memset(place, 0, 128);
        if (l >= m.lines || r >= m.rows || matrix >= m.matrices) continue;
        std::memcpy(place, static_cast<const char*>(m.base) + matrix * m.matrix_bytes + r * m.row_bytes + l * 128, 128);
      }
    }
  });
}
void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t bar, unsigned blocks) {
  if (bytes % 16 != 0 || offset_of(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail_thread("a bulk copy that is not aligned to 16 bytes");
  load(to, bytes, bar, blocks, [=](uint32_t at) { std::memcpy(shared_memory_at(at, bytes), from, bytes); });
}

}  // namespace

int encode_map(CUtensorMap* map, const MapShape& shape) {
  Map m;
  m.boxes = shape;
  std::memcpy(map, &m, sizeof m);
  return 0;
}
int encode_line_map(CUtensorMap* map, const LineMapShape& shape) {
  Map m;
  m.of_lines = true;
  m.lines = shape;
  std::memcpy(map, &m, sizeof m);
  return 0;
}

void tma_load_2d(uint32_t to, const void* map, int x, int y, uint32_t bar) { load_box(to, map, x, y, 0, bar, this_block()); }
void tma_load_3d(uint32_t to, const void* map, int x, int y, int z, uint32_t bar) {
  load_box(to, map, x, y, z, bar, this_block());
}
void tma_load_3d_multicast(uint32_t to, const void* map, int x, int y, int z, uint32_t bar, uint16_t blocks) {
  load_box(to, map, x, y, z, bar, blocks);
}
void tma_load_2d_both(uint32_t to, const void* map, int x, int y, uint32_t bar) { load_box(to, map, x, y, 0, bar, 3); }
void tma_load_lines(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar) {
  load_lines(to, map, line, row, matrix, bar, this_block());
}
void tma_load_lines_both(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar) {
  load_lines(to, map, line, row, matrix, bar, 3);
}
void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  load_bytes(to, from, bytes, bar, this_block());
}
void bulk_load_both(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) { load_bytes(to, from, bytes, bar, 3); }

void tma_store_2d(const void* map, uint32_t from, int x, int y) {
  const MapShape m = map_at(map).boxes;
  add_copy(machine().self->stores, [=] {
    for (int row = 0; row < m.box[1]; ++row) {
      for (int i = 0; i < m.box[0]; ++i) {
        uint16_t* const to = element(m, x + i, y + row, 0);
        if (to != nullptr)
          std::memcpy(to, shared_memory_at(swizzled(from + static_cast<uint32_t>(row * 128 + i * 2)), 2), 2);
      }
    }
  });
}
void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  add_copy(machine().self->stores, [=] { std::memcpy(to, shared_memory_at(from, bytes), bytes); });
}
void bulk_commit() { commit_copies(machine().self->stores); }
void wait_for_stores(int groups_left) { wait_for_copies(machine().self->stores, groups_left); }

void send(uint32_t to, uint32_t bar, const void* from, uint32_t bytes) {
  std::array<char, 16> kept = {};
  std::memcpy(kept.data(), from, bytes);
  if (block_of(to) != block_of(bar)) fail_thread("a store that is counted elsewhere");
  later(machine().options.late_copies, [=] {
    std::memcpy(shared_memory_at(to, bytes), kept.data(), bytes);
    bytes_have_come(bar, bytes);
  });
}
void cluster_copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t bar) {
  later(machine().options.late_copies, [=] {
    std::memcpy(shared_memory_at(to, bytes), shared_memory_at(from, bytes), bytes);
    bytes_have_come(bar, bytes);
  });
}
float cluster_load(uint32_t address) {
  float out = 0;
  std::memcpy(&out, shared_memory_at(address, 4), 4);
  return out;
}
void cluster_store(uint32_t address, float x) { std::memcpy(shared_memory_at(address, 4), &x, 4); }
void cluster_store(uint32_t address, uint32_t x) { std::memcpy(shared_memory_at(address, 4), &x, 4); }

// ---- cp.async ----

void copy_async(uint32_t to, const void* from, uint32_t bytes, bool take) {
  if (offset_of(to) % bytes != 0 || (take && reinterpret_cast<uintptr_t>(from) % bytes != 0))
    fail_thread("cp.async that is not aligned");
  shared_memory_at(to, bytes);
  add_copy(machine().self->loads, [=, block = machine().self->block] {
    if (block->living == 0) return;  // nobody is there to see it
    if (take) std::memcpy(shared_memory_at(to, bytes), from, bytes);
    if (!take) std::memset(shared_memory_at(to, bytes), 0, bytes);
  });
}
void cp_async_commit() { commit_copies(machine().self->loads); }
void wait_for_loads(int groups_left) { wait_for_copies(machine().self->loads, groups_left); }
void cp_async_mbar_arrive(uint32_t bar) {
  CopyGroups& loads = machine().self->loads;
  const std::shared_ptr<CopyGroup> open = std::move(loads.open);
  loads.open = std::make_shared<CopyGroup>();  // committed when it would have been, though it may be done before
  later(machine().options.late_copies, [=, before = loads.committed] {
    for (const auto& group : before) {
      for (const auto& copy : group->copies) copy();
      group->copies.clear();
    }
    if (open != nullptr) {
      for (const auto& copy : open->copies) copy();
    }
    arrive(bar);
  });
}

}  // namespace k3::ops::cuda
