// Slots: what sequences there are, and saving, restoring, erasing and forking one.
#include <charconv>

#include "k3/base/json_writer.h"
#include "k3/server/api/request/jobs.h"
#include "k3/server/api/routes/routes.h"

namespace k3::server {
namespace {

std::string_view state_name(SlotState state) {
  switch (state) {
    case SlotState::empty: return "empty";
    case SlotState::waiting: return "waiting";
    case SlotState::prefill: return "prefill";
    case SlotState::decode: return "decode";
    case SlotState::idle: return "idle";
  }
  return "?";
}

Outcome<std::string> file_name(Call& call) {
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return body.error;
  std::string name;
  if (const Status status = Fields(body->root).text("filename", name); !status.ok()) return status.error();
  const bool bad = name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos;
  if (bad) return bad_request("filename", "must be a file name without a slash");
  return name;
}

}  // namespace

std::string query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) == key) {
      return equals == std::string_view::npos ? "" : http::decode_path(pair.substr(equals + 1)).value_or("");
    }
  }
  return {};
}

void list_slots(Call call) {
  JsonWriter w;
  w.begin_array();
  for (const SlotInfo& slot : call.context->engine.stats().slots) {
    w.begin_object().field("id", int64_t{slot.index}).field("state", state_name(slot.state));
    w.field("is_processing", slot.state == SlotState::prefill || slot.state == SlotState::decode);
    w.field("n_ctx", call.context->card.ctx_tokens).field("tokens", slot.tokens).field("prompt_tokens", slot.prompt_tokens);
    w.field("cached_tokens", slot.cached_tokens).field("generated_tokens", slot.generated_tokens);
    w.field("request", slot.request).end_object();
  }
  call.answer(w.end_array().text());
}

void slot_action(Call call) {
  int32_t slot = -1;
  const std::string& text = call.rest;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), slot);
  if (ec != std::errc() || end != text.data() + text.size() || slot < 0) {
    return call.fail(status_error(404, fmt::format("there is no slot '{}'", text)));
  }
  const std::string action = query_value(call.request.head.query, "action");
  const EngineApi& engine = call.context->engine;
  Result<SlotResult> result = fail(Code::internal, "no action");
  std::string file;
  if (action == "save" || action == "restore") {
    auto name = file_name(call);
    if (!name.ok()) return call.fail(name.error);
    file = *name;
    result = action == "save" ? engine.save_slot(slot, file) : engine.restore_slot(slot, file);
  } else if (action == "erase") {
    result = engine.erase_slot(slot);
  } else if (action == "fork") {
    result = engine.fork_slot(slot);
  } else {
    return call.fail(bad_request("action", "must be one of save, restore, erase, fork"));
  }
  // Neither a full disk nor a full pool is the request's fault.
  if (!result.ok() && result.error().code == Code::exhausted) return call.fail(status_error(503, result.error().message));
  if (!result.ok()) {
    ApiError error = api_error(result.error());
    if (!file.empty() && error.param == file) error.param = "filename";  // the message begins with the name of the file
    return call.fail(error);
  }
  JsonWriter w;
  w.begin_object().field("id_slot", int64_t{result->slot}).field("action", action);
  if (!file.empty()) w.field("filename", file);
  w.field("n_tokens", result->tokens).field("n_bytes", result->bytes).field("seconds", result->seconds);
  call.answer(w.end_object().text());
}

}  // namespace k3::server
