// The machine itself: what it computes, and what it says when a kernel is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "k3/base/rng.h"
#include "k3/ops/cuda/counters.cuh"
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/tensor_map.h"
#include "k3/ops/cuda/wgmma.cuh"

namespace k3::ops::cuda {
namespace {

using testing::HasSubstr;

constexpr unsigned kThreads = 128;

int run_block(const std::function<void()>& kernel) {
  return emulator::run({.threads = {kThreads, 1, 1}, .shared_bytes = 65536}, kernel);
}

TEST(Emulator, WarpsExchange) {
  std::array<int, kThreads> xors = {}, ups = {}, ballots = {};
  ASSERT_EQ(run_block([&] {
              const int thread = static_cast<int>(threadIdx.x);
              xors[threadIdx.x] = __shfl_xor_sync(~0U, thread, 5);
              ups[threadIdx.x] = __shfl_up_sync(~0U, thread, 3);
              ballots[threadIdx.x] = static_cast<int>(__ballot_sync(~0U, thread % 3 == 0) & 0xFF);
            }),
            0);
  EXPECT_EQ(xors[70], 64 + (6 ^ 5));
  EXPECT_EQ(ups[33], 33);
  EXPECT_EQ(ups[40], 37);
  EXPECT_EQ(ballots[32], 0b10010010);  // 33, 36, 39
}

TEST(Emulator, ABarrierTurnsWhenArrivalsAndBytesAreThere) {
  emulator::set_options({.seed = 3, .late_copies = true});
  std::vector<uint16_t> rows(8 * 64);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
  CUtensorMap map;
  encode_map(&map, {.base = rows.data(), .rank = 2, .sizes = {64, 8}, .strides = {1, 64}, .box = {64, 8}});
  std::array<uint16_t, kThreads> seen = {};
  ASSERT_EQ(run_block([&] {
              const uint32_t memory = shared_address(emulator::shared_memory()), bar = memory + 4096;
              if (threadIdx.x == 0) mbar_init(bar, 1);
              __syncthreads();
              for (uint32_t turn = 0; turn < 2; ++turn) {
                if (threadIdx.x == 0) {
                  mbar_expect(bar, 1024);
                  tma_load_2d(memory, &map, 0, static_cast<int>(4 * turn), bar);
                }
                mbar_wait(bar, turn % 2);
                if (turn == 1)
                  std::memcpy(&seen[threadIdx.x], emulator::shared_memory() + swizzled(memory + 2 * threadIdx.x) - memory,
                              2);
                __syncthreads();
              }
            }),
            0)
      << emulator::failure();
  EXPECT_EQ(seen[5], 4 * 64 + 5);
  EXPECT_EQ(seen[64 + 7], 5 * 64 + 7);
}

TEST(Emulator, ProductsOfBothKinds) {
  const Rng rng(1, 1);
  std::vector<float> a(64 * 16), b(24 * 16);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(rng.bits(i) % 17) - 8);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(rng.bits(a.size() + i) % 17) - 8);
  for (const bool late : {false, true}) {
    emulator::set_options({.seed = 5, .late_products = late});
    std::vector<float> out(64 * 24);
    ASSERT_EQ(run_block([&] {
                char* const memory = emulator::shared_memory();
                const uint32_t base = shared_address(memory);
                const auto put = [&](uint32_t at, float x) {
                  const auto bits = static_cast<uint16_t>(pack_bf16(x, 0));
                  std::memcpy(memory + (swizzled(base + at) - base), &bits, 2);
                };
                if (threadIdx.x == 0) {
                  for (uint32_t k = 0; k < 16; ++k) {
                    for (uint32_t m = 0; m < 64; ++m) put(k * 128 + 2 * m, a[m * 16 + k]);  // a line for each k
                    for (uint32_t n = 0; n < 24; ++n) put(8192 + n * 128 + 2 * k, b[n * 16 + k]);
                  }
                }
                __syncthreads();
                float d[12];
                const auto desc = [&](uint32_t at) { return make_desc(base + at, 16, 1024, Swizzle::bytes_128); };
                Wgmma<24>::ss<1, 0>(d, desc(0), desc(8192), false);
                uint32_t registers[4];
                const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
                for (uint32_t i = 0; i < 4; ++i) {
                  const float* const two = a.data() + (row + i % 2 * 8) * 16 + i / 2 * 8 + lane % 4 * 2;
                  registers[i] = pack_bf16(two[0], two[1]);
                }
                Wgmma<24>::rs(d, registers, desc(8192), true);
                wgmma_commit();
                wgmma_wait<0>();
                for (uint32_t e = 0; e < 12; ++e) out[(row + e / 2 % 2 * 8) * 24 + e / 4 * 8 + lane % 4 * 2 + e % 2] = d[e];
              }),
              0)
        << emulator::failure();
    for (size_t m = 0; m < 64; ++m) {
      for (size_t n = 0; n < 24; ++n) {
        float sum = 0;
        for (size_t k = 0; k < 16; ++k) sum += a[m * 16 + k] * b[n * 16 + k];
        ASSERT_EQ(out[m * 24 + n], 2 * sum) << m << " " << n;
      }
    }
  }
}

