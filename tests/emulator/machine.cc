#include "tests/emulator/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace k3::emulator {

Machine& machine() {
  static Machine m;
  return m;
}

void set_options(const Options& options) {
  machine().options = options;
  machine().random.seed(options.seed);
}
const std::string& failure() { return machine().failure; }
const Place& here() { return machine().self->place; }
char* shared_memory() { return machine().self->block->memory; }

void pause_thread() {
  Machine& m = machine();
  if (_setjmp(m.self->context) == 0) _longjmp(m.scheduler, 1);
}

void fail_thread(const std::string& what) {
  Machine& m = machine();
  if (m.self == nullptr) throw std::runtime_error(what);  // an event: nobody's turn
  const Place& at = m.self->place;
  m.failure = fmt::format("block {}, thread {}: {}", at.block.x, at.thread.x, what);
  while (true) pause_thread();
}
void trap() { fail_thread("trap"); }

void meet(Meeting& at, int count, const char* what, uint32_t id, bool wait, bool any) {
  const uint64_t before = at.times;
  at.any |= any;
  if (++at.there == count) {
    at.there = 0;
    at.last_any = at.any;
    at.any = false;
    ++at.times;
    machine().moved = true;
  } else if (wait) {
    wait_until(what, id, [&] { return at.times != before; });
  }
}

uint64_t warp_exchange(uint64_t mine, uint64_t (&all)[32]) {
  const Fiber& self = *machine().self;
  const unsigned lane = self.place.thread.x % 32;
  Warp& warp = self.block->warps[self.place.thread.x / 32];
  warp.in[lane] = mine;
  if (warp.meeting.there == 31) warp.out = warp.in;
  meet(warp.meeting, 32, "its warp", self.place.thread.x / 32, true);
  std::copy(warp.out.begin(), warp.out.end(), all);
  return lane;
}

void block_sync() {
  Block& block = *machine().self->block;
  meet(block.named[0], block.threads, "its block", 0, true);
}

void warp_together(void* mine, void (*act)(void* const (&all)[32])) {
  const Fiber& self = *machine().self;
  Warp& warp = self.block->warps[self.place.thread.x / 32];
  warp.in[self.place.thread.x % 32] = reinterpret_cast<uint64_t>(mine);
  if (warp.meeting.there == 31) {
    void* all[32];
    for (size_t i = 0; i < 32; ++i) all[i] = reinterpret_cast<void*>(warp.in[i]);
    act(all);
  }
  meet(warp.meeting, 32, "its warp", self.place.thread.x / 32, true);
}

void something_happened() {
  Machine& m = machine();
  m.moved = true;
  if (m.random() % 2 == 0) look_again();
}
void look_again() {
  Fiber& self = *machine().self;
  self.waits = "a number in memory";
  pause_thread();
  self.waits = "";
}

void at_round(uint64_t round, std::function<void()> happen) {
  Machine& m = machine();
  if (round <= m.rounds) return happen();
  m.events.push_back({round, std::move(happen)});
}
// Most a few, some so many that what was asked for later comes before.
uint64_t rounds_of_delay() {
  Machine& m = machine();
  const uint32_t most = m.random() % 32 == 0 ? m.options.latest : 40;
  return m.random() % most;
}
void later(bool late, std::function<void()> happen) {
  at_round(machine().rounds + (late ? rounds_of_delay() : 0), std::move(happen));
}

void add_copy(CopyGroups& groups, std::function<void()> copy) {
  if (!machine().options.late_copies) return copy();
  if (groups.open == nullptr) groups.open = std::make_shared<CopyGroup>();
  groups.open->copies.push_back(std::move(copy));
}
void commit_copies(CopyGroups& groups) {
  std::shared_ptr<CopyGroup> group = std::move(groups.open);
  groups.open = nullptr;
  if (group == nullptr) group = std::make_shared<CopyGroup>();
  groups.committed.push_back(group);
  later(machine().options.late_copies && !group->copies.empty(), [group] {
    for (const auto& copy : group->copies) copy();
    group->done = true;
  });
}
void wait_for_copies(CopyGroups& groups, int groups_left) {
  while (static_cast<int>(groups.committed.size()) > groups_left) {
    const std::shared_ptr<CopyGroup> group = groups.committed.front();
    groups.committed.pop_front();
    wait_until("a group of its copies", 0, [&] { return group->done; });
  }
}

Block& own_cluster(uint32_t rank) {
  Machine& m = machine();
  if (rank >= m.cluster) fail_thread(fmt::format("there is no block {} in its cluster", rank));
  return *m.blocks[m.self->block->first + rank];
}

void check_living(uint32_t block) {
  if (machine().blocks[block]->living == 0)
    fail_thread(
        fmt::format("the memory of block {} of the cluster is used after its end", block - machine().blocks[block]->first));
}

char* shared_memory_at(uint32_t address, uint32_t bytes) {
  Machine& m = machine();
  const uint32_t number = block_of(address), offset = offset_of(address);
  if (number < m.blocks.size()) {
    Block& block = *m.blocks[number];
    const bool variable = offset >= kVariables;
    const uint32_t at = offset - (variable ? kVariables : kWindowBase);
    if (offset >= kWindowBase && at + bytes <= (variable ? variables().bytes : block.bytes)) {
      check_living(number);
      if (!variable) return block.memory + at;
      if (&block == m.present) return variables().at + at;
      for (size_t piece = at / kPiece; piece <= (at + bytes - 1) / kPiece; ++piece) block.variables.used[piece] = true;
      return block.variables.bytes.data() + at;
    }
  }
  fail_thread(fmt::format("{} bytes at {:#x} are outside of shared memory", bytes, address));
}

}  // namespace k3::emulator
