// What is served, and with which settings.
#include "k3/base/json_writer.h"
#include "k3/server/api/request/jobs.h"
#include "k3/server/api/routes/routes.h"

namespace k3::server {
namespace {

void write_model(JsonWriter& w, const ModelCard& card, const std::string& id) {
  w.begin_object().field("id", id).field("object", "model").field("created", card.created).field("owned_by", "local");
  w.field("max_model_len", card.ctx_tokens);
  w.key("architecture").begin_object().key("input_modalities").begin_array().value("text").end_array();
  w.key("output_modalities").begin_array().value("text").end_array().end_object();
  w.key("meta").begin_object().field("n_params", card.parameters).field("n_params_active", card.active_parameters);
  w.field("n_layers", card.layers).field("n_kda", card.kda_layers).field("n_mla", card.mla_layers);
  w.field("n_vocab", card.vocab).field("n_ctx", card.ctx_tokens).field("weight_format", card.weight_format);
  w.field("size_bytes", card.size_bytes).end_object().end_object();
}

}  // namespace

void list_models(Call call) {
  const ModelCard& card = call.context->card;
  JsonWriter w;
  w.begin_object().field("object", "list").key("data").begin_array();
  write_model(w, card, card.id);
  for (const std::string& alias : card.aliases) write_model(w, card, alias);
  call.answer(w.end_array().end_object().text());
}

void one_model(Call call) {
  if (!is_served(*call.context, call.rest)) return call.fail(model_not_found(call.rest));
  JsonWriter w;
  write_model(w, call.context->card, call.rest);
  call.answer(w.text());
}

void version(Call call) {
  const ModelCard& card = call.context->card;
  call.answer(JsonWriter().begin_object().field("version", card.version).field("build", card.build).end_object().text());
}

void props(Call call) {
  const Context& context = *call.context;
  const ops::SamplingParams& s = context.defaults;
  JsonWriter w;
  w.begin_object().field("model_alias", context.card.id);
  w.key("default_generation_settings").begin_object().field("n_ctx", context.card.ctx_tokens);
  w.key("params").begin_object().field("temperature", static_cast<double>(s.temperature));
  w.field("top_p", static_cast<double>(s.top_p)).field("top_k", s.top_k).field("min_p", static_cast<double>(s.min_p));
  w.end_object().end_object();
  w.field("total_slots", static_cast<int64_t>(context.engine.stats().slots.size()));
  w.field("chat_format", context.format == nullptr                          ? "none"
                         : context.format->kind() == ChatFormat::Kind::xtml ? "xtml"
                                                                            : "k2");
  w.field("param_policy", context.options.param_policy == ParamPolicy::kimi ? "kimi" : "open");
  w.key("capacity").begin_array();
  for (const CapacityLine& line : context.engine.capacity()) {
    w.begin_object().field("ctx_tokens", line.ctx_tokens).field("sequences", line.sequences).end_object();
  }
  w.end_array().field("build_info", context.card.version + " " + context.card.build);
  call.answer(w.end_object().text());
}

void embeddings(Call call) {
  call.fail(status_error(501, "embeddings: this is a causal model; it has no embeddings to give"));
}

}  // namespace k3::server
