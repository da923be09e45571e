// One struct per subcommand, filled by parse.cc (CLI11), validated once there, read by the commands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace k3::cli {

// Options of every command that computes.
struct ComputeOptions {
  std::string device = "cpu";   // cpu | cuda | cuda:N
  int threads = 0;              // 0: all that the process may use
  std::string policy = "bf16";  // exact | bf16
  std::string isa = "auto";
  int64_t ctx_tokens = 0;  // 0: 32,768 or the model's limit, whichever is less
  int64_t chunk_tokens = 512;
  bool deterministic = false;
  std::string ram;           // "": everything in memory if it fits; auto; a size
  std::string vram;          // with a GPU; "": all that is free; a size
  std::string expert_stats;  // file of expert use, read and written
  std::string act = "policy";  // policy | int8
};

struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  int64_t max_tokens = 0;
  std::vector<std::string> stop;
};

struct ThinkOptions {
  std::string think;   // "", on, off
  std::string effort;  // "", low, high, max
};

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt, file, system;
  bool raw = false, json = false;
  ComputeOptions compute;
  SamplingOptions sampling;
  ThinkOptions thinking;
};

struct ChatOptions {
  std::string model;
  std::string system;
  ComputeOptions compute;
  SamplingOptions sampling;
  ThinkOptions thinking;
};

struct InspectOptions {
  std::string path;
  bool json = false;
};

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text, file;
  bool specials = false, json = false;
};

struct DetokenizeOptions {
  std::string model;
  std::optional<std::string> ids;
  bool skip_specials = false, json = false;
};

struct RenderOptions {
  std::string model, request;
  bool json = false;
};

struct LogitsOptions {
  std::string model, out;
  std::string ids;
  int64_t split = 0;  // 0: the whole prompt in chunks of the default size
  bool json = false;
  ComputeOptions compute;
};

struct PerplexityOptions {
  std::string state_dtype, latent_dtype;  // "": as the policy has them
  std::string model;
  std::optional<std::string> file, documents, ids;
  int64_t window = 1024;
  bool json = false;
  ComputeOptions compute;
};

struct InitOptions {
  std::string config, out;
  std::vector<std::string> set;
  uint64_t seed = 0;
  int64_t shards = 1;
  bool no_vision = false, force = false;
  int threads = 0;
};

struct ConvertOptionsCli {
  std::string model, out;
  std::string experts = "keep";  // keep | mxfp4 | bf16
  std::string trunk = "keep";    // keep | bf16 | f16 | f32
  std::optional<int64_t> shards;
  bool force = false;
};

// Lists multiply: every test runs with every thread count, policy and batch.
struct BenchOptions {
  std::string model;                                         // "ceiling": no model, the machine alone
  std::vector<int64_t> prefill = {128, 512}, decode = {64};  // 0 leaves out
  std::vector<int64_t> depth = {0}, batch = {1};
  std::vector<int> threads;  // empty: all that the process may use
  std::vector<std::string> policies = {"bf16"};
  int64_t repeats = 5;
  bool ceilings = true, ceiling_only = false;
  std::optional<std::string> quality;  // a text file; "" is the text built in
  std::string output = "table";        // table | json | markdown
  std::string random;                  // a config: weights are made up, there is no checkpoint
  std::vector<std::string> set;        // changes of that config
  uint64_t seed = 0;
  bool layers = false;                 // on a GPU: times of each kind of layer
  int64_t tp = 1, ep = 1, rank = 0;    // of a random model only one rank's share
  ComputeOptions compute;              // its threads and policy are not used
};

}  // namespace k3::cli
