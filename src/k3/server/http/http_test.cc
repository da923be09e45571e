#include "k3/server/http/http.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "k3/server/http/http_client_test.h"

namespace k3::http {
namespace {

using test::eventually;
using test::HttpAnswer;
using test::HttpClient;
using testing::HasSubstr;

// Routes of the tests: /echo answers with the body, /hold keeps the exchange, /stream writes what the test says.
class Http : public testing::Test {
 protected:
  void start(const std::function<void(Options&)>& change = {}) {
    Options options;
    options.gate = [](const RequestHead& head) {
      Gate gate;
      gate.headers.push_back({"x-gate", "seen"});
      if (head.path == "/refused") gate.response = Response{.status = 404, .body = "no"};
      return gate;
    };
    options.handler = [this](Request request, std::shared_ptr<Exchange> exchange) {
      if (request.head.path == "/echo") {
        exchange->respond({.content_type = "text/plain", .body = request.head.method + " " + request.body});
        return;
      }
      exchange->on_gone([this] { ++gone_; });
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
      ++arrived_;
    };
    options.error_body = [](const RequestHead& head, int status, std::string_view message) {
      return fmt::format("{} {}: {}", head.path, status, message);
    };
    options.on_answered = [this](const RequestHead& head, int status, double, bool) {
      const std::lock_guard lock(mutex_);
      log_.push_back(fmt::format("{} {}", head.path, status));
    };
    if (change) change(options);
    server_ = Server::start(std::move(options)).value();
  }
  void TearDown() override {
    held_.clear();
    server_.reset();
  }
  std::shared_ptr<Exchange> held(int count = 1) {
    EXPECT_TRUE(eventually([&] { return arrived_ >= count; }));
    const std::lock_guard lock(mutex_);
    return held_.back();
  }
  uint16_t port() const { return server_->port(); }

  std::unique_ptr<Server> server_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::vector<std::string> log_;
  std::atomic<int> gone_{0}, arrived_{0};
};

TEST_F(Http, KeepsTheConnectionAndNamesTheRequest) {
  start();
  HttpClient client(port());
  const HttpAnswer first = client.ask("POST", "/echo", "a body", "x-request-id: my id\"1\r\n");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "POST a body");
  EXPECT_EQ(first.header("x-request-id"), "myid1");
  EXPECT_EQ(first.header("x-gate"), "seen");
  EXPECT_EQ(first.header("connection"), "keep-alive");
  const HttpAnswer second = client.ask("GET", "/echo");
  EXPECT_EQ(second.body, "GET ");
  EXPECT_THAT(second.header("x-request-id"), testing::StartsWith("req-"));
  EXPECT_EQ(client.ask("POST", "/refused", "small").status, 404);
  EXPECT_EQ(client.ask("HEAD", "/echo").body, "");
  EXPECT_EQ(client.ask("GET", "/echo").body, "GET ");
}

TEST_F(Http, PipelinedRequestsAreAnsweredInOrder) {
  start();
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
  held()->respond({.body = "first"});
  EXPECT_EQ(client.read_answer().body, "first");
  EXPECT_EQ(client.read_answer().body, "POST abc");
}

TEST_F(Http, OldClientsGetTheirStreamUntilTheEndOfTheConnection) {
  start();
  HttpClient client(port());
  client.send("GET /hold HTTP/1.0\r\n\r\n");
  const auto exchange = held();
  exchange->begin_stream(200, "text/plain", {});
  EXPECT_TRUE(exchange->write("a"));
  exchange->finish();
  const HttpAnswer answer = client.read_answer();
  EXPECT_EQ(answer.body, "a");
  EXPECT_EQ(answer.header("transfer-encoding"), "");
}

TEST_F(Http, StreamsInChunks) {
  start();
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  EXPECT_FALSE(exchange->started());
  exchange->begin_stream(200, "text/event-stream", {{"x-extra", "1"}});
  EXPECT_TRUE(exchange->started());
  EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("x-extra: 1"));
  exchange->write("data: 1\n\n");
  EXPECT_EQ(client.read_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  exchange->finish();
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_FALSE(exchange->write("late"));
  EXPECT_EQ(client.ask("GET", "/echo").body, "GET ");
}

TEST_F(Http, BodiesOverTheLimitAreRefusedBeforeTheyAreRead) {
  start([](Options& o) { o.limits.body_bytes = 1000; });
  HttpClient client(port());
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
  HttpAnswer answer = client.read_answer();
  EXPECT_EQ(answer.status, 413);
  EXPECT_THAT(answer.body, HasSubstr("1000"));
  EXPECT_TRUE(client.closed_by_server());
  HttpClient chunked(port());
  chunked.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(chunked.read_answer().status, 413);
  HttpClient fits(port());
  EXPECT_EQ(fits.ask("POST", "/echo", std::string(1000, 'x')).body.size(), 1005u);
}

TEST_F(Http, ChunkedBodiesAndContinue) {
  start();
  HttpClient client(port());
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "POST abcde");
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("100 Continue"));
  client.send("hi");
  EXPECT_EQ(client.read_answer().body, "POST hi");
}

