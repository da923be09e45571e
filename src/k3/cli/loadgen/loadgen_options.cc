#include "k3/cli/loadgen/loadgen_options.h"

#include <CLI/CLI.hpp>

#include "k3/cli/range.h"
#include "k3/format/trace/workload.h"

namespace k3::cli {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;
constexpr int64_t kMostRequestTokens = int64_t{1} << 24;  // a body of 100 MB
constexpr double kMostSeconds = 30.0 * 86400;

std::string check_length(const std::string& text) {
  const auto parsed = LengthDistribution::parse(text);
  return parsed.ok() ? "" : parsed.error().message;
}

std::string check_sessions(const std::string& text) {
  const auto parsed = parse_sessions(text);
  return parsed.ok() ? "" : parsed.error().message;
}

void add_endpoint(CLI::App& app, LoadgenOptions& o) {
  const char* group = "Endpoint";
  app.add_option("URL", o.url, "The server: http://127.0.0.1:8000 (with or without /v1; no TLS)")->required();
  app.add_option("--model", o.model, "Which model to ask (default: the first of /v1/models)")->group(group);
  app.add_option("--api-key-file", o.api_key_file, "File whose first line is the bearer key")->group(group);
  app.add_flag("--chat", o.chat,
               "Ask /v1/chat/completions with words (default: /v1/completions with token ids of exact number)")
      ->group(group);
  app.add_option("--vocab", o.vocab, "Token ids are drawn below this (default: the server's n_vocab less 256, or 1000)")
      ->check(range(int64_t{1}, int64_t{1} << 31))
      ->type_name("N")
      ->group(group);
  app.add_option("--temperature", o.temperature, "Of sampling (default 0)")
      ->check(range(0.0, 100.0))
      ->type_name("X")
      ->group(group);
  app.add_flag("--no-ignore-eos", o.no_ignore_eos, "Let answers end where the model ends them (default: ignore_eos is sent)")
      ->group(group);
  app.add_option("--body", o.body, "More fields for every request: a JSON object")->type_name("JSON")->group(group);
  app.add_option("--timeout", o.timeout_s, "Longest request in seconds (default 600)")
      ->check(range(0.001, kMostSeconds))
      ->type_name("S")
      ->group(group);
  app.add_option("--connect-timeout", o.connect_timeout_s, "Longest wait for a connection in seconds (default 10)")
      ->check(range(0.001, kMostSeconds))
      ->type_name("S")
      ->group(group);
  app.add_flag("--retry-429", o.retry_429,
               "After 429 wait as Retry-After says and ask again (default: it counts as a failure)")
      ->group(group);
}

void add_trace(CLI::App& app, LoadgenOptions& o) {
  const char* group = "Load from a trace";
  const auto number = [&](const char* name, int64_t& value, const char* help, int64_t least) {
    app.add_option(name, value, help)->check(range(least, kMost))->type_name("N")->group(group);
  };
  app.add_option("--trace", o.trace,
                 "Mooncake JSONL (session fields too), Azure CSV or BurstGPT CSV; told by its first line")
      ->type_name("FILE")
      ->group(group);
  number("--block-tokens", o.block_tokens, "Tokens that a hash id stands for (default 512)", 1);
  app.add_option("--scale", o.scale, "Factor of all lengths, blocks too (default 1)")
      ->check(range(1e-6, 1e3))
      ->type_name("X")
      ->group(group);
  number("--max-output", o.max_output, "Cap of output lengths", 1);
  number("--max-input", o.max_input, "Leave out requests with longer prompts (after --scale)", 1);
  number("--limit", o.limit, "Send only the first N", 1);
  app.add_option("--sessions", o.sessions, "Send only these sessions: 0-11")
      ->check(check_sessions)
      ->type_name("A-B")
      ->group(group);
}

void add_synthetic(CLI::App& app, LoadgenOptions& o) {
  const char* group = "Synthetic load (without --trace)";
  const auto number = [&](const char* name, int64_t& value, const char* help, int64_t least, int64_t most) {
    app.add_option(name, value, help)->check(range(least, most))->type_name("N")->group(group);
  };
  number("-n,--requests", o.requests, "How many (default 100)", 1, 10'000'000);
  app.add_option("--input", o.input, "Tokens of prompts: N, uniform:LEAST:MOST or lognormal:MEDIAN:SIGMA (default 512)")
      ->check(check_length)
      ->type_name("D")
      ->group(group);
  app.add_option("--output", o.output, "Tokens of answers, in the same way (default 64)")
      ->check(check_length)
      ->type_name("D")
      ->group(group);
  number("--turns", o.turns, "Turns of a session: each prompt begins with all before it (default 1)", 1, 10'000);
  number("--shared-prefix", o.shared_prefix, "Tokens that all prompts begin with (default 0)", 0, kMostRequestTokens);
  app.add_option("--seed", o.seed, "Of lengths, contents and arrivals (default 0)")->type_name("N")->group(group);
}

void add_pacing(CLI::App& app, LoadgenOptions& o) {
  const char* group = "Who sends when (default: --trace by its clock, synthetic load one at a time)";
  auto* sequential = app.add_flag("--sequential", o.sequential, "One at a time, in the order of the file")->group(group);
  auto* users =
      app.add_option("-u,--users", o.users, "Closed loop: N users, each sends its next request when it has its answer")
          ->check(range(int64_t{1}, int64_t{100'000}))
          ->type_name("N")
          ->group(group)
          ->excludes(sequential);
  app.add_option("-r,--rate", o.rate, "Open loop: requests (or sessions) arrive at random, X a second (Poisson)")
      ->check(range(1e-6, 1e6))
      ->type_name("X")
      ->group(group)
      ->excludes(sequential)
      ->excludes(users);
  app.add_option("--think-ms", o.think_ms,
                 "Closed loop and --turns: pause of a user between answer and next request (default 0)")
      ->check(range(0.0, kMostSeconds * 1e3))
      ->type_name("MS")
      ->group(group);
  app.add_option("--speed", o.speed, "Runs a trace's clock and think times X times as fast (default 1)")
      ->check(range(1e-3, 1e6))
      ->type_name("X")
      ->group(group);
  app.add_option("--duration", o.duration_s, "Start no request after S seconds")
      ->check(range(0.001, kMostSeconds))
      ->type_name("S")
      ->group(group);
  app.add_option("--warmup", o.warmup, "Requests that are sent first and not counted (default 0)")
      ->check(range(int64_t{0}, int64_t{100'000}))
      ->type_name("N")
      ->group(group);
}

}  // namespace

void add_loadgen_command(CLI::App& app, LoadgenOptions& o, Status& status) {
  CLI::App* command = app.add_subcommand("loadgen", "Load on an OpenAI-compatible server: latencies, throughput, hit rate")
                          ->group("Use a model");
  command->footer(
      "TTFT       from sending a request to its first token\n"
      "TPOT       time for each further output token, a mean of the request\n"
      "gap        between two frames of a stream (a frame may carry several tokens)\n"
      "hit rate   cached_tokens over prompt_tokens, as the server counts them\n"
      "lag        how much later than planned requests were sent: large values say that\n"
      "           this client, not the server, was too slow\n"
      "Prompts are made up: an equal block id of the trace gives equal text, so that the\n"
      "prefixes that requests share in the trace are shared here. Ctrl-C prints what was\n"
      "measured so far.\n\n"
      "Examples:\n"
      "  k3 loadgen http://127.0.0.1:8000 -n 50 --input 1000 --output 100 --users 8\n"
      "  k3 loadgen localhost:8000 -n 500 --input lognormal:800:0.9 --rate 4 --html load.html\n"
      "  k3 loadgen localhost:8000 --trace conversation_trace.jsonl --speed 2 --max-output 64\n"
      "  k3 loadgen localhost:8000 --trace agent_sessions.jsonl --sessions 0-11 --scale 0.25 \\\n"
      "      --max-output 16 --sequential --json > run.json");
  add_endpoint(*command, o);
  add_trace(*command, o);
  add_synthetic(*command, o);
  add_pacing(*command, o);
  const char* group = "Output";
  command->add_flag("--json", o.json, "Print JSON for programs, every request included")->group(group);
  command->add_option("--html", o.html, "Write a page with plots, one file")->type_name("FILE")->group(group);
  command->callback([&o, &status] { status = loadgen_command(o); });
}

}  // namespace k3::cli
