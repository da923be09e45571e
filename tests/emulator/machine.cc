#include "tests/emulator/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace k3::emulator {
namespace {

constexpr size_t kStackBytes = 96 << 10;
constexpr int kIdleRounds = 2000;  // without a step before it is called a deadlock: slow warps have had their turn

void fiber_main() {
  Machine& m = machine();
  (*m.kernel)();
  m.self->done = true;
  --m.self->block->living;
  m.moved = true;
  _longjmp(m.scheduler, 1);
}

std::unique_ptr<Block> make_block(uint32_t rank, unsigned threads, int shared_bytes) {
  auto block = std::make_unique<Block>();
  block->store.assign(static_cast<size_t>(shared_bytes) + 2048, static_cast<char>(0xFF));  // NaN in every format
  const auto base = reinterpret_cast<uintptr_t>(block->store.data());
  block->memory = block->store.data() + ((base + 1023) / 1024 * 1024 - base);
  block->rank = rank;
  block->bytes = static_cast<uint32_t>(shared_bytes);
  block->threads = block->living = static_cast<int>(threads);
  block->warps.resize(threads / 32);
  block->warpgroups.resize((threads + 127) / 128);
  return block;
}

std::unique_ptr<Fiber> make_fiber(Block& block, const Place& place) {
  auto fiber = std::make_unique<Fiber>();
  fiber->stack.resize(kStackBytes);
  fiber->place = place;
  fiber->block = &block;
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = fiber->stack.data();
  fiber->start.uc_stack.ss_size = fiber->stack.size();
  makecontext(&fiber->start, fiber_main, 0);
  return fiber;
}

// Until it pauses or ends.
void give_turn(Fiber& f) {
  Machine& m = machine();
  m.self = &f;
  if (_setjmp(m.scheduler) != 0) return;
  if (f.started) _longjmp(f.context, 1);
  f.started = true;
  setcontext(&f.start);
}

std::string deadlock() {
  std::map<std::string, int> who;
  for (const auto& f : machine().fibers) {
    if (!f->done)
      ++who[fmt::format("block {}, warpgroup {}, at {} {:#x}", f->place.block.x, f->place.thread.x / 128, f->waits,
                        f->waits_at)];
  }
  std::string text = "nobody can go on:";
  for (const auto& [place, threads] : who) text += fmt::format("\n  {} threads of {}", threads, place);
  return text;
}

// The threads of a warp, or all of a warpgroup, may be slow for a while: others get as far ahead of them as barriers let
// them.
void change_pace() {
  Machine& m = machine();
  constexpr std::array<uint32_t, 4> kPaces = {1, 1, 8, 40};
  for (size_t warp = 0; warp < m.paces.size(); ++warp) {
    m.paces[warp] = warp % 4 != 0 && m.random() % 2 == 0 ? m.paces[warp - 1] : kPaces[m.random() % kPaces.size()];
  }
}

// Every living thread of every warp once, warps in random order, slow ones seldom; how many live on.
size_t round_of_turns() {
  Machine& m = machine();
  if (m.rounds++ % 128 == 0) change_pace();
  std::vector<size_t> warps(m.paces.size());
  for (size_t i = 0; i < warps.size(); ++i) warps[i] = i;
  std::shuffle(warps.begin(), warps.end(), m.random);
  size_t living = 0;
  for (const size_t warp : warps) {
    const bool skipped = m.random() % m.paces[warp] != 0;
    for (size_t lane = 0; lane < 32 && m.failure.empty(); ++lane) {
      Fiber& f = *m.fibers[32 * warp + lane];
      if (f.done) continue;
      if (skipped) {
        ++living;
        continue;
      }
      give_turn(f);
      living += f.done ? 0 : 1;
    }
  }
  return living;
}

void let_events_happen() {
  Machine& m = machine();
  for (size_t i = 0; i < m.events.size();) {
    if (m.events[i].rounds-- > 0) {
      ++i;
      continue;
    }
    const std::function<void()> happen = std::move(m.events[i].happen);
    m.events.erase(m.events.begin() + static_cast<std::ptrdiff_t>(i));
    m.self = nullptr;
    try {
      happen();
    } catch (const std::runtime_error& error) {
      m.failure = error.what();
      return;
    }
    m.moved = true;
  }
}

}  // namespace

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

void later(bool late, std::function<void()> happen) {
  Machine& m = machine();
  if (!late) return happen();
  m.events.push_back({static_cast<uint32_t>(m.random() % 40), std::move(happen)});
}

void check_living(uint32_t rank) {
  if (machine().blocks[rank]->living == 0)
    fail_thread(fmt::format("the memory of block {} of the cluster is used after its end", rank));
}

char* shared_memory_at(uint32_t address, uint32_t bytes) {
  Machine& m = machine();
  const uint32_t rank = rank_of(address), offset = offset_of(address);
  if (rank >= m.blocks.size() || offset < kWindowBase || offset - kWindowBase + bytes > m.blocks[rank]->bytes) {
    fail_thread(fmt::format("{} bytes at {:#x} are outside of shared memory", bytes, address));
  }
  check_living(rank);
  return m.blocks[rank]->memory + (offset - kWindowBase);
}

int run(unsigned blocks, unsigned cluster, unsigned threads, int shared_bytes, const std::function<void()>& kernel) {
  Machine& m = machine();
  m.failure.clear();
  m.kernel = &kernel;
  for (unsigned first = 0; first < blocks && m.failure.empty(); first += cluster) {
    m.blocks.clear();
    m.fibers.clear();
    m.events.clear();
    m.cluster = {};
    m.rounds = 0;
    m.paces.assign(cluster * threads / 32, 1);
    for (unsigned rank = 0; rank < cluster; ++rank) {
      m.blocks.push_back(make_block(rank, threads, shared_bytes));
      for (unsigned t = 0; t < threads; ++t) {
        m.fibers.push_back(make_fiber(*m.blocks.back(), {{t, 0, 0}, {first + rank, 0, 0}, {threads, 1, 1}, {blocks, 1, 1}}));
      }
    }
    int idle = 0;
    while (true) {
      m.moved = false;
      const size_t living = round_of_turns();
      if (living == 0 || !m.failure.empty()) break;
      let_events_happen();
      idle = m.moved || !m.events.empty() ? 0 : idle + 1;
      if (idle > kIdleRounds) m.failure = deadlock();
    }
  }
  return m.failure.empty() ? 0 : 1;
}

}  // namespace k3::emulator
