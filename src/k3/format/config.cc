#include "k3/format/config.h"

#include <array>
#include <utility>

#include "k3/base/file.h"
#include "k3/format/config_reader.h"

namespace k3 {
namespace {

using config::Document;
using config::FieldReader;

constexpr int64_t kMost = 0x7FFFFFFF;          // of any id, position or list entry
constexpr int64_t kMostWidth = 1 << 24;        // of a width or count: every product of two that the model forms fits
constexpr int64_t kMostMergeSide = 256;        // of the vision merge kernel, which multiplies a width twice
constexpr int64_t kMostLayers = 1 << 16;       // the per-layer list is allocated from it
constexpr int64_t kMostConvTaps = 8;           // what the convolution kernels unroll
constexpr int64_t kMostResBlocks = 1024;       // what the AttnRes kernel mixes
constexpr int64_t kMxfp4Group = 32;            // weights that share a scale
constexpr int64_t kInt8Group = 32;             // the same for an 8-bit trunk
constexpr double kLeastGateLowerBound = -5.0;  // 16-token chunks keep e^80 finite in float (model.md 3.3)

// The layer lists of linear_attn_config, each with the kind it stands for. A third kind is one more row.
constexpr std::array<std::pair<const char*, AttentionKind>, 2> kLayerLists = {
    {{"kda_layers", AttentionKind::kda}, {"full_attn_layers", AttentionKind::mla}}};

class ConfigParser {
 public:
  explicit ConfigParser(Document* document) : document_(document), top_(document->root()), text_(top_) {}

  Result<Config> run() {
    if (auto nested = top_.maybe_object("text_config")) {
      text_ = *nested;
      c_.nested = true;
    }
    read_top();
    read_sizes();
    read_attention();
    read_moe();
    read_linear_attention();
    read_quantization();
    read_trunk_quantization();
    read_vision();
    K3_TRY(document_->status());
    return std::move(c_);
  }

 private:
  template <class... Args>
  void refuse(Code code, const FieldReader& at, std::string_view field, fmt::format_string<Args...> format, Args&&... args) {
    at.fail_field(code, field, fmt::format(format, std::forward<Args>(args)...));
  }

  // A field that is an expectation, not a parameter: absent or exactly this.
  void expect_count(const FieldReader& at, std::string_view field, int64_t only) {
    const auto value = at.maybe_count(field, -kMost, kMost);
    if (value && *value != only) refuse(Code::unsupported, at, field, "is {}; only {} is supported", *value, only);
  }
  void expect_bool(const FieldReader& at, std::string_view field, bool only) {
    const auto value = at.maybe_bool(field);
    if (value && *value != only) refuse(Code::unsupported, at, field, "is {}; only {} is supported", *value, only);
  }
  void expect_string(const FieldReader& at, std::string_view field, std::string_view only) {
    const auto value = at.maybe_string(field);
    if (value && *value != only) refuse(Code::unsupported, at, field, "is \"{}\"; only \"{}\" is supported", *value, only);
  }
  std::optional<double> positive(const FieldReader& at, std::string_view field) {
    const auto value = at.maybe_number(field);
    if (value && !(*value > 0)) refuse(Code::corrupt, at, field, "is {}; it must be above zero", *value);
    return value;
  }

  void read_top() {
    c_.model_type = top_.maybe_string("model_type").value_or("");
    c_.architecture = top_.first_string("architectures").value_or("");
    const auto outer = top_.maybe_bool("tie_word_embeddings"), inner = text_.maybe_bool("tie_word_embeddings");
    if (outer && inner && *outer != *inner) {
      refuse(Code::corrupt, text_, "tie_word_embeddings", "is {}, the top level says {}", *inner, *outer);
    }
    c_.tie_word_embeddings = inner.value_or(outer.value_or(false));
  }

  void read_sizes() {
    c_.vocab_size = text_.count("vocab_size", 1, kMost);
    c_.hidden_size = text_.count("hidden_size", 1, kMostWidth);
    c_.num_hidden_layers = text_.count("num_hidden_layers", 1, kMostLayers);
    c_.bos_token_id = token_id("bos_token_id");
    c_.eos_token_id = token_id("eos_token_id");
    c_.pad_token_id = token_id("pad_token_id");
    c_.media_placeholder_token_id = token_id("media_placeholder_token_id");
    read_activation();
    if (!text_.has("rms_norm_eps")) refuse(Code::not_found, text_, "rms_norm_eps", "is missing");
    c_.rms_norm_eps = positive(text_, "rms_norm_eps").value_or(c_.rms_norm_eps);
    if (c_.rms_norm_eps >= 1) refuse(Code::corrupt, text_, "rms_norm_eps", "is {}; it must be below 1", c_.rms_norm_eps);
    c_.initializer_range = positive(text_, "initializer_range").value_or(c_.initializer_range);
    c_.max_position_embeddings =
        text_.count_or("max_position_embeddings", text_.count_or("model_max_length", 0, 1, kMost), 1, kMost);
    c_.num_nextn_predict_layers = text_.count_or("num_nextn_predict_layers", 0, 0, kMostLayers);
    c_.attn_res_block_size = text_.maybe_count("attn_res_block_size", 1, kMost);
    if (c_.attn_res_block_size && (c_.num_hidden_layers - 1) / *c_.attn_res_block_size >= kMostResBlocks) {
      refuse(Code::unsupported, text_, "attn_res_block_size", "is {}: {} layers would make more than {} blocks",
             *c_.attn_res_block_size, c_.num_hidden_layers, kMostResBlocks);
    }
  }

