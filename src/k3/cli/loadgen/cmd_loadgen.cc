// k3 loadgen: options to a workload and a pacing, the run, the table.
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <csignal>

#include "k3/base/file.h"
#include "k3/base/progress.h"
#include "k3/base/report/axis.h"
#include "k3/base/units.h"
#include "k3/cli/common.h"
#include "k3/cli/loadgen/loadgen_options.h"
#include "k3/format/json/json_tree.h"
#include "k3/server/loadgen/load_report.h"

namespace k3::cli {
namespace {

using report::unit_text;
using server::LoadOptions;
using server::LoadResult;
using server::LoadSummary;
using server::Pacing;
using server::Settings;

std::atomic<bool> g_stop{false};

// The second Ctrl-C ends the program at once.
void on_interrupt(int) {
  g_stop = true;
  std::signal(SIGINT, SIG_DFL);
}

// Every stream is a connection: shells often allow 1,024 files where the system allows far more.
void allow_many_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

// Special tokens stand at the end of the vocabularies of this family: in a prompt they could mean an image.
constexpr int64_t kSpecialIds = 256;
constexpr int64_t kDefaultVocab = 1000;

Result<std::string> read_key(const std::string& path) {
  if (path.empty()) return std::string();
  K3_TRY_ASSIGN(std::string key, read_file(path, 64 << 10));
  key.resize(std::min(key.find_first_of("\r\n"), key.size()));
  for (const char c : key) {
    if (c <= ' ' || c > '~') return fail(Code::invalid_argument, "{}: its first line is no key", path);
  }
  if (key.empty()) return fail(Code::invalid_argument, "{}: its first line is empty", path);
  return key;
}

// The inside of the object, to be put behind the fields that are there already.
Result<std::string> read_extra_body(const std::string& text) {
  if (text.empty()) return std::string();
  auto root = parse_json(text);
  if (!root.ok()) return std::move(root).take_error().with_context("--body");
  if (!root->is_object())
    return fail(Code::invalid_argument, "--body: {} where an object belongs", json_kind_name(root->kind));
  for (const char* name :
       {"model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options", "ignore_eos"}) {
    if (root->find(name) != nullptr) return fail(Code::invalid_argument, "--body: '{}' is set by the program", name);
  }
  const std::string_view raw = root->raw;
  std::string inside(raw.substr(1, raw.size() - 2));
  return root->keys.empty() ? std::string() : inside;
}

Status check(const LoadgenOptions& o) {
  if (!o.trace && (o.scale != 1 || !o.sessions.empty() || o.limit > 0 || o.max_input > 0 || o.max_output > 0)) {
    return fail(Code::invalid_argument, "--scale, --sessions, --limit, --max-input and --max-output belong to --trace");
  }
  if (o.trace && (o.turns != 1 || o.shared_prefix != 0)) {
    return fail(Code::invalid_argument, "--turns and --shared-prefix belong to synthetic load, without --trace");
  }
  return {};
}

Result<std::vector<PlannedRequest>> make_workload(const LoadgenOptions& o) {
  if (!o.trace) {
    SyntheticWorkload w;
    w.requests = o.requests;
    K3_TRY_ASSIGN(w.input, LengthDistribution::parse(o.input));
    K3_TRY_ASSIGN(w.output, LengthDistribution::parse(o.output));
    w.turns = o.turns;
    w.shared_prefix_tokens = o.shared_prefix;
    w.think_s = o.think_ms / 1e3;
    w.seed = o.seed;
    return synthetic_workload(w);
  }
  TraceOptions reading;
  reading.block_tokens = o.block_tokens;
  K3_TRY_ASSIGN(TraceReader reader, TraceReader::open(*o.trace, reading));
  TraceWorkload w;
  w.scale = o.scale;
  w.max_output = o.max_output;
  w.max_input = o.max_input;
  w.limit = o.limit;
  if (!o.sessions.empty()) {
    K3_TRY_ASSIGN(w.sessions, parse_sessions(o.sessions));
  }
  auto requests = workload_from_trace(reader, w);
  return std::move(requests).with_context(*o.trace);
}

void set_pacing(const LoadgenOptions& o, LoadOptions& load) {
  load.pacing = o.sequential ? Pacing::sequential
                : o.users    ? Pacing::users
                : o.rate     ? Pacing::poisson
                : o.trace    ? Pacing::trace
                             : Pacing::users;
  load.users = o.users.value_or(1);
  load.rate_per_s = o.rate.value_or(1);
  load.think_s = o.think_ms / 1e3;
  load.speed = o.speed;
  load.duration_s = o.duration_s;
  load.seed = o.seed;
}

std::string pacing_text(const LoadOptions& load) {
  const std::string speed = load.speed == 1 ? "" : fmt::format(", {} times as fast", load.speed);
  switch (load.pacing) {
    case Pacing::trace: return "by the trace's clock" + speed;
    case Pacing::sequential: return "one at a time";
    case Pacing::users:
      return load.users == 1 ? "one user, closed loop" : fmt::format("{} users, closed loop{}", load.users, speed);
    case Pacing::poisson: return fmt::format("{} arrivals a second (Poisson){}", load.rate_per_s, speed);
  }
  return "";
}

Settings settings_of(const LoadgenOptions& o, const LoadOptions& load, int64_t planned) {
  Settings out = {
      {"endpoint", "http://" + load.url.authority() + load.url.target(load.chat ? "/chat/completions" : "/completions")},
      {"model", load.model},
      {"pacing", pacing_text(load)},
      {"requests planned", fmt::format("{}", planned)}};
  if (o.trace) {
    out.emplace_back("trace", *o.trace);
    out.emplace_back("lengths", fmt::format("times {}{}{}", o.scale,
                                            o.max_output > 0 ? fmt::format(", output at most {}", o.max_output) : "",
                                            o.sessions.empty() ? "" : ", sessions " + o.sessions));
  } else {
    out.emplace_back("lengths", fmt::format("input {}, output {}", o.input, o.output));
    if (o.turns > 1) out.emplace_back("turns", fmt::format("{}", o.turns));
    if (o.shared_prefix > 0) out.emplace_back("shared prefix", fmt::format("{}", o.shared_prefix));
  }
  if (!load.chat) out.emplace_back("token ids below", fmt::format("{}", load.vocab));
  if (load.duration_s > 0) out.emplace_back("duration", fmt::format("{} s", load.duration_s));
  if (!load.extra_body.empty()) out.emplace_back("further fields", o.body);
  if (o.warmup > 0) out.emplace_back("warm-up requests", fmt::format("{}", o.warmup));
  return out;
}

std::string tables(const LoadSummary& s, bool interrupted) {
  const auto time = [](double value) { return unit_text(value, Unit::seconds); };
  std::string out =
      fmt::format("{} of {} requests succeeded in {}{}, at most {} at once\n", format_grouped(s.ok), format_grouped(s.sent),
                  format_seconds(s.duration_s), interrupted ? " (interrupted)" : "", s.peak_running);
  if (s.ok > 0) {
    Table latency({"", "mean", "p50", "p90", "p95", "p99", "max"});
    const auto row = [&](const char* name, const Spread& x) {
      if (x.count > 0) latency.row({name, time(x.mean), time(x.p50), time(x.p90), time(x.p95), time(x.p99), time(x.max)});
    };
    row("TTFT", s.ttft_s);
    row("TPOT", s.tpot_s);
    row("gap", s.gap_s);
    row("end to end", s.e2e_s);
    row("lag", s.lag_s);
    out += "\n" + latency.text() + "\n";
    Table rates({"", "tokens", "tokens/s", "tokens/request"});
    const auto tokens = [&](const char* name, int64_t count, double per_s) {
      rates.row({name, format_grouped(count), unit_text(per_s, Unit::count),
                 unit_text(static_cast<double>(count) / static_cast<double>(s.ok), Unit::count)});
    };
    tokens("prompts", s.prompt_tokens, s.prompt_per_s());
    if (s.hit_requests > 0) tokens("  from the cache", s.cached_tokens, static_cast<double>(s.cached_tokens) / s.duration_s);
    tokens("output", s.output_tokens, s.output_per_s());
    out += rates.text() + "\n";
    out += fmt::format("{:.3g} requests/s; hit rate {}\n", s.requests_per_s(),
                       std::isnan(s.hit_rate()) ? "not told by the server (usage.prompt_tokens_details.cached_tokens)"
                                                : unit_text(s.hit_rate(), Unit::percent) + " of prompt tokens");
  }
  for (const server::ErrorCount& error : s.errors)
    out += fmt::format("\nfailed: {} x {}; the first: {}", error.count, error.kind, error.first);
  return out + (s.errors.empty() ? "" : "\n");
}

void print_notes(const LoadSummary& s, const LoadOptions& load) {
  if (s.planned > s.sent) note(fmt::format("k3: {} of {} requests were not sent", s.planned - s.sent, s.planned));
  if (s.cancelled > 0) note(fmt::format("k3: {} requests were under way and are not counted", s.cancelled));
  if (s.short_answers > 0) note(fmt::format("k3: {} answers are shorter than asked for", s.short_answers));
  if (s.length_differs > 0 && !load.chat) {
    note(fmt::format("k3: the server counts other prompt lengths than were sent in {} requests", s.length_differs));
  }
  if (s.lag_s.count > 0 && s.lag_s.p99 > 0.1) {
    note(fmt::format("k3: requests were sent late (p99 {}): this client was too slow for the load",
                     unit_text(s.lag_s.p99, Unit::seconds)));
  }
}

Result<LoadOptions> load_options(const LoadgenOptions& o) {
  LoadOptions load;
  K3_TRY_ASSIGN(load.url, server::parse_url(o.url));
  K3_TRY_ASSIGN(load.api_key, read_key(o.api_key_file));
  K3_TRY_ASSIGN(load.extra_body, read_extra_body(o.body));
  load.timeouts = {o.connect_timeout_s, o.timeout_s};
  load.chat = o.chat;
  load.ignore_eos = !o.no_ignore_eos;
  load.temperature = o.temperature;
  load.retry_429 = o.retry_429;
  set_pacing(o, load);
  return load;
}

Status ask_server(const LoadgenOptions& o, const std::vector<PlannedRequest>& requests, LoadOptions& load) {
  const server::HttpTimeouts timeouts{o.connect_timeout_s, std::min(o.timeout_s, 60.0)};
  K3_TRY_ASSIGN(const server::ServedModel model, server::ask_model(load.url, timeouts, load.api_key, o.model));
  load.model = model.id;
  load.vocab = o.vocab > 0                       ? o.vocab
               : model.n_vocab > 2 * kSpecialIds ? model.n_vocab - kSpecialIds
               : model.n_vocab > 0               ? model.n_vocab
                                                 : kDefaultVocab;
  int64_t too_long = 0;
  for (const PlannedRequest& request : requests)
    too_long += request.input_tokens + request.output_tokens > model.max_model_len ? 1 : 0;
  if (model.max_model_len > 0 && too_long > 0) {
    note(fmt::format("k3: {} of {} requests are longer than the server's {} tokens of context (--scale, --max-input)",
                     too_long, requests.size(), model.max_model_len));
  }
  return {};
}

Status warm_up(const LoadgenOptions& o, const std::vector<PlannedRequest>& requests, LoadOptions load) {
  if (o.warmup == 0) return {};
  load.pacing = Pacing::sequential;
  load.duration_s = 0;
  K3_TRY_ASSIGN(const LoadResult result,
                server::run_load(warmup_workload(o.warmup, requests[0].input_tokens), load, g_stop, {}));
  for (const server::RequestResult& r : result.requests) {
    if (!r.ok() && r.outcome != server::Outcome::cancelled) {
      return fail(Code::unavailable, "a warm-up request failed: {}: {}", server::error_kind(r), r.error);
    }
  }
  return {};
}

}  // namespace

Status loadgen_command(const LoadgenOptions& o) {
  K3_TRY(check(o));
  K3_TRY_ASSIGN(LoadOptions load, load_options(o));
  K3_TRY_ASSIGN(const std::vector<PlannedRequest> requests, make_workload(o));
  K3_TRY(ask_server(o, requests, load));
  allow_many_files();
  const auto before = std::signal(SIGINT, on_interrupt);
  if (before == SIG_IGN) std::signal(SIGINT, SIG_IGN);  // as background jobs of a script have it
  K3_TRY(warm_up(o, requests, load));
  Progress bar("load", static_cast<int64_t>(requests.size()), "requests");
  K3_TRY_ASSIGN(const LoadResult result, server::run_load(requests, load, g_stop, [&](int64_t done) { bar.update(done); }));
  bar.finish();
  std::signal(SIGINT, before);  // which leaves no half-written report
  const LoadSummary summary = server::summarize(result);
  const Settings settings = settings_of(o, load, static_cast<int64_t>(requests.size()));
  print_out(o.json ? server::load_json(result, summary, settings) : tables(summary, result.interrupted));
  print_notes(summary, load);
  if (!o.html.empty()) {
    K3_TRY(write_file(o.html, server::load_html(result, summary, settings, fmt::format("Load on {}", load.model))));
    note("k3: wrote " + o.html);
  }
  if (result.interrupted) return fail(Code::cancelled, "interrupted");
  if (summary.ok == 0 && summary.failed > 0) {
    return fail(Code::unavailable, "no request succeeded; {}: {}", summary.errors[0].kind, summary.errors[0].first);
  }
  return {};
}

}  // namespace k3::cli
