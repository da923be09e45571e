#include <algorithm>
#include <memory>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/units.h"
#include "k3/cli/commands.h"
#include "k3/cli/common.h"
#include "k3/format/checkpoint.h"
#include "k3/model/summary.h"

namespace k3::cli {
namespace {

struct Shards {
  bool any = false;
  int32_t total = 0;
  std::vector<std::string> missing;
  int64_t tensors = 0;
  std::string complaint;                   // what verify_all said
  std::unique_ptr<Checkpoint> checkpoint;  // when all of it is there
};

// A folder may hold a config only, some shards, or a whole checkpoint.
Result<Shards> look_at_shards(const std::string& path, Config& config) {
  Shards shards;
  if (!is_directory(path)) return shards;
  auto checkpoint = Checkpoint::open(path);
  if (!checkpoint.ok()) {
    if (checkpoint.error().code == Code::not_found) return shards;
    return std::move(checkpoint).take_error();
  }
  resolve_by_tensors(*checkpoint, config);
  shards.any = true;
  shards.total = checkpoint->shard_count();
  shards.tensors = checkpoint->tensor_count();
  for (int32_t i = 0; i < shards.total; ++i) {
    if (!checkpoint->shard_present(i)) shards.missing.push_back(checkpoint->shard_file(i));
  }
  const Status verified = checkpoint->verify_all();
  const bool known = !shards.missing.empty() && !verified.ok() && verified.error().code == Code::not_found;
  if (!verified.ok() && !known) shards.complaint = verified.error().message;
  if (verified.ok() && shards.missing.empty()) shards.checkpoint = std::make_unique<Checkpoint>(*std::move(checkpoint));
  return shards;
}

// "KKKM KKKM ...": one letter a layer, groups as long as the AttnRes block (or ten).
std::string layer_map(const Config& c) {
  const int64_t group = c.attn_res_block_size.value_or(10);
  std::string map;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    if (l > 0 && l % group == 0) map += ' ';
    const char letter = c.is_kda(l) ? 'K' : 'M';
    map += c.is_moe(l) ? letter : static_cast<char>(letter - 'A' + 'a');
  }
  return map;
}

std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (column > indent && column + 1 + end - begin > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out;
}

void print_table(const Config& c, const ModelSummary& s, const Shards& shards) {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) { out += fmt::format("{:<18}{}\n", name, value); };
  line("model", fmt::format("{} ({})", c.model_type.empty() ? "?" : c.model_type, c.architecture));
  line("layers", fmt::format("{}: {} KDA, {} MLA; {} with experts, {} dense", c.num_hidden_layers, s.kda_layers,
                             s.mla_layers, s.moe_layers, s.dense_layers));
  line("layer map", wrapped(layer_map(c), 18, 100));
  line("", "K = KDA, M = MLA, lower case = dense MLP" +
               (c.attn_res_block_size ? fmt::format("; groups are AttnRes blocks of {}", *c.attn_res_block_size)
                                      : std::string()));
  line("width", fmt::format("hidden {}, KDA {} x {}, MLA {} heads ({} + {} | {}), latent {}", c.hidden_size, c.kda_num_heads,
                            c.kda_head_dim, c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim,
                            c.kv_lora_rank));
  if (c.num_experts > 0) {
    line("experts", fmt::format("{}, top-{}, + {} shared; width {}, inner {}; {}", c.num_experts, c.num_experts_per_token,
                                c.num_shared_experts, c.expert_width(), c.moe_intermediate_size,
                                c.experts_mxfp4 ? "MXFP4" : "unpacked"));
  }
  if (c.trunk_int8) line("trunk", "large matrices in 8 bits (MXINT8: a power of two for every 32 columns)");
  line("vocabulary", format_grouped(c.vocab_size));
  Table table({"component", "tensors", "parameters", "share", "bytes"});
  for (const auto& [component, t] : s.components) {
    table.row({std::string(component_name(component)), format_grouped(t.tensors), format_grouped(t.params),
               fmt::format("{:.1f} %", 100.0 * static_cast<double>(t.params) / static_cast<double>(s.total.params)),
               format_bytes(t.size_bytes)});
  }
  table.row(
      {"total", format_grouped(s.total.tensors), format_grouped(s.total.params), "", format_bytes(s.total.size_bytes)});
  out += "\n" + table.text() + "\n";
  line("size", fmt::format("{} bytes in {} tensors", format_grouped(s.total.size_bytes), format_grouped(s.total.tensors)));
  line("active a token", fmt::format("{} parameters, {} read (batch 1)", format_count(static_cast<double>(s.active_params)),
                                     format_bytes(s.active_bytes)));
  line("FLOPs a token",
       fmt::format("{}FLOP matrices + {}FLOP recurrence + {}FLOP per cached token", format_count(s.matrix_flops_per_token),
                   format_count(s.recurrence_flops_per_token), format_count(s.attention_flops_per_context)));
  line("cache a token", fmt::format("{} in BF16, {} in FP32", format_bytes(s.cache_bytes_per_token(2)),
                                    format_bytes(s.cache_bytes_per_token(4))));
  line("state a sequence",
       fmt::format("{} (FP32 state {}, conv tail {} in BF16)", format_bytes(s.cache_bytes_per_sequence(2)),
                   format_bytes(s.state_values_per_sequence * 4), format_bytes(s.conv_values_per_sequence * 2)));
  if (c.max_position_embeddings > 0) {
    const int64_t ctx = c.max_position_embeddings;
    line("full context", fmt::format("{} tokens: {} of cache in BF16", format_grouped(ctx),
                                     format_bytes(s.cache_bytes_per_token(2) * ctx + s.cache_bytes_per_sequence(2))));
  }
  if (!shards.any) {
    line("shards", "none here (config only)");
  } else {
    line("shards",
         fmt::format("{} of {} present", shards.total - static_cast<int32_t>(shards.missing.size()), shards.total));
    for (size_t i = 0; i < shards.missing.size() && i < 10; ++i) line("", "missing: " + shards.missing[i]);
    if (shards.missing.size() > 10) line("", fmt::format("... and {} more", shards.missing.size() - 10));
    if (!shards.complaint.empty()) line("", "damaged: " + shards.complaint);
  }
  print_out(out);
}

