#include "k3/train/run/write_batches.h"

#include "k3/format/npy.h"
#include "k3/train/run/batch_feed.h"
#include "k3/train/run/run_data.h"

namespace k3::train {

Status write_batches(const TrainConfig& config, const std::string& path) {
  K3_TRY_ASSIGN(RunData data, RunData::open(config));
  const int64_t steps = config.total_steps();
  int64_t tokens = 0;
  for (const Phase& phase : config.phases) {
    if (phase.steps == 0) continue;
    if (tokens != 0 && tokens != phase.tokens_per_step) {
      return fail(Code::invalid_argument, "{}: steps of {} and of {} tokens do not fit into one matrix of batches", config.path, tokens, phase.tokens_per_step);
    }
    tokens = phase.tokens_per_step;
  }
  if (config.model.vocab_size > int64_t{1} << 24) return fail(Code::invalid_argument, "{}: ids beyond 2^24 are not written", config.path);
  K3_TRY_ASSIGN(NpyWriter writer, NpyWriter::create(path, 3 * steps, tokens));
  std::vector<float> rows[3];
  for (std::vector<float>& row : rows) row.reserve(static_cast<size_t>(tokens));
  BatchFeed feed(config, {}, data.manifest().pad, [&](size_t phase) { return data.batches_of(phase); }, 0);
  for (int64_t step = 0; step < steps; ++step) {
    K3_TRY_ASSIGN(const StepBatches* const batches, feed.next());
    for (std::vector<float>& row : rows) row.clear();
    for (const StepBatches::Micro& micro : batches->micros) {
      const size_t begin = rows[2].size();
      rows[0].insert(rows[0].end(), micro.batch.tokens.begin(), micro.batch.tokens.end());
      rows[1].insert(rows[1].end(), micro.batch.targets.begin(), micro.batch.targets.end());
      rows[2].resize(rows[0].size(), 0.0F);
      for (size_t s = 0; s + 1 < micro.batch.offsets.size(); ++s) rows[2][begin + static_cast<size_t>(micro.batch.offsets[s])] = 1;
    }
    for (const std::vector<float>& row : rows) K3_TRY(writer.append(row));
  }
  return writer.finish();
}

}  // namespace k3::train
