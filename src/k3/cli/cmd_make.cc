// init, convert.
#include <filesystem>
#include <optional>

#include "k3/base/file.h"
#include "k3/base/progress.h"
#include "k3/base/units.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/format/checkpoint.h"
#include "k3/format/config_edit.h"
#include "k3/model/convert.h"
#include "k3/model/init.h"
#include "k3/model/summary.h"

namespace k3::cli {
namespace {

constexpr const char* kSideFiles[] = {
    "tiktoken.model", "tokenizer_config.json", "generation_config.json",   "chat_format.json",
    "encoding_k3.py", "chat_template.jinja",   "preprocessor_config.json", "README.md"};

Status copy_side_files(const std::string& from, const std::string& to, bool readme) {
  for (const std::string_view name : kSideFiles) {
    if (!readme && name == "README.md") continue;
    const std::string source = join_path(from, name), target = join_path(to, name);
    if (!path_exists(source)) continue;
    std::error_code same;
    if (std::filesystem::equivalent(source, target, same)) continue;
    K3_TRY_ASSIGN(const std::string text, read_file(source));
    K3_TRY(write_file(target, text));
  }
  return {};
}

// A progress callback that opens its bar at the first call.
class LazyBar {
 public:
  explicit LazyBar(const char* label) : label_(label) {}
  void operator()(int64_t done, int64_t total) {
    if (!bar_) bar_.emplace(label_, total, "B");
    bar_->update(done);
  }
  void finish() { bar_.reset(); }

 private:
  const char* label_;
  std::optional<Progress> bar_;
};

}  // namespace

Status init_command(const InitOptions& options) {
  const std::string path = is_directory(options.config) ? join_path(options.config, "config.json") : options.config;
  K3_TRY_ASSIGN(std::string json, read_file(path, int64_t{16} << 20));
  if (options.no_vision) {
    K3_TRY_ASSIGN(json, remove_vision(json).with_context(path));
  }
  const std::string before = json;
  K3_TRY_ASSIGN(json, edit_config(json, options.set).with_context(path));
  K3_TRY_ASSIGN(json, set_trunk_packing(json, false).with_context(path));  // random weights are in the released layout
  K3_TRY_ASSIGN(Config config, edited_config(before, json, path, options.set));
  settle_random(config);
  K3_TRY(check_sizes(config).with_context(path));
  K3_TRY(prepare_output_folder(options.out, options.force));
  const ModelSummary summary = summarise(config);
  note(fmt::format("{} parameters, {} in {} file{}", format_count(static_cast<double>(summary.total.params)),
                   format_bytes(summary.total.size_bytes), options.shards, options.shards > 1 ? "s" : ""));
  std::error_code ignored;
  const auto space = std::filesystem::space(options.out, ignored);
  if (!ignored && space.available < static_cast<uintmax_t>(summary.total.size_bytes)) {  // the largest number: not known
    return fail(Code::exhausted, "{}: {} are needed, {} are free on that disk", options.out,
                format_bytes(summary.total.size_bytes), format_bytes(static_cast<int64_t>(space.available)));
  }
  ThreadPool pool(options.threads > 0 ? options.threads : available_threads());
  LazyBar bar("writing");
  K3_TRY(write_random_checkpoint(config, options.out, options.seed, options.shards, pool, std::ref(bar)));
  bar.finish();
  K3_TRY(write_file(join_path(options.out, "config.json"), json));
  K3_TRY(copy_side_files(model_folder(path), options.out, /*readme=*/false));
  note(fmt::format("wrote {}", options.out));
  return {};
}

namespace {

// The config that goes with the converted weights.
Result<std::string> converted_config(const ConvertOptionsCli& options, const ConvertOptions& convert) {
  const std::string path = is_directory(options.model) ? join_path(options.model, "config.json") : options.model;
  K3_TRY_ASSIGN(std::string json, read_file(path, int64_t{16} << 20));
  if (convert.trunk) {
    K3_TRY_ASSIGN(json, set_trunk_packing(json, *convert.trunk == DType::i8));
  }
  if (convert.trunk && *convert.trunk != DType::i8) {
    const char* name = *convert.trunk == DType::bf16 ? "bfloat16" : *convert.trunk == DType::f16 ? "float16" : "float32";
    K3_TRY_ASSIGN(json, set_dtype(json, name));
  }
  if (convert.experts != ConvertOptions::Experts::keep) {
    K3_TRY_ASSIGN(json, set_expert_packing(json, convert.experts == ConvertOptions::Experts::mxfp4));
  }
  return json;
}

}  // namespace

Status convert_command(const ConvertOptionsCli& options) {
  const std::string folder = model_folder(options.model);
  K3_TRY_ASSIGN(Config config, load_config(options.model));
  K3_TRY_ASSIGN(const Checkpoint source, Checkpoint::open(folder));
  resolve_by_tensors(source, config);
  std::error_code same;
  if (std::filesystem::equivalent(folder, options.out, same)) {
    return fail(Code::invalid_argument, "OUT is the model itself; choose another folder");
  }
  ConvertOptions convert;
  if (options.experts == "mxfp4") convert.experts = ConvertOptions::Experts::mxfp4;
  if (options.experts == "bf16") convert.experts = ConvertOptions::Experts::bf16;
  if (options.trunk != "keep")
    convert.trunk = options.trunk == "bf16"   ? DType::bf16
                    : options.trunk == "f16"  ? DType::f16
                    : options.trunk == "int8" ? DType::i8
                                              : DType::f32;
  convert.shards = options.shards;
  K3_TRY_ASSIGN(const std::string json, converted_config(options, convert));
  K3_TRY(prepare_output_folder(options.out, options.force));
  LazyBar bar("converting");
  K3_TRY_ASSIGN(const ConvertReport report, convert_checkpoint(source, config, options.out, convert, std::ref(bar)));
  bar.finish();
  K3_TRY(write_file(join_path(options.out, "config.json"), json));
  K3_TRY(copy_side_files(folder, options.out, /*readme=*/true));
  note(fmt::format("wrote {}: {} of {} tensors passed through, {} quantised, {} unpacked, {} recast; {} -> {}", options.out,
                   report.passed_through, report.tensors, report.quantised, report.dequantised, report.recast,
                   format_bytes(report.source_bytes), format_bytes(report.written_bytes)));
  return {};
}

}  // namespace k3::cli