void print_json(const Config& c, const ModelSummary& s, const Shards& shards) {
  JsonWriter w(2);
  w.begin_object().field("model_type", c.model_type).field("architecture", c.architecture);
  w.field("layers", c.num_hidden_layers).field("kda_layers", s.kda_layers).field("mla_layers", s.mla_layers);
  w.field("moe_layers", s.moe_layers).field("dense_layers", s.dense_layers).field("layer_map", layer_map(c));
  w.field("trunk_int8", c.trunk_int8);
  w.field("hidden_size", c.hidden_size).field("vocab_size", c.vocab_size);
  w.field("parameters", s.total.params).field("tensors", s.total.tensors).field("size_bytes", s.total.size_bytes);
  w.field("active_parameters", s.active_params).field("active_bytes", s.active_bytes);
  w.field("matrix_flops_per_token", s.matrix_flops_per_token)
      .field("recurrence_flops_per_token", s.recurrence_flops_per_token);
  w.field("attention_flops_per_context_token", s.attention_flops_per_context);
  w.field("cache_bytes_per_token_bf16", s.cache_bytes_per_token(2))
      .field("cache_bytes_per_token_fp32", s.cache_bytes_per_token(4));
  w.field("state_bytes_per_sequence", s.state_values_per_sequence * 4);
  w.field("conv_bytes_per_sequence_bf16", s.conv_values_per_sequence * 2);
  w.key("components").begin_object();
  for (const auto& [component, t] : s.components) {
    w.key(component_name(component)).begin_object().field("tensors", t.tensors).field("parameters", t.params);
    w.field("size_bytes", t.size_bytes).end_object();
  }
  w.end_object();
  w.key("shards").begin_object().field("total", static_cast<int64_t>(shards.total));
  w.field("present", static_cast<int64_t>(shards.total) - static_cast<int64_t>(shards.missing.size()));
  w.field("tensors", shards.tensors);
  w.key("missing").begin_array();
  for (const std::string& name : shards.missing) w.value(name);
  w.end_array();
  if (!shards.complaint.empty()) w.field("damaged", shards.complaint);
  w.end_object().end_object();
  print_out(w.text() + "\n");
}

}  // namespace

Status inspect_command(const InspectOptions& options) {
  K3_TRY_ASSIGN(Config config, load_config(options.path));
  K3_TRY(check_sizes(config).with_context(options.path));
  K3_TRY_ASSIGN(Shards shards, look_at_shards(options.path, config));
  ModelSummary summary = summarise(config);
  if (shards.checkpoint) {
    // A checkpoint that lacks a tensor of its config still shows; the loader names what is missing.
    const Status stored = use_stored_sizes(*shards.checkpoint, config, summary);
    if (!stored.ok()) shards.complaint = stored.error().message;
  }
  options.json ? print_json(config, summary, shards) : print_table(config, summary, shards);
  // Everything is shown first; a damaged file is still a failure for scripts.
  if (!shards.complaint.empty()) return fail(Code::corrupt, "{}", shards.complaint);
  return {};
}

}  // namespace k3::cli