TEST(Emulator, CopiesOfAThreadComeInGroups) {
  std::array<uint32_t, 2 * kThreads * 4> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i);
  std::array<uint32_t, kThreads> first = {}, second = {}, early = {};
  emulator::set_options({.seed = 7, .late_copies = true});
  ASSERT_EQ(run_block([&] {
              const uint32_t to = shared_address(emulator::shared_memory()) + threadIdx.x * 32;
              for (uint32_t half = 0; half < 2; ++half) {
                cp_async<16>(to + 16 * half, &from[(half * kThreads + threadIdx.x) * 4], half == 0 || threadIdx.x != 9);
                cp_async_commit();
              }
              early[threadIdx.x] = shared_load_4(to);
              cp_async_wait<1>();
              first[threadIdx.x] = shared_load_4(to);
              cp_async_wait<0>();
              second[threadIdx.x] = shared_load_4(to + 16);
            }),
            0)
      << emulator::failure();
  EXPECT_EQ(early[70], 0xFFFFFFFFU);
  EXPECT_EQ(first[70], 280U);
  EXPECT_EQ(second[70], (kThreads + 70) * 4);
  EXPECT_EQ(second[9], 0U);
}

TEST(Emulator, BlocksOfAGridLiveTogether) {
  int counter = 0;
  std::array<unsigned, 3> of_block = {};
  const auto kernel = [&] {
    __shared__ unsigned mine;
    if (threadIdx.x == 0) mine = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&counter, 1);
    while (acquire_load(&counter) < 3) {
    }
    if (threadIdx.x == 77) of_block[blockIdx.x] = mine;
  };
  emulator::set_options({.seed = 3, .whole_grid = true});
  ASSERT_EQ(emulator::run({.blocks = {3, 1, 1}, .threads = {kThreads, 1, 1}}, kernel), 0) << emulator::failure();
  EXPECT_EQ(of_block, (std::array<unsigned, 3>{0, 1, 2}));
  emulator::set_options({.seed = 3});
  counter = 0;
  EXPECT_NE(emulator::run({.blocks = {3, 1, 1}, .threads = {kThreads, 1, 1}}, kernel), 0);
  EXPECT_THAT(emulator::failure(), HasSubstr("128 threads of block 0, warpgroup 0, at a number in memory"));
}

TEST(Emulator, TheKernelBeforeMayStillWrite) {
  std::array<uint16_t, kThreads> written = {}, soon = {}, late = {};
  written.fill(7);
  const auto kernel = [&] {
    if (blockIdx.x == 0) soon[threadIdx.x] = written[threadIdx.x];
    pdl_wait();
    if (blockIdx.x == 1) late[threadIdx.x] = written[threadIdx.x];
  };
  int poison = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    emulator::set_options({.seed = seed, .before = {{reinterpret_cast<char*>(written.data()), sizeof written}}});
    ASSERT_EQ(emulator::run({.blocks = {2, 1, 1}, .threads = {kThreads, 1, 1}}, kernel), 0) << emulator::failure();
    poison += soon[5] == 0xFFFF ? 1 : 0;
    EXPECT_EQ(late[5], 7);
    EXPECT_EQ(written[5], 7);
  }
  emulator::set_options({});
  EXPECT_GT(poison, 0);
}

TEST(Emulator, SaysWhoWaitsForWhat) {
  EXPECT_NE(run_block([] {
              if (threadIdx.x < 32) __syncthreads();
            }),
            0);
  EXPECT_THAT(emulator::failure(), HasSubstr("32 threads of block 0, warpgroup 0, at its block"));
  EXPECT_NE(run_block([] {
              const uint32_t bar = shared_address(emulator::shared_memory());
              if (threadIdx.x == 0) mbar_init(bar, 2);
              __syncthreads();
              if (threadIdx.x == 0) mbar_arrive(bar);
              mbar_wait(bar, 0);
            }),
            0);
  EXPECT_THAT(emulator::failure(), HasSubstr("128 threads of block 0, warpgroup 0, at a barrier at 0x400"));
}

TEST(Emulator, SaysWhatIsWrong) {
  EXPECT_NE(run_block([] {
              const uint32_t bar = shared_address(emulator::shared_memory());
              if (threadIdx.x == 0) mbar_init(bar, 1);
              __syncthreads();
              if (threadIdx.x < 2) mbar_arrive(bar);
              if (threadIdx.x == 9) mbar_wait(bar + 8, 0);
            }),
            0);
  EXPECT_THAT(emulator::failure(), HasSubstr("block 0, thread 9: no barrier at 0x408"));
  EXPECT_NE(run_block([] {
              uint32_t r[4];
              ldmatrix_x4(r, shared_address(emulator::shared_memory()) + 65536 - 8);
            }),
            0);
  EXPECT_THAT(emulator::failure(), HasSubstr("outside of shared memory"));
  EXPECT_NE(run_block([] {
              float d[4];
              Wgmma<8>::ss(d, threadIdx.x == 77 ? 1 : 0, 0, false);
            }),
            0);
  EXPECT_THAT(emulator::failure(), HasSubstr("different products"));
}

TEST(Emulator, NobodyWritesToABlockThatHasEnded) {
  EXPECT_NE(emulator::run({.blocks = {2, 1, 1}, .threads = {kThreads, 1, 1}, .cluster = 2, .shared_bytes = 4096},
                          [] {
                            const uint32_t bar = shared_address(emulator::shared_memory());
                            if (threadIdx.x == 0) mbar_init(bar, 1);
                            cluster_sync();
                            if (blockIdx.x == 1) return;
                            for (int i = 0; i < 400; ++i) __syncwarp();
                            if (threadIdx.x == 0) mbar_arrive_cluster(bar, 1);
                          }),
            0);
  EXPECT_THAT(emulator::failure(), HasSubstr("block 1 of the cluster is used after its end"));
}

}  // namespace
}  // namespace k3::ops::cuda
