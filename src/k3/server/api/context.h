// Purpose:  what every route needs: the engine's functions, the tokenizer and chat format, what is said about the model,
//           and the operator's choices.
// Shapes:   none.
// Units:    tokens, bytes, seconds.
// Memory:   the tokenizer and the chat format outlive the server.
// Threads:  immutable while the server runs.
// Errors:   none.
// Source:   api.md 1, 2, 3.3.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "k3/format/chat/chat.h"
#include "k3/format/tokenizer.h"
#include "k3/ops/sampling/sampling.h"
#include "k3/server/engine_api.h"
#include "k3/server/http/http.h"

namespace k3::server {

struct ModelCard {
  std::string id;
  std::vector<std::string> aliases;
  int64_t created = 0;  // Unix seconds
  int64_t ctx_tokens = 0;
  int64_t parameters = 0, active_parameters = 0, layers = 0, kda_layers = 0, mla_layers = 0, vocab = 0, size_bytes = 0;
  std::string weight_format, version, build;
};

enum class ParamPolicy { open, kimi };

// What Grammar::for_chat does; empty: this build cannot constrain, and requests that need it are refused.
using GrammarCompiler = std::function<Result<std::shared_ptr<const Grammar>>(const ChatRequest&, const Prompt&)>;

// Grammars of raw text (completions), from the first token on.
enum class TextGrammar { json_schema, regex, ebnf };
using TextGrammarCompiler = std::function<Result<std::shared_ptr<const Grammar>>(TextGrammar, std::string_view)>;

struct ServerOptions {
  ParamPolicy param_policy = ParamPolicy::open;
  bool strict_tools = false;  // calls to tools that were not declared are dropped
  bool vllm_metrics = false;  // the names of vLLM's metrics, too
  bool developer = false;     // POST /reset_prefix_cache
  std::string cors;           // "", "localhost", "*", or one origin
  std::vector<std::string> api_keys;
  std::vector<std::string> allowed_hosts;  // names in Host, beside localhost and addresses; not empty: Host is checked
  double ping_seconds = 0;                 // a stream that says nothing for so long says that it lives; 0: never
  double wedged_seconds = 60;  // no step for so long with work pending: /health says 503
};

// Answers under way, so that a server that must stop at once can end each with a reason, and a silent stream be kept open.
class LiveAnswers {
 public:
  struct Calls {
    std::function<void()> interrupt, ping;
  };
  uint64_t add(Calls calls) {
    const std::lock_guard lock(mutex_);
    live_.emplace(++next_, std::move(calls));
    return next_;
  }
  void remove(uint64_t key) {
    const std::lock_guard lock(mutex_);
    live_.erase(key);
  }
  void interrupt_all() {
    std::map<uint64_t, Calls> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(live_);
    }
    for (const auto& [key, calls] : all) calls.interrupt();
  }
  void ping_all() {
    std::map<uint64_t, Calls> all;
    {
      const std::lock_guard lock(mutex_);
      all = live_;
    }
    for (const auto& [key, calls] : all) calls.ping();
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, Calls> live_;
  uint64_t next_ = 0;
};

struct Context {
  EngineApi engine;
  const Tokenizer* tokenizer = nullptr;
  const ChatFormat* format = nullptr;  // null: no chat routes
  GrammarCompiler compile_grammar;
  TextGrammarCompiler compile_text_grammar;
  ModelCard card;
  ServerOptions options;
  ops::SamplingParams defaults;                 // the checkpoint's
  std::vector<int32_t> stop_ids;                // that end an answer of the chat format
  std::vector<int32_t> text_stop_ids;           // that end a raw text
  std::function<void(const std::string&)> log;  // a line a request
  std::function<http::ServerStats()> http_stats;
  std::shared_ptr<LiveAnswers> answers = std::make_shared<LiveAnswers>();
};

}  // namespace k3::server
