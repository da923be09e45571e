// Purpose:  a server over an engine that plays scripts: tests say which tokens come. Test code only.
// Shapes:   none.
// Units:    tokens.
// Memory:   owns the engine's thread and the service.
// Threads:  callbacks run on one thread, as in the engine.
// Errors:   test failures.
// Source:   engine.h, request.h.
#pragma once

#include <gmock/gmock.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "k3/format/chat/output/output_test_util.h"
#include "k3/server/api/service.h"
#include "k3/server/http/http_client_test.h"

namespace k3::test {

using Json = nlohmann::ordered_json;

// What one request gets.
struct Script {
  std::vector<std::vector<int32_t>> choices;         // tokens of each choice; the last list serves all further ones
  EndReason end = EndReason::length;                 // when they are used up
  std::optional<Error> fault;                        // after the tokens the request fails with this
  std::optional<Error> refusal;                      // submit fails with this
  bool hold_admission = false, hold_tokens = false;  // until cancelled, or released
  int64_t cached_tokens = 0;
};

class ScriptedEngine {
 public:
  std::function<Script(const Request&)> script = [](const Request&) {
    return Script{.choices = {{}}, .fault = {}, .refusal = {}};
  };
  EngineStats stats;

  ScriptedEngine() : thread_([this] { loop(); }) {}
  ScriptedEngine(const ScriptedEngine&) = delete;
  ScriptedEngine& operator=(const ScriptedEngine&) = delete;
  ~ScriptedEngine() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  server::EngineApi api() {
    server::EngineApi api;
    api.submit = [this](Request request) { return submit(std::move(request)); };
    api.cancel = [this](RequestId id) {
      const std::lock_guard lock(mutex_);
      cancelled_.insert(id);
      changed_.notify_all();
    };
    api.retry_after_seconds = [] { return 2.5; };
    api.stats = [this] {
      const std::lock_guard lock(mutex_);
      return stats;
    };
    api.save_slot = [](int32_t slot, const std::string&) -> Result<SlotResult> {
      if (slot > 1) return fail(Code::not_found, "slot {} is empty", slot);
      return SlotResult{slot, 12, 3456, 0.5};
    };
    api.restore_slot = [](int32_t, const std::string& file) -> Result<SlotResult> {
      return fail(Code::unsupported, "{}: no --slot-save-path", file);
    };
    api.erase_slot = api.fork_slot = [](int32_t slot) -> Result<SlotResult> { return SlotResult{slot + 1, 12, 0, 0}; };
    api.drain = [this] { drained_ = true; };
    api.drained = [this] {
      const std::lock_guard lock(mutex_);
      return waiting_.empty();
    };
    api.reset_cache = [this] { ++resets; };
    api.capacity = [] { return std::vector<CapacityLine>{{4096, 8}}; };
    return api;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  int64_t under_way() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(waiting_.size());
  }
  Request last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  int64_t cancelled_count() {
    const std::lock_guard lock(mutex_);
    return ended_cancelled_;
  }

  std::atomic<int> resets{0};
  std::atomic<bool> drained_{false};

 private:
  struct Entry {
    RequestId id;
    Request request;
    Script script;
    bool admitted = false;
  };