TEST_F(Http, HeaderFloodsAndNonsense) {
  start([](Options& o) { o.limits.header_bytes = 4096; });
  HttpClient flood(port());
  std::string head = "GET /echo HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 1000; ++i) head += fmt::format("x-{}: {}\r\n", i, std::string(50, 'y'));
  flood.send(head);
  EXPECT_EQ(flood.read_answer().status, 431);
  HttpClient line(port());
  line.send("GET /" + std::string(100000, 'a'));
  EXPECT_EQ(line.read_answer().status, 431);
  for (const std::string text :
       {"\x16\x03\x01 nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET echo HTTP/1.1\r\n\r\n", "GET /%zz HTTP/1.1\r\n\r\n",
        "GET /%00 HTTP/1.1\r\n\r\n", "POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET /echo HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi"}) {
    HttpClient client(port());
    client.send(text);
    EXPECT_EQ(client.read_answer().status, 400) << text;
    EXPECT_TRUE(client.closed_by_server());
  }
  HttpClient coded(port());
  coded.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
  EXPECT_EQ(coded.read_answer().status, 501);
  EXPECT_EQ(HttpClient(port()).ask("GET", "/echo").status, 200);  // others are unharmed
}

TEST_F(Http, SlowHeadsBodiesAndIdleConnectionsEnd) {
  start([](Options& o) { o.limits.head_seconds = o.limits.body_seconds = o.limits.idle_seconds = 0.1; });
  HttpClient silent(port());
  EXPECT_TRUE(silent.closed_by_server());
  HttpClient head(port());
  head.send("GET /ec");
  EXPECT_EQ(head.read_answer().status, 408);
  HttpClient body(port());
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(body.read_answer().status, 408);
  HttpClient idle(port());
  EXPECT_EQ(idle.ask("GET", "/echo").status, 200);
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
}

