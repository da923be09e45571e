#include "k3/model/random_weights.h"

#include <algorithm>

#include "k3/model/init.h"
#include "k3/model/summary.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3 {
namespace {

class Drawer {
 public:
  Drawer(const Config& config, const DeclaredWeights& declared, uint64_t seed, ThreadPool& pool, const LoadProgress& progress)
      : config_(config), declared_(declared), seed_(seed), pool_(pool), progress_(progress), total_(text_weight_bytes(config)) {}

  Status fill(const std::vector<ReadJob>& jobs) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!jobs[i].scales) K3_TRY(fill(jobs[i], i + 1 < jobs.size() ? &jobs[i + 1] : nullptr));
      done_ += jobs[i].info.size_bytes;
      if (progress_) progress_(done_, total_);
    }
    return {};
  }

 private:
  // The scales of packed codes are the job that follows them.
  Status fill(const ReadJob& job, const ReadJob* scales) {
    const ParamTensor& tensor = declared_.tensors.at(job.name);
    values_.assign(static_cast<size_t>(tensor.params), 0.0F);
    draw_param(config_, *tensor.family, param_name(config_, tensor.family->id, tensor.layer, tensor.expert), seed_, pool_, values_);
    if (job.packed) {
      K3_TRY(ops::mxfp4_quantise(values_.data(), job.info.dims[0], 2 * job.info.dims[1], reinterpret_cast<uint8_t*>(job.target),
                                 reinterpret_cast<uint8_t*>(scales->target)));
      return finish_job(declared_.checkpoint, job, job.target);
    }
    if (job.widen && job.info.dtype == DType::f32) {
      std::copy(values_.begin(), values_.end(), reinterpret_cast<float*>(job.target));
      return {};
    }
    if (!job.widen) {
      convert_from_float(values_.data(), job.info.dtype, tensor.params, job.target);
      return {};
    }
    stored_.resize(static_cast<size_t>(job.info.size_bytes));
    convert_from_float(values_.data(), job.info.dtype, tensor.params, stored_.data());
    return finish_job(declared_.checkpoint, job, stored_.data());
  }

  const Config& config_;
  const DeclaredWeights& declared_;
  uint64_t seed_;
  ThreadPool& pool_;
  const LoadProgress& progress_;
  int64_t total_, done_ = 0;
  std::vector<float> values_;
  std::vector<std::byte> stored_;
};

}  // namespace

Result<DeclaredWeights> declare_weights(const Config& config, bool with_experts) {
  K3_TRY(check_sizes(config));
  if (config.trunk_int8) return fail(Code::unsupported, "a random model cannot have an 8-bit trunk; convert one");
  std::vector<TensorSpec> specs;
  std::unordered_map<std::string, ParamTensor> tensors;
  for_each_tensor(config, [&](const ParamTensor& t) {
    if (t.family->store == ParamStore::expert && !with_experts) return;
    specs.push_back({t.name, t.dtype, t.dims});
    tensors.emplace(t.name, t);
  });
  return DeclaredWeights{Checkpoint::declare(specs), std::move(tensors)};
}

Result<WeightSet> random_weights(const Config& config, uint64_t seed, ThreadPool& pool, const LoadProgress& progress) {
  K3_TRY_ASSIGN(const DeclaredWeights declared, declare_weights(config, true));
  Drawer drawer(config, declared, seed, pool, progress);
  return place_weights(declared.checkpoint, config, [&](const std::vector<ReadJob>& jobs) { return drawer.fill(jobs); });
}

}  // namespace k3
