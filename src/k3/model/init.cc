#include "k3/model/init.h"

#include <algorithm>
#include <cmath>

#include "k3/base/rng.h"
#include "k3/model/summary.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3 {
namespace {

// FNV-1a: a stable stream number from a tensor's name.
uint64_t stream_of(std::string_view name) {
  uint64_t h = 1469598103934665603ULL;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return h;
}

struct Unit {
  size_t begin, end;  // tensors of one parameter, or of one expert
  int64_t size_bytes;
};

std::vector<Unit> units_of(const std::vector<ParamTensor>& tensors) {
  std::vector<Unit> units;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ParamTensor& t = tensors[i];
    const bool joins = i > 0 && t.expert >= 0 && t.expert == tensors[i - 1].expert && t.layer == tensors[i - 1].layer;
    if (!joins) units.push_back({i, i, 0});
    units.back().end = i + 1;
    units.back().size_bytes += t.size_bytes();
  }
  return units;
}

}  // namespace

void draw_param(const Config& config, const ParamFamily& family, std::string_view name, uint64_t seed, ThreadPool& pool,
                std::vector<float>& out) {
  const Rng rng(seed, stream_of(name));
  const auto count = static_cast<int64_t>(out.size());
  const auto fill = [&](const auto& value) {
    pool.parallel_for(count, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[static_cast<size_t>(i)] = static_cast<float>(value(static_cast<uint64_t>(i)));
    });
  };
  switch (family.init) {
    case ParamInit::normal:
      pool.parallel_for(count, 4096, [&](int64_t begin, int64_t end) {
        rng.fill_normal(static_cast<uint64_t>(begin), config.initializer_range,
                        std::span(out).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      });
      return;
    case ParamInit::ones: fill([](uint64_t) { return 1.0; }); return;
    case ParamInit::zeros: fill([](uint64_t) { return 0.0; }); return;
    case ParamInit::conv: {
      // Uniform in +-1/sqrt(K), the usual range of a depthwise convolution of K taps.
      const double bound = 1.0 / std::sqrt(static_cast<double>(config.short_conv_kernel_size));
      fill([&](uint64_t i) { return (2 * rng.uniform(i) - 1) * bound; });
      return;
    }
    case ParamInit::dt_bias: {
      // The decay of a channel without input is -5 sigmoid(dt) (bounded) or -softplus(dt): draw the rate
      // log-uniformly in [0.001, 0.1] per token, so that memories of 10 to 1,000 tokens exist from the start.
      fill([&](uint64_t i) {
        const double rate = std::exp(std::log(0.001) + rng.uniform(i) * (std::log(0.1) - std::log(0.001)));
        if (!config.gate_lower_bound) return std::log(std::expm1(rate));
        const double s = rate / -*config.gate_lower_bound;
        return std::log(s / (1 - s));
      });
      return;
    }
  }
}

std::vector<std::vector<TensorSpec>> shard_plan(const std::vector<ParamTensor>& tensors, int64_t shards) {
  const std::vector<Unit> units = units_of(tensors);
  int64_t total = 0;
  for (const Unit& unit : units) total += unit.size_bytes;
  shards = std::clamp<int64_t>(shards, 1, static_cast<int64_t>(units.size()));
  std::vector<std::vector<TensorSpec>> plan(1);
  int64_t done = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    // A new file starts when this one has its share, or when every unit left must open one.
    const auto opened = static_cast<int64_t>(plan.size());
    const auto left = static_cast<int64_t>(units.size() - u);
    const bool share =
        static_cast<double>(done) >= static_cast<double>(total) * static_cast<double>(opened) / static_cast<double>(shards);
    if (!plan.back().empty() && opened < shards && (share || left <= shards - opened)) plan.emplace_back();
    for (size_t i = units[u].begin; i < units[u].end; ++i)
      plan.back().push_back({tensors[i].name, tensors[i].dtype, tensors[i].dims});
    done += units[u].size_bytes;
  }
  return plan;
}

void settle_random(Config& config) {
  if (!config.latent_moe_use_norm) config.latent_moe_use_norm = config.routed_expert_hidden_size.has_value() && config.nested;
  if (!config.mla_use_output_gate) config.mla_use_output_gate = false;
}

Status write_random_checkpoint(const Config& config, const std::string& folder, uint64_t seed, int64_t shards,
                               ThreadPool& pool, const LoadProgress& progress) {
  K3_TRY(check_sizes(config));
  if (config.trunk_int8) return fail(Code::unsupported, "a random model cannot have an 8-bit trunk; convert one");
  const auto draw = [&](const ParamTensor& t, std::vector<float>& values) {
    draw_param(config, *t.family, param_name(config, t.family->id, t.layer, t.expert), seed, pool, values);
  };
  return write_checkpoint(config, folder, shards, draw, progress);
}

Status write_checkpoint(const Config& config, const std::string& folder, int64_t shards, const ParamValues& values_of,
                        const LoadProgress& progress) {
  std::vector<ParamTensor> tensors;
  int64_t total = 0;
  for_each_tensor(config, [&](const ParamTensor& t) {
    tensors.push_back(t);
    total += t.size_bytes();
  });
  K3_TRY_ASSIGN(CheckpointWriter writer, CheckpointWriter::create(folder, shard_plan(tensors, shards)));
  std::vector<float> values;
  std::vector<std::byte> bytes, scales;
  int64_t done = 0;
  for (const ParamTensor& t : tensors) {
    bytes.resize(static_cast<size_t>(t.size_bytes()));
    if (t.dtype == DType::u8 && t.params == 0) {
      // Scales were made together with the codes of the tensor before.
      K3_TRY(writer.append(t.name, scales));
    } else {
      values.assign(static_cast<size_t>(t.params), 0.0F);
      values_of(t, values);
      if (t.dtype == DType::u8) {
        const int64_t rows = t.dims[0], cols = t.dims[1] * 2;
        scales.resize(static_cast<size_t>(rows * cols / 32));
        K3_TRY(ops::mxfp4_quantise(values.data(), rows, cols, reinterpret_cast<uint8_t*>(bytes.data()),
                                   reinterpret_cast<uint8_t*>(scales.data())));
      } else {
        convert_from_float(values.data(), t.dtype, t.params, bytes.data());
      }
      K3_TRY(writer.append(t.name, bytes));
    }
    done += t.size_bytes();
    if (progress) progress(done, total);
  }
  return writer.finish();
}

}  // namespace k3
