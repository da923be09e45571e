#include "k3/cli/plan/sim_options.h"

#include <CLI/CLI.hpp>

#include "k3/base/units.h"
#include "k3/cli/range.h"
#include "k3/format/trace/workload.h"
#include "k3/plan/cost/speculation.h"
#include "k3/plan/hardware/hardware_file.h"

namespace k3::cli {
namespace {

constexpr int64_t kMost = int64_t{1} << 40, kMostGpus = 4096;
constexpr double kMostSeconds = 30.0 * 86400;

std::string check_length(const std::string& text) {
  const auto parsed = LengthDistribution::parse(text);
  return parsed.ok() ? "" : parsed.error().message;
}
std::string check_sessions(const std::string& text) {
  const auto parsed = parse_sessions(text);
  return parsed.ok() ? "" : parsed.error().message;
}
std::string check_bytes(const std::string& text) {
  const auto parsed = parse_bytes(text);
  return parsed.ok() ? "" : parsed.error().message;
}

// Options of one group, a line each.
class Group {
 public:
  Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

  template <class Number>
  CLI::Option* number(const char* option, Number& value, const char* help, int64_t least, int64_t most,
                      const char* type = "N") {
    return app_.add_option(option, value, help)->check(range(least, most))->type_name(type)->group(name_);
  }
  template <class Number>
  CLI::Option* real(const char* option, Number& value, const char* help, double least, double most, const char* type = "X") {
    return app_.add_option(option, value, help)->check(range(least, most))->type_name(type)->group(name_);
  }
  CLI::Option* text(const char* option, std::string& value, const std::string& help, const char* type) {
    return app_.add_option(option, value, help)->type_name(type)->group(name_);
  }
  CLI::Option* flag(const char* option, bool& value, const char* help) {
    return app_.add_flag(option, value, help)->group(name_);
  }
  CLI::Option* list(const char* option, std::vector<std::string>& value, const char* help, const char* type) {
    return app_.add_option(option, value, help)->type_name(type)->allow_extra_args(false)->group(name_);
  }

