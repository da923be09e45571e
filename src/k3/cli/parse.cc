// The command line: every option of every command, its help and its checks. Commands live in cmd_*.cc.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <new>
#include <sstream>

#include "k3/base/file.h"
#include "k3/base/progress.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/cli/data/data_options.h"
#include "k3/cli/train/train_options.h"
#include "k3/cli/exit_codes.h"
#include "k3/cli/loadgen/loadgen_options.h"
#include "k3/cli/plan/plan_options.h"
#include "k3/cli/plan/sim_options.h"
#include "k3/cli/range.h"
#include "k3/cli/serve/serve_options.h"
#include "k3/cli/version.h"
#include "k3/ops/cpu/isa.h"

namespace k3::cli {
namespace {

// Limits are given as ranges: the messages of CLI11's PositiveNumber print the largest double.
constexpr int64_t kMostTokens = int64_t{1} << 24;

// CLI11 reads -1, and all beyond the largest number, as the largest one.
std::string check_seed(const std::string& text) {
  if (text.starts_with('-')) return "'" + text + "' is negative; a seed is a whole number from 0 on";
  uint64_t seed = 0;
  const bool beyond = std::from_chars(text.data(), text.data() + text.size(), seed).ec == std::errc::result_out_of_range;
  return beyond ? "'" + text + "' is more than a seed can be, 18446744073709551615" : std::string();
}

constexpr const char* kModelHelp = "Model folder in the released Hugging Face layout, or its config.json";

void add_model(CLI::App& app, std::string& model) { app.add_option("MODEL", model, kModelHelp)->required(); }

constexpr const char* kComputing = "Computing";

// What `k3 bench` takes lists of.
void add_threads_and_policy(CLI::App& app, ComputeOptions& o) {
  app.add_option("-t,--threads", o.threads, "Worker threads (default: all this process may use)")
      ->check(CLI::Range(1, 1024))
      ->group(kComputing);
  app.add_option("--policy", o.policy,
                 "bf16: round matrix inputs, conv tail and latent to BF16 (default). exact: FP32 throughout")
      ->check(CLI::IsMember({"bf16", "exact"}))
      ->group(kComputing);
}

void add_other_compute(CLI::App& app, ComputeOptions& o) {
  const char* group = kComputing;
  app.add_option("--device", o.device, "Where to compute: cpu (default), cuda, or cuda:1 for the second GPU (routed experts that do not fit its memory stay in host memory, see --vram)")
      ->group(group);
  app.add_option("--cpu-isa", o.isa, "Instruction set: auto, " + ops::isa_names() + " (default auto)")
      ->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512", "avx512bf16", "amx"}))
      ->group(group);
  app.add_option("--ctx", o.ctx_tokens, "Context in tokens (default: 32768, or the model's limit if that is less)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->group(group);
  app.add_option("--act", o.act,
                 "Inputs of products with 8-bit and MXFP4 weights: as the policy says (default), or int8: in 8 bits (lossy)")
      ->check(CLI::IsMember({"policy", "int8"}))
      ->group(group);
  app.add_flag("--deterministic", o.deterministic,
               "Same bits for a token whatever the chunking, the neighbours, the thread count and the memory (on a GPU a "
               "token at a time: prompts take as long as decoding them would)")
      ->group(group);
  app.add_option("--ram", o.ram,
                 "Most memory to use, like 8GiB, or auto (what is free): weights that do not fit are read from disk as they "
                 "are needed (default: all in memory; auto if they do not fit). With --device cuda: most host memory for routed "
                 "experts that do not fit --vram")
      ->check([](const std::string& text) {
        if (text == "auto") return std::string();
        const auto bytes = parse_bytes(text);
        return bytes.ok() ? std::string() : bytes.error().message;
      })
      ->group(group);
  app.add_option("--vram", o.vram,
                 "With --device cuda: most GPU memory to use, like 8GiB; routed experts that do not fit stay in host memory, and the "
                 "GPU keeps those that are used most (default: all that is free, if the model needs it)")
      ->check([](const std::string& text) {
        const auto bytes = parse_bytes(text);
        return bytes.ok() ? std::string() : bytes.error().message;
      })
      ->group(group);
  app.add_option("--expert-stats", o.expert_stats,
                 "With --ram or --vram: a JSON file of how often each expert was used; the hottest are loaded first, and the file is "
                 "brought up to date at the end")
      ->group(group);
}

void add_compute(CLI::App& app, ComputeOptions& o) {
  add_threads_and_policy(app, o);
  add_other_compute(app, o);
}

void add_sampling(CLI::App& app, SamplingOptions& o) {
  const char* group = "Sampling (defaults: the checkpoint's generation_config.json)";
  app.add_option("--temperature", o.temperature, "0 takes the most likely token (greedy)")
      ->check(real_range(0.0, 100.0))
      ->group(group);
  app.add_option("--top-p", o.top_p, "Keep the most likely tokens up to this total probability")
      ->check(real_range(0.0, 1.0))
      ->group(group);
  app.add_option("--top-k", o.top_k, "Keep the k most likely tokens (0: all)")
      ->check(CLI::Range(0, INT32_MAX))
      ->group(group);
  app.add_option("--min-p", o.min_p, "Drop tokens below this fraction of the best probability")
      ->check(real_range(0.0, 1.0))
      ->group(group);
  app.add_option("--repetition-penalty", o.repetition_penalty, "Above 1 discourages tokens already in the text")
      ->check(real_range(0.001, 1000.0))
      ->group(group);
  app.add_option("--presence-penalty", o.presence_penalty, "-2 to 2, for tokens already generated")
      ->check(real_range(-2.0, 2.0))
      ->group(group);
  app.add_option("--seed", o.seed, "Same seed, same answer")->check(check_seed)->group(group);
  app.add_option("-n,--max-tokens", o.max_tokens, "Longest answer in tokens (default: until it ends or the context is full)")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}))
      ->group(group);
  app.add_option("--stop", o.stop, "End the answer at this text (may be given several times)")->group(group);
}

