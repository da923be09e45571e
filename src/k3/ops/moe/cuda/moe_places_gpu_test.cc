// Experts that are not all on the GPU: the tables against a host's program of the same policy, and results bit for bit those of
// experts that are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "k3/ops/moe/cuda/moe_experts_gpu_test.h"
#include "k3/ops/moe/cuda/moe_fetch_cuda.h"
#include "k3/ops/moe/cuda/moe_grouped_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_cuda.h"
#include "k3/tensor/tensor.h"

namespace k3::ops::cuda {
namespace {

// Experts of random bytes in host memory, a layer's slots and tables.
struct Layer {
  int experts, slots, first_slot;
  int64_t bytes;
  Storage host;
  DeviceArray<uint8_t> memory;
  DeviceArray<int32_t> slot, owner, list;
  DeviceArray<float> score;
  DeviceArray<uint64_t> all_uses;
  DeviceArray<MoeFetchCounts> counts;

  Layer(int experts_, int slots_, int first, int64_t bytes_)
      : experts(experts_), slots(slots_), first_slot(first), bytes(bytes_), host(Storage::pinned(experts_ * bytes_).value()),
        memory((first + std::max(slots_, 1)) * bytes_), slot(experts_), owner(std::max(slots_, 1)), list(1 + 2 * std::max(slots_, 1)),
        score(experts_), all_uses(experts_), counts(1) {
    slot.set(std::vector<int32_t>(static_cast<size_t>(experts), -1));
    owner.set(std::vector<int32_t>(static_cast<size_t>(std::max(slots, 1)), -1));
    score.zero();
    all_uses.zero();
    counts.zero();
    const Rng rng(5, 9);
    for (int64_t i = 0; i < experts * bytes / 8; ++i) {
      const uint64_t v = rng.bits(static_cast<uint64_t>(i));
      std::memcpy(host.data() + i * 8, &v, 8);
    }
  }
  MoePlaces places() const {
    return {slot.data(), memory.data(), reinterpret_cast<const uint8_t*>(host.data()), bytes};
  }
  MoeFetch fetch(const DeviceArray<int32_t>& ids, int tokens, int topk, int first_expert, bool admit) const {
    MoeFetch f;
    f.ids = ids.data(), f.tokens = tokens, f.topk = topk, f.first_expert = first_expert, f.experts = experts, f.admit = admit;
    f.places = places(), f.first_slot = first_slot, f.slots = slots, f.slot = slot.data(), f.owner = owner.data();
    f.score = score.data(), f.keep = 0.875F, f.uses = all_uses.data(), f.counts = counts.data(), f.list = list.data();
    return f;
  }
};

// The policy of moe_fetch_cuda.h, one expert after another.
struct Oracle {
  std::vector<int32_t> slot, owner;
  std::vector<float> score;
  std::vector<uint64_t> all_uses = std::vector<uint64_t>(slot.size(), 0);
  uint64_t wanted = 0, missing = 0, admitted = 0;

