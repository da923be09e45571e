// Internal to ops/cuda. How a warp says at a barrier in shared memory that its reads and writes are done: __syncwarp orders those of all
// lanes before the arrival of one. compute-sanitizer's racecheck does not follow that (it orders a lane's accesses by that lane's own
// arrivals and calls the others' a race), so the build for it (K3_RACECHECK, target k3_gpu_racecheck_test) lets every lane arrive: the same
// protocol with 32 arrivals for one, which it can check.
//
// The tool notes that a warp has passed a hardware barrier (bar.sync) when it is past it, so what a fast warp reads right behind one may be
// noted before a slow warp has passed, and is called a race with what that one wrote before (--racecheck-trace-sync shows that order; with
// an mbarrier in its place nothing is reported). Where that happens the build for it meets twice: nobody passes the second barrier before
// all have been noted at the first.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

#ifdef K3_RACECHECK
constexpr uint32_t kWarpArrivals = 32;
#else
constexpr uint32_t kWarpArrivals = 1;
#endif

// Does this lane arrive? After it the warp's accesses are ordered before the arrivals.
__device__ __forceinline__ bool arrives(int lane) {
  __syncwarp();
  return kWarpArrivals == 32 || lane == 0;
}
__device__ __forceinline__ void warp_arrive(uint32_t bar, int lane) {
  if (arrives(lane)) mbar_arrive(bar);
}
__device__ __forceinline__ void sync_block() {
  __syncthreads();
  if (kWarpArrivals == 32) __syncthreads();
}
__device__ __forceinline__ void sync_named(int id, int threads) {
  named_barrier(id, threads);
  if (kWarpArrivals == 32) named_barrier(id, threads);
}
// At the barrier in this place of both blocks of a pair, relaxed: "I have read".
__device__ __forceinline__ void warp_arrive_pair(uint32_t bar, int lane) {
  __syncwarp();
  if (kWarpArrivals == 32) {
    mbar_arrive_cluster_relaxed(bar, 0);
    mbar_arrive_cluster_relaxed(bar, 1);
  } else if (lane < 2) {
    mbar_arrive_cluster_relaxed(bar, static_cast<uint32_t>(lane));
  }
}

}  // namespace k3::ops::cuda