void add_thinking(CLI::App& app, ThinkOptions& o) {
  app.add_option("--think", o.think, "Let the model think first: on or off (default: the checkpoint's)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--effort", o.effort, "How much it thinks: low, high, max")->check(CLI::IsMember({"low", "high", "max"}));
}

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "Print JSON for programs"); }

struct AllOptions {
  ServeOptions serve;
  RunOptions run;
  ChatOptions chat;
  InspectOptions inspect;
  TokenizeOptions tokenize;
  DetokenizeOptions detokenize;
  RenderOptions render;
  LogitsOptions logits;
  PerplexityOptions perplexity;
  InitOptions init;
  ConvertOptionsCli convert;
  BenchOptions bench;
  LoadgenOptions loadgen;
  TrainTokenizerOptions train_tokenizer;
  PrepareCliOptions prepare;
  TrainOptions train;
  ExportOptions exporting;
  PlanOptions plan;
  SimOptions sim;
};

template <class Options>
void bind(CLI::App* app, Status& status, Options& options, Status (*command)(const Options&)) {
  app->callback([&status, &options, command] { status = command(options); });
}

void add_use_commands(CLI::App& app, AllOptions& o, Status& status) {
  CLI::App* run = app.add_subcommand("run", "Answer one prompt")->group("Use a model");
  run->footer(
      "The answer alone goes to stdout; notes and speeds go to stderr.\n"
      "A chat model is given the prompt as a user's message, unless --raw.\n\n"
      "Examples:\n"
      "  k3 run models/k3-mini -p 'What is the capital of France?' --temperature 0\n"
      "  k3 run models/k3-mini --raw -p 'It was a dark and stormy night' -n 100\n"
      "  git diff | k3 run MODEL --system 'Write a commit message for this change.'");
  add_model(*run, o.run.model);
  auto* prompt = run->add_option("-p,--prompt", o.run.prompt, "The prompt (default: read it from stdin)");
  run->add_option("-f,--file", o.run.file, "Read the prompt from a file")->excludes(prompt);
  run->add_option("--system", o.run.system, "A system message before the prompt");
  run->add_flag("--raw", o.run.raw, "Continue the text as it is, without a chat format ([BOS] is put before it)");
  add_json(*run, o.run.json);
  add_thinking(*run, o.run.thinking);
  add_sampling(*run, o.run.sampling);
  add_compute(*run, o.run.compute);
  bind(run, status, o.run, run_command);

  CLI::App* chat = app.add_subcommand("chat", "Talk with a model")->group("Use a model");
  chat->footer("Type /help inside. Ctrl-C stops the answer, Ctrl-D leaves.");
  add_model(*chat, o.chat.model);
  chat->add_option("--system", o.chat.system, "A system message");
  add_thinking(*chat, o.chat.thinking);
  add_sampling(*chat, o.chat.sampling);
  add_compute(*chat, o.chat.compute);
  bind(chat, status, o.chat, chat_command);
}