  Result<RequestId> submit(Request request) {
    Script script_now = script(request);
    if (script_now.refusal) return *script_now.refusal;
    const std::lock_guard lock(mutex_);
    last_ = request;
    last_.callbacks = {};
    const auto id = static_cast<RequestId>(++next_);
    waiting_.push_back({id, std::move(request), std::move(script_now)});
    changed_.notify_all();
    return id;
  }

  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || ready() != waiting_.end(); });
      if (stop_) break;
      const auto at = ready();
      Entry entry = std::move(*at);
      const bool cancel = cancelled_.contains(entry.id);
      waiting_.erase(at);
      lock.unlock();
      if (entry.script.hold_tokens && !entry.admitted && !cancel) {
        admit(entry);
        lock.lock();
        waiting_.push_back(std::move(entry));
        continue;
      }
      play(entry, cancel);
      lock.lock();
      if (cancel) ++ended_cancelled_;
    }
    for (Entry& entry : waiting_) {
      lock.unlock();
      finish_all(entry, EndReason::interrupted, {});
      lock.lock();
    }
    waiting_.clear();
  }

  std::vector<Entry>::iterator ready() {
    return std::find_if(waiting_.begin(), waiting_.end(), [this](const Entry& e) {
      if (cancelled_.contains(e.id) || released_) return true;
      if (e.script.hold_admission) return false;
      return !(e.script.hold_tokens && e.admitted);
    });
  }

  static void admit(Entry& entry) {
    entry.admitted = true;
    Admitted admitted;
    admitted.prompt_tokens = static_cast<int64_t>(entry.request.prompt.size());
    admitted.cached_tokens = admitted.matched_tokens = entry.script.cached_tokens;
    entry.request.callbacks.on_admitted(admitted);
  }

  static void finish_all(Entry& entry, EndReason reason, const std::optional<Error>& error) {
    for (int32_t c = 0; entry.admitted && c < entry.request.choices; ++c)
      entry.request.callbacks.on_choice_end({c, reason, 0});
    RequestSummary summary;
    summary.error = error;
    entry.request.callbacks.on_done(summary);
  }

  static void play(Entry& entry, bool cancel) {
    if (cancel) return finish_all(entry, EndReason::cancelled, {});
    if (!entry.admitted) admit(entry);
    Request& r = entry.request;
    for (size_t i = 1; r.prompt_logprobs && i < r.prompt.size(); ++i) {
      r.callbacks.on_prompt_token(static_cast<int64_t>(i), -0.25F * static_cast<float>(i), {{66, -1.0F}});
    }
    const auto& lists = entry.script.choices;
    std::vector<bool> done(static_cast<size_t>(r.choices));
    int64_t generated = 0;
    // Token by token over the choices, as batches make them.
    for (size_t step = 0; std::count(done.begin(), done.end(), false) > 0; ++step) {
      for (int32_t c = 0; c < r.choices; ++c) {
        if (done[static_cast<size_t>(c)]) continue;
        const auto& ids = lists[std::min(static_cast<size_t>(c), lists.size() - 1)];
        std::optional<EndReason> end;
        if (step >= ids.size()) {
          end = entry.script.end;
          if (entry.script.fault) return finish_all(entry, EndReason::failed, entry.script.fault);
        } else {
          GeneratedToken token{c, ids[step], static_cast<int64_t>(step), -0.25F, nullptr};
          std::vector<TokenLogprob> top;
          for (int32_t i = 0; i < r.logprobs; ++i) top.push_back({i, i == 1 ? -INFINITY : -0.5F - static_cast<float>(i)});
          if (r.logprobs > 0) token.top = &top;
          ++generated;
          const bool go_on = r.callbacks.on_token(token);
          const bool stop = std::find(r.stop_ids.begin(), r.stop_ids.end(), ids[step]) != r.stop_ids.end() && !r.ignore_eos;
          if (stop)
            end = EndReason::stop_token;
          else if (!go_on)
            end = EndReason::stopped;
          else if (r.max_tokens > 0 && static_cast<int64_t>(step) + 1 >= r.max_tokens)
            end = EndReason::length;
        }
        if (end) {
          done[static_cast<size_t>(c)] = true;
          r.callbacks.on_choice_end({c, *end, static_cast<int64_t>(step)});
        }
      }
    }
    RequestSummary summary;
    summary.generated_tokens = generated;
    r.callbacks.on_done(summary);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> waiting_;
  std::set<RequestId> cancelled_;
  Request last_;
  bool stop_ = false, released_ = false;
  uint64_t next_ = 0;
  int64_t ended_cancelled_ = 0;
  std::thread thread_;
};

