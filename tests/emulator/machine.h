// Internal to tests/emulator. A cluster of blocks whose threads are fibers of one thread of the CPU: they change only where
// they wait.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/emulator/emulator.h"

namespace k3::emulator {

// Where a block's shared memory begins in its window: not 0, so that a forgotten base shows.
inline constexpr uint32_t kWindowBase = 1024;
// An address of the shared window: the block's rank in the cluster, then the offset.
constexpr uint32_t address_of(uint32_t rank, uint32_t offset) { return rank << 24 | offset; }
constexpr uint32_t rank_of(uint32_t address) { return address >> 24; }
constexpr uint32_t offset_of(uint32_t address) { return address & 0xFFFFFF; }

struct Barrier {  // in shared memory
  uint32_t expected = 0, pending = 0;
  int64_t bytes = 0;  // announced and not there yet; below 0 while they came first
  uint64_t phase = 0;
};

struct Meeting {  // of a named barrier, a warp or the cluster
  int there = 0;
  uint64_t times = 0;
  bool any = false, last_any = false;
};

// One wgmma of a warpgroup: complete when 128 threads have brought their accumulators.
struct Product {
  int width = 0;
  bool trans_a = false, trans_b = false, accumulate = false, a_in_registers = false;
  uint64_t a = 0, b = 0;
  int threads = 0;
  std::array<float*, 128> accumulators = {};
  std::array<std::array<uint32_t, 4>, 128> registers = {};
};

struct Warpgroup {
  std::deque<Product> products;
  int64_t first = 0, computed = 0;  // number of products.front(), and of the next to be computed
};

struct Warp {
  Meeting meeting;
  std::array<uint64_t, 32> in = {}, out = {};
};

struct Block {
  std::vector<char> store;
  char* memory = nullptr;  // aligned
  uint32_t rank = 0, bytes = 0;
  int threads = 0, living = 0;
  std::map<uint32_t, Barrier> barriers;  // by offset
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::array<Meeting, 16> named = {};
};

struct Fiber {
  ucontext_t start = {};  // until its first turn
  jmp_buf context = {};   // afterwards: a switch of ucontext asks the system for signal masks
  bool started = false;
  std::vector<char> stack;
  Place place;
  Block* block = nullptr;
  bool done = false;
  const char* waits = "";
  uint32_t waits_at = 0;
  int64_t products = 0;        // asked for
  std::deque<int64_t> groups;  // committed: products up to here
};

struct Machine {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Fiber>> fibers;
  struct Event {
    uint32_t rounds = 0;
    std::function<void()> happen;
  };
  std::vector<Event> events;    // copies and products under way
  std::vector<uint32_t> paces;  // of warps: one of so many rounds
  uint64_t rounds = 0;
  Meeting cluster;
  jmp_buf scheduler = {};
  Fiber* self = nullptr;
  const std::function<void()>* kernel = nullptr;
  bool moved = false;  // in this round somebody went on
  std::string failure;
  std::mt19937 random;
  Options options;
};
Machine& machine();

void pause_thread();                                     // the next one's turn
[[noreturn]] void fail_thread(const std::string& what);  // ends the launch
template <class Ready>
void wait_until(const char* what, uint32_t at, const Ready& ready) {
  Fiber& self = *machine().self;
  while (!ready()) {
    self.waits = what;
    self.waits_at = at;
    pause_thread();
  }
  self.waits = "";
  machine().moved = true;
}
// The last of `count` threads opens it; `wait`: until then.
void meet(Meeting& at, int count, const char* what, uint32_t id, bool wait, bool any = false);
void later(bool late, std::function<void()> happen);  // now, or rounds later
void check_living(uint32_t rank);
char* shared_memory_at(uint32_t address, uint32_t bytes);

}  // namespace k3::emulator
