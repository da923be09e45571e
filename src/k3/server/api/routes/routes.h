// Internal to server/api. The routes: each takes a whole request on a worker and answers its exchange.
#pragma once

#include <memory>

#include "k3/server/api/context.h"
#include "k3/server/api/errors.h"
#include "k3/server/http/http.h"

namespace k3::server {

struct Call {
  std::shared_ptr<const Context> context;
  http::Request request;
  std::shared_ptr<http::Exchange> exchange;
  std::string rest;  // of the path after a route that ends with '/'

  void answer(std::string json) const { exchange->respond({.body = std::move(json)}); }
  void fail(const ApiError& error, Envelope envelope = Envelope::openai) const {
    exchange->respond(error_response(error, envelope));
  }
};

// generate.cc
void chat_completions(Call call);
void text_completions(Call call);
void responses(Call call);
void anthropic_messages(Call call);
void anthropic_count_tokens(Call call);
// models.cc
void list_models(Call call);
void one_model(Call call);
void version(Call call);
void props(Call call);
void embeddings(Call call);
// text.cc
void tokenize(Call call);
void detokenize(Call call);
void apply_template(Call call);
// health.cc
void health(Call call);
void metrics(Call call);
void reset_prefix_cache(Call call);
// slots.cc
void list_slots(Call call);
void slot_action(Call call);

std::string query_value(std::string_view query, std::string_view key);  // percent escapes undone; "" when absent

}  // namespace k3::server