void add_serve_command(CLI::App& app, AllOptions& o, Status& status) {
  CLI::App* serve = app.add_subcommand("serve", "Serve a model over HTTP: OpenAI and Anthropic APIs, a page at /")->group("Use a model");
  add_model(*serve, o.serve.model);
  add_serve_options(*serve, o.serve);
  add_compute(*serve, o.serve.compute);
  bind(serve, status, o.serve, serve_command);
}

void add_look_commands(CLI::App& app, AllOptions& o, Status& status) {
  const char* group = "Look at one";
  CLI::App* inspect =
      app.add_subcommand("inspect", "Layers, parameters, bytes, FLOPs and cache sizes; shards present or missing")
          ->group(group);
  inspect->footer("Works from a config.json alone. Example:\n  k3 inspect models/k3-mini");
  inspect->add_option("PATH", o.inspect.path, "Model folder or config.json")->required();
  add_json(*inspect, o.inspect.json);
  bind(inspect, status, o.inspect, inspect_command);

  CLI::App* tokenize = app.add_subcommand("tokenize", "Text to token ids")->group(group);
  add_model(*tokenize, o.tokenize.model);
  auto* text = tokenize->add_option("TEXT", o.tokenize.text, "The text (default: stdin)");
  tokenize->add_option("-f,--file", o.tokenize.file, "Read the text from a file")->excludes(text);
  tokenize->add_flag("--specials", o.tokenize.specials, "Names of special tokens in the text become tokens");
  add_json(*tokenize, o.tokenize.json);
  bind(tokenize, status, o.tokenize, tokenize_command);

  CLI::App* detokenize = app.add_subcommand("detokenize", "Token ids to text")->group(group);
  add_model(*detokenize, o.detokenize.model);
  detokenize->add_option("IDS", o.detokenize.ids, "Ids separated by commas or spaces (default: stdin)");
  detokenize->add_flag("--skip-specials", o.detokenize.skip_specials, "Leave special tokens out");
  add_json(*detokenize, o.detokenize.json);
  bind(detokenize, status, o.detokenize, detokenize_command);

  CLI::App* render = app.add_subcommand("render", "A chat request to the exact prompt")->group(group);
  add_model(*render, o.render.model);
  render->add_option("REQUEST", o.render.request, "OpenAI-style chat request (JSON file, or - for stdin)")->required();
  render->add_flag("--json", o.render.json, R"(Print {"text", "ids"})");
  bind(render, status, o.render, render_command);

  CLI::App* logits =
      app.add_subcommand("logits", "Logits of every position, as float32 [tokens, vocab] in a .npy file")->group(group);
  add_model(*logits, o.logits.model);
  logits->add_option("--ids", o.logits.ids, "Token ids: 1,2,3 or @file")->required();
  logits->add_option("--out", o.logits.out, "The .npy file to write")->required();
  logits
      ->add_option("--chunk", o.logits.split,
                   "Feed the prompt in chunks of N tokens (default: whole, up to 512 at a time; at most 4096)")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  add_json(*logits, o.logits.json);
  add_compute(*logits, o.logits.compute);
  bind(logits, status, o.logits, logits_command);

  CLI::App* perplexity =
      app.add_subcommand("perplexity", "How well a model predicts a text: nats per token, bits per byte")->group(group);
  add_model(*perplexity, o.perplexity.model);
  auto* file = perplexity->add_option("-f,--file", o.perplexity.file, "The text file");
  auto* documents = perplexity->add_option("--documents", o.perplexity.documents,
                                           "A file as for k3 prepare (.txt or .jsonl, also .zst): each document by itself, [BOS] to "
                                           "[EOS]; bits per byte as k3 train reports them");
  perplexity->add_option("--ids", o.perplexity.ids, "Token ids instead of text: 1,2,3 or @file")->excludes(file);
  documents->excludes(file)->excludes("--ids");
  perplexity->add_option("--window", o.perplexity.window, "Tokens per window, each begun anew: with [BOS], or with what a document has there (default 1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  perplexity
      ->add_option("--state-dtype", o.perplexity.state_dtype, "KDA states in f32 (default) or bf16, as k3 serve may keep them")
      ->check(CLI::IsMember({"f32", "bf16"}));
  perplexity->add_option("--latent-dtype", o.perplexity.latent_dtype, "MLA latents in f32, bf16 or f8_e4m3 (default: the policy's)")
      ->check(CLI::IsMember({"f32", "bf16", "f8_e4m3"}));
  add_json(*perplexity, o.perplexity.json);
  add_compute(*perplexity, o.perplexity.compute);
  bind(perplexity, status, o.perplexity, perplexity_command);
}

CLI::ValidationError list_error(const std::string& option, const std::string& text, const std::string& why) {
  return CLI::ValidationError(option.substr(0, option.find(',')) + " " + utf8_repair(text), utf8_repair(why));
}

// "1,2,4" in pieces. An empty one is refused: the splitter of CLI11 passes over it. An option that is given twice comes with a
// line for each.
std::vector<std::string> items_of(const std::string& option, std::string text) {
  std::replace(text.begin(), text.end(), '\n', ',');
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) throw list_error(option, text, fmt::format("number {} of the list is empty", items.size() + 1));
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

template <class Number>
std::vector<Number> number_list(const std::string& option, const std::string& text, int64_t least, int64_t most) {
  std::vector<Number> numbers;
  for (const std::string& item : items_of(option, text)) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (error != std::errc() || end != item.data() + item.size() || number < least || number > most) {
      throw list_error(option, text, fmt::format("'{}' is not a number from {} to {}", item, least, most));
    }
    numbers.push_back(static_cast<Number>(number));
  }
  return numbers;
}

