// A request body of every dialect: parse, rewrite, render, make the job. The first byte chooses the route.
#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/format/chat/chat_test_util.h"
#include "k3/server/api/request/jobs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace k3;
  using namespace k3::server;
  static const Tokenizer tokenizer = test::byte_tokenizer(test::kXtmlSpecials);
  static const ChatFormat format = test::short_format();
  static const Context context = [] {
    Context c;
    c.tokenizer = &tokenizer;
    c.format = &format;
    c.card.id = "m";
    c.card.ctx_tokens = 1 << 20;
    c.card.vocab = tokenizer.vocab_size();
    return c;
  }();
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto check = [](const ApiError& error) {
    K3_CHECK(error.status >= 400 && error.status < 600 && !error.message.empty(), "an error without status or message");
    for (const Envelope envelope : {Envelope::openai, Envelope::anthropic}) {
      const std::string json = error_json(error, envelope);
      K3_CHECK(is_utf8(json) && parse_json(json).ok(), "an error that is no JSON: {}", json);
    }
  };
  auto body = parse_body(text);
  if (!body.ok()) {
    check(body.error);
    return 0;
  }
  new_unknown_fields(body->root);
  if (data[0] % 4 == 1) {
    auto job = text_job(context, body->root);
    if (!job.ok()) check(job.error);
    return 0;
  }
  if (data[0] % 4 > 1) {
    body = data[0] % 4 == 2 ? chat_of_messages(body->root, (data[0] & 4) != 0) : chat_of_responses(body->root);
    if (!body.ok()) {
      check(body.error);
      return 0;
    }
  }
  auto job = chat_job(context, body->root);
  if (!job.ok()) {
    check(job.error);
    return 0;
  }
  K3_CHECK(job->requests.size() == 1 && !job->requests[0].prompt.empty(), "a job without a prompt");
  K3_CHECK(static_cast<int64_t>(job->choices.size()) == job->generation.choices, "choices without a stream");
  return 0;
}
