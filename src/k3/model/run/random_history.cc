// Caches that look as if tokens had been there: benches of long contexts need lengths and bytes, not a prompt.
#include <algorithm>

#include "k3/base/rng.h"
#include "k3/model/run/sequence.h"
#include "k3/ops/cuda/launch.h"
#include "k3/ops/cuda/roofline_gpu.h"

namespace k3 {
namespace {

// Latents are normalised and conv inputs are products of normalised rows; states sum rank-one updates of unit keys that decay.
constexpr float kInputScale = 1.0F, kStateScale = 0.1F;

Status fill_host(const Storage& storage, DType dtype, float scale, uint64_t seed) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<float> values(kBlock);
  const Rng rng(seed, 11);
  const int64_t count = storage.size_bytes() / dtype_bytes(dtype);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t some = std::min(kBlock, count - begin);
    rng.fill_normal(static_cast<uint64_t>(begin), static_cast<double>(scale), std::span(values).first(static_cast<size_t>(some)));
    convert_from_float(values.data(), dtype, some, storage.data() + begin * dtype_bytes(dtype));
  }
  return {};
}

// FP32 is filled as pairs of BF16: the second of a pair is the number, the first its lowest bits.
Status fill_device(const Storage& storage, float scale, uint64_t seed) {
  K3_TRY(ops::cuda::to_status(ops::cuda::fill_normal_bf16(storage.data(), storage.size_bytes() / 2, seed, scale, nullptr), "random history"));
  return synchronize(nullptr);
}

}  // namespace

Status SequencePool::pretend(int64_t tokens, uint64_t seed) {
  if (tokens < 0 || tokens > ctx_tokens_) {
    return fail(Code::exhausted, "{} tokens do not fit the context of {} (see --ctx)", tokens, ctx_tokens_);
  }
  for (Layer& layer : layers_) {
    const auto fill = [&](const Storage& storage, DType dtype, float scale) -> Status {
      if (storage.size_bytes() == 0) return {};
      ++seed;
      return device_.is_cuda() ? fill_device(storage, scale, seed) : fill_host(storage, dtype, scale, seed);
    };
    K3_TRY(fill(layer.recurrent, state_dtype_, kStateScale));
    K3_TRY(fill(layer.conv, conv_dtype_, kInputScale));
    K3_TRY(fill(layer.latents, latent_dtype_, kInputScale));
  }
  std::fill(lengths_.begin(), lengths_.end(), tokens);
  return {};
}

}  // namespace k3