void add_bench_tests(CLI::App& app, BenchOptions& o) {
  const char* group = "Tests (lists multiply: all lengths with all depths, batches, threads, policies)";
  const auto list = [&](const char* name, auto& values, const char* help, int64_t least, int64_t most) {
    const auto parse = [&values, name, least, most](const std::string& text) {
      values = number_list<typename std::decay_t<decltype(values)>::value_type>(name, text, least, most);
    };
    app.add_option_function<std::string>(name, parse, help)->join()->type_name("N,N")->group(group);
  };
  list("-p,--prefill", o.prefill, "Prompt lengths in tokens; 0: none (default 128,512)", 0, kMostTokens);
  list("-n,--decode", o.decode, "Tokens decoded one by one; 0: none (default 64)", 0, kMostTokens);
  list("-d,--depth", o.depth, "Tokens in the cache before a test (default 0)", 0, kMostTokens);
  list("-b,--batch", o.batch, "Sequences that go through each step together (default 1)", 1, 4096);
  list("-t,--threads", o.threads, "Worker threads (default: all this process may use)", 1, 1024);
  const auto policies = [&o](const std::string& text) {
    o.policies = items_of("--policy", text);
    for (const std::string& policy : o.policies) {
      if (policy != "bf16" && policy != "exact") throw list_error("--policy", text, "'" + policy + "' is not bf16 or exact");
    }
  };
  app.add_option_function<std::string>("--policy", policies, "bf16, exact or both: bf16,exact (default bf16)")
      ->join()
      ->type_name("P,P")
      ->group(group);
  app.add_option("-r,--repeats", o.repeats, "Timed runs of each test, after one that warms up (default 5)")
      ->check(CLI::Validator(CLI::Range(int64_t{1}, int64_t{1000})).description(""))
      ->type_name("N")
      ->group(group);
}

void add_bench_random(CLI::App& app, BenchOptions& o) {
  const char* group = "A model without a checkpoint: weights are made where they are to lie, on the GPU with --device cuda";
  app.add_option("--random", o.random, "A config.json or model folder, instead of MODEL")->type_name("CONFIG")->group(group);
  app.add_option("--set", o.set,
                 "field=value of that config, as for k3 init; experts=mxfp4 or experts=bf16 packs or unpacks the routed experts")
      ->type_name("F=V")
      ->group(group);
  app.add_option("--seed", o.seed, "Random seed (default 0)")->check(check_seed)->group(group);
  const auto ranks = [&](const char* name, int64_t& value, const char* help, int64_t least) {
    app.add_option(name, value, help)->check(CLI::Validator(CLI::Range(least, int64_t{4096})).description(""))->type_name("N")->group(group);
  };
  ranks("--tp", o.tp, "One rank of N that divide heads, dense MLP and shared experts; nothing is exchanged (default 1)", 1);
  ranks("--ep", o.ep, "One rank of N that divide the routed experts; routes to others are dropped (default 1)", 1);
  ranks("--rank", o.rank, "Which rank (default 0)", 0);
}

