#include <charconv>

#include "k3/format/json/json_tree.h"
#include "k3/server/loadgen/load_run.h"
#include "k3/server/loadgen/openai_stream.h"

namespace k3::server {
namespace {

struct Fetched {
  int status = 0;
  std::string body, failure;
  HttpEnd end = HttpEnd::done;
};

Result<Fetched> fetch(const Url& url, const HttpTimeouts& timeouts, const std::string& api_key, std::string_view route) {
  K3_TRY_ASSIGN(const auto client, HttpClient::create(url, timeouts));
  Fetched out;
  HttpRequest request;
  request.target = url.target(route);
  if (!api_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + api_key);
  client->send(request,
               {[&](const HttpHead& head) { out.status = head.status; }, [&](std::string_view bytes) { out.body += bytes; },
                [&](HttpEnd end, const std::string& message) { out.end = end, out.failure = message; }});
  client->run();
  return out;
}

int64_t positive(const JsonNode* object, std::string_view name) {
  const JsonNode* node = object != nullptr && object->is_object() ? object->find(name) : nullptr;
  int64_t value = 0;
  if (node != nullptr && node->is_number()) std::from_chars(node->raw.data(), node->raw.data() + node->raw.size(), value);
  return std::max<int64_t>(0, value);
}

}  // namespace

Result<ServedModel> ask_model(const Url& url, const HttpTimeouts& timeouts, const std::string& api_key,
                              const std::string& wanted) {
  K3_TRY_ASSIGN(const Fetched answer, fetch(url, timeouts, api_key, "/models"));
  if (answer.end != HttpEnd::done) {
    const bool refused = answer.end == HttpEnd::refused;
    return fail(Code::unavailable, "{}{}", answer.failure, refused ? "; is the server running, and is this its port?" : "");
  }
  const std::string where = fmt::format("GET http://{}{}", url.authority(), url.target("/models"));
  if (answer.status == 401 || answer.status == 403) {
    return fail(Code::invalid_argument, "{}: {} ({}); give the key with --api-key-file", where, answer.status,
                error_message(answer.body));
  }
  if (answer.status != 200) return fail(Code::unavailable, "{}: {} ({})", where, answer.status, error_message(answer.body));
  const auto root = parse_json(answer.body, DuplicateKeys::keep);
  const JsonNode* data = root.ok() && root->is_object() ? root->find("data") : nullptr;
  if (data == nullptr || !data->is_array())
    return fail(Code::unavailable, "{}: no list of models; is this an OpenAI-compatible server?", where);
  std::string names;
  for (const JsonNode& entry : data->items) {
    const JsonNode* id = entry.is_object() ? entry.find("id") : nullptr;
    if (id == nullptr || !id->is_string()) continue;
    names += (names.empty() ? "" : ", ") + id->text;
    if (!wanted.empty() && id->text != wanted) continue;
    return ServedModel{id->text, positive(entry.find("meta"), "n_vocab"), positive(&entry, "max_model_len")};
  }
  if (wanted.empty()) return fail(Code::unavailable, "{}: the list of models is empty", where);
  return fail(Code::not_found, "{} serves no model '{}'; it has {}", url.authority(), wanted,
              names.empty() ? "none" : names);
}

}  // namespace k3::server
