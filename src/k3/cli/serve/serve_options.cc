#include "k3/cli/serve/serve_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "k3/base/units.h"
#include "k3/cli/range.h"

namespace k3::cli {
namespace {

std::string check_bytes(const std::string& text) {
  const auto bytes = parse_bytes(text);
  return bytes.ok() ? std::string() : bytes.error().message;
}

std::string check_checkpoint(const std::string& text) {
  if (text == "none" || text == "end" || text == "turns" || text == "second") return {};
  constexpr std::string_view kEvery = "every:";
  int64_t tokens = 0;
  const char* const end = text.data() + text.size();
  const bool every = text.starts_with(kEvery) && std::from_chars(text.data() + kEvery.size(), end, tokens).ptr == end;
  return every && tokens > 0 ? std::string() : "'" + text + "' is none of end, turns, second, every:N, none";
}

std::string check_host(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_of("/:*[] ") == std::string::npos;
  return plain ? std::string() : "'" + text + "' is no name like llm.example.org: no scheme, no port, no pattern";
}

std::string check_ping(const std::string& text) {
  constexpr double kLeast = 5;
  double seconds = -1;
  const char* const end = text.data() + text.size();
  const bool number = std::from_chars(text.data(), end, seconds).ptr == end && std::isfinite(seconds);
  return number && (seconds == 0 || seconds >= kLeast) ? std::string() : "'" + text + "' is neither 0 nor at least 5";
}

void add_http(CLI::App& app, ServeOptions& o) {
  const char* group = "Network";
  app.add_option("--host", o.host, "Address to listen on (default 127.0.0.1; 0.0.0.0 lets other machines in)")->group(group);
  app.add_option("--port", o.port, "Port; 0 takes any that is free (default 8080)")
      ->check(CLI::Range(0, 65535))
      ->group(group);
  app.add_option("--api-key-file", o.api_key_file, "File with the keys that clients must send, one a line (default: no key)")
      ->group(group);
  app.add_option("--cors", o.cors,
                 "Web pages that may call: localhost, one origin like https://a.example, or * (default: none)")
      ->group(group);
  app.add_option("--allowed-host", o.allowed_hosts,
                 "Name by which clients may reach the server; give one for each. On a loopback address requests whose Host "
                 "header has another name than localhost are refused: they may come from a web page that let its own name "
                 "lead here. Needed behind a proxy that passes Host on; on other addresses nothing is checked without it")
      ->check(check_host)
      ->group(group);
  app.add_option("--max-body", o.max_body, "Largest request body (default 64MiB)")->check(check_bytes)->group(group);
  app.add_option("--drain-seconds", o.drain_seconds,
                 "On SIGTERM or Ctrl-C finish what is under way for so long; a second signal stops at once (default 30)")
      ->check(real_range(0.0, 1e6))
      ->group(group);
  app.add_option(
         "--ping-seconds", o.ping_seconds,
         "A stream that is silent for so long, as while a long prompt is computed, gets an event (Anthropic) or a comment "
         "(OpenAI) that keeps proxies patient; at least 5, 0: never (default 0; some clients know no comments)")
      ->check(check_ping)
      ->group(group);
  app.add_flag("-q,--quiet", o.quiet, "No line for each request")->group(group);
}

void add_api(CLI::App& app, ServeOptions& o) {
  const char* group = "API";
  app.add_option("--name", o.names, "Name of the model in requests; further ones are aliases (default: its folder's)")
      ->group(group);
  app.add_option("--param-policy", o.param_policy,
                 "open: every legal sampling parameter (default). kimi: those of Moonshot's own service alone")
      ->check(CLI::IsMember({"open", "kimi"}))
      ->group(group);
  app.add_flag("--strict-tools", o.strict_tools, "Drop calls to tools that the request did not declare")->group(group);
  app.add_option("--metrics-compat", o.metrics_compat, "vllm: /metrics has vLLM's names, too (default none)")
      ->check(CLI::IsMember({"none", "vllm"}))
      ->group(group);
  app.add_option("--slot-save-path", o.slot_save_path,
                 "Folder of saved sequences; POST /slots/{i}?action=save|restore needs it")
      ->group(group);
  app.add_flag("--dev", o.developer, "POST /reset_prefix_cache")->group(group);
}

void add_engine(CLI::App& app, ServeOptions& o) {
  const char* group = "Requests";
  app.add_option("--max-running", o.max_running, "Sequences computed at once (default 32)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->group(group);
  app.add_option("--max-queued", o.max_queued, "Requests that wait; more get 429 (default 256)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->group(group);
  app.add_option("--schedule", o.schedule,
                 "fcfs: first come, first served (default). slo: by the field priority of requests, higher first")
      ->check(CLI::IsMember({"fcfs", "slo"}))
      ->group(group);
  app.add_option("--deadline", o.deadline_seconds, "Most seconds for a request (default: no limit)")
      ->check(real_range(0.0, 1e9))
      ->group(group);
}

void add_cache(CLI::App& app, ServeOptions& o) {
  const char* group = "Prefix cache";
  app.add_option("--pool-bytes", o.pool_bytes,
                 "Memory for sequences and kept prefixes (default: room for --max-running, at most half of what is free; on a GPU all "
                 "that weights and scratch leave; an eighth of it beside experts in host memory, see --vram)")
      ->check(check_bytes)
      ->group(group);
  app.add_option("--host-bytes", o.host_bytes, "Memory for prefixes that the pool has no room for (default 0)")
      ->check(check_bytes)
      ->group(group);
  auto* folder = app.add_option("--disk-folder", o.disk_folder, "Folder for prefixes that outlive the server")->group(group);
  app.add_option("--disk-bytes", o.disk_bytes, "Most bytes in it")->check(check_bytes)->needs(folder)->group(group);
  app.add_option("--block-tokens", o.block_tokens,
                 "Tokens of a block: prefixes match in steps of it (default 64; 512 for K3)")
      ->check(CLI::Range(int64_t{16}, int64_t{65536}))
      ->group(group);
  app.add_option("--state-dtype", o.state_dtype, "KDA states: f32 (default) or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->group(group);
  app.add_option("--conv-dtype", o.conv_dtype, "Convolution states: f32 or bf16 (default: bf16, or f32 with --policy exact)")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->group(group);
  app.add_option("--latent-dtype", o.latent_dtype, "MLA latents: f32, bf16 or f8_e4m3 (default: bf16, or f32 with --policy exact; on a GPU bf16 alone)")
      ->check(CLI::IsMember({"f32", "bf16", "f8_e4m3"}))
      ->group(group);
  app.add_option("--checkpoints", o.checkpoints,
                 "Where KDA states are kept: end (of the prompt), turns, second (sighting), every:N tokens; none (default "
                 "end,turns,second)")
      ->delimiter(',')
      ->check(check_checkpoint)
      ->group(group);
  app.add_flag("--no-prefix-cache", o.no_prefix_cache, "Keep no prefixes")->group(group);
  app.add_flag("--no-keep-idle", o.no_keep_idle,
               "Free a sequence when its request ends (default: kept, resumable to the token, while there is room)")
      ->group(group);
}

}  // namespace

void add_serve_options(CLI::App& app, ServeOptions& o) {
  app.footer(
      "Speaks the OpenAI API (chat, completions, responses), the Anthropic one (messages), and has a page at /.\n"
      "Routes: /v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/models /tokenize\n"
      "        /detokenize /apply-template /slots /props /health /metrics /version\n\n"
      "Examples:\n"
      "  k3 serve models/k3-mini\n"
      "  k3 serve MODEL --host 0.0.0.0 --api-key-file keys.txt --metrics-compat vllm\n"
      "  curl localhost:8080/v1/chat/completions -H 'Content-Type: application/json' -d \\\n"
      "    '{\"model\": \"k3-mini\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'");
  add_http(app, o);
  add_api(app, o);
  add_engine(app, o);
  add_cache(app, o);
}

}  // namespace k3::cli