void add_bench_command(CLI::App& app, AllOptions& o, Status& status) {
  CLI::App* bench =
      app.add_subcommand("bench", "Prefill and decode speed, against what the machine can do")->group("Look at one");
  bench->footer(
      "tokens/s   median over the runs, of all sequences together; 'each' is for one\n"
      "spread     half of the range of the runs, in percent of the median\n"
      "GB/s       bytes that have to be read (weights once a step, experts as expected\n"
      "           for the batch, KDA state twice, the context's latents), over the time\n"
      "GFLOP/s    products that have to be computed, over the time\n"
      "of floor   the least time that this machine could take, over the time taken: those\n"
      "           bytes at its read rate, or those products at the rate of its fastest\n"
      "           unit, whichever is longer ('bound' says which). Both rates are measured\n"
      "           before and after every run.\n\n"
      "With --device cuda:\n"
      "ms         of a step (decode) or a prompt, by the GPU's clock, without the fetch of\n"
      "           logits; 'wall ms' by the host's, with it\n"
      "floor ms   bytes at the rate of a copy, or products at that of a large BF16 product,\n"
      "           whichever is longer; weights of the experts that tokens really chose\n"
      "           ('experts', in the mean of a layer), counted on the device\n"
      "Histories (-d) are lengths of caches with random content; no prompt is run.\n\n"
      "Examples:\n"
      "  k3 bench models/k3-mini\n"
      "  k3 bench MODEL -p 128,512,2048 -n 64 -t 1,2 -b 1,4\n"
      "  k3 bench MODEL -p 0 -n 32 -d 0,4096 --policy bf16,exact --output markdown\n"
      "  k3 bench MODEL --quality text.txt     # what a setting costs, beside its speed\n"
      "  k3 bench ceiling -t 1,2               # the machine alone\n"
      "  k3 bench --random tests/data/configs/kimi-linear-48b.json --device cuda -p 0 -n 16 -d 4096 -b 1,32,128\n"
      "  k3 bench --random tests/data/configs/kimi-linear-48b.json --set experts=mxfp4 --device cuda -p 8192 -n 0 --chunk 8192\n"
      "  k3 bench --random tests/data/configs/k3.json --set num_hidden_layers=13 --tp 8 --ep 8 --device cuda -p 0 -d 4096 -b 1,8,64 --layers");
  bench->add_option("MODEL", o.bench.model, "Model folder or config.json; 'ceiling': the machine alone");
  add_bench_tests(*bench, o.bench);
  bench->add_flag("--ceiling", o.bench.ceiling_only, "Measure the machine's ceilings alone; needs no model");
  bench->add_flag_callback(
      "--no-ceilings", [&o] { o.bench.ceilings = false; }, "Leave out the ceilings and the shares of the floor");
  bench
      ->add_option_function<std::vector<std::string>>(
          "--quality",
          [&o](const std::vector<std::string>& values) { o.bench.quality = values.empty() ? "" : values.front(); },
          "Perplexity beside speed, on this text (default: one built in)")
      ->expected(0, 1)
      ->type_name("FILE");
  bench->add_option("--output", o.bench.output, "table (default), json or markdown")
      ->check(CLI::IsMember({"table", "json", "markdown"}));
  bench->add_flag_function(
      "--json", [&o](int64_t) { o.bench.output = "json"; }, "The same as --output json");
  add_bench_random(*bench, o.bench);
  bench->add_option("--chunk", o.bench.compute.chunk_tokens, "Most tokens of one forward (default 512)")
      ->check(CLI::Range(int64_t{1}, kMostTokens));
  bench->add_flag("--layers", o.bench.layers, "On a GPU: after each test the time of each kind of layer, against its floor");
  add_other_compute(*bench, o.bench.compute);
  bind(bench, status, o.bench, bench_command);
}

