// Internal to tests/emulator. What tests and the second meanings of CUDA's words see of the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace k3::emulator {

struct Options {
  uint32_t seed = 1;           // of the order and pace of warps and of how late what is late is
  bool late_products = false;  // wgmma computes a random number of rounds after it was issued
  bool late_copies = false;    // the copy engine likewise
  uint32_t latest = 400;       // rounds that a few of them take; most take up to 40
  uint32_t pace_rounds = 128;  // after which each warp's pace is another, so about as long one may sleep
  bool whole_grid = false;     // all blocks of a launch live together, else one cluster after another
  bool late_blocks = false;    // of those some begin up to `latest` rounds after the others
  std::vector<std::span<char>> before =
      {};  // what the kernel before still writes: nothing is there until rounds after a cluster began
};
void set_options(const Options& options);
// Why the last launch that answered other than 0 failed: who waits for what, or what went wrong where.
const std::string& failure();

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Place {  // of a thread
  Index thread, block, threads, blocks;
};
const Place& here();
char* shared_memory();                                       // of this block
uint64_t warp_exchange(uint64_t mine, uint64_t (&all)[32]);  // the whole warp; answers this lane
void block_sync();
[[noreturn]] void trap();
void something_happened();  // that others may wait for in memory; perhaps it is somebody else's turn now
void look_again();          // before a thread looks whether it has: it is somebody else's turn now
struct Grid {
  Index blocks = {1, 1, 1}, threads = {1, 1, 1};
  unsigned cluster = 1;
  int shared_bytes = 0;
};
int run(const Grid& grid, const std::function<void()>& kernel);

}  // namespace k3::emulator
