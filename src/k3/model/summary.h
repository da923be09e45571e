// Purpose:  parameters, bytes, FLOPs and cache sizes of a model, from its config and the parameter table alone.
// Shapes:   none.
// Units:    parameters are logical weights (two per packed MXFP4 byte); bytes as stored in the released layout;
//           FLOPs count a multiply-add as two.
// Memory:   plain values.
// Threads:  pure function.
// Errors:   check_sizes: unsupported for a model of more tensors or weights than can be counted here; every user of a
//           config that has not been read before calls it first. summarise, family_totals: none after that.
// Source:   model.md 7.1-7.3.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "k3/format/checkpoint.h"
#include "k3/format/config.h"
#include "k3/model/params.h"

namespace k3 {

struct ComponentTotals {
  int64_t tensors = 0, params = 0, size_bytes = 0;
};

struct ModelSummary {
  std::map<Component, ComponentTotals> components;  // in the order of the enum
  ComponentTotals total;
  int64_t active_params = 0;  // read per decoded token: with lm_head, without the embedding table and vision
  int64_t active_bytes = 0;   // the same in stored bytes: the floor of decoding one sequence
  int64_t kda_layers = 0, mla_layers = 0, moe_layers = 0, dense_layers = 0;

  double matrix_flops_per_token = 0;       // projections, experts, lm_head
  double recurrence_flops_per_token = 0;   // KDA, step form
  double attention_flops_per_context = 0;  // absorbed MLA, per cached token

  int64_t latent_values_per_token = 0;    // all MLA layers
  int64_t state_values_per_sequence = 0;  // all KDA layers, always FP32 here
  int64_t conv_values_per_sequence = 0;

  int64_t cache_bytes_per_token(int64_t element_bytes) const { return latent_values_per_token * element_bytes; }
  int64_t cache_bytes_per_sequence(int64_t conv_element_bytes) const {
    return state_values_per_sequence * 4 + conv_values_per_sequence * conv_element_bytes;
  }
};

// A config of a few lines can ask for any number of tensors: this refuses, before anything is enumerated or allocated.
Status check_sizes(const Config& config);

ModelSummary summarise(const Config& config);

// A family over all its layers and experts, in the released layout; zeros where the config has none.
ComponentTotals family_totals(const Config& config, const ParamFamily& family);

// Replaces the bytes and tensor counts of the released layout by those of a checkpoint, whose matrices may be F32 or F16 and
// whose experts may be packed or not. Needs all shards.
Status use_stored_sizes(const Checkpoint& checkpoint, const Config& config, ModelSummary& summary);

}  // namespace k3
