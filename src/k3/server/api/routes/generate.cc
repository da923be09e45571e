// The routes that generate, one a dialect: body -> job -> answer.
#include "k3/base/json_writer.h"
#include "k3/base/log.h"
#include "k3/server/api/answer/formats.h"
#include "k3/server/api/request/jobs.h"
#include "k3/server/api/routes/routes.h"

namespace k3::server {
namespace {

void note_unknown_fields(const JsonNode& root) {
  for (const std::string& field : new_unknown_fields(root)) log_info("field '{}' of requests is ignored", field);
}

void start(Call call, AnswerJob job, AnswerFormat format, Envelope envelope) {
  job.format = std::move(format);
  job.envelope = envelope;
  job.label = call.request.head.method + " " + call.request.head.path;
  start_answer(std::move(call.context), std::move(call.exchange), call.request.head, std::move(job));
}

// Dialects that are rewritten as chat requests.
void rewritten(Call call, Outcome<Body> (*rewrite)(const JsonNode&), AnswerFormat (*format)(const JsonNode&),
               Envelope envelope) {
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return call.fail(body.error, envelope);
  note_unknown_fields(body->root);
  auto chat = rewrite(body->root);
  if (!chat.ok()) return call.fail(chat.error, envelope);
  auto job = chat_job(*call.context, chat->root);
  if (!job.ok() && job.error.param == "messages" && envelope == Envelope::openai) job.error.param = "input";
  if (!job.ok()) return call.fail(job.error, envelope);
  start(std::move(call), std::move(*job), format(body->root), envelope);
}

}  // namespace

void chat_completions(Call call) {
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return call.fail(body.error);
  note_unknown_fields(body->root);
  auto job = chat_job(*call.context, body->root);
  if (!job.ok()) return call.fail(job.error);
  start(std::move(call), std::move(*job), chat_format(), Envelope::openai);
}

void text_completions(Call call) {
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return call.fail(body.error);
  note_unknown_fields(body->root);
  auto job = text_job(*call.context, body->root);
  if (!job.ok()) return call.fail(job.error);
  const bool echo = job->keep_prompts;
  start(std::move(call), std::move(*job), text_format(echo), Envelope::openai);
}

void responses(Call call) { rewritten(std::move(call), chat_of_responses, responses_format, Envelope::openai); }

void anthropic_messages(Call call) {
  const auto rewrite = [](const JsonNode& root) { return chat_of_messages(root, false); };
  const auto format = [](const JsonNode&) { return messages_format(); };
  rewritten(std::move(call), rewrite, format, Envelope::anthropic);
}

void anthropic_count_tokens(Call call) {
  auto body = parse_body(std::move(call.request.body));
  if (!body.ok()) return call.fail(body.error, Envelope::anthropic);
  auto chat = chat_of_messages(body->root, true);
  if (!chat.ok()) return call.fail(chat.error, Envelope::anthropic);
  const JsonNode* model = chat->root.find_set("model");
  if (model != nullptr && !is_served(*call.context, model->text))
    return call.fail(model_not_found(model->text), Envelope::anthropic);
  auto rendered = render_chat(*call.context, chat->root);
  if (!rendered.ok()) return call.fail(rendered.error, Envelope::anthropic);
  const auto tokens = rendered->prompt.reported_tokens(static_cast<int64_t>(rendered->ids.size()));
  call.answer(JsonWriter().begin_object().field("input_tokens", tokens).end_object().text());
}

}  // namespace k3::server
