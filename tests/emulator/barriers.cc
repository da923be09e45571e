// Barriers: in shared memory, named, of the cluster.
#include <fmt/format.h>

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/kda/cuda/kda_prefill_words.cuh"
#include "tests/emulator/machine.h"

namespace k3::emulator {
namespace {

Barrier& barrier_at(uint32_t address) {
  Machine& m = machine();
  if (block_of(address) < m.blocks.size()) {
    auto& all = m.blocks[block_of(address)]->barriers;
    const auto found = all.find(offset_of(address));
    check_living(block_of(address));
    if (found != all.end()) return found->second;
  }
  fail_thread(fmt::format("no barrier at {:#x}", address));
}

void turn_phase(Barrier& bar) {
  if (bar.pending != 0 || bar.bytes != 0) return;
  ++bar.phase;
  bar.pending = bar.expected;
}

}  // namespace

void arrive(uint32_t address, uint32_t times = 1) {
  Barrier& bar = barrier_at(address);
  if (bar.pending < times) fail_thread(fmt::format("more arrivals at {:#x} than it was made for", address));
  bar.pending -= times;
  turn_phase(bar);
  machine().moved = true;
}

void bytes_have_come(uint32_t address, uint32_t bytes) {
  Barrier& bar = barrier_at(address);
  bar.bytes -= bytes;
  turn_phase(bar);
}

}  // namespace k3::emulator

namespace k3::ops::cuda {
using namespace k3::emulator;  // NOLINT: the words are the machine's

void mbar_init(uint32_t bar, uint32_t arrivals) {
  machine().blocks[block_of(bar)]->barriers[offset_of(bar)] = {.expected = arrivals, .pending = arrivals};
}
void mbar_arrive(uint32_t bar) { arrive(bar); }
void mbar_arrive_there(uint32_t bar) { arrive(bar); }
void mbar_arrive_many(uint32_t bar, int count) { arrive(bar, static_cast<uint32_t>(count)); }
void mbar_arrive_cluster(uint32_t bar, uint32_t rank) { arrive(cluster_map(bar, rank)); }
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

void cluster_arrive() {
  const Machine& m = machine();
  ++m.self->clusters;
  meet(own_cluster(0).cluster, static_cast<int>(m.cluster * m.threads), "its cluster", 0, false);
}
void cluster_wait() {
  const Meeting& at = own_cluster(0).cluster;
  wait_until("its cluster", 0, [&, times = machine().self->clusters] { return at.times >= times; });
}
void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
void pdl_wait() {
  wait_until("the kernel before", 0, [] { return machine().before_ended; });
}
uint32_t cluster_rank() {
  const Block& block = *machine().self->block;
  return block.number - block.first;
}
uint32_t cluster_map(uint32_t address, uint32_t rank) { return address_of(own_cluster(rank).number, offset_of(address)); }

}  // namespace k3::ops::cuda
