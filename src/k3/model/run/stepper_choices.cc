// Tokens that are chosen on the GPU, behind the kernels of a step: 8 bytes a row come to the host in place of the logits.
#include <algorithm>

#include "k3/model/model.h"
#include "k3/model/run/stepper.h"

namespace k3 {
namespace {

using ops::cuda::ChosenRow, ops::cuda::SampleRow;

bool any(std::span<const RowChoice> choices) {
  return std::any_of(choices.begin(), choices.end(), [](const RowChoice& c) { return c.has_value(); });
}
// The kernel for greedy rows alone takes no parameters.
bool greedy(std::span<const RowChoice> choices) {
  return std::all_of(choices.begin(), choices.end(), [](const RowChoice& c) { return !c || c->temperature == 0; });
}

// The buffers of so many rows: parameters, then ids, then flags.
SampleRow* params_in(const Storage& choices) { return reinterpret_cast<SampleRow*>(choices.data()); }
int32_t* ids_in(const Storage& choices, size_t rows) { return reinterpret_cast<int32_t*>(params_in(choices) + rows); }

}  // namespace

bool Stepper::can_choose() const { return gpu_ != nullptr && !ctx_.deterministic && ops::cuda::can_choose(model_->config().vocab_size); }

// Before the kernels: then the copy is not between the last of them and the choice. The step before has read the host's buffer.
Status Stepper::stage_choices_on_gpu(const Batch& batch) {
  if (!any(batch.choices) || greedy(batch.choices)) return {};
  SampleRow* const params = params_in(gpu_->host_choices);
  for (size_t i = 0; i < batch.choices.size(); ++i) params[i] = batch.choices[i].value_or(SampleRow{.temperature = 0});
  return copy_async(gpu_->choices.data(), params, static_cast<int64_t>(batch.choices.size() * sizeof(SampleRow)), gpu_->stream.get());
}

Status Stepper::choose_on_gpu(const Batch& batch, const Tensor& logits) {
  if (!any(batch.choices)) return {};
  int32_t* const ids = ids_in(gpu_->choices, batch.choices.size());
  ops::cuda::choose_rows(ctx_, logits, greedy(batch.choices) ? nullptr : params_in(gpu_->choices), ids,
                         reinterpret_cast<uint32_t*>(ids + batch.choices.size()));
  return {};
}

// Ids and flags of all rows, logits of those without a choice.
Status Stepper::fetch_rows_on_gpu(const Batch& batch, const Tensor& host) {
  const Gpu& gpu = *gpu_;
  const int64_t rows = host.dim(0), row_bytes = host.dim(1) * 4;
  const bool some = any(batch.choices);
  if (some) {
    const auto count = static_cast<size_t>(rows);
    K3_TRY(copy_async(ids_in(gpu.host_choices, count), ids_in(gpu.choices, count), rows * static_cast<int64_t>(sizeof(ChosenRow)), gpu.stream.get()));
  }
  const auto wanted = [&](int64_t row) { return !some || !batch.choices[static_cast<size_t>(row)]; };
  for (int64_t begin = 0; begin < rows;) {
    int64_t end = begin;
    while (end < rows && wanted(end)) ++end;
    if (end > begin) {
      K3_TRY(copy_async(gpu.host_logits.data() + begin * row_bytes, gpu.logits.data() + begin * row_bytes, (end - begin) * row_bytes, gpu.stream.get()));
    }
    begin = end + 1;
  }
  return {};
}

void Stepper::note_chosen(const Batch& batch) {
  if (!any(batch.choices)) return;
  const size_t rows = batch.choices.size();
  const int32_t* const ids = ids_in(gpu_->host_choices, rows);
  const auto* const flags = reinterpret_cast<const uint32_t*>(ids + rows);
  for (size_t i = 0; i < rows; ++i) chosen_.push_back(batch.choices[i] ? ChosenRow{ids[i], flags[i]} : ChosenRow{ops::cuda::kNotChosen, 0});
}

}  // namespace k3
