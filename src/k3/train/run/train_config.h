// Purpose:  everything a training run is told, read from one JSON file.
// Shapes:   none.
// Units:    tokens, steps.
// Memory:   plain values.
// Threads:  immutable after parse.
// Errors:   name the file, the field by its path and what is wrong with it; a field that nobody reads is refused, with the ones there are.
// Source:   training.md 2, 3, 4, 8; docs/training.md describes the fields.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/config.h"

namespace k3::train {

struct SourceShare {
  std::string name;
  double weight = 1;
  std::optional<double> share;  // instead of the weight: this part of all sequences
  bool learn_all = false;       // chat: loss on every token
};

struct Phase {
  std::string name;
  int64_t steps = 0;
  int64_t sequence_tokens = 0;
  int64_t tokens_per_step = 0;
  int64_t micro_batches = 1;
  std::vector<SourceShare> sources;
  bool mxfp4_experts = false;     // quantisation-aware: forward with the weights an export will have
  bool mxfp8_activations = false;
  bool new_schedule = false;      // warm-up and cosine begin again here, up to the next such phase
  double learning_rate = 1;       // factor of all rates while this schedule runs
};

enum class MatrixOptimizer { muon_per_head, muon, adamw };
enum class Balancing { quantile, sign, none };

struct Recipe {
  MatrixOptimizer matrices = MatrixOptimizer::muon_per_head;
  double matrix_rate = 0.006, vector_rate = 0.002, embedding_rate = 0.003;
  double minimum_rate = 0.02;  // of the peak, where the cosine ends
  double warmup = 0.01;        // share of a schedule's steps
  double weight_decay = 0.1, clip = 1.0, qk_clip = 100;
  std::optional<double> embedding_decay;  // of embed_tokens and lm_head; absent: weight_decay
  Balancing balancing = Balancing::quantile;
  double balancing_rate = 1;   // quantile: how far towards the new bias; sign: the step
};

struct SampleOptions {
  std::string text;  // continued as it is
  std::string chat;  // asked as a user's message
  int64_t tokens = 60;
};

struct TrainConfig {
  std::string path;        // of the file
  std::string json;        // its text
  Config model;
  std::string model_json;  // config.json of the export
  std::string tokenizer;   // folder
  std::string data;        // folder of `k3 prepare`
  std::string start;       // folder of the model that the weights come from; empty: they are drawn
  std::string start_sha256;  // of its tensors (start_model.h); empty in a file that does not say which it must be
  uint64_t seed = 0;
  bool recompute = false;
  Recipe recipe;
  std::vector<Phase> phases;
  int64_t evaluate_every = 0, evaluate_tokens = 0;  // 0: at the end alone; 0: all
  std::vector<std::string> evaluate_sources;        // empty: every held-out text source
  int64_t sample_every = 0, checkpoint_every = 0;   // 0: at the end alone
  SampleOptions sample;

  int64_t total_steps() const;
  // The phase of a step and where that phase begins.
  struct Place {
    size_t phase = 0;
    int64_t first_step = 0;
  };
  Place place(int64_t step) const;
};

// Paths in the file are relative to its folder. `set`: "key.path=value" replaces a field.
Result<TrainConfig> load_train_config(const std::string& path, const std::vector<std::string>& set = {});
Result<TrainConfig> parse_train_config(std::string_view json, const std::string& path);

}  // namespace k3::train
