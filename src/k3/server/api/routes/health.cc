// Is it alive, and what is it doing.
#include <atomic>

#include "k3/base/json_writer.h"
#include "k3/server/api/metrics.h"
#include "k3/server/api/routes/routes.h"

namespace k3::server {
namespace {

void alive(const Call& call) { call.answer(R"({"status":"ok"})"); }

// One token of one sequence, through the same engine as everyone's.
void probe(Call call) {
  Request request;
  request.name = "health";
  const auto& tokenizer = *call.context->tokenizer;
  request.prompt = {tokenizer.special("[BOS]").value_or(0)};
  request.max_tokens = 1;
  request.use_cache = false;
  request.deadline_seconds = call.context->options.wedged_seconds;
  const auto held = std::make_shared<Call>(std::move(call));
  request.callbacks.on_token = [](const GeneratedToken&) { return true; };
  request.callbacks.on_admitted = [](const Admitted&) {};
  request.callbacks.on_choice_end = [](const ChoiceEnd&) {};
  request.callbacks.on_done = [held](const RequestSummary& summary) {
    if (!summary.error && summary.generated_tokens > 0) return alive(*held);
    held->fail(status_error(503, summary.error ? summary.error->message : "no token came"));
  };
  const auto id = held->context->engine.submit(std::move(request));
  if (!id.ok()) held->fail(status_error(503, id.error().message));
}

}  // namespace

void health(Call call) {
  const EngineStats stats = call.context->engine.stats();
  if (stats.last_step_age_seconds > call.context->options.wedged_seconds) {
    return call.fail(
        status_error(503, fmt::format("no step has ended for {:.0f} s with work pending", stats.last_step_age_seconds)));
  }
  if (query_value(call.request.head.query, "deep") == "1") return probe(std::move(call));
  alive(call);
}

void metrics(Call call) {
  const std::string text = metrics_text(call.context->engine.stats(), call.context->http_stats(), call.context->card,
                                        call.context->options.vllm_metrics);
  call.exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = text});
}

void reset_prefix_cache(Call call) {
  if (!call.context->options.developer) {
    return call.fail(status_error(404, "there is no route POST /reset_prefix_cache (it needs --dev)"));
  }
  call.context->engine.reset_cache();
  call.answer("{}");
}

}  // namespace k3::server