  std::optional<int32_t> token_id(std::string_view field) {
    const FieldReader& at = top_.has(field) ? top_ : text_;
    const auto id = at.first_id(field, kMost);
    if (!id) return std::nullopt;
    if (*id >= c_.vocab_size) refuse(Code::corrupt, at, field, "is {}, vocab_size is {}", *id, c_.vocab_size);
    return static_cast<int32_t>(*id);
  }

  void read_activation() {
    const auto act = text_.maybe_string("hidden_act");
    if (!act) {
      refuse(Code::not_found, text_, "hidden_act", "is missing");
    } else if (*act == "situ") {
      c_.hidden_act = Activation::situ;
    } else if (*act != "silu") {
      refuse(Code::unsupported, text_, "hidden_act", "is \"{}\"; \"silu\" and \"situ\" are supported", *act);
    }
    c_.activation_situ_beta = positive(text_, "activation_situ_beta").value_or(1.0);
    c_.activation_situ_linear_beta = positive(text_, "activation_situ_linear_beta");
  }

  void read_attention() {
    c_.num_attention_heads = text_.count("num_attention_heads", 1, kMostWidth);
    const int64_t kv_heads = text_.count_or("num_key_value_heads", c_.num_attention_heads, 1, kMostWidth);
    if (kv_heads != c_.num_attention_heads) {
      refuse(Code::unsupported, text_, "num_key_value_heads",
             "is {}, num_attention_heads is {}; latent attention has one key head "
             "per query head",
             kv_heads, c_.num_attention_heads);
    }
    c_.q_lora_rank = text_.maybe_count("q_lora_rank", 1, kMostWidth);
    c_.kv_lora_rank = text_.count("kv_lora_rank", 1, kMostWidth);
    c_.qk_nope_head_dim = text_.count("qk_nope_head_dim", 1, kMostWidth);
    c_.qk_rope_head_dim = text_.count("qk_rope_head_dim", 0, kMostWidth);
    c_.v_head_dim = text_.count("v_head_dim", 1, kMostWidth);
    c_.mla_use_output_gate = text_.maybe_bool("mla_use_output_gate");
    expect_bool(text_, "mla_use_nope", true);
  }

  void read_moe() {
    const int64_t layers = c_.num_hidden_layers;
    const auto experts = text_.maybe_count("num_experts", 1, kMostWidth);
    c_.first_k_dense_replace = text_.count_or("first_k_dense_replace", experts ? 0 : layers, 0, kMost);
    c_.moe_layer_freq = text_.count_or("moe_layer_freq", 1, 1, kMost);
    if (c_.first_k_dense_replace > layers) {
      refuse(Code::corrupt, text_, "first_k_dense_replace", "is {}, num_hidden_layers is {}", c_.first_k_dense_replace,
             layers);
      return;
    }
    int64_t moe_layers = 0;
    for (int64_t i = 0; i < layers; ++i) moe_layers += c_.is_moe(i);
    if (moe_layers < layers || text_.has("intermediate_size"))
      c_.intermediate_size = text_.count("intermediate_size", 1, kMostWidth);
    if (moe_layers == 0 && !experts) return;
    c_.num_experts = text_.count("num_experts", 1, kMostWidth);
    c_.num_experts_per_token = text_.count("num_experts_per_token", 1, kMostWidth);
    if (c_.num_experts_per_token > c_.num_experts) {
      refuse(Code::corrupt, text_, "num_experts_per_token", "is {}, num_experts is {}", c_.num_experts_per_token,
             c_.num_experts);
    }
    c_.num_shared_experts = text_.count_or("num_shared_experts", 0, 0, kMostWidth);
    c_.moe_intermediate_size = text_.count("moe_intermediate_size", 1, kMostWidth);
    c_.routed_expert_hidden_size = text_.maybe_count("routed_expert_hidden_size", 1, kMostWidth);
    c_.latent_moe_use_norm = text_.maybe_bool("latent_moe_use_norm");
    read_router();
  }

