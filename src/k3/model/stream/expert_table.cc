#include "k3/model/stream/expert_table.h"

#include <algorithm>

#include "k3/model/wiring.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3 {
namespace {

constexpr std::array<ParamId, 3> kMatrices = {ParamId::expert_w1, ParamId::expert_w2, ParamId::expert_w3};

std::array<ops::Weight*, 3> matrices(ops::ExpertWeights& w) { return {&w.w1, &w.w2, &w.w3}; }

}  // namespace

Result<ExpertTable> ExpertTable::build(const Checkpoint& checkpoint, const Config& config) {
  ExpertTable table;
  table.experts_per_layer_ = config.num_experts;
  table.first_.assign(static_cast<size_t>(config.num_hidden_layers), -1);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (!config.is_moe(l)) continue;
    table.first_[static_cast<size_t>(l)] = static_cast<int64_t>(table.places_.size());
    for (int64_t e = 0; e < config.num_experts; ++e) {
      ArenaPlan plan(checkpoint, config, Slack::runs);
      ops::ExpertWeights w;
      K3_TRY(wire_expert(plan, l, e, w));
      Place place;
      size_t job = 0;
      for (size_t m = 0; m < 3; ++m) {
        const ops::Weight& weight = *matrices(w)[m];
        table.dims_[m] = {weight.rows, weight.cols};
        place.schemes[m] = weight.scheme;
        const auto part = [&] {
          const TensorInfo& info = plan.jobs()[job++].info;
          return Part{info.offset, info.shard};
        };
        place.data[m] = part();
        if (weight.scheme == ops::Scheme::mxfp4) place.scales[m] = part();
      }
      table.places_.push_back(place);
      table.slot_bytes_ = std::max(table.slot_bytes_, plan.used());
      table.read_bytes_ = std::max(table.read_bytes_, plan.read_bytes());
    }
  }
  // Whole pages, so that slots do not share them.
  table.slot_bytes_ = (table.slot_bytes_ + 4095) / 4096 * 4096;
  return table;
}

ops::ExpertWeights ExpertTable::place(int64_t layer, int64_t expert, std::byte* slot, std::span<const int32_t> files,
                                      std::vector<DiskRequest>& reads) const {
  const Place& from = place_of(layer, expert);
  ops::ExpertWeights out;
  SlackPlacer placer;
  const size_t first = reads.size();
  const auto put = [&](const Part& part, int64_t bytes) {
    std::byte* at = slot + placer.place(part.shard, part.offset, bytes, SlackPlacer::Align::file);
    DiskRequest* last = reads.size() > first ? &reads.back() : nullptr;
    const int32_t file = files[static_cast<size_t>(part.shard)];
    const bool follows = last != nullptr && last->file == file && last->offset + last->bytes == part.offset &&
                         last->target + last->bytes == at;
    if (follows) {
      last->bytes += bytes;
    } else {
      reads.push_back({file, part.offset, bytes, at});
    }
    return at;
  };
  for (size_t m = 0; m < 3; ++m) {
    ops::Weight& w = *matrices(out)[m];
    w.scheme = from.schemes[m];
    w.rows = dims_[m].rows;
    w.cols = dims_[m].cols;
    w.data = put(from.data[m], w.rows * ops::scheme_row_bytes(w.scheme, w.cols));
    if (w.scheme == ops::Scheme::mxfp4) {
      w.scales = reinterpret_cast<const uint8_t*>(put(from.scales[m], w.rows * (w.cols / 32)));
    }
  }
  return out;
}

Status ExpertTable::finish(const Checkpoint& checkpoint, const Config& config, int64_t layer, int64_t expert,
                           const ops::ExpertWeights& weights, ThreadPool& pool) const {
  ops::ExpertWeights w = weights;
  for (size_t m = 0; m < 3; ++m) {
    const ops::Weight& matrix = *matrices(w)[m];
    if (matrix.scheme != ops::Scheme::mxfp4) continue;
    const int64_t groups = matrix.cols / 32;
    const std::span<const std::byte> scales(reinterpret_cast<const std::byte*>(matrix.scales),
                                            static_cast<size_t>(matrix.rows * groups));
    const int32_t shard = place_of(layer, expert).scales[m].shard;
    Status good = check_scales(checkpoint.shard_file(shard), "", scales, groups);
    if (!good.ok()) {
      return check_scales(checkpoint.shard_file(shard), param_name(config, kMatrices[m], layer, expert) + "_scale", scales,
                          groups);
    }
    // The slot is ours to write until the expert is used.
    auto* codes = static_cast<uint8_t*>(const_cast<void*>(matrix.data));
    pool.parallel_for(matrix.rows, 64, [&](int64_t begin, int64_t end) {
      ops::mxfp4_relayout(codes + begin * (matrix.cols / 2), end - begin, matrix.cols);
    });
  }
  return {};
}

}  // namespace k3
