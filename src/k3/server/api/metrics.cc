#include "k3/server/api/metrics.h"

#include "k3/base/metrics/metrics.h"

namespace k3::server {
namespace {

double real(int64_t count) { return static_cast<double>(count); }

void requests(MetricsText& m, const EngineStats& s) {
  m.gauge("k3:sequences_running", "Sequences that take part in steps.", real(s.running));
  m.gauge("k3:requests_waiting", "Requests in the queue.", real(s.waiting));
  m.gauge("k3:sequences_preempted", "Sequences put back to their last checkpoint, waiting to go on.", real(s.swapped));
  const char* help = "Requests by how they ended.";
  // The engine counts every request that it took as done, whatever its end; here each has one.
  m.counter("k3:requests_total", help, real(s.requests_done - s.requests_failed - s.requests_cancelled), {{"end", "done"}});
  m.counter("k3:requests_total", help, real(s.requests_failed), {{"end", "failed"}});
  m.counter("k3:requests_total", help, real(s.requests_cancelled), {{"end", "cancelled"}});
  m.counter("k3:requests_total", help, real(s.requests_rejected), {{"end", "rejected"}});
  m.counter("k3:requests_cancelled_total", "Requests whose client went away.", real(s.requests_cancelled));
  m.counter("k3:choices_total", "Choices by what ended them.", real(s.ended_by_stop), {{"end", "stop"}});
  m.counter("k3:choices_total", "Choices by what ended them.", real(s.ended_by_length), {{"end", "length"}});
}

void tokens(MetricsText& m, const EngineStats& s) {
  m.counter("k3:prompt_tokens_total", "Tokens of prompts admitted.", real(s.prompt_tokens));
  m.counter("k3:computed_tokens_total", "Prompt tokens really computed.", real(s.computed_tokens));
  m.counter("k3:generated_tokens_total", "Tokens generated.", real(s.generated_tokens));
  m.gauge("k3:tokens_per_second", "Generated, over the last few seconds.", s.tokens_per_second);
  m.counter("k3:steps_total", "Steps of the engine.", real(s.steps));
  m.counter("k3:step_seconds_total", "Time in steps.", s.step_seconds);
  m.gauge("k3:last_step_age_seconds", "Since the last step with work pending.", s.last_step_age_seconds);
  m.counter("k3:preemptions_total", "Preemptions.", real(s.preemptions));
  m.counter("k3:nonfinite_total", "Requests failed for logits that are no numbers.", real(s.nonfinite));
}

void pools(MetricsText& m, const cache::CacheStats& c) {
  const char* help = "Pages of the pool by use.";
  m.gauge("k3:pages", help, real(c.pages_free), {{"use", "free"}});
  m.gauge("k3:pages", help, real(c.pages_running_mla), {{"use", "running_mla"}});
  m.gauge("k3:pages", help, real(c.pages_running_kda), {{"use", "running_kda"}});
  m.gauge("k3:pages", help, real(c.pages_cached_mla), {{"use", "cached_mla"}});
  m.gauge("k3:pages", help, real(c.pages_cached_kda), {{"use", "cached_kda"}});
  m.gauge("k3:pages", help, real(c.quarantined_pages), {{"use", "quarantined"}});
  m.gauge("k3:pages_total", "Pages of the pool.", real(c.pages));
  m.gauge("k3:pages_pinned", "Pages pinned by hits.", real(c.pinned_pages));
  m.gauge("k3:checkpoints", "KDA checkpoints in the pool.", real(c.checkpoints));
}

// A prompt that goes on with an idle sequence is not looked up in the cache, and skips what the sequence holds all the same.
double asked_tokens(const EngineStats& s) { return real(s.cache.prompt_tokens + s.resumed_prompt_tokens); }
double skipped_tokens(const EngineStats& s) { return real(s.cache.hit_tokens + s.resumed_tokens); }

void prefix(MetricsText& m, const EngineStats& s) {
  const cache::CacheStats& c = s.cache;
  m.counter("k3:prefix_query_tokens_total", "Prompt tokens looked up.", asked_tokens(s));
  m.counter("k3:prefix_matched_tokens_total", "Of them, matched by MLA blocks or an idle sequence.", real(c.matched_tokens + s.resumed_tokens));
  m.counter("k3:prefix_hit_tokens_total", "Of them, skipped: valid in MLA and in every KDA group.", skipped_tokens(s));
  const char* help = "Admissions by what limited the hit.";
  m.counter("k3:prefix_limited_total", help, real(c.limited_by_mla), {{"by", "mla"}});
  m.counter("k3:prefix_limited_total", help, real(c.limited_by_kda), {{"by", "kda"}});
  m.counter("k3:prefix_limited_total", help, real(c.no_match), {{"by", "nothing_cached"}});
  m.counter("k3:evicted_pages_total", "Pages evicted.", real(c.evicted_pages));
  m.counter("k3:evicted_checkpoints_total", "Checkpoints evicted.", real(c.evicted_checkpoints));
  m.counter("k3:hit_copied_bytes_total", "Bytes copied by hits.", real(c.copied_bytes));
  m.gauge("k3:tier_entries", "Entries by tier.", real(c.host_entries), {{"tier", "host"}});
  m.gauge("k3:tier_entries", "Entries by tier.", real(c.disk_entries), {{"tier", "disk"}});
  m.gauge("k3:tier_bytes", "Bytes by tier.", real(c.host_bytes), {{"tier", "host"}});
  m.gauge("k3:tier_bytes", "Bytes by tier.", real(c.disk_bytes), {{"tier", "disk"}});
  m.counter("k3:tier_hits_total", "Hits by tier.", real(c.host_hits), {{"tier", "host"}});
  m.counter("k3:tier_hits_total", "Hits by tier.", real(c.disk_hits), {{"tier", "disk"}});
  m.counter("k3:tier_errors_total", "Tier entries that were damaged or could not be written.", real(c.tier_errors));
}

void histogram(MetricsText& m, const std::string& name, const std::string& help, const EngineHistogram& h,
               const MetricsText::Labels& labels = {}) {
  const std::vector<int64_t> none(h.bounds.size() + 1);
  m.histogram(name, help, h.bounds, h.counts.size() == h.bounds.size() + 1 ? h.counts : none, h.sum, labels);
}

void http_side(MetricsText& m, const http::ServerStats& h) {
  m.gauge("k3:http_connections", "Open connections.", real(h.connections));
  m.gauge("k3:http_requests", "Requests under way.", real(h.exchanges));
  m.counter("k3:http_connections_total", "Connections accepted.", real(h.accepted));
  m.counter("k3:http_cut_off_total", "Clients cut off because they did not read.", real(h.cut_off));
}

// The share of the pool that sequences hold, in pages of both kinds: they come from one pool.
double used_share(const cache::CacheStats& c) {
  return c.pages > 0 ? real(c.pages_running_mla + c.pages_running_kda) / real(c.pages) : 0;
}

void vllm_names(MetricsText& m, const EngineStats& s, const std::string& model) {
  const MetricsText::Labels labels = {{"model_name", model}};
  const auto reason = [&](const char* text) {
    return MetricsText::Labels{{"model_name", model}, {"finished_reason", text}};
  };
  m.gauge("vllm:num_requests_running", "Requests running.", real(s.running), labels);
  m.gauge("vllm:num_requests_waiting", "Requests waiting.", real(s.waiting), labels);
  m.gauge("vllm:kv_cache_usage_perc", "Share of the pool that sequences hold; 1 is full.", used_share(s.cache), labels);
  m.counter("vllm:prefix_cache_queries_total", "Tokens looked up.", asked_tokens(s), labels);
  m.counter("vllm:prefix_cache_hits_total", "Tokens found.", skipped_tokens(s), labels);
  m.counter("vllm:prompt_tokens_total", "Prompt tokens.", real(s.prompt_tokens), labels);
  m.counter("vllm:generation_tokens_total", "Generated tokens.", real(s.generated_tokens), labels);
  m.counter("vllm:num_preemptions_total", "Preemptions.", real(s.preemptions), labels);
  m.counter("vllm:request_success_total", "Finished choices.", real(s.ended_by_stop), reason("stop"));
  m.counter("vllm:request_success_total", "Finished choices.", real(s.ended_by_length), reason("length"));
  m.counter("vllm:request_success_total", "Finished choices.", real(s.requests_cancelled), reason("abort"));
  histogram(m, "vllm:time_to_first_token_seconds", "Time to the first token.", s.ttft, labels);
  histogram(m, "vllm:inter_token_latency_seconds", "Time between tokens.", s.inter_token, labels);
  histogram(m, "vllm:e2e_request_latency_seconds", "Time of requests.", s.e2e, labels);
  histogram(m, "vllm:request_queue_time_seconds", "Time in the queue.", s.queue, labels);
  for (const char* what : {"drafts", "draft_tokens", "accepted_tokens"}) {
    m.counter(fmt::format("vllm:spec_decode_num_{}_total", what), "Speculative decoding is not in use.", 0, labels);
  }
}

}  // namespace

std::string metrics_text(const EngineStats& stats, const http::ServerStats& http, const ModelCard& card, bool vllm) {
  MetricsText m;
  m.gauge("k3:info", "The model and the program.", 1,
          {{"model", card.id}, {"version", card.version}, {"build", card.build}});
  requests(m, stats);
  tokens(m, stats);
  histogram(m, "k3:time_to_first_token_seconds", "From submission to the first token.", stats.ttft);
  histogram(m, "k3:inter_token_seconds", "Between tokens of a choice.", stats.inter_token);
  histogram(m, "k3:request_seconds", "From submission to the end.", stats.e2e);
  histogram(m, "k3:queue_seconds", "From submission to admission.", stats.queue);
  pools(m, stats.cache);
  prefix(m, stats);
  http_side(m, http);
  if (vllm) vllm_names(m, stats, card.id);
  return m.text();
}

}  // namespace k3::server