  void read_router() {
    c_.moe_renormalize = text_.maybe_bool("moe_renormalize").value_or(true);
    c_.routed_scaling_factor = positive(text_, "routed_scaling_factor").value_or(1.0);
    expect_string(text_, "moe_router_activation_func", "sigmoid");
    expect_string(text_, "topk_method", "noaux_tc");
    expect_count(text_, "num_expert_group", 1);
    expect_count(text_, "topk_group", 1);
  }

  void read_linear_attention() {
    const auto linear = text_.maybe_object("linear_attn_config");
    if (!linear) {
      refuse(Code::not_found, text_, "linear_attn_config", "is missing: it says which layers are KDA");
      return;
    }
    c_.kda_num_heads = linear->count("num_heads", 1, kMostWidth);
    c_.kda_head_dim = linear->count("head_dim", 1, kMostWidth);
    c_.short_conv_kernel_size = linear->count_or("short_conv_kernel_size", 4, 2, kMostConvTaps);
    c_.use_full_rank_gate = linear->maybe_bool("use_full_rank_gate").value_or(false);
    c_.gate_lower_bound = linear->maybe_number("gate_lower_bound");
    if (c_.gate_lower_bound && !(*c_.gate_lower_bound >= kLeastGateLowerBound && *c_.gate_lower_bound < 0)) {
      refuse(Code::unsupported, *linear, "gate_lower_bound", "is {}; it must be at least {} and below 0",
             *c_.gate_lower_bound, kLeastGateLowerBound);
    }
    read_layer_kinds(*linear);
  }

  void read_layer_kinds(const FieldReader& linear) {
    const int64_t layers = c_.num_hidden_layers;
    std::vector<const char*> list_of(static_cast<size_t>(layers), nullptr);
    c_.attention.assign(static_cast<size_t>(layers), AttentionKind::mla);
    for (const auto& [list, kind] : kLayerLists) {
      for (const int64_t number : linear.maybe_counts(list, -kMost, kMost).value_or(std::vector<int64_t>{})) {
        if (number < 1 || number > layers) {
          refuse(Code::corrupt, linear, list, "names layer {}; layers run from 1 to {} (num_hidden_layers)", number, layers);
          return;
        }
        const char*& owner = list_of[static_cast<size_t>(number - 1)];
        if (owner != nullptr) {
          refuse(Code::corrupt, linear, list, "names layer {}, which is already in {}", number, owner);
          return;
        }
        owner = list;
        c_.attention[static_cast<size_t>(number - 1)] = kind;
      }
    }
    for (size_t i = 0; i < list_of.size(); ++i) {
      if (list_of[i] != nullptr) continue;
      refuse(Code::corrupt, linear, kLayerLists[0].first, "and {} both leave out layer {} of {}", kLayerLists[1].first,
             i + 1, layers);
      return;
    }
  }

  void read_quantization() {
    for (const FieldReader* at : {&top_, &text_}) {
      if (const auto quantization = at->maybe_object("quantization_config")) read_quantization(*quantization);
      if (!c_.nested) break;
    }
    if (!c_.experts_mxfp4 || c_.num_experts == 0) return;
    if (c_.moe_intermediate_size % kMxfp4Group != 0) {
      refuse(Code::corrupt, text_, "moe_intermediate_size", "is {}; packed MXFP4 experts need a multiple of {}",
             c_.moe_intermediate_size, kMxfp4Group);
    }
    if (c_.expert_width() % kMxfp4Group != 0) {
      refuse(Code::corrupt, text_, c_.routed_expert_hidden_size ? "routed_expert_hidden_size" : "hidden_size",
             "is {}; packed MXFP4 experts need a multiple of {}", c_.expert_width(), kMxfp4Group);
    }
  }

  // Our own extension: says how matrices of dtype I8 are to be read.
  void read_trunk_quantization() {
    const auto trunk = top_.maybe_object("trunk_quantization");
    if (!trunk) return;
    if (!trunk->has("format")) refuse(Code::corrupt, *trunk, "format", "is missing");
    expect_string(*trunk, "format", "mxint8");
    expect_count(*trunk, "group_size", kInt8Group);
    c_.trunk_int8 = true;
  }

  // The ignore list is not read: it does not name every tensor that is stored plain (model.md 1.3).
  void read_quantization(const FieldReader& quantization) {
    constexpr std::string_view kFormat = "mxfp4-pack-quantized";
    const auto format = quantization.maybe_string("format");
    if (!format) {
      refuse(Code::unsupported, quantization, "format", "is missing (quant_method \"{}\"); only \"{}\" is supported",
             quantization.maybe_string("quant_method").value_or(""), kFormat);
      return;
    }
    expect_string(quantization, "format", kFormat);
    if (const auto groups = quantization.maybe_object("config_groups")) {
      for (const std::string& name : groups->object_keys()) read_quantization_group(*groups, name);
    }
    c_.experts_mxfp4 = true;
  }

