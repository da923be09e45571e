// Whose turn it is: fibers, rounds, events, launches.
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/emulator/machine.h"

namespace k3::emulator {
namespace {

constexpr size_t kStackBytes = 96 << 10;
constexpr uint32_t kIdlePaces = 16;  // without a step before it is called a deadlock: slow warps have had their turn

// One launch after another.
void fiber_main() {
  while (true) {
    Machine& m = machine();
    (*m.kernel)();
    m.self->done = true;
    --m.self->block->living;
    m.moved = true;
    pause_thread();
  }
}

KeptVariables nothing_written() {
  const size_t bytes = variables().bytes;
  return {std::vector<char>(bytes, static_cast<char>(0xFF)), std::vector<bool>((bytes + kPiece - 1) / kPiece)};
}

std::unique_ptr<Block> make_block(uint32_t number, unsigned threads, int shared_bytes) {
  Machine& m = machine();
  auto block = std::make_unique<Block>();
  block->store.assign(static_cast<size_t>(shared_bytes) + 2048, static_cast<char>(0xFF));  // NaN in every format
  const auto base = reinterpret_cast<uintptr_t>(block->store.data());
  block->memory = block->store.data() + ((base + 1023) / 1024 * 1024 - base);
  block->variables = nothing_written();
  block->number = number;
  block->first = number / m.cluster * m.cluster;
  block->bytes = static_cast<uint32_t>(shared_bytes);
  block->threads = block->living = static_cast<int>(threads);
  block->warps.resize(threads / 32);
  block->warpgroups.resize((threads + 127) / 128);
  return block;
}

void begin_fiber(size_t number, Block& block, const Place& place) {
  Machine& m = machine();
  if (number == m.fibers.size()) m.fibers.push_back(std::make_unique<Fiber>());
  Fiber& f = *m.fibers[number];
  f.place = place;
  f.block = &block;
  f.done = false;
  f.waits = "";
  f.ready = nullptr;
  f.products = 0;
  f.clusters = 0;
  f.groups.clear();
  f.loads = f.stores = {};
  if (f.started) return;
  if (f.stack == nullptr) f.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  getcontext(&f.start);
  f.start.uc_stack.ss_sp = f.stack.get();
  f.start.uc_stack.ss_size = kStackBytes;
  makecontext(&f.start, fiber_main, 0);
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
  Machine& m = machine();
  std::map<std::string, int> who;
  for (size_t i = 0; i < m.blocks.size() * m.threads; ++i) {
    const Fiber& f = *m.fibers[i];
    if (!f.done)
      ++who[fmt::format("block {}, warpgroup {}, at {} {:#x}", f.place.block.x, f.place.thread.x / 128, f.waits,
                        f.waits_at)];
  }
  std::string text = "nobody can go on:";
  for (const auto& [place, threads] : who) text += fmt::format("\n  {} threads of {}", threads, place);
  return text;
}

// The threads of a warp, or all of a warpgroup, may be slow for a while, or asleep: others get as far ahead of them as
// barriers let them.
void change_pace() {
  Machine& m = machine();
  constexpr std::array<uint32_t, 8> kPaces = {1, 1, 1, 1, 8, 8, 40, 1000};
  for (size_t warp = 0; warp < m.paces.size(); ++warp) {
    m.paces[warp] = warp % 4 != 0 && m.random() % 2 == 0 ? m.paces[warp - 1] : kPaces[m.random() % kPaces.size()];
  }
}

// Threads of the warp that can go on, from any of them on, sometimes only some; how many live on.
size_t turn_of_warp(size_t warp) {
  Machine& m = machine();
  const bool skipped = m.random() % m.paces[warp] != 0;
  const size_t first = m.random() % 32, count = skipped ? 0 : m.random() % 4 == 0 ? m.random() % 32 : 32;
  size_t living = 0;
  for (size_t i = 0; i < 32 && m.failure.empty(); ++i) {
    Fiber& f = *m.fibers[32 * warp + (first + i) % 32];
    if (f.done) continue;
    if (i < count && (f.ready == nullptr || f.ready(f.condition))) {
      put_in_place(f.block);
      give_turn(f);
    }
    living += f.done ? 0 : 1;
  }
  return living;
}

// Warps of all blocks in random order, slow ones seldom; how many threads live on.
size_t round_of_turns() {
  Machine& m = machine();
  if (m.rounds++ % m.options.pace_rounds == 0) change_pace();
  const size_t warps = m.threads / 32;
  std::vector<size_t> blocks(m.blocks.size()), order(warps);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  for (size_t i = 0; i < warps; ++i) order[i] = i;
  std::shuffle(blocks.begin(), blocks.end(), m.random);
  size_t living = 0;
  for (const size_t block : blocks) {
    if (m.blocks[block]->living == 0) continue;
    if (m.blocks[block]->begins > m.rounds) {
      m.moved = true;
      ++living;
      continue;
    }
    std::shuffle(order.begin(), order.end(), m.random);
    for (const size_t warp : order) living += turn_of_warp(block * warps + warp);
  }
  return living;
}

void let_events_happen() {
  Machine& m = machine();
  for (size_t i = 0; i < m.events.size();) {
    if (m.events[i].round > m.rounds) {
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

Index place_of(unsigned at, const Index& sizes) { return {at % sizes.x, at / sizes.x % sizes.y, at / sizes.x / sizes.y}; }

void end_kernel_before() {
  Machine& m = machine();
  for (size_t i = 0; i < m.before.size(); ++i)
    std::copy(m.before[i].begin(), m.before[i].end(), m.options.before[i].begin());
  m.before.clear();
  m.before_ended = true;
}
void begin_beside_kernel_before() {
  Machine& m = machine();
  for (const std::span<char> memory : m.options.before) {
    m.before.emplace_back(memory.begin(), memory.end());
    std::fill(memory.begin(), memory.end(), static_cast<char>(0xFF));
  }
  m.before_ended = m.before.empty();
  if (!m.before_ended) later(true, end_kernel_before);
}

void begin(const Grid& grid, unsigned first, unsigned count) {
  Machine& m = machine();
  m.blocks.clear();
  m.events.clear();
  m.rounds = 0;
  m.paces.assign(count * m.threads / 32, 1);
  for (unsigned number = 0; number < count; ++number) {
    m.blocks.push_back(make_block(number, m.threads, grid.shared_bytes));
    Block& block = *m.blocks.back();
    if (block.first != number) {
      block.begins = m.blocks[block.first]->begins;
    } else if (m.options.late_blocks && m.random() % 2 == 0) {
      block.begins = m.random() % m.options.latest;
    }
    for (unsigned t = 0; t < m.threads; ++t) {
      begin_fiber(number * m.threads + t, *m.blocks.back(),
                  {place_of(t, grid.threads), place_of(first + number, grid.blocks), grid.threads, grid.blocks});
    }
  }
  begin_beside_kernel_before();
}

void go_on_to_the_end() {
  Machine& m = machine();
  uint32_t idle = 0;
  for (bool living = true; living || !m.events.empty();) {
    m.moved = false;
    living = round_of_turns() != 0;
    if (!m.failure.empty()) return;
    let_events_happen();
    if (!m.failure.empty()) return;
    idle = m.moved || !m.events.empty() ? 0 : idle + 1;
    if (idle > kIdlePaces * m.options.pace_rounds) m.failure = deadlock();
  }
}

}  // namespace

const Variables& variables() {
  static const Variables all = [] {
    Variables out;
    dl_iterate_phdr(
        [](dl_phdr_info* program, size_t, void* to) {  // the first is the program itself
          for (int i = 0; i < program->dlpi_phnum; ++i) {
            if (program->dlpi_phdr[i].p_type == PT_TLS)
              *static_cast<Variables*>(to) = {static_cast<char*>(program->dlpi_tls_data), program->dlpi_phdr[i].p_memsz};
          }
          return 1;
        },
        &out);
    return out;
  }();
  return all;
}

void put_in_place(Block* block) {
  Machine& m = machine();
  static KeptVariables of_no_block = nothing_written();
  static const std::string nothing(kPiece, static_cast<char>(0xFF));
  if (block == m.present) return;
  const auto kept = [](Block* b) -> KeptVariables& { return b == nullptr ? of_no_block : b->variables; };
  KeptVariables &from = kept(m.present), &to = kept(block);
  for (size_t piece = 0; piece < to.used.size(); ++piece) {
    const size_t first = piece * kPiece, count = std::min(kPiece, variables().bytes - first);
    char* const at = variables().at + first;
    const bool written = std::memcmp(at, nothing.data(), count) != 0;
    if (written || from.used[piece]) std::memcpy(from.bytes.data() + first, at, count);
    from.used[piece] = written;
    if (written || to.used[piece]) std::memcpy(at, to.bytes.data() + first, count);
  }
  m.present = block;
}

int run(const Grid& grid, const std::function<void()>& kernel) {
  Machine& m = machine();
  m.failure.clear();
  m.kernel = &kernel;
  m.cluster = grid.cluster;
  m.threads = grid.threads.x * grid.threads.y * grid.threads.z;
  const unsigned blocks = grid.blocks.x * grid.blocks.y * grid.blocks.z,
                 together = m.options.whole_grid ? blocks : m.cluster;
  for (unsigned first = 0; first < blocks && m.failure.empty(); first += together) {
    begin(grid, first, together);
    go_on_to_the_end();
    put_in_place(nullptr);
    end_kernel_before();
  }
  for (const auto& f : m.fibers) f->started = f->started && f->done;
  return m.failure.empty() ? 0 : 1;
}

}  // namespace k3::emulator
