#include "k3/cli/plan/plan_options.h"

#include <CLI/CLI.hpp>
#include <sstream>

#include "k3/base/utf8.h"
#include "k3/cli/commands.h"
#include "k3/cli/range.h"
#include "k3/plan/cost/speculation.h"
#include "k3/plan/hardware/hardware_file.h"

namespace k3::cli {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24, kMostGpus = 4096, kMostUsers = 1 << 20;

std::string names_text() {
  std::string list;
  for (const std::string& name : plan::machine_names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::string acceptance_names() {
  std::string list;
  for (const plan::AcceptanceCurve& curve : plan::published_acceptance()) list += (list.empty() ? "" : ", ") + curve.name;
  return list;
}

void add_machine(CLI::App& app, PlanOptions& o) {
  const char* group = "Machines";
  app.add_option("--hw", o.hw, "A record of share/hardware (" + names_text() + "), or a .toml file (default h200)")
      ->type_name("NAME|FILE")
      ->group(group);
  app.add_option("-g,--gpus", o.gpus, "How many (default: the fewest that fit, from one to 64)")
      ->check(range(int64_t{1}, kMostGpus))
      ->type_name("N")
      ->group(group);
  app.add_option(
         "--set", o.set,
         "Replace a cell: hw.memory_bytes=96GiB, efficiency.gemm_flops=0.7 (may be given several times; --cells lists them)")
      ->type_name("CELL=X")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option(
         "--calibration", o.calibration,
         "Measured runs of this machine: JSON of k3 bench or of a closed loop of k3 loadgen; they move the efficiency "
         "constants, and their misfit is the error band (may be given several times)")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--calibration-model", o.calibration_model,
                 "The model that these runs measured, on one GPU (default: CONFIG)")
      ->type_name("CONFIG")
      ->group(group);
}

void add_layout(CLI::App& app, PlanOptions& o) {
  const char* group = "Layout (what is not given is chosen: the best of all that fit)";
  const auto ranks = [&](const char* name, std::optional<int64_t>& value, const char* help) {
    app.add_option(name, value, help)->check(range(int64_t{1}, kMostGpus))->type_name("N")->group(group);
  };
  ranks("--tp", o.tp, "GPUs that split heads and matrices");
  ranks("--dp", o.dp, "Such groups in a stage; routed experts are spread over all of them");
  ranks("--pp", o.pp, "Stages, each with a part of the layers");
  ranks("--dcp", o.dcp, "GPUs that share a sequence's latents in decoding; divides tp");
  ranks("--kcp", o.kcp, "GPUs that share a sequence's KDA scan in a prefill");
  app.add_option("--moe", o.moe, "ep: whole experts on a GPU; tp: slices of every expert")
      ->check(CLI::IsMember({"tp", "ep"}))
      ->group(group);
  app.add_flag("--sp", o.sp, "Residual stream sharded by sequence over tp in prefills")->group(group);
  app.add_flag("--up-replicated", o.up_replicated, "Latent up projection whole on every GPU (default: split over tp)")
      ->group(group);
}

void add_load(CLI::App& app, PlanOptions& o) {
  const char* group = "Load";
  const auto tokens = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)->check(range(int64_t{1}, kMostTokens))->type_name("N")->group(group);
  };
  tokens("-i,--input", o.input, "Tokens of a prompt (default 8192)");
  tokens("-o,--output", o.output, "Tokens of an answer (default 1024)");
  app.add_option("-u,--users", o.users, "Users at once (default: all that fit and meet the objectives)")
      ->check(range(int64_t{1}, kMostUsers))
      ->type_name("N")
      ->group(group);
  app.add_option("--slo-ttft", o.slo_ttft, "Objective: p95 of the time to the first token, seconds")
      ->check(range(1e-3, 1e6))
      ->type_name("S")
      ->group(group);
  app.add_option("--slo-tpot", o.slo_tpot_ms, "Objective: p95 of the time for each further token, milliseconds")
      ->check(range(1e-2, 1e6))
      ->type_name("MS")
      ->group(group);
  app.add_option("--hit", o.hit, "Share of the prompt that a prefix cache already holds (default 0)")
      ->check(range(0.0, 0.9999))
      ->type_name("X")
      ->group(group);
  app.add_option("--hit-tier", o.hit_tier, "Where it lies: gpu (default), host, network")
      ->check(CLI::IsMember({"gpu", "host", "network"}))
      ->group(group);
}