void add_make_commands(CLI::App& app, AllOptions& o, Status& status) {
  const char* group = "Make one";
  CLI::App* init = app.add_subcommand("init", "Write a random model of a config")->group(group);
  init->footer(
      "Examples:\n"
      "  k3 init models/k3-mini/config.json tiny --set num_hidden_layers=4\n"
      "  k3 init k3-config.json small --no-vision --set hidden_size=512 --set linear_attn_config.num_heads=4 ...");
  init->add_option("CONFIG", o.init.config, "config.json, or a model folder")->required();
  init->add_option("OUT", o.init.out, "The folder to write")->required();
  init->add_option("--set", o.init.set,
                   "field=value by field name or dotted path; lowering num_hidden_layers trims both layer lists");
  init->add_option("--seed", o.init.seed, "Random seed (default 0)")->check(check_seed);
  init->add_option("--shards", o.init.shards, "Number of weight files (default 1)")
      ->check(CLI::Range(int64_t{1}, kMostShards));
  init->add_flag("--no-vision", o.init.no_vision, "Leave the vision tower out");
  init->add_flag("--force", o.init.force, "Write into a folder that already holds a model");
  init->add_option("-t,--threads", o.init.threads, "Worker threads")->check(CLI::Range(1, 1024));
  bind(init, status, o.init, init_command);

  CLI::App* convert =
      app.add_subcommand("convert", "Re-pack a checkpoint; bytes of unchanged tensors pass through")->group(group);
  convert->footer("Example:\n  k3 convert Kimi-Linear-48B out --experts mxfp4 --shards 8");
  add_model(*convert, o.convert.model);
  convert->add_option("OUT", o.convert.out, "The folder to write")->required();
  convert->add_option("--experts", o.convert.experts, "mxfp4: quantise routed experts; bf16: unpack them (exact)")
      ->check(CLI::IsMember({"keep", "mxfp4", "bf16"}));
  convert
      ->add_option("--trunk", o.convert.trunk,
                   "Dtype of all other matrices and norms: bf16, f16, f32; int8: large matrices in 8 bits (lossy)")
      ->check(CLI::IsMember({"keep", "bf16", "f16", "f32", "int8"}));
  convert->add_option("--shards", o.convert.shards, "Number of weight files (default: as the source)")
      ->check(CLI::Range(int64_t{1}, kMostShards));
  convert->add_flag("--force", o.convert.force, "Write into a folder that already holds a model");
  bind(convert, status, o.convert, convert_command);
}

void print_error(const Error& error) {
  const bool colour = use_colour(STDERR_FILENO);
  std::fprintf(stderr, "k3: %serror:%s %s\n", colour ? "\x1b[31m" : "", colour ? "\x1b[0m" : "", error.message.c_str());
}

// "k3 inspct": CLI11 would only say that a command is required.
bool is_unknown_command(const CLI::App& app, int argc, const char* const* argv) {
  return argc > 1 && argv[1][0] != '-' &&
         app.get_subcommands([&](const CLI::App* command) { return command->get_name() == argv[1]; }).empty();
}

// A signal that ends the program leaves no half-written file behind, and ends it as it would have.
void on_end(int number) {
  remove_unfinished_files();
  std::signal(number, SIG_DFL);
  ::raise(number);
}

void catch_ends() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(number, on_end) == SIG_IGN) std::signal(number, SIG_IGN);  // nohup, background jobs of a script
  }
}

// A closed standard stream would leave its number to the next file that is opened, and what is printed would end up in that one. The
// number is taken in the wrong direction, so that reading and writing fail as they would.
void hold_standard_streams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) >= 0) continue;
    if (::open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

// The exit code of a finished command, after everything that it printed is out.
int finish(Status status) {
  const Status output = output_status();
  if (!output.ok() && (status.ok() || status.error().code == Code::cancelled)) status = output;
  if (status.ok()) return kExitOk;
  if (status.error().code != Code::cancelled) print_error(status.error());
  return exit_code(status.error().code);
}

}  // namespace

int cli_main(int argc, const char* const* argv) {
  // A reader that goes away (k3 ... | head) ends us quietly, as it ends every filter.
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: the write fails and says where
  catch_ends();
  hold_standard_streams();
  CLI::App app("k3: runs models of the Kimi K3 family.", "k3");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.footer(exit_code_help());
  AllOptions options;
  Status status;
  add_use_commands(app, options, status);
  add_loadgen_command(app, options.loadgen, status);
  add_serve_command(app, options, status);
  add_look_commands(app, options, status);
  add_bench_command(app, options, status);
  add_make_commands(app, options, status);
  add_data_commands(app, options.train_tokenizer, options.prepare, status);
  add_train_commands(app, options.train, options.exporting, status);
  add_plan_command(app, options.plan, status);
  add_sim_command(app, options.sim, status);
  if (is_unknown_command(app, argc, argv)) {
    return finish(fail(Code::invalid_argument, "no command '{}'; 'k3 --help' lists them", utf8_repair(argv[1])));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;
    const int code = app.exit(e, out, err);
    print_out(out.str());
    std::fputs(err.str().c_str(), stderr);
    return code == 0 ? finish({}) : kExitUsage;
  } catch (const std::bad_alloc&) {
    return finish(fail(Code::exhausted, "out of memory"));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "k3: internal error: %s\n", e.what());
    return kExitFailure;
  }
  return finish(std::move(status));
}

}  // namespace k3::cli
