// Purpose:  the fields that chat and text completions share: sampling, limits, stops, logprobs, streaming.
// Shapes:   none.
// Units:    tokens.
// Memory:   by value.
// Threads:  pure.
// Errors:   invalid_argument beginning with the field's name.
// Source:   api.md 3, 3.3, 5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "k3/server/api/context.h"
#include "k3/server/api/request/fields.h"

namespace k3::server {

struct Generation {
  std::string model;
  bool stream = false, include_usage = false, continuous_usage = false, internal_content = false;
  ops::SamplingParams sampling;
  int64_t max_tokens = 0;  // 0: all the room left
  int64_t min_tokens = 0, choices = 1;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false, skip_special_tokens = true, use_cache = true;
  int32_t logprobs = -1;  // -1: none; 0..20: entries of top_logprobs
  std::string cache_salt;
  int64_t slot = -1, priority = 0;
};

enum class Route { chat, text };
Result<Generation> parse_generation(const JsonNode& root, Route route, const Context& context);

// Names of fields that nobody here reads, each once in the life of the process (for the log).
std::vector<std::string> new_unknown_fields(const JsonNode& root);

}  // namespace k3::server
