#include "k3/plan/sim/recording.h"

#include <algorithm>

#include "k3/format/json/json_tree.h"
#include "k3/format/trace/trace_fields.h"

namespace k3::plan {
namespace {

Result<double> time_of(const JsonNode& node, std::string_view name) {
  const JsonNode* found = node.find(name);
  if (found == nullptr || found->is_null()) return -1;
  if (!found->is_number())
    return fail(Code::invalid_argument, "{}: {} where a number belongs", name, json_kind_name(found->kind));
  return trace_number(found->raw, kMostTraceSeconds).with_context(name);
}

Status read_one(const JsonNode& node, const Workload& workload, std::vector<RecordedRequest>* out) {
  if (!node.is_object()) return fail(Code::invalid_argument, "{} where an object belongs", json_kind_name(node.kind));
  const JsonNode* index = node.find("index");
  const JsonNode* input = node.find("input_tokens");
  if (index == nullptr || !index->is_number()) return fail(Code::invalid_argument, "index: no number");
  K3_TRY_ASSIGN(const int64_t at,
                trace_integer(index->raw, 0, static_cast<int64_t>(workload.requests.size()) - 1).with_context("index"));
  if (input == nullptr || !input->is_number())
    return fail(Code::invalid_argument, "input_tokens: no number, so that nothing says it is of the same trace");
  K3_TRY_ASSIGN(const int64_t tokens, trace_integer(input->raw, 0, kMostTraceTokens).with_context("input_tokens"));
  const int64_t planned = workload.requests[static_cast<size_t>(at)].input_tokens;
  if (tokens != planned) {
    return fail(Code::invalid_argument,
                "input_tokens: {}, but request {} of the trace has {}: give the same trace and the same cuts", tokens, at,
                planned);
  }
  RecordedRequest& r = (*out)[static_cast<size_t>(at)];
  if (r.start_seconds >= 0) return fail(Code::invalid_argument, "index: {} comes twice", at);
  K3_TRY_ASSIGN(r.start_seconds, time_of(node, "start_s"));
  K3_TRY_ASSIGN(r.first_token_seconds, time_of(node, "first_token_s"));
  K3_TRY_ASSIGN(r.end_seconds, time_of(node, "end_s"));
  if (r.start_seconds < 0) {
    return fail(Code::invalid_argument, "start_s: missing{}",
                node.find("arrival_s") != nullptr ? "; k3 sim wrote this, and what k3 loadgen --json wrote is wanted" : "");
  }
  const double begun = std::max(r.start_seconds, r.first_token_seconds);
  if (r.first_token_seconds >= 0 && r.first_token_seconds < r.start_seconds)
    return fail(Code::invalid_argument, "first_token_s: {} is before start_s, {}", r.first_token_seconds, r.start_seconds);
  if (r.end_seconds >= 0 && r.end_seconds < begun)
    return fail(Code::invalid_argument, "end_s: {} is before {}", r.end_seconds, begun);
  return {};
}

}  // namespace

Result<std::vector<RecordedRequest>> parse_recording(std::string_view json, const Workload& workload) {
  K3_TRY_ASSIGN(const JsonNode root, parse_json(json));
  const JsonNode* list = root.is_object() ? root.find("requests") : nullptr;
  if (list == nullptr || !list->is_array())
    return fail(Code::invalid_argument, "no list \"requests\"; the JSON of k3 loadgen is wanted");
  std::vector<RecordedRequest> out(workload.requests.size());
  for (size_t i = 0; i < list->items.size(); ++i) {
    K3_TRY(read_one(list->items[i], workload, &out).with_context(fmt::format("requests[{}]", i)));
  }
  return out;
}

}  // namespace k3::plan
