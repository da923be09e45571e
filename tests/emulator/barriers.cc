// Barriers: in shared memory, named, of the cluster.
#include <fmt/format.h>

#include "k3/ops/cuda/ptx.cuh"
#include "tests/emulator/machine.h"

namespace k3::emulator {
namespace {

Barrier& barrier_at(uint32_t address) {
  Machine& m = machine();
  if (rank_of(address) < m.blocks.size()) {
    auto& all = m.blocks[rank_of(address)]->barriers;
    const auto found = all.find(offset_of(address));
    check_living(rank_of(address));
    if (found != all.end()) return found->second;
  }
  fail_thread(fmt::format("no barrier at {:#x}", address));
}

void turn_phase(Barrier& bar) {
  if (bar.pending != 0 || bar.bytes != 0) return;
  ++bar.phase;
  bar.pending = bar.expected;
}

void arrive(uint32_t address) {
  Barrier& bar = barrier_at(address);
  if (bar.pending == 0) fail_thread(fmt::format("more arrivals at {:#x} than it was made for", address));
  --bar.pending;
  turn_phase(bar);
  machine().moved = true;
}

}  // namespace

void bytes_have_come(uint32_t address, uint32_t bytes) {
  Barrier& bar = barrier_at(address);
  bar.bytes -= bytes;
  turn_phase(bar);
}

}  // namespace k3::emulator

namespace k3::ops::cuda {
using namespace k3::emulator;  // NOLINT: the words are the machine's

void mbar_init(uint32_t bar, uint32_t arrivals) {
  machine().blocks[rank_of(bar)]->barriers[offset_of(bar)] = {.expected = arrivals, .pending = arrivals};
}
void mbar_arrive(uint32_t bar) { arrive(bar); }
void mbar_arrive_cluster(uint32_t bar, uint32_t rank) { arrive(address_of(rank, offset_of(bar))); }
void mbar_expect(uint32_t bar, uint32_t bytes) {
  barrier_at(bar).bytes += bytes;
  arrive(bar);
}
void mbar_wait(uint32_t bar, uint32_t parity) {
  const Barrier& b = barrier_at(bar);
  wait_until("a barrier at", bar, [&] { return (b.phase & 1) != parity; });
}

namespace {
bool named_meeting(int id, int threads, bool wait, bool any) {
  Meeting& at = machine().self->block->named[static_cast<size_t>(id)];
  meet(at, threads, "named barrier", static_cast<uint32_t>(id), wait, any);
  return at.last_any;
}
}  // namespace
void named_barrier(int id, int threads) { named_meeting(id, threads, true, false); }
void named_barrier_arrive(int id, int threads) { named_meeting(id, threads, false, false); }
bool named_barrier_any(int id, int threads, bool mine) { return named_meeting(id, threads, true, mine); }

void cluster_sync() { meet(machine().cluster, static_cast<int>(machine().fibers.size()), "its cluster", 0, true); }

}  // namespace k3::ops::cuda
