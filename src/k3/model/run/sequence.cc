#include "k3/model/run/sequence.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "k3/base/units.h"

namespace k3 {
namespace {

constexpr int64_t kDevicePage = 64;  // tokens, what the GPU kernels like

int64_t state_elements(const Config& c) { return c.kda_num_heads * c.kda_head_dim * c.kda_head_dim; }
int64_t conv_elements(const Config& c) { return 3 * (c.short_conv_kernel_size - 1) * c.kda_width(); }
int64_t latent_width(const Config& c) { return c.kv_lora_rank + c.qk_rope_head_dim; }

// The latents of one layer, or an error where a wrapped product would give a small mapping.
Result<int64_t> latent_bytes(const Config& c, int64_t sequences, int64_t ctx_tokens, int64_t element) {
  int64_t rows = 0, bytes = 0;
  if (__builtin_mul_overflow(sequences, ctx_tokens, &rows) ||
      __builtin_mul_overflow(rows, latent_width(c) * element, &bytes)) {
    return fail(Code::exhausted, "no address space for {} sequences of {} tokens", sequences, ctx_tokens);
  }
  return bytes;
}

}  // namespace

Result<SequencePool> SequencePool::create(const Config& config, ops::Policy policy, int64_t sequences, int64_t ctx_tokens,
                                          const SequenceDtypes& dtypes, Device device) {
  SequencePool pool;
  pool.device_ = device;
  pool.config_ = config;
  pool.conv_dtype_ = policy == ops::Policy::exact ? DType::f32 : DType::bf16;
  pool.latent_dtype_ = dtypes.latent.value_or(pool.conv_dtype_);
  pool.state_dtype_ = dtypes.state.value_or(DType::f32);
  if (device.is_cuda() && pool.latent_dtype_ != DType::bf16) {
    return fail(Code::unsupported, "latents of dtype {} are for --device cpu; the GPU kernels read BF16", dtype_name(pool.latent_dtype_));
  }
  pool.ctx_tokens_ = device.is_cuda() ? (ctx_tokens + kDevicePage - 1) / kDevicePage * kDevicePage : ctx_tokens;
  ctx_tokens = pool.ctx_tokens_;
  pool.lengths_.assign(static_cast<size_t>(sequences), 0);
  pool.page_numbers_.resize(static_cast<size_t>(sequences * pool.pages_of_sequence()));
  std::iota(pool.page_numbers_.begin(), pool.page_numbers_.end(), 0);
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  pool.layers_.resize(layers);
  pool.views_.resize(layers);
  pool.pages_.resize(layers);
  for (size_t l = 0; l < layers; ++l) {
    Layer& layer = pool.layers_[l];
    if (config.is_kda(static_cast<int64_t>(l))) {
      K3_TRY_ASSIGN(layer.recurrent, Storage::allocate_on(device, sequences * state_elements(config) * dtype_bytes(pool.state_dtype_)));
      K3_TRY_ASSIGN(layer.conv, Storage::allocate_on(device, sequences * conv_elements(config) * dtype_bytes(pool.conv_dtype_)));
    } else {
      K3_TRY_ASSIGN(const int64_t bytes, latent_bytes(config, sequences, ctx_tokens, dtype_bytes(pool.latent_dtype_)));
      K3_TRY_ASSIGN(layer.latents, device.is_cuda() ? Storage::allocate_on(device, bytes) : Storage::reserve(bytes));
    }
  }
  return pool;
}

void SequencePool::reset(int32_t sequence) {
  lengths_[static_cast<size_t>(sequence)] = 0;
  for (Layer& layer : layers_) {
    for (Storage* storage : {&layer.recurrent, &layer.conv}) {
      const int64_t bytes = storage->size_bytes() / sequences();
      if (bytes > 0) clear(storage->data() + sequence * bytes, bytes);
    }
  }
}

void SequencePool::clear(std::byte* at, int64_t bytes) const {
  if (!device_.is_cuda()) {
    std::memset(at, 0, static_cast<size_t>(bytes));
    return;
  }
  // A device that is lost says so at the next step.
  if (fill_async(at, 0, bytes, nullptr).ok()) (void)synchronize(nullptr);
}

int64_t SequencePool::pages_of_sequence() const { return device_.is_cuda() ? ctx_tokens_ / kDevicePage : 1; }

std::vector<std::span<std::byte>> SequencePool::parts(int32_t sequence, int64_t tokens) const {
  std::vector<std::span<std::byte>> out;
  const int64_t row = latent_width(config_) * dtype_bytes(latent_dtype_);
  for (const Layer& layer : layers_) {
    for (const Storage* storage : {&layer.recurrent, &layer.conv}) {
      const auto bytes = static_cast<size_t>(storage->size_bytes() / sequences());
      if (bytes > 0) out.emplace_back(storage->data() + static_cast<size_t>(sequence) * bytes, bytes);
    }
    if (layer.latents.data() == nullptr) continue;
    out.emplace_back(layer.latents.data() + sequence * ctx_tokens_ * row, static_cast<size_t>(tokens * row));
  }
  return out;
}

Status SequencePool::save(int32_t sequence, const std::function<Status(std::span<const std::byte>)>& write) const {
  for (const std::span<std::byte> part : parts(sequence, length(sequence))) {
    if (!device_.is_cuda()) {
      K3_TRY(write(part));
      continue;
    }
    std::vector<std::byte> host(part.size());
    K3_TRY(copy_async(host.data(), part.data(), static_cast<int64_t>(part.size()), nullptr));
    K3_TRY(synchronize(nullptr));
    K3_TRY(write(host));
  }
  return {};
}

Status SequencePool::restore(int32_t sequence, int64_t tokens, const std::function<Status(std::span<std::byte>)>& read) {
  K3_CHECK(tokens >= 0 && tokens <= ctx_tokens_, "{} tokens", tokens);
  for (const std::span<std::byte> part : parts(sequence, tokens)) {
    if (!device_.is_cuda()) {
      K3_TRY(read(part));
      continue;
    }
    std::vector<std::byte> host(part.size());
    K3_TRY(read(host));
    K3_TRY(copy_async(part.data(), host.data(), static_cast<int64_t>(part.size()), nullptr));
    K3_TRY(synchronize(nullptr));
  }
  lengths_[static_cast<size_t>(sequence)] = tokens;
  return {};
}

std::span<const LayerCache> SequencePool::views(std::span<const int32_t> sequences) {
  slots_.assign(sequences.begin(), sequences.end());
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    LayerCache& view = views_[l];
    if (config_.is_kda(static_cast<int64_t>(l))) {
      view.state = {layer.recurrent.data(),
                    state_dtype_,
                    state_elements(config_),
                    layer.conv.data(),
                    conv_dtype_,
                    conv_elements(config_),
                    slots_.data()};
      continue;
    }
    // Pages that lie behind each other: one as long as the context, on a GPU of the size its kernels want.
    std::vector<ops::PagedKv>& pages = pages_[l];
    pages.resize(sequences.size());
    const int64_t width = latent_width(config_), page_tokens = ctx_tokens_ / pages_of_sequence();
    for (size_t s = 0; s < sequences.size(); ++s) {
      pages[s] = {layer.latents.data(), latent_dtype_, width, page_tokens, page_tokens * width, width,
                  page_numbers_.data() + sequences[s] * pages_of_sequence()};
    }
    view.pages = pages;
  }
  return views_;
}

}  // namespace k3