TEST_F(Http, ABodyThatTricklesHasALimitInAll) {
  start([](Options& o) { o.limits.body_total_seconds = 0.3; });
  HttpClient body(port());
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  std::atomic<bool> done{false};
  std::thread drip([&] {
    while (!done) {
      body.send("x");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  EXPECT_EQ(body.read_answer().status, 408);
  done = true;
  drip.join();
}

TEST_F(Http, TargetsAsProxiesAskForThem) {
  start();
  EXPECT_EQ(HttpClient(port()).ask("GET", "http://a:8080/echo?x=b://c").status, 200);
  EXPECT_EQ(HttpClient(port()).ask("GET", "http://a/refused").status, 404);
  EXPECT_EQ(HttpClient(port()).ask("GET", "/refused?x=http://a/echo").status, 404);
  const std::lock_guard lock(mutex_);
  EXPECT_THAT(log_, testing::IsSupersetOf({"/echo 200", "/refused 404"}));
}

// An echoed prompt with its log-probabilities is one piece, however long.
TEST_F(Http, OneLargePieceIsNoSlowReader) {
  start([](Options& o) { o.limits.output_bytes = 1000; });
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  exchange->begin_stream(200, "text/event-stream", {});
  EXPECT_TRUE(exchange->write(std::string(100'000, 'x')));
  exchange->finish();
  EXPECT_EQ(client.read_answer().body.size(), 100'000u);
  EXPECT_EQ(server_->stats().cut_off, 0);
}

TEST_F(Http, AClientThatHangsUpIsNoticedWhileNothingIsWritten) {
  start();
  HttpClient waiting(port());
  waiting.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  waiting.close();
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  EXPECT_TRUE(exchange->gone());
  exchange->respond({});  // too late, harmless
  HttpClient streaming(port());
  streaming.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  held(2)->begin_stream(200, "text/event-stream", {});
  streaming.read_until("\r\n\r\n");
  streaming.close();
  EXPECT_TRUE(eventually([&] { return gone_ == 2 && server_->stats().exchanges == 0; }));
  const std::lock_guard lock(mutex_);
  EXPECT_THAT(log_, testing::ElementsAre("/hold 499", "/hold 499"));
}

TEST_F(Http, ASlowReaderIsCutOff) {
  start([](Options& o) {
    o.limits.output_bytes = 100'000;
    o.limits.send_buffer_bytes = 4096;
  });
  HttpClient client(port(), 4096);
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  exchange->begin_stream(200, "text/event-stream", {});
  bool cut = false;
  for (int i = 0; i < 10'000 && !cut; ++i) cut = !exchange->write(std::string(1000, 'x'));
  EXPECT_TRUE(cut);
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  EXPECT_EQ(server_->stats().cut_off, 1);
  EXPECT_EQ(HttpClient(port()).ask("GET", "/echo").status, 200);
}

TEST_F(Http, AReaderThatStopsIsCutOffAfterAWhile) {
  start([](Options& o) {
    o.limits.stalled_seconds = 0.2;
    o.limits.send_buffer_bytes = 4096;
  });
  HttpClient client(port(), 4096);
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  held()->respond({.body = std::string(50'000'000, 'x')});  // whole answers are not bounded, but they do not wait for ever
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().cut_off, 1);
}

TEST_F(Http, ThePaceOfAStreamHoldsBackPiecesButNotItsEnd) {
  start([](Options& o) { o.limits.pace_seconds = 3600; });
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  exchange->begin_stream(200, "text/event-stream", {});
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(exchange->write("data: x\n\n"));
  exchange->finish();
  const HttpAnswer answer = client.read_answer();
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.body.size(), 900u);
  EXPECT_EQ(client.ask("GET", "/echo").status, 200);  // the timer of the stream that is over disturbs nobody
}

// Who waits for the first token gets it, whatever the pace.
TEST_F(Http, TheFirstPiecesOfAStreamGoAtOnce) {
  start([](Options& o) { o.limits.pace_seconds = 3600; });
  HttpClient client(port());
  for (int round = 0; round < 2; ++round) {  // each stream of a connection anew
    client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    const auto exchange = held(round + 1);
    exchange->begin_stream(200, "text/event-stream", {});
    EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("text/event-stream"));
    for (const char* piece : {"first", "second", "third"}) {
      exchange->write(piece);
      EXPECT_EQ(client.read_until(std::string(piece) + "\r\n"), fmt::format("{:x}\r\n{}\r\n", std::string_view(piece).size(), piece));
    }
    exchange->write("late");
    exchange->write("more");
    exchange->finish();
    EXPECT_EQ(client.read_until("0\r\n\r\n"), "4\r\nlate\r\n4\r\nmore\r\n0\r\n\r\n");
  }
}

// A timer of the stream before, and wakes that were on their way when a write was paced, let no pieces pass.
TEST_F(Http, EveryStreamOfAConnectionIsPaced) {
  start([](Options& o) { o.limits.pace_seconds = 0.05; });
  HttpClient client(port());
  for (int round = 0; round < 3; ++round) {
    client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    const auto exchange = held(round + 1);
    exchange->begin_stream(200, "text/event-stream", {});
    std::thread writer([&] {
      for (int i = 0; i < 200; ++i) {
        exchange->write("x");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      exchange->finish();
    });
    int reads = 0;
    const auto begin = std::chrono::steady_clock::now();
    while (client.buffer().find("\r\n0\r\n\r\n") == std::string::npos && client.receive()) ++reads;
    client.buffer().clear();
    writer.join();
    // 4 and one each 50 ms; twice that, for a wake on its way when a write is paced lets one more go.
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_LE(reads, 2 * (4 + seconds / 0.05)) << round << ": " << seconds << " s";
  }
}

TEST_F(Http, AbortedStreamsEndWithoutTheirEnd) {
  start();
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  exchange->begin_stream(200, "text/event-stream", {});
  exchange->write("data: x\n\n");
  exchange->abort();
  const HttpAnswer answer = client.read_answer();
  EXPECT_EQ(answer.body, "data: x\n\n");
  EXPECT_FALSE(answer.complete);
}

TEST_F(Http, DrainingEndsIdleConnectionsAndLetsAnswersFinish) {
  start();
  HttpClient idle(port()), busy(port());
  EXPECT_EQ(idle.ask("GET", "/echo").status, 200);
  busy.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  server_->drain();
  EXPECT_TRUE(idle.closed_by_server());
  exchange->respond({.body = "done"});
  const HttpAnswer answer = busy.read_answer();
  EXPECT_EQ(answer.body, "done");
  EXPECT_TRUE(busy.closed_by_server());
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
}

TEST_F(Http, StoppingWhileExchangesAreHeldTellsThem) {
  start();
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto exchange = held();
  server_.reset();
  EXPECT_EQ(gone_, 1);
  exchange->respond({});
  EXPECT_TRUE(exchange->gone());
}

TEST_F(Http, ManyStreamsThatWait) {
  start();
  constexpr int kStreams = 200;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  held(kStreams);
  clients.clear();
  EXPECT_TRUE(eventually([&] { return gone_ == kStreams && server_->stats().connections == 0; }));
}

TEST(HttpText, PathsAndIds) {
  EXPECT_EQ(decode_path("/v1/models/a%2Fb"), "/v1/models/a/b");
  EXPECT_FALSE(decode_path("/%"));
  EXPECT_FALSE(decode_path("/%ff"));
  EXPECT_EQ(harmless_request_id("a\r\nb"), "ab");
  EXPECT_EQ(harmless_request_id(std::string(500, 'x')).size(), 128u);
  EXPECT_NE(new_request_id(), new_request_id());
}

TEST(HttpListen, AnAddressThatIsTakenOrNoneIsAnError) {
  auto first = Server::start({}).value();
  Options again;
  again.port = first->port();
  EXPECT_EQ(Server::start(again).error().code, Code::unavailable);
  Options bad;
  bad.host = "no such host";
  EXPECT_EQ(Server::start(bad).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace k3::http
