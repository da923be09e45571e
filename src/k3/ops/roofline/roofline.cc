#include "k3/ops/roofline/roofline.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include "k3/ops/roofline/roofline_kernel.h"

namespace k3::ops {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPiece = int64_t{1} << 20;  // of a buffer, taken at once: about 50 us
constexpr int64_t kMiB = int64_t{1} << 20;

// The loop of a unit, how many rounds are 10 to 100 us, and the FLOPs of a round.
struct Spin {
  float (*run)(int64_t rounds);
  int64_t rounds;
  double flops;
};

Spin spin_of(Unit unit, Isa isa) {
  constexpr double kLanes = kAccumulators;
  switch (unit) {
    case Unit::bf16_tile: return {spin_bf16_tile, 1024, kTileProducts * 16 * 16 * 32 * 2.0};
    case Unit::bf16_dot: return {spin_bf16_dot, 8192, kLanes * 32 * 2};
    case Unit::fp32_fma: break;
  }
  if (isa >= Isa::avx512) return {spin_fp32_avx512, 8192, kLanes * 16 * 2};
  if (isa >= Isa::avx2) return {spin_fp32_avx2, 8192, kLanes * 8 * 2};
  return {spin_fp32_portable, 8192, kLanes * 4 * 2};
}

// Every worker repeats piece() until the time is up; pieces of all workers per second. A worker that the system starts late
// counts for what it did.
template <class Piece>
double pieces_per_second(ThreadPool& pool, double seconds, const Piece& piece) {
  std::atomic<int64_t> pieces{0};
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  pool.run([&](int) {
    int64_t mine = 0;
    for (; mine == 0 || Clock::now() < end; ++mine) piece();
    pieces += mine;
  });
  return static_cast<double>(pieces) / std::chrono::duration<double>(Clock::now() - start).count();
}

std::atomic<uint64_t> g_sink;  // results end here, so that the loops have a purpose

}  // namespace

bool has_unit(Unit unit, Isa isa) {
  switch (unit) {
    case Unit::fp32_fma: return true;
    case Unit::bf16_dot: return isa >= Isa::avx512bf16;
    case Unit::bf16_tile: return isa >= Isa::amx;
  }
  return false;
}

std::string_view unit_name(Unit unit) {
  static constexpr std::array<std::string_view, 3> kNames = {"fp32", "bf16 dot", "amx"};
  return kNames[static_cast<size_t>(unit)];
}

Unit best_unit(Isa isa) {
  if (has_unit(Unit::bf16_tile, isa)) return Unit::bf16_tile;
  return has_unit(Unit::bf16_dot, isa) ? Unit::bf16_dot : Unit::fp32_fma;
}

double measure_flops(ThreadPool& pool, Unit unit, Isa isa, double seconds) {
  K3_CHECK(isa <= detect_isa() && has_unit(unit, isa), "no {} at level {}", unit_name(unit), isa_name(isa));
  const Spin spin = spin_of(unit, isa);
  const double rate = pieces_per_second(pool, seconds, [&] { g_sink += static_cast<uint64_t>(spin.run(spin.rounds)); });
  return rate * static_cast<double>(spin.rounds) * spin.flops;
}

double measure_read(ThreadPool& pool, std::span<const std::byte> buffer, Isa isa, double seconds) {
  const int64_t pieces = static_cast<int64_t>(buffer.size()) / kPiece;
  K3_CHECK(isa <= detect_isa() && pieces > 0, "a read buffer of {} bytes at level {}", buffer.size(), isa_name(isa));
  const auto read = isa >= Isa::avx512 ? read_avx512 : isa >= Isa::avx2 ? read_avx2 : read_portable;
  // Goes on where the last call stopped: a short sample does not find what the last one left in the caches.
  static std::atomic<uint64_t> next{0};
  const double rate = pieces_per_second(pool, seconds, [&] {
    const auto piece = static_cast<int64_t>(next.fetch_add(1) % static_cast<uint64_t>(pieces));
    g_sink += read(buffer.data() + piece * kPiece, kPiece);
  });
  return rate * static_cast<double>(kPiece);
}

int64_t read_buffer_bytes(int64_t cache_bytes, int64_t available_bytes) {
  const int64_t wanted = std::clamp(8 * std::min(cache_bytes, 1024 * kMiB), 512 * kMiB, 2048 * kMiB);
  return std::max(kPiece, std::min(wanted, available_bytes / 4) / kPiece * kPiece);
}

Result<Storage> make_read_buffer(ThreadPool& pool, int64_t bytes) {
  K3_TRY_ASSIGN(Storage buffer, Storage::reserve(bytes));
  ::madvise(buffer.data(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  // Pages that nobody wrote may all be the same page of zeros; written by the workers they lie near them.
  pool.parallel_for(bytes, kPiece, [&](int64_t begin, int64_t end) {
    std::memset(buffer.data() + begin, 0x5A, static_cast<size_t>(end - begin));
  });
  return buffer;
}

}  // namespace k3::ops
