// MLA of any sizes against double on the same stored latents.
#include "k3/ops/mla/cuda/mla_any_dims.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/mla/mla_cases.h"

namespace k3::ops::cuda {
namespace {

constexpr double kTolerance = 3e-3;  // mla_any_dims.h

void round_all(std::vector<float>& x) {
  for (float& v : x) v = round_to_bf16(v);
}

// The step's rows are appended, then attended to with the history.
void check(MlaCase c) {
  c.cache = DType::bf16;
  c.scheme = Scheme::bf16;
  MlaData data(c, 3);
  round_all(data.q);
  round_all(data.kv);
  for (size_t i = 0; i < data.weight.size(); ++i) data.weight[i] = bf16_to_float(data.weight16[i]);
  const int64_t tokens = data.tokens(), width = data.width(), heads = c.heads, value = c.value;
  SCOPED_TRACE(fmt::format("H {} nope {} rope {} value {} rank {} T {}", heads, c.nope, c.rope, value, c.rank, tokens));

  int64_t most_pages = 1;
  for (const std::vector<int32_t>& t : data.tables) most_pages = std::max(most_pages, static_cast<int64_t>(t.size()));
  std::vector<int32_t> tables(data.tables.size() * static_cast<size_t>(most_pages), 0x3FFFFFF), lengths;  // never to be followed
  for (size_t s = 0; s < data.tables.size(); ++s) {
    std::copy(data.tables[s].begin(), data.tables[s].end(), tables.begin() + static_cast<int64_t>(s) * most_pages);
    lengths.push_back(static_cast<int32_t>(c.history[s] + c.lengths[s]));
  }
  const auto* words = reinterpret_cast<const uint16_t*>(data.pool.data());
  const DeviceArray<uint16_t> pool(std::span(words, data.pool.size() / 2)), kv(to_bf16(data.kv)), q(to_bf16(data.q)), kv_b(data.weight16);
  const DeviceArray<float> norm(data.norm);
  const DeviceArray<int32_t> tables_d(tables), lengths_d(lengths), offsets(std::vector<int32_t>(data.offsets.begin(), data.offsets.end())),
      history(std::vector<int32_t>(c.history.begin(), c.history.end()));
  const int64_t out_stride = heads * value + 3;
  const DeviceArray<uint16_t> out(tokens * out_stride);
  const PagedKv& first = data.caches.front();
  const LatentPages pages{.base = pool.data(),
                          .page_stride = first.page_stride,
                          .row_stride = first.row_stride,
                          .pages = 0,
                          .page_tokens = first.page_tokens,
                          .table = tables_d.data(),
                          .table_stride = most_pages};
  const auto batch = static_cast<int64_t>(c.lengths.size());
  LatentAppendAny append;
  append.append = {.kv = kv.data(),
                   .kv_stride = width,
                   .norm_weight = norm.data(),
                   .norm_f32 = true,
                   .eps = 1e-6F,
                   .tokens = tokens,
                   .batch = batch,
                   .offsets = offsets.data(),
                   .history = history.data(),
                   .pages = pages};
  append.rank = static_cast<int>(c.rank);
  append.rope = static_cast<int>(c.rope);
  ASSERT_TRUE(latent_append_any_cuda(append, nullptr).ok());
  MlaAny m;
  m.dims = {static_cast<int>(heads), static_cast<int>(c.nope), static_cast<int>(c.rope), static_cast<int>(value), static_cast<int>(c.rank)};
  m.q = q.data();
  m.q_stride = heads * (c.nope + c.rope);
  m.kv_b = kv_b.data();
  m.lengths = lengths_d.data();
  m.offsets = offsets.data();
  m.batch = batch;
  m.tokens = tokens;
  m.pages = pages;
  m.out = out.data();
  m.out_stride = out_stride;
  ASSERT_TRUE(mla_any_dims_cuda(m, nullptr).ok());
  gpu_sync();

  // The CPU's rows differ by the rounding of one factor; nothing but the step's rows may differ at all.
  ThreadPool threads(1);
  Workspace workspace;
  Ctx ctx;
  ctx.pool = &threads;
  ctx.workspace = &workspace;
  data.append(ctx);
  const std::vector<uint16_t> got_pool = pool.get();
  for (size_t i = 0; i < got_pool.size(); ++i) {
    if (got_pool[i] == words[i]) continue;
    const float want = bf16_to_float(words[i]);
    ASSERT_NEAR(bf16_to_float(got_pool[i]), want, std::abs(want) * 0x1p-7F) << i;
  }
  std::memcpy(data.pool.data(), got_pool.data(), data.pool.size());
  std::vector<float> want(static_cast<size_t>(data.out_size())), got;
  mla_ref(data.args(want.data(), MlaForm::automatic));
  const std::vector<float> rows = from_bf16(out.get());
  for (int64_t t = 0; t < tokens; ++t) got.insert(got.end(), rows.begin() + t * out_stride, rows.begin() + t * out_stride + heads * value);
  EXPECT_LE(norm_ratio(got, want), kTolerance);
  EXPECT_TRUE(out.guards_intact() && pool.guards_intact());
}

TEST(MlaAnyDimsGpu, SanitizeEverySize) {
  K3_NEEDS_GPU();
  for (MlaCase c : mla_shapes()) {
    c.lengths = {5, 0, 1, 20};
    c.history = {0, 3, 9, 2};
    check(c);
  }
}

TEST(MlaAnyDimsGpu, SeveralTilesOfCachedTokens) {
  K3_NEEDS_GPU();
  for (const float scale : {1.0F, 12.0F}) {
    for (MlaCase c : mla_shapes()) {
      c.lengths = {1, 3, 140};
      c.history = {127, 600, 120};
      c.scale = scale;
      check(c);
    }
  }
}

}  // namespace
}  // namespace k3::ops::cuda
