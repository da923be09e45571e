#include "k3/plan/cost/service.h"

#include <algorithm>

#include "k3/plan/cost/prefill.h"
#include "k3/plan/cost/roof.h"

namespace k3::plan {

ClosedLoop closed_loop(const Deployment& d, const ClosedLoad& load) {
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const int64_t of_a_batch = std::clamp<int64_t>(load.prefill_batch_tokens / load.input_tokens, 1, load.concurrency);
  const PrefillSequence sequences{load.input_tokens, 0, of_a_batch};
  ClosedLoop loop;
  loop.prefill_batches = ceil_div(load.concurrency, of_a_batch);
  loop.prefill_batch_seconds = prefill_time(d, {{&sequences, 1}, 1}).seconds;
  DecodeBatch batch;
  batch.requests = load.concurrency;
  batch.context_tokens = real(load.input_tokens) + real(load.output_tokens) / 2;
  batch.draft_tokens = load.draft_tokens;
  batch.scheme = load.scheme;
  loop.step_seconds = decode_step(d, batch).seconds;
  const double batches = real(loop.prefill_batches), request = d.efficiency.request_seconds;
  const double gaps = real(load.output_tokens - 1);
  loop.ttft_seconds = loop.prefill_batch_seconds * (batches + 1) / 2 + request;
  loop.total_seconds = batches * loop.prefill_batch_seconds + request + gaps / load.tokens_per_step * loop.step_seconds;
  loop.tpot_seconds = gaps > 0 ? (loop.total_seconds - loop.ttft_seconds) / gaps : 0;
  loop.output_tokens_per_second = real(load.concurrency * load.output_tokens) / loop.total_seconds;
  loop.tokens_per_second_per_gpu =
      real(load.concurrency * (load.input_tokens + load.output_tokens)) / loop.total_seconds / real(d.layout.gpus());
  loop.user_tokens_per_second = loop.tpot_seconds > 0 ? 1 / loop.tpot_seconds : 0;
  return loop;
}

double prefill_replicas_per_decode_replica(double decode_tokens_per_second, double output_tokens, double input_tokens,
                                           double prefill_tokens_per_second) {
  return decode_tokens_per_second / output_tokens * input_tokens / prefill_tokens_per_second;
}

}  // namespace k3::plan