void add_memory(CLI::App& app, PlanOptions& o) {
  const char* group = "Histories";
  app.add_option("--state-dtype", o.state, "KDA states: f32 (default) or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->group(group);
  app.add_option("--latent-dtype", o.latent, "MLA latents: bf16 (default) or f8_e4m3")
      ->check(CLI::IsMember({"bf16", "f8_e4m3"}))
      ->group(group);
  app.add_option("--experts", o.experts, "Routed experts: keep (as CONFIG says, default), mxfp4, bf16")
      ->check(CLI::IsMember({"keep", "mxfp4", "bf16"}))
      ->group(group);
  app.add_option("--slots", o.slots,
                 "KDA states held for a request: 1 without a prefix cache (default), 3 unbuffered, 4 lazy, 5 "
                 "double-buffered checkpoints")
      ->check(range(int64_t{1}, int64_t{64}))
      ->type_name("N")
      ->group(group);
}

void add_speculation(CLI::App& app, PlanOptions& o) {
  const char* group = "Speculation";
  app.add_option("--draft", o.draft, "Tokens drafted a step (default 0: none)")
      ->check(range(int64_t{0}, int64_t{16}))
      ->type_name("N")
      ->group(group);
  app.add_option("--acceptance", o.acceptance,
                 acceptance_names() +
                     "; or the chance of a drafted token, like 0.77; or tokens a step for 1, 2, ... drafted ones: "
                     "1.84,2.45,2.87 (default: the first)")
      ->type_name("A")
      ->group(group);
  app.add_option("--fade", o.fade,
                 "Acceptance falls with context: FROM,TO,SHARE like 131072,524288,0.3 leaves 0.3 of the accepted drafts at "
                 "TO tokens "
                 "(default: it does not)")
      ->type_name("F,T,S")
      ->group(group);
  app.add_option("--scheme", o.scheme, "What rolls KDA states back: fused replay (default), replay, snapshot")
      ->check(CLI::IsMember({"fused", "replay", "snapshot"}))
      ->group(group);
}

void add_output(CLI::App& app, PlanOptions& o) {
  const char* group = "Output";
  app.add_option("--gpu-hour", o.gpu_hour, "Price of a GPU for an hour: gives the cost of a million tokens")
      ->check(range(1e-6, 1e6))
      ->type_name("PRICE")
      ->group(group);
  app.add_flag("--sweep", o.sweep, "All layouts: those on the frontier of throughput and user speed")->group(group);
  app.add_flag("--explain", o.explain, "A step and a prefill by parts: time, bytes, FLOPs, share of the roof")->group(group);
  app.add_flag("--launch", o.launch, "The k3 serve command, and what of the layout k3 cannot serve yet")->group(group);
  app.add_flag("--check", o.check, "The model against published measurements of K3; needs no CONFIG")->group(group);
  app.add_flag("--cells", o.cells, "Every cell of --hw that --set may replace; needs no CONFIG")->group(group);
  app.add_option("--against", o.against, "A second scenario: the options that differ, in quotes: '--hw gb300 --gpus 8'")
      ->type_name("OPTIONS")
      ->group(group);
  app.add_flag("--json", o.json, "Print JSON for programs")->group(group);
  app.add_option("--html", o.html, "Write a page with plots, one file")->type_name("FILE")->group(group);
  app.add_option("--plots", o.plots, "Write the page's plots as SVG files into this folder")
      ->type_name("FOLDER")
      ->group(group);
}

void add_all(CLI::App& app, PlanOptions& o) {
  app.add_option("CONFIG", o.config, "config.json, model folder, or a known model: k3, kimi-linear-48b");
  add_machine(app, o);
  add_layout(app, o);
  add_load(app, o);
  add_memory(app, o);
  add_speculation(app, o);
  add_output(app, o);
}

constexpr const char* kFooter =
    "Answers from an analytical cost model (docs/planning.md), in seconds of work, without a GPU.\n"
    "fits        weights, workspaces and 10 % of reserve leave room for a request\n"
    "TTFT, TPOT  of a closed loop: N users send at once, prompts in batches of 16,384\n"
    "            tokens first, then all decode. p50 and p95 are over the users; TPOT\n"
    "            holds the wait for other users' prompts\n"
    "band        what published measurements (or --calibration) say the model may be off\n"
    "binds       the largest part of a decode step and of a prefill; memory if it stops users\n"
    "next        the changes that help most, those without new hardware first\n\n"
    "Examples:\n"
    "  k3 plan k3 --hw h200 --gpus 16\n"
    "  k3 plan k3 --hw gb300 --input 32768 --slo-ttft 10 --slo-tpot 40 --gpu-hour 4 --sweep\n"
    "  k3 plan k3 --hw b300 --gpus 8 --tp 8 --users 16 --explain\n"
    "  k3 plan k3 --hw h200 --gpus 32 --html plan.html --against '--hw gb300 --gpus 16'\n"
    "  k3 plan k3 --hw gb300 --gpus 8 --draft 7 --acceptance chat\n"
    "  k3 plan kimi-linear-48b --gpus 1 --launch\n"
    "  k3 bench models/k3-mini --json > bench.json; k3 plan models/k3-mini --hw cpu.toml --calibration bench.json\n"
    "  k3 plan --check";

// Words of a command line; quotes group, as in a shell.
Result<std::vector<std::string>> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c, in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_word) words.push_back(std::move(word));
      word.clear(), in_word = false;
    } else {
      word += c, in_word = true;
    }
  }
  if (quote != 0) return fail(Code::invalid_argument, "--against: a quote is not closed");
  if (in_word) words.push_back(std::move(word));
  return words;
}

}  // namespace