  void read_quantization_group(const FieldReader& groups, const std::string& name) {
    const auto group = groups.maybe_object(name);
    const auto weights = group ? group->maybe_object("weights") : std::nullopt;
    if (!weights) return;
    expect_count(*weights, "num_bits", 4);
    expect_count(*weights, "group_size", kMxfp4Group);
    expect_string(*weights, "type", "float");
    expect_bool(*weights, "symmetric", true);
  }

  void read_vision() {
    const auto vision = top_.maybe_object("vision_config");
    if (!vision) return;
    VisionConfig v;
    const auto count = [&vision](std::string_view field, int64_t* value) {
      *value = vision->count_or(field, *value, 1, kMostWidth);
    };
    count("patch_size", &v.patch_size);
    count("init_pos_emb_height", &v.init_pos_emb_height);
    count("init_pos_emb_width", &v.init_pos_emb_width);
    count("init_pos_emb_time", &v.init_pos_emb_time);
    count("vt_hidden_size", &v.hidden_size);
    count("vt_intermediate_size", &v.intermediate_size);
    count("vt_num_hidden_layers", &v.num_hidden_layers);
    count("vt_num_attention_heads", &v.num_attention_heads);
    count("qkv_hidden_size", &v.qkv_hidden_size);
    v.mm_hidden_size = v.hidden_size;
    count("mm_hidden_size", &v.mm_hidden_size);
    v.text_hidden_size = c_.hidden_size;
    count("text_hidden_size", &v.text_hidden_size);
    v.projector_ln_eps = positive(*vision, "projector_ln_eps").value_or(v.projector_ln_eps);
    if (const auto merge = vision->maybe_counts("merge_kernel_size", 1, kMostMergeSide)) {
      if (merge->size() == 2) {
        v.merge_height = (*merge)[0];
        v.merge_width = (*merge)[1];
      } else {
        refuse(Code::corrupt, *vision, "merge_kernel_size", "has {} entries; it must have two", merge->size());
      }
    }
    check_vision(*vision, v);
    c_.vision = v;
  }

  void check_vision(const FieldReader& at, const VisionConfig& v) {
    if (v.qkv_hidden_size % v.num_attention_heads != 0) {
      refuse(Code::corrupt, at, "qkv_hidden_size", "is {}, not a multiple of vt_num_attention_heads ({})", v.qkv_hidden_size,
             v.num_attention_heads);
    }
    if (v.text_hidden_size != c_.hidden_size) {
      refuse(Code::corrupt, at, "text_hidden_size", "is {}, the text model's hidden_size is {}", v.text_hidden_size,
             c_.hidden_size);
    }
    if (v.mm_hidden_size != v.hidden_size) {
      refuse(Code::corrupt, at, "mm_hidden_size", "is {}, vt_hidden_size is {}", v.mm_hidden_size, v.hidden_size);
    }
    expect_string(at, "pos_emb_type", "divided_fixed");
    expect_string(at, "pos_emb_interpolation_mode", "bilinear");
    expect_string(at, "norm_type", "rmsnorm");
    expect_string(at, "activation_func", "gelu_pytorch_tanh");
    expect_string(at, "mlp_type", "mlp2");
    expect_string(at, "merge_type", "sd2_tpool");
    expect_string(at, "mm_projector_type", "patchmergerv2");
    expect_string(at, "projector_hidden_act", "gelu");
    for (const char* bias : {"attn_bias", "linear_bias", "patch_embed_proj_bias"}) expect_bool(at, bias, false);
  }

  Document* document_;
  FieldReader top_, text_;
  Config c_;
};

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

}  // namespace

Result<Config> parse_config(std::string_view json, std::string_view source) {
  K3_TRY_ASSIGN(Document document, Document::parse(json, source));
  return ConfigParser(&document).run();
}

Result<Config> load_config(const std::string& path) {
  std::string file = path;
  if (is_directory(path)) {
    file = join_path(path, "config.json");
    if (!path_exists(file)) {
      return fail(Code::not_found, "{}: no config.json in this folder; a model folder holds config.json beside its weights",
                  path);
    }
  } else if (!path_exists(path)) {
    return fail(Code::not_found, "{}: no such file or folder", path);
  } else if (ends_with(path, ".safetensors") || ends_with(path, ".gguf") || ends_with(path, ".index.json")) {
    return fail(Code::invalid_argument, "{}: not a configuration; give the model folder or its config.json", path);
  }
  K3_TRY_ASSIGN(const std::string text, read_file(file, int64_t{16} << 20));
  return parse_config(text, file);
}

}  // namespace k3