  void step(const std::vector<int32_t>& ids, int first_expert, int first_slot, bool admit) {
    std::vector<int> uses(slot.size(), 0);
    for (const int32_t id : ids) {
      const int e = id - first_expert;
      if (e >= 0 && e < static_cast<int>(uses.size())) ++uses[static_cast<size_t>(e)];
    }
    std::vector<size_t> takers, givers;
    for (size_t e = 0; e < slot.size(); ++e) {
      score[e] = std::fma(score[e], 0.875F, static_cast<float>(uses[e]));
      all_uses[e] += static_cast<uint64_t>(uses[e]);
      wanted += uses[e] > 0;
      if (uses[e] > 0 && slot[e] < 0) takers.push_back(e);
    }
    missing += takers.size();
    if (!admit) return;
    const auto held = [&](size_t s) { return owner[s] < 0 ? -1.0F : score[static_cast<size_t>(owner[s])]; };
    for (size_t s = 0; s < owner.size(); ++s) {
      if (owner[s] < 0 || uses[static_cast<size_t>(owner[s])] == 0) givers.push_back(s);
    }
    std::stable_sort(takers.begin(), takers.end(), [&](size_t a, size_t b) { return score[a] > score[b]; });
    std::stable_sort(givers.begin(), givers.end(), [&](size_t a, size_t b) { return held(a) < held(b); });
    for (size_t i = 0; i < std::min(takers.size(), givers.size()); ++i) {
      if (!(score[takers[i]] > held(givers[i]))) break;
      int32_t& o = owner[givers[i]];
      if (o >= 0) slot[static_cast<size_t>(o)] = -1;
      o = static_cast<int32_t>(takers[i]);
      slot[takers[i]] = first_slot + static_cast<int32_t>(givers[i]);
      ++admitted;
    }
  }
};

void check_fetch(int experts, int slots, int first_slot, int64_t bytes, int topk, int first_expert, int all_experts) {
  SCOPED_TRACE(fmt::format("E {} slots {} from {} of {} bytes, top {}, first {}", experts, slots, first_slot, bytes, topk, first_expert));
  const Layer layer(experts, slots, first_slot, bytes);
  Oracle oracle{std::vector<int32_t>(static_cast<size_t>(experts), -1), std::vector<int32_t>(static_cast<size_t>(slots), -1),
                std::vector<float>(static_cast<size_t>(experts), 0)};
  for (int step = 0; step < 24; ++step) {
    const int tokens = step % 3 == 2 ? 1 + step * 5 : 1;
    const bool admit = step % 7 != 6;
    const Routing routing = random_routing(tokens, all_experts, topk, 40 + static_cast<uint64_t>(step));
    const DeviceArray<int32_t> ids(routing.ids);
    ASSERT_EQ(moe_fetch_cuda(layer.fetch(ids, tokens, topk, first_expert, admit), nullptr).code, 0);
    gpu_sync();
    oracle.step(routing.ids, first_expert, first_slot, admit);
    ASSERT_EQ(layer.slot.get(), oracle.slot) << step;
    if (slots > 0) {
      ASSERT_EQ(layer.owner.get(), oracle.owner) << step;
    }
    ASSERT_EQ(layer.score.get(), oracle.score) << step;
  }
  EXPECT_EQ(layer.all_uses.get(), oracle.all_uses);
  const MoeFetchCounts counts = layer.counts.get()[0];
  EXPECT_EQ(counts.wanted, oracle.wanted);
  EXPECT_EQ(counts.missing, oracle.missing);
  EXPECT_EQ(counts.admitted, oracle.admitted);
  const std::vector<uint8_t> memory = layer.memory.get();
  for (int s = 0; s < slots; ++s) {
    const int32_t e = oracle.owner[static_cast<size_t>(s)];
    if (e < 0) continue;
    EXPECT_EQ(std::memcmp(memory.data() + (first_slot + s) * bytes, layer.host.data() + e * bytes, static_cast<size_t>(bytes)), 0) << s;
  }
  EXPECT_TRUE(std::all_of(memory.begin(), memory.begin() + first_slot * bytes, [](uint8_t b) { return b == 0xFF; }));
  EXPECT_TRUE(layer.memory.guards_intact() && layer.slot.guards_intact() && layer.owner.guards_intact() && layer.list.guards_intact());
}

TEST(MoeFetchGpu, SanitizeKeepsWhatIsUsedMost) {
  K3_NEEDS_GPU();
  check_fetch(16, 5, 3, 4352, 2, 0, 16);
}

TEST(MoeFetchGpu, KeepsWhatIsUsedMost) {
  K3_NEEDS_GPU();
  check_fetch(16, 0, 0, 256, 4, 0, 16);
  check_fetch(16, 1, 0, 2176, 4, 0, 16);
  check_fetch(16, 15, 2, 16384, 4, 0, 16);
  check_fetch(64, 16, 7, 16384 + 128, 8, 0, 64);
  check_fetch(112, 50, 1, 65536, 16, 224, 896);
  check_fetch(1024, 700, 0, 1024, 16, 0, 1024);
}

// ---- results ----

struct Problem {
  MoeWeights kind = MoeWeights::mxfp4;
  int tokens = 1, experts = 12, topk = 3, width = 256, hidden = 128;
  Glu glu = {GluKind::situ, 4.0F, 25.0F};
  int first = 0, local = 0, count = -1, scale_low = 118, scale_high = 124;
};

// The same experts where MoePlaces says: every third in a slot, in reverse order behind two other slots; the rest in host memory.
struct Scattered {
  Storage host;
  DeviceArray<uint8_t> memory;
  DeviceArray<int32_t> slot;
  int64_t bytes;
  int staged;  // first of the slots behind, room for all
  std::vector<int32_t> slots;