Result<PlanOptions> against_options(const PlanOptions& base) {
  K3_TRY_ASSIGN(std::vector<std::string> words, split_words(base.against));
  PlanOptions other = base;
  other.against.clear();
  const std::vector<std::string> set = std::move(other.set), calibration = std::move(other.calibration);
  other.set.clear(), other.calibration.clear();
  const bool layout_given = base.tp || base.dp || base.pp || base.dcp || base.kcp;
  CLI::App app("", "--against");
  app.set_help_flag();
  add_all(app, other);
  try {
    std::reverse(words.begin(), words.end());  // CLI11 wants its vector so
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    return fail(Code::invalid_argument, "--against: {}", utf8_repair(e.what()));
  }
  if (!other.against.empty()) return fail(Code::invalid_argument, "--against: two scenarios are compared, not three");
  for (const char* const name : {"--sweep", "--explain", "--launch", "--check", "--cells", "--json", "--html", "--plots"}) {
    if (app.count(name) > 0) {
      return fail(Code::invalid_argument, "--against: {} says what is printed, of both scenarios: give it outside of the quotes", name);
    }
  }
  // A layout belongs to its number of GPUs, cells to their machine.
  const bool machine_changes = app.count("--hw") > 0, gpus_change = app.count("--gpus") > 0;
  if (layout_given && (machine_changes || gpus_change)) {
    for (const auto& [name, value] :
         {std::pair("--tp", &other.tp), std::pair("--dp", &other.dp), std::pair("--pp", &other.pp),
          std::pair("--dcp", &other.dcp), std::pair("--kcp", &other.kcp)}) {
      if (app.count(name) == 0) value->reset();
    }
  }
  // What the first scenario says of its draft or its prefix goes with it.
  if (other.draft == 0 && app.count("--acceptance") == 0) other.acceptance.clear();
  if (other.draft == 0 && app.count("--fade") == 0) other.fade.clear();
  if (other.draft == 0 && app.count("--scheme") == 0) other.scheme = PlanOptions().scheme;
  if (other.hit == 0 && app.count("--hit-tier") == 0) other.hit_tier = PlanOptions().hit_tier;
  if (!machine_changes) {
    other.set.insert(other.set.begin(), set.begin(), set.end());
    other.calibration.insert(other.calibration.begin(), calibration.begin(), calibration.end());
  }
  return other;
}

void add_plan_command(CLI::App& app, PlanOptions& o, Status& status) {
  CLI::App* command = app.add_subcommand("plan", "How many GPUs, how many users, what latency, what it costs, what binds")
                          ->group("Size a service");
  command->footer(kFooter);
  add_all(*command, o);
  command->callback([&o, &status] { status = plan_command(o); });
}

}  // namespace k3::cli