 private:
  CLI::App& app_;
  const char* name_;
};

std::string names(const std::vector<std::string>& all) {
  std::string list;
  for (const std::string& name : all) list += (list.empty() ? "" : ", ") + name;
  return list;
}

void add_requests(CLI::App& app, SimOptions& o) {
  Group g(app, "Requests (the same cuts of a trace as k3 loadgen)");
  g.number("--trace-block", o.block_tokens, "Tokens that a hash id stands for (default 512)", 1, kMost);
  g.real("--scale", o.scale, "Factor of all lengths, blocks too (default 1)", 1e-6, 1e3);
  g.number("--max-output", o.max_output, "Cap of output lengths", 1, kMost);
  g.number("--max-input", o.max_input, "Leave out requests with longer prompts (after --scale)", 1, kMost);
  g.number("--limit", o.limit, "Only the first N", 1, kMost);
  g.text("--sessions", o.sessions, "Only these sessions: 0-11", "A-B")->check(check_sessions);
  g.flag(
      "--made-up-answers", o.made_up_answers,
      "The next turn of a session does not hold the answer that was generated (so it is when k3 loadgen replays a trace)");
  Group s(app, "Requests without a trace (TRACE is the word synthetic)");
  s.number("-n,--requests", o.requests, "How many (default 1000)", 1, 5'000'000);
  s.text("--input", o.input, "Tokens that a turn adds: N, uniform:LEAST:MOST or lognormal:MEDIAN:SIGMA (default 8192)", "D")
      ->check(check_length);
  s.text("--output", o.output, "Tokens of answers, in the same way (default 512)", "D")->check(check_length);
  s.number("--turns", o.turns, "Turns of a session: each prompt begins with all before it (default 1)", 1, 10'000);
  s.number("--shared-prefix", o.shared_prefix, "Tokens that all prompts begin with (default 0)", 0, 1 << 24);
  s.number("--seed", o.seed, "Of lengths, arrivals and acceptance (default 0)", 0, INT64_MAX);
}

void add_pacing(CLI::App& app, SimOptions& o) {
  Group g(app, "Who starts when (default: a trace by its clock, synthetic requests one at a time)");
  auto* sequential = g.flag("--sequential", o.sequential, "One at a time, in the order of the file");
  auto* users =
      g.number("-u,--users,--concurrency", o.users,
               "Closed loop: N users, each starts its next request, or session, when it has its answer", 1, 10'000'000)
          ->excludes(sequential);
  g.real("-r,--rate", o.rate, "Open loop: requests, or sessions, arrive at random, X a second (Poisson)", 1e-6, 1e6)
      ->excludes(sequential)
      ->excludes(users);
  g.real("--think-ms", o.think_ms, "Pause of a user between answer and next request, where the trace tells none (default 0)",
         0, kMostSeconds * 1e3, "MS");
  g.real("--speed", o.speed, "Runs a trace's clock and think times X times as fast (default 1)", 1e-3, 1e6);
  g.text("--loads", o.loads,
         "Also runs the same requests with so many --users, at such a --rate or --speed, and compares: 1,4,16,64", "X,..");
  g.real("--duration", o.duration_s, "Start no request after S seconds", 0.001, kMostSeconds, "S");
  g.text("--recorded", o.recorded,
         "Start requests when a run of k3 loadgen started them: its --json, of the same trace and cuts", "FILE");
  g.text("--recorded-order", o.recorded_order,
         "Only the order of that run: a request starts once what had happened before has happened here", "FILE");
  g.flag("--rule", o.rule, "The plain prefix rule: one at a time, a pool without end, answers left out");
}

void add_machine(CLI::App& app, SimOptions& o) {
  PlanOptions& p = o.plan;
  Group g(app, "Machine and layout of one replica (what is not given is chosen as k3 plan does)");
  g.text("--hw", p.hw, "A record of share/hardware (" + names(plan::machine_names()) + "), or a .toml file (default h200)",
         "NAME|FILE");
  g.number("-g,--gpus", p.gpus, "GPUs of a replica, or of each engine with --prefill (default: the fewest that fit)", 1,
           kMostGpus);
  g.list("--set", p.set, "Replace a cell: hw.memory_bytes=96GiB (may be given several times; k3 plan --cells lists them)",
         "CELL=X");
  g.number("--tp", p.tp, "GPUs that split heads and matrices", 1, kMostGpus);
  g.number("--dp", p.dp, "Such groups in a stage", 1, kMostGpus);
  g.number("--pp", p.pp, "Stages", 1, kMostGpus);
  g.number("--dcp", p.dcp, "GPUs that share a sequence's latents", 1, kMostGpus);
  g.number("--kcp", p.kcp, "GPUs that share a sequence's KDA scan", 1, kMostGpus);
  g.text("--moe", p.moe, "ep: whole experts on a GPU; tp: slices of every expert", "")->check(CLI::IsMember({"tp", "ep"}));
  g.flag("--sp", p.sp, "Residual stream sharded by sequence over tp in prefills");
  g.text("--state-dtype", p.state, "KDA states: f32 (default) or bf16", "")->check(CLI::IsMember({"f32", "bf16"}));
  g.text("--latent-dtype", p.latent, "MLA latents: bf16 (default) or f8_e4m3", "")
      ->check(CLI::IsMember({"bf16", "f8_e4m3"}));
  g.text("--clock", o.clock,
         "Time steps by measurements, not by the cost model: JSON of k3 bench, or of points (docs/simulator.md)", "FILE");
  g.real("--step-overhead-ms", o.step_overhead_ms, "With --clock: added to each step", 0, 1e6, "MS");
  g.real("--request-ms", o.request_ms, "From arrival to the engine (default: the machine's request_seconds; with --clock 0)",
         0, 1e6, "MS");
  Group s(app, "Speculation");
  s.number("--draft", p.draft, "Tokens drafted a step (default 0: none)", 0, 16);
  s.text("--acceptance", p.acceptance, "A curve of k3 plan, the chance of a drafted token, or tokens a step: 1.84,2.45,2.87",
         "A");
  s.text("--fade", p.fade, "Acceptance falls with context: FROM,TO,SHARE, as for k3 plan", "F,T,S");
  s.text("--scheme", p.scheme, "What rolls KDA states back: fused (default), replay, snapshot", "")
      ->check(CLI::IsMember({"fused", "replay", "snapshot"}));
}

void add_engine(CLI::App& app, SimOptions& o) {
  Group g(app, "Engine and cache");
  g.text("--policy", o.policy, "Checkpoints: serve (as k3 serve, default), every, end, end+N, end+second, end+second+N",
         "NAME");
  g.text("--policies", o.policies, "Also runs these, or all, on the same requests and compares them", "NAME,..");
  g.number("--ctx", o.ctx, "Most tokens of a sequence (default: of the longest request)", 2, kMost);
  g.number("--max-running", o.max_running, "Sequences at once (default 256; with --clock 32)", 1, 1'000'000);
  g.number("--step-tokens", o.step_tokens, "Token budget of a step (default 8192; with --clock 512, or 2048 with --apart)", 1, kMost);
  g.flag("--together", o.together,
         "Prompts and decodes share steps (default: they take turns, as on a GPU; with --clock they share)");
  g.flag("--apart", o.apart, "With --clock: prompts and decodes take turns, as k3 serve does on a GPU");
  g.number("--queue", o.queue,
           "Requests that wait inside the engine, where smaller ones may pass; others wait before it (default 64)", 1,
           1'000'000);
  g.text("--schedule", o.schedule, "fcfs (default) or slo", "")->check(CLI::IsMember({"fcfs", "slo"}));
  g.flag("--no-keep-idle", o.no_keep_idle, "A sequence that has ended leaves only what its checkpoints can resume");
  g.flag("--no-prefix-cache", o.no_prefix_cache, "Keep no prefixes (an idle sequence still goes on, see --no-keep-idle)");
  g.number("--block-tokens", o.cache_block,
           "Tokens between boundaries of the cache (default: 512 for models of K3's size, else 64)", 16, 1 << 20);
  g.text("--pool-bytes", o.pool_bytes,
         "Of each GPU (default: what the weights leave; with --clock: full context for all sequences)", "SIZE")
      ->check(check_bytes);
  g.flag("--unbounded", o.unbounded, "A pool that never fills");
  g.text("--host-bytes", o.host_bytes, "Host memory behind the pool, for each GPU (default 0)", "SIZE")->check(check_bytes);
  g.real("--host-gbps", o.host_gbps, "GB/s from it to a GPU (default: the machine's)", 1e-3, 1e6);
  g.text("--remote-bytes", o.remote_bytes, "A remote store behind that, for each GPU; a replica has its own (default 0)",
         "SIZE")
      ->check(check_bytes);
  g.real("--remote-gbps", o.remote_gbps, "GB/s from it to a GPU (default: the machine's network)", 1e-3, 1e6);
  g.real("--remote-ms", o.remote_ms, "Latency of a fetch from it (default 0)", 0, 1e6, "MS");
}

void add_fleet(CLI::App& app, SimOptions& o) {
  Group g(app, "Fleet");
  g.number("--replicas", o.replicas, "Replicas (default 1)", 1, 100'000);
  g.text("--routing", o.routing,
         "affinity: sessions, and prompts that repeat an earlier one, stay on a replica (default); round-robin", "")
      ->check(CLI::IsMember({"affinity", "round-robin"}));
  g.number("--prefill", o.prefill, "P/D: prefill engines of a replica", 1, 4096);
  g.number("--decode", o.decode, "and decode engines", 1, 4096);
  g.text("--decode-with", o.decode_with,
         "Machine and layout of decode engines where they differ: options of k3 plan in quotes, as '--tp 4 --dp 4'",
         "OPTIONS");
  g.real("--transfer-gbps", o.transfer_gbps, "GB/s out of a prefill engine (default: the network of its GPUs)", 1e-3, 1e6);
  g.real("--transfer-ms", o.transfer_ms, "Latency of a transfer (default 0)", 0, 1e6, "MS");
  g.list("--budget", o.budgets,
         "TOKENS:SECONDS: prompts up to so long may have so many seconds of prefill under way in an engine (several times)",
         "T:S");
  g.list("--fail", o.failures,
         "REPLICA@SECONDS or REPLICA@SECONDS+REPAIR: lost then, with its cache; its requests restart elsewhere", "R@S");
  g.real("--slo-ttft", o.slo_ttft, "Objective: time to the first token, seconds", 1e-3, 1e6, "S");
  g.real("--slo-tpot", o.slo_tpot_ms, "Objective: time for each further token, milliseconds", 1e-2, 1e6, "MS");
  g.number("-t,--threads", o.threads, "Threads of this program; the result is the same (default: all)", 1, 1024);
}

void add_output(CLI::App& app, SimOptions& o) {
  Group g(app, "Output");
  g.text("--name", o.name, "What the report calls this scenario", "TEXT");
  g.text("--json", o.json, "Write everything; - writes to stdout in place of the tables", "FILE");
  g.text("--csv", o.csv, "Write a line for each request", "FILE");
  g.text("--html", o.html, "Write a page with plots, one file", "FILE");
  g.text("--plots", o.plots, "Write the page's plots as SVG files into this folder", "FOLDER");
  g.text("--against", o.against, "Compare with another run: its --json", "FILE");
}

}  // namespace

void add_sim_command(CLI::App& app, SimOptions& o, Status& status) {
  CLI::App* command =
      app.add_subcommand("sim", "What a service would do with a trace: the engine's scheduler and cache on modelled time")
          ->group("Size a service");
  command->add_option("CONFIG", o.plan.config, "config.json, model folder, or a known model: k3, kimi-linear-48b")
      ->required();
  command
      ->add_option("TRACE", o.trace, "Mooncake JSONL (session fields too), Azure CSV, BurstGPT CSV; or the word synthetic")
      ->required();
  add_requests(*command, o);
  add_pacing(*command, o);
  add_machine(*command, o);
  add_engine(*command, o);
  add_fleet(*command, o);
  add_output(*command, o);
  command->footer(
      "Times come from the cost model (k3 plan) or from measured steps (--clock); what is computed, admitted,\n"
      "evicted and hit comes from the engine's own scheduler and cache.\n\n"
      "Examples:\n"
      "  k3 sim k3 conversation_trace.jsonl --hw h200 --gpus 16 --html run.html\n"
      "  k3 sim k3 agent_sessions.jsonl --gpus 16 --policies all --html policies.html\n"
      "  k3 sim k3 synthetic --users 16 --loads 1,4,16,64,256 --gpus 16 --slo-tpot 50 --html load.html\n"
      "  k3 sim k3 synthetic --turns 8 --rate 2 --shared-prefix 16384 --gpus 16 --replicas 4\n"
      "  k3 sim k3 trace.jsonl --gpus 16 --prefill 2 --decode 1 --slo-ttft 5 --slo-tpot 50\n"
      "  k3 sim models/k3-mini trace.jsonl --clock bench.json --scale 0.1 --users 4");
  command->callback([&o, &status, command] {
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() > 0 && !option->get_lnames().empty()) o.given.insert("--" + option->get_lnames().front());
    }
    status = sim_command(o);
  });
}

}  // namespace k3::cli
