// A model on pages against the same model on its own caches, and checkpoints that are written inside the pass.
#include "k3/model/run/paged_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "k3/base/rng.h"
#include "k3/model/model.h"

namespace k3 {
namespace {

const std::string kModel = std::string(K3_SOURCE_DIR) + "/tests/data/oracle-models/k3-a";

// A pool of shuffled pages around a model, filled with NaN.
struct Paged {
  ThreadPool pool{2};
  Model model = Model::load(kModel, pool).value();
  std::vector<std::byte> bytes;
  PagedLayout layout;
  std::vector<int64_t> groups;
  std::vector<int32_t> order;
  size_t next = 0;

  explicit Paged(DType state = DType::f32, DType cache = DType::bf16) {
    const Config& c = model.config();
    int64_t kda = 0, mla = 0;
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) ++(c.is_kda(l) ? kda : mla);
    for (int64_t left = kda; left > 0; left -= mla) groups.push_back(std::min(left, mla));
    layout.page_tokens = 16;
    layout.state = state;
    layout.conv = layout.latent = cache;
    layout.conv_offset = c.kda_num_heads * c.kda_head_dim * c.kda_head_dim * dtype_bytes(state);
    const int64_t stride = layout.conv_offset + 3 * (c.short_conv_kernel_size - 1) * c.kda_width() * dtype_bytes(cache);
    const int64_t latent = layout.page_tokens * (c.kv_lora_rank + c.qk_rope_head_dim) * dtype_bytes(cache);
    layout.page_bytes = (std::max(mla * latent, mla * stride) + 63) / 64 * 64;
    layout.layers = place_layers(c, groups, latent, stride);
    bytes.assign(static_cast<size_t>(layout.page_bytes) * 64, std::byte{0xFF});
    layout.pool = bytes.data();
    for (int32_t i = 0; i < 64; ++i) order.push_back(i);
    const Rng rng(5, 5);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.bits(i) % i]);
  }
  int32_t page(bool zero) {
    const int32_t p = order[next++];
    if (zero) std::memset(bytes.data() + p * layout.page_bytes, 0, static_cast<size_t>(layout.page_bytes));
    return p;
  }
  std::vector<int32_t> pages(size_t count, bool zero) {
    std::vector<int32_t> out;
    for (size_t i = 0; i < count; ++i) out.push_back(page(zero));
    return out;
  }
};

std::vector<int32_t> ids_of(const Model& model, size_t count) {
  const Rng rng(9, 1);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.bits(i) % static_cast<uint32_t>(model.config().vocab_size)));
  return ids;
}

void append(const Tensor& logits, std::vector<float>& out) { out.insert(out.end(), logits.f32(), logits.f32() + logits.size()); }

TEST(PagedRunner, EqualsTheRunnerOnItsOwnCaches) {
  Paged paged;
  const std::vector<int32_t> ids = ids_of(paged.model, 70);
  RunnerOptions options;
  options.deterministic = true;
  Runner runner = Runner::create(paged.model, paged.pool, options).value();
  std::vector<float> want, got;
  const StepInput whole{0, ids, StepInput::Logits::all};
  append(runner.step(std::span(&whole, 1)).value(), want);

  PagedRunner other = PagedRunner::create(paged.model, paged.pool, options, paged.layout).value();
  const std::vector<int32_t> table = paged.pages(5, false), states = paged.pages(paged.groups.size(), true);
  size_t at = 0;
  for (const size_t chunk : {13u, 1u, 1u, 30u, 16u, 9u}) {
    const PagedInput input{std::span(ids).subspan(at, chunk), static_cast<int64_t>(at), table, states, {}, WantLogits::all};
    append(other.step(std::span(&input, 1)).value(), got);
    at += chunk;
  }
  EXPECT_EQ(want, got);
}

class Checkpoints : public testing::TestWithParam<DType> {};

TEST_P(Checkpoints, AreTheStateAtTheirPositionAndTheSequenceGoesOnFromThem) {
  Paged paged(GetParam());
  const std::vector<int32_t> ids = ids_of(paged.model, 60);
  ComputeMode mode;
  mode.deterministic = true;
  PagedRunner runner = PagedRunner::create(paged.model, paged.pool, mode, paged.layout).value();
  const size_t groups = paged.groups.size();
  // One pass over everything beside a neighbour, with copies at positions on and off any grid.
  const std::vector<int32_t> table = paged.pages(4, false), states = paged.pages(groups, true);
  const std::vector<int32_t> other_table = paged.pages(1, false), other_states = paged.pages(groups, true);
  std::vector<std::vector<int32_t>> copies;
  std::vector<PagedExport> exports;
  const std::vector<int64_t> positions = {1, 2, 16, 37, 60};
  for (size_t i = 0; i < positions.size(); ++i) copies.push_back(paged.pages(groups, false));
  for (size_t i = 0; i < positions.size(); ++i) exports.push_back({positions[i], copies[i]});
  const PagedInput inputs[] = {
      {std::span(ids).first(5), 0, other_table, other_states, {}, WantLogits::none},
      {ids, 0, table, states, exports, WantLogits::all},
  };
  std::vector<float> want;
  append(runner.step(inputs).value(), want);
  const size_t vocab = static_cast<size_t>(paged.model.config().vocab_size);
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto p = static_cast<size_t>(positions[i]);
    // The same tokens up to the position, computed alone, leave the same bytes.
    const std::vector<int32_t> fresh = paged.pages(groups, true), fresh_table = paged.pages(1, false);
    std::vector<int32_t> tables = table;  // rows are written again with the same values
    const PagedInput alone{std::span(ids).first(p), 0, tables, fresh, {}, WantLogits::none};
    ASSERT_TRUE(runner.step(std::span(&alone, 1)).ok());
    for (size_t g = 0; g < groups; ++g) {
      for (size_t l = 0; l < paged.layout.layers.size(); ++l) {
        if (paged.layout.layers[l].group != static_cast<int32_t>(g)) continue;
        const std::byte* base = paged.bytes.data() + paged.layout.layers[l].offset;
        const auto size = static_cast<size_t>(paged.layout.conv_offset);
        EXPECT_EQ(std::memcmp(base + copies[i][g] * paged.layout.page_bytes, base + fresh[g] * paged.layout.page_bytes, size), 0)
            << "position " << p << " layer " << l;
      }
    }
    if (p == ids.size()) continue;
    // And the sequence goes on from the copy.
    const PagedInput rest{std::span(ids).subspan(p), positions[i], table, copies[i], {}, WantLogits::all};
    std::vector<float> got;
    append(runner.step(std::span(&rest, 1)).value(), got);
    EXPECT_EQ(std::vector<float>(want.begin() + static_cast<int64_t>(p * vocab), want.end()), got) << "position " << p;
    paged.next -= groups + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(States, Checkpoints, testing::Values(DType::f32, DType::bf16));

}  // namespace
}  // namespace k3