  Scattered(const MoeExpertsCuda& w, int count)
      : slot(count), bytes(moe_packed_bytes(w.kind, 2 * w.hidden, w.width) + moe_packed_bytes(w.kind, w.width, w.hidden)), staged(2 + count) {
    const int64_t gate_up = moe_packed_bytes(w.kind, 2 * w.hidden, w.width), down = bytes - gate_up;
    host = Storage::pinned(count * bytes).value();
    memory = DeviceArray<uint8_t>((staged + count) * bytes);
    slots.assign(static_cast<size_t>(count), -1);
    for (int e = 0; e < count; ++e) {
      std::byte* at = host.data() + e * bytes;
      gpu_check(cudaMemcpy(at, static_cast<const uint8_t*>(w.w13) + e * gate_up, static_cast<size_t>(gate_up), cudaMemcpyDefault), "copy");
      gpu_check(cudaMemcpy(at + gate_up, static_cast<const uint8_t*>(w.w2) + e * down, static_cast<size_t>(down), cudaMemcpyDefault), "copy");
      if (e % 3 != 1) continue;
      slots[static_cast<size_t>(e)] = 2 + count - 1 - e;
      gpu_check(cudaMemcpy(memory.data() + slots[static_cast<size_t>(e)] * bytes, at, static_cast<size_t>(bytes), cudaMemcpyDefault), "copy");
      std::memset(at, 0xFF, static_cast<size_t>(bytes));  // nobody may read it here
    }
    slot.set(slots);
  }
  MoeExpertsCuda view(const MoeExpertsCuda& w) const {
    MoeExpertsCuda out = w;
    out.w13 = out.w2 = nullptr;
    out.places = {slot.data(), memory.data(), reinterpret_cast<const uint8_t*>(host.data()), bytes};
    return out;
  }
};

void check_results(const Problem& p) {
  SCOPED_TRACE(name_of(p));
  const int local = local_experts(p);
  const PackedExperts packed = pack_experts(p, file_weights(p, 3), p.first, local);
  const Scattered scattered(packed.view, local);
  const Routing routing = random_routing(p.tokens, p.experts, p.topk, 17);
  const int64_t values = static_cast<int64_t>(p.tokens) * p.width, slots = static_cast<int64_t>(p.tokens) * p.topk;
  const DeviceArray<uint16_t> z(to_bf16(random_bf16(values, 5)));
  const DeviceArray<int32_t> ids(routing.ids);
  const DeviceArray<float> weights(routing.weights);
  if (p.tokens <= 256) {
    std::vector<uint16_t> out[2];
    for (int i = 0; i < 2; ++i) {
      const DeviceArray<float> slot_out(slots * p.width);
      const DeviceArray<uint16_t> sum(values);
      const DeviceArray<uint8_t> workspace(moe_stream_workspace_bytes(p.tokens, p.topk, local, p.hidden));
      workspace.zero();
      MoeStreamCuda args;
      args.weights = i == 0 ? packed.view : scattered.view(packed.view);
      args.glu = moe_glu_of(p.glu);
      args.z = z.data(), args.ids = ids.data(), args.tokens = p.tokens, args.topk = p.topk, args.first_expert = p.first;
      args.slot_out = slot_out.data(), args.workspace = workspace.data(), args.sum.weights = weights.data(), args.sum.out = sum.data();
      ASSERT_EQ(moe_stream_cuda(args, nullptr).code, 0);
      gpu_sync();
      out[i] = sum.get();
    }
    EXPECT_EQ(out[0], out[1]);
  }
  std::vector<uint16_t> out[3];  // one bank; scattered; in parts
  for (int i = 0; i < 3; ++i) {
    const DeviceArray<uint16_t> rows(slots * p.width), sum(values);
    const DeviceArray<uint8_t> workspace(moe_grouped_workspace_bytes(p.tokens, p.topk, local, p.width, p.hidden));
    MoeGroupedCuda args;
    args.weights = i == 0 ? packed.view : scattered.view(packed.view);
    args.glu = moe_glu_of(p.glu);
    args.z = z.data(), args.z_stride = p.width, args.ids = ids.data(), args.tokens = p.tokens, args.topk = p.topk;
    args.first_expert = p.first, args.rows = rows.data(), args.workspace = workspace.data();
    ASSERT_EQ(moe_grouped_prepare_cuda(args, nullptr).code, 0);
    if (i < 2) {
      ASSERT_EQ(moe_grouped_products_cuda(args, nullptr).code, 0);
    }
    for (int begin = 0; i == 2 && begin < local;) {
      int end = begin, staged = 0;
      const int room = 1 + begin % 4;
      for (; end < local; ++end) {
        if (scattered.slots[static_cast<size_t>(end)] >= 0) continue;
        if (staged == room) break;
        gpu_check(cudaMemcpy(scattered.memory.data() + (scattered.staged + begin + staged++) * scattered.bytes,
                             scattered.host.data() + end * scattered.bytes, static_cast<size_t>(scattered.bytes), cudaMemcpyDefault),
                  "copy");
      }
      ASSERT_EQ(moe_grouped_part_cuda(args, {begin, end, scattered.staged + begin}, nullptr).code, 0);
      begin = end;
    }
    ASSERT_EQ(moe_grouped_combine_cuda(args, {.weights = weights.data(), .out = sum.data()}, nullptr).code, 0);
    gpu_sync();
    out[i] = sum.get();
  }
  EXPECT_EQ(out[0], out[1]);
  EXPECT_EQ(out[0], out[2]);
}

TEST(MoePlacesGpu, SanitizeSameBitsWhereverExpertsLie) {
  K3_NEEDS_GPU();
  check_results({.tokens = 2, .experts = 5, .topk = 2, .width = 96, .hidden = 32});
}

TEST(MoePlacesGpu, SameBitsWhereverExpertsLie) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    for (const int tokens : {1, 3, 8, 9, 40, 200, 256, 300, 700}) check_results({.kind = kind, .tokens = tokens});
    check_results({.kind = kind, .tokens = 5, .experts = 40, .topk = 8, .width = 544, .hidden = 288});
    check_results({.kind = kind, .tokens = 64, .experts = 24, .topk = 4, .width = 512, .hidden = 256, .first = 8, .local = 8});
    check_results({.kind = kind, .tokens = 300, .experts = 24, .topk = 4, .width = 512, .hidden = 256, .first = 8, .local = 8});
  }
}

}  // namespace
}  // namespace k3::ops::cuda
