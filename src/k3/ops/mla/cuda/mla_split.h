// Internal to ops/mla. How the cached tokens of a batch are divided among blocks, as functions of lengths that every block
// evaluates for itself (lengths are on the device). All requests lie one after another on a line of costs: a request with
// `tiles` tiles of 64 tokens takes `overhead` (its query is loaded, its result stored) and then one unit a tile. Worker g
// owns [g, g + 1) * share of the line. A request whose tiles lie in several workers' shares is split: each stores a part (m,
// l, acc), the parts are merged afterwards.
#pragma once

namespace k3::ops::cuda {

inline constexpr int kMlaTile = 64;     // tokens
inline constexpr int kMlaOverhead = 2;  // tiles

// An empty request has one tile, all masked, so that its rows are written like all others.
constexpr int mla_tiles(int length) { return length <= 0 ? 1 : (length + kMlaTile - 1) / kMlaTile; }

constexpr int mla_share(int total_cost, int workers, int min_tiles) {
  const int even = (total_cost + workers - 1) / workers;
  return even < min_tiles + kMlaOverhead ? min_tiles + kMlaOverhead : even;
}

struct MlaSegment {
  int begin, end;  // tiles
};
// The tiles in [lo, hi) of a request that begins at `at`.
constexpr MlaSegment mla_segment(int at, int tiles, int lo, int hi) {
  const int first = at + kMlaOverhead, begin = lo - first, end = hi - first;
  return {begin < 0 ? 0 : begin > tiles ? tiles : begin, end < 0 ? 0 : end > tiles ? tiles : end};
}

// The workers of a request's first and last tile.
constexpr int mla_first_worker(int at, int share) { return (at + kMlaOverhead) / share; }
constexpr int mla_last_worker(int at, int tiles, int share) { return (at + kMlaOverhead + tiles - 1) / share; }

// A worker stores at most two parts: the end of a request that began before it, and the beginning of one that goes on after
// it.
constexpr int mla_part_slot(int worker, bool first_tile) { return 2 * worker + (first_tile ? 1 : 0); }

// Units of the keys (128 x 64 BF16) that fit where a query of so many rows lies later.
constexpr int mla_fused_units(int rows) { return rows * 9 * 128 / (128 * 64 * 2); }
// The one sequence of the fused kernel: tiles a block. Few parts are merged faster than many, so blocks take two tiles each
// before more than these take part.
inline constexpr int kMlaFusedParts = 64;
constexpr int mla_fused_share(int tiles, int blocks) {
  const int even = (tiles + blocks - 1) / blocks, two = tiles > kMlaFusedParts ? 2 : 1;
  return even < two ? two : even;
}

}  // namespace k3::ops::cuda