// Everything behind a port: byte vocabulary, short sentences, scripted tokens.
class ServiceTest : public testing::Test {
 protected:
  void start(const std::function<void(server::Context&)>& change = {},
             const std::function<void(http::Options&)>& change_http = {}) {
    server::Context context;
    context.engine = engine_.api();
    context.tokenizer = &tokenizer_;
    context.format = &format_;
    context.card.id = "tiny";
    context.card.aliases = {"k3"};
    context.card.ctx_tokens = 4096;
    context.card.vocab = tokenizer_.vocab_size();
    context.stop_ids = {tokenizer_.special("<|end_of_msg|>").value()};
    context.text_stop_ids = {tokenizer_.special("[EOS]").value()};
    context.defaults.top_p = 0.95F;
    context.log = [this](const std::string& line) {
      const std::lock_guard lock(log_mutex_);
      log_.push_back(line);
    };
    if (change) change(context);
    http::Options http;
    if (change_http) change_http(http);
    service_ = server::Service::start(std::move(context), std::move(http)).value();
  }
  void TearDown() override { service_.reset(); }

  // The tokens of an answer in the notation of output_test_util.h.
  void say(std::string_view text, EndReason end = EndReason::length) {
    const std::vector<int32_t> ids = output_ids(tokenizer_, text);
    engine_.script = [ids, end](const Request&) { return Script{.choices = {ids}, .end = end, .fault = {}, .refusal = {}}; };
  }
  HttpAnswer post(std::string_view path, std::string_view body, std::string_view headers = {}) {
    if (!service_) start();
    return HttpClient(service_->port()).ask("POST", path, body, headers);
  }
  HttpAnswer get(std::string_view path, std::string_view headers = {}) {
    if (!service_) start();
    return HttpClient(service_->port()).ask("GET", path, {}, headers);
  }
  static std::string chat(std::string_view fields = "") {
    return fmt::format(R"({{"model":"tiny","messages":[{{"role":"user","content":"hi"}}]{}{}}})", fields.empty() ? "" : ",",
                       fields);
  }
  std::vector<std::string> log() {
    const std::lock_guard lock(log_mutex_);
    return log_;
  }

  Tokenizer tokenizer_ = byte_tokenizer(kXtmlSpecials);
  ChatFormat format_ = short_format();
  std::mutex log_mutex_;  // outlive the engine, which may end a request when its answer has been read
  std::vector<std::string> log_;
  ScriptedEngine engine_;
  std::unique_ptr<server::Service> service_;
};

// The data of every event of a stream; a line that is none is a failure.
inline std::vector<std::string> stream_data(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    EXPECT_NE(end, std::string_view::npos) << body;
    if (end == std::string_view::npos) break;
    const std::string_view line = body.substr(0, end);
    EXPECT_TRUE(line.starts_with("data: ")) << line;
    EXPECT_EQ(line.find('\n'), std::string_view::npos) << line;
    out.emplace_back(line.substr(6));
    body.remove_prefix(end + 2);
  }
  return out;
}

inline std::vector<Json> stream_frames(std::string_view body) {
  std::vector<Json> out;
  std::vector<std::string> data = stream_data(body);
  EXPECT_FALSE(data.empty());
  if (data.empty()) return out;
  EXPECT_EQ(data.back(), "[DONE]");
  if (data.back() == "[DONE]") data.pop_back();
  for (const std::string& text : data) out.push_back(Json::parse(text));
  return out;
}

