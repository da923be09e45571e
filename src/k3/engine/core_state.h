// Internal to EngineCore: requests, their choices and the slots they occupy.
#pragma once

#include "k3/engine/core.h"

namespace k3 {

Status check_modelled(const CoreOptions& options, const Request& request);  // core_modelled.cc

struct EngineCore::Line {
  enum class State { forking, waiting, prefill, decode, ended };  // forking: gets its sequence when the prompt is done

  Job* job = nullptr;
  int32_t choice = 0;
  State state = State::forking;
  bool resumed = false;  // was preempted
  int32_t bypassed = 0;  // times that others were admitted past it

  std::vector<int32_t> tokens;  // prompt and generated
  int64_t generated = 0;
  int64_t cached = 0;  // tokens in the cache
  cache::KeyChain keys;
  std::optional<cache::SequenceId> sequence;
  int32_t slot = -1;

  std::unique_ptr<ops::Sampler> sampler;
  std::optional<Constraint> constraint;

  int64_t planned = 0;    // tokens in the step being computed
  int64_t reported = 0;   // prompt positions told to on_prompt_token; a preempted prompt is computed twice, told once
  double last_token_seconds = 0;

  explicit Line(cache::KeyChain chain) : keys(std::move(chain)) {}
  bool modelled() const;
  int64_t prompt_tokens() const;
  int64_t size() const { return prompt_tokens() + generated; }
  std::span<const cache::BlockKey> block_keys() const;
  cache::CachePrompt cache_prompt() const;
  int64_t remaining() const { return size() - cached; }
  bool waits_for_stop() const;  // min_tokens: none of stop_ids may come yet
  bool runs() const { return state == State::prefill || state == State::decode; }
  std::span<const int32_t> prompt() const { return std::span(tokens).first(tokens.size() - static_cast<size_t>(generated)); }
  std::span<const int32_t> answer() const { return std::span(tokens).last(static_cast<size_t>(generated)); }
};

struct EngineCore::Job {
  RequestId id{};
  Request request;
  uint64_t order = 0;
  double submitted = 0, admitted_at = -1, first_token_at = -1;
  RequestSummary summary;
  std::vector<std::unique_ptr<Line>> lines;
  bool done = false;
  bool cancelled = false;
};

inline bool EngineCore::Line::modelled() const { return job->request.modelled != nullptr; }

inline bool EngineCore::Line::waits_for_stop() const {
  return generated < job->request.min_tokens && !job->request.stop_ids.empty();
}

inline int64_t EngineCore::Line::prompt_tokens() const {
  return modelled() ? job->request.modelled->prompt_tokens : static_cast<int64_t>(tokens.size()) - generated;
}

inline std::span<const cache::BlockKey> EngineCore::Line::block_keys() const {
  return modelled() ? std::span<const cache::BlockKey>(job->request.modelled->keys) : keys.keys();
}

inline cache::CachePrompt EngineCore::Line::cache_prompt() const {
  return {block_keys(), tokens, size(), job->request.turn_ends};
}

// What is kept of a sequence besides its pages.
struct EngineCore::Kept {
  std::vector<int32_t> tokens;  // in the cache
  std::string salt;
  int64_t prompt_tokens = 0, cached_tokens = 0;
  int64_t modelled_tokens = 0, session = -1;  // of a modelled request

  int64_t size() const { return static_cast<int64_t>(tokens.size()) + modelled_tokens; }
};

// A slot is empty, runs a line, or keeps the sequence of one that ended.
struct EngineCore::Slot {
  Line* line = nullptr;
  std::optional<cache::SequenceId> idle;
  Kept kept;  // of the idle sequence
  uint64_t last_use = 0;
};

}  // namespace k3
