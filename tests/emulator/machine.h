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

// Where a block's shared memory begins in its window: not 0, so that a forgotten base shows; and its variables, which are
// the program's thread_local ones.
inline constexpr uint32_t kWindowBase = 1024, kVariables = 4 << 20;
// An address of the shared window: the block's number among those that live together, then the offset.
constexpr uint32_t address_of(uint32_t block, uint32_t offset) { return block << 24 | offset; }
constexpr uint32_t block_of(uint32_t address) { return address >> 24; }
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
  uint64_t last = 0;                // round of what was asked for last
};

struct Warp {
  Meeting meeting;
  std::array<uint64_t, 32> in = {}, out = {};
};

// Copies of a thread that it waits for in groups.
struct CopyGroup {
  std::vector<std::function<void()>> copies;
  bool done = false;
};
struct CopyGroups {
  std::shared_ptr<CopyGroup> open;
  std::deque<std::shared_ptr<CopyGroup>> committed;
};

// Most of the program's variables are those of other kernels: only pieces in which something was written are kept.
inline constexpr size_t kPiece = 1024;
struct KeptVariables {
  std::vector<char> bytes;
  std::vector<bool> used;  // of a piece
};

struct Block {
  std::vector<char> store;
  char* memory = nullptr;                     // aligned
  KeptVariables variables;                    // while another block's are in their place
  uint32_t number = 0, first = 0, bytes = 0;  // first: of its cluster
  int threads = 0, living = 0;
  uint64_t begins = 0;                   // round
  std::map<uint32_t, Barrier> barriers;  // by offset
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::array<Meeting, 16> named = {};
  Meeting cluster;  // of a cluster's first block
};

struct Fiber {
  ucontext_t start = {};  // until its first turn
  jmp_buf context = {};   // afterwards: a switch of ucontext asks the system for signal masks
  bool started = false;
  std::unique_ptr<char[]> stack;
  Place place;
  Block* block = nullptr;
  bool done = false;
  const char* waits = "";
  uint32_t waits_at = 0;
  bool (*ready)(const void*) = nullptr;  // of `condition`: does it go on?
  const void* condition = nullptr;
  int64_t products = 0;        // asked for
  std::deque<int64_t> groups;  // committed: products up to here
  uint64_t clusters = 0;       // how often it arrived at its cluster's barrier
  CopyGroups loads, stores;    // cp.async; bulk stores
};

struct Machine {
  std::vector<std::unique_ptr<Block>> blocks;  // that live together
  std::vector<std::unique_ptr<Fiber>> fibers;  // theirs, in order, then spare ones
  unsigned cluster = 1, threads = 0;           // blocks of a cluster, threads of a block
  Block* present = nullptr;                    // whose variables are in their place
  struct Event {
    uint64_t round = 0;
    std::function<void()> happen;
  };
  std::vector<Event> events;    // copies and products under way
  std::vector<uint32_t> paces;  // of warps: one of so many rounds
  uint64_t rounds = 0;
  jmp_buf scheduler = {};
  Fiber* self = nullptr;
  const std::function<void()>* kernel = nullptr;
  bool moved = false;  // in this round somebody went on
  std::string failure;
  std::mt19937 random;
  Options options;
  std::vector<std::string> before;  // what the kernel before writes, until it has
  bool before_ended = true;
};
Machine& machine();

void pause_thread();                                     // the next one's turn
[[noreturn]] void fail_thread(const std::string& what);  // ends the launch
template <class Ready>
void wait_until(const char* what, uint32_t at, const Ready& ready) {
  Fiber& self = *machine().self;
  if (!ready()) {
    self.waits = what;
    self.waits_at = at;
    self.condition = &ready;
    self.ready = [](const void* condition) { return (*static_cast<const Ready*>(condition))(); };
    pause_thread();
    self.ready = nullptr;
    self.waits = "";
  }
  machine().moved = true;
}
// The last of `count` threads opens it; `wait`: until then.
void meet(Meeting& at, int count, const char* what, uint32_t id, bool wait, bool any = false);
void at_round(uint64_t round, std::function<void()> happen);    // at once, if it is this one
uint64_t rounds_of_delay();                                     // random
void later(bool late, std::function<void()> happen);            // now, or rounds later
void add_copy(CopyGroups& groups, std::function<void()> copy);  // now, or rounds after its group was committed
void commit_copies(CopyGroups& groups);
void wait_for_copies(CopyGroups& groups, int groups_left);
Block& own_cluster(uint32_t rank);  // block of that rank in the cluster of the thread whose turn it is
void check_living(uint32_t block);
char* shared_memory_at(uint32_t address, uint32_t bytes);
// The last lane of the warp to come does `act` on what all 32 brought, and all go on.
void warp_together(void* mine, void (*act)(void* const (&all)[32]));

// The program's thread_local variables.
struct Variables {
  char* at = nullptr;
  size_t bytes = 0;
};
const Variables& variables();
void put_in_place(Block* block);  // its variables; null: of no block

}  // namespace k3::emulator