// The message of one choice, put together from its frames; also checks the rules that every stream keeps (api.md 5, 7.3).
inline Json reassemble(const std::vector<Json>& frames, int64_t index, bool thinking) {
  Json message = {{"role", nullptr}, {"content", ""}};
  Json logprobs = Json::array();
  std::string finish;
  bool boundary = false, after_reasoning = false;
  Json usage;
  for (const Json& frame : frames) {
    if (frame["choices"].empty() || frame["choices"][0]["index"] != index) continue;
    EXPECT_EQ(frame["choices"].size(), 1u);
    const Json& choice = frame["choices"][0];
    const Json& delta = choice["delta"];
    EXPECT_TRUE(finish.empty()) << "a frame after the end: " << frame;
    for (const auto& [key, value] : delta.items()) EXPECT_FALSE(value.is_null()) << frame;
    const size_t kinds = delta.count("content") + delta.count("reasoning_content") + delta.count("tool_calls");
    if (!choice["finish_reason"].is_null()) {
      EXPECT_TRUE(delta.empty()) << frame;
      finish = choice["finish_reason"];
      usage = choice["usage"];
      continue;
    }
    EXPECT_EQ(kinds, 1u) << frame;
    EXPECT_FALSE(choice.contains("usage")) << frame;
    if (delta.contains("role")) {
      EXPECT_TRUE(message["role"].is_null()) << "role twice";
      EXPECT_EQ(delta, Json({{"role", "assistant"}, {"content", ""}}));
      message["role"] = delta["role"];
      continue;
    }
    EXPECT_FALSE(message["role"].is_null()) << "the first frame has no role: " << frame;
    if (delta.contains("reasoning_content")) {
      EXPECT_FALSE(after_reasoning) << "reasoning after the boundary: " << frame;
      const std::string text = delta["reasoning_content"];
      if (text.empty()) {
        EXPECT_FALSE(boundary) << "two boundaries";
        boundary = after_reasoning = true;
      }
      message["reasoning_content"] = message.value("reasoning_content", "") + text;
      continue;
    }
    after_reasoning = true;
    if (thinking) {
      EXPECT_TRUE(boundary) << "content without a boundary: " << frame;
    }
    if (delta.contains("content")) {
      EXPECT_FALSE(delta["content"].get<std::string>().empty()) << frame;
      message["content"] = message["content"].get<std::string>() + delta["content"].get<std::string>();
      if (choice.contains("logprobs")) {
        for (const Json& entry : choice["logprobs"]["content"]) logprobs.push_back(entry);
      }
      continue;
    }
    EXPECT_EQ(delta["tool_calls"].size(), 1u);
    const Json& call = delta["tool_calls"][0];
    Json& calls = message["tool_calls"];
    const size_t at = call["index"];
    if (call.contains("id")) {
      EXPECT_EQ(at, calls.size());
      EXPECT_EQ(call["function"]["arguments"], "");
      EXPECT_EQ(call["type"], "function");
      calls.push_back({{"id", call["id"]}, {"type", "function"}, {"function", call["function"]}});
    } else {
      EXPECT_EQ(at + 1, calls.size()) << "an index that goes back";
      EXPECT_EQ(call.size(), 2u) << frame;
      EXPECT_EQ(call["function"].size(), 1u) << frame;
      Json& text = calls[at]["function"]["arguments"];
      text = text.get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_FALSE(finish.empty()) << "no end frame";
  // What a stream cannot say with frames alone (api.md 4): null content beside calls, or when cut while thinking.
  const std::string content = message["content"];
  const bool blank = content.find_first_not_of(" \t\r\n\f\v") == std::string::npos;
  const bool cut_in_reasoning = thinking && !boundary;
  if ((blank && message.contains("tool_calls")) || cut_in_reasoning) message["content"] = nullptr;
  if (thinking && !message.contains("reasoning_content")) message["reasoning_content"] = "";
  Json ordered = {{"role", message["role"]}};  // as whole answers have it
  for (const char* key : {"reasoning_content", "content", "tool_calls"}) {
    if (message.contains(key)) ordered[key] = message[key];
  }
  return {{"message", ordered}, {"finish_reason", finish}, {"logprobs", logprobs}, {"usage", usage}};
}

}  // namespace k3::test
