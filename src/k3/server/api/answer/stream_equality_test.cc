// 500 token streams: what a stream says, put together, is what the whole answer says, however the tokens are cut into
// pieces. 250 were recorded from k3-mini (tools/record_streams.py), 250 are built to cover every row of api.md 7.4, then
// mutated.
#include <random>

#include "k3/server/api/answer/formats.h"
#include "k3/server/api/scripted_service_test.h"

namespace k3::server {
namespace {

using test::Draws;
using test::Json;

struct TokenStream {
  std::vector<int32_t> ids;
  OpenChannel open = OpenChannel::think;
  bool thinking = true;
  EndReason end = EndReason::length;
  std::vector<std::string> stops;
  std::string name;
};

struct Vocabulary {
  Tokenizer tokenizer;
  ChatFormat format;
};

const Vocabulary& mini() {
  static const Vocabulary vocabulary{Tokenizer::load(K3_SOURCE_DIR "/models/k3-mini").value(), test::short_format()};
  return vocabulary;
}

const Vocabulary& bytes() {
  static const Vocabulary vocabulary{test::byte_tokenizer(test::kXtmlSpecials), test::short_format()};
  return vocabulary;
}

AnswerState state_of(const Vocabulary& v, const TokenStream& stream, bool keep) {
  AnswerState state;
  state.id = "000000000000000000000000";
  state.model = "m";
  state.generation.logprobs = 1;
  state.generation.choices = 1;
  state.prompt_usage.prompt_tokens = 7;
  ParserOptions options;
  options.start = stream.open;
  options.thinking = stream.thinking;
  options.first_call_index = 3;
  const bool thinking = stream.thinking && stream.open != OpenChannel::response;
  state.choices.emplace_back(v.tokenizer, OutputParser(v.format, v.tokenizer, options), thinking,
                             ChoiceOptions{.stops = stream.stops, .logprobs = true, .keep = keep});
  return state;
}

// Feeds the stream; `cuts[i]`: what came up to token i is written out after it.
std::string play(const Vocabulary& v, const TokenStream& stream, const std::vector<bool>& cuts, Json& whole) {
  const AnswerFormat format = chat_format();
  AnswerState streamed = state_of(v, stream, false), kept = state_of(v, stream, true);
  std::string text = format.begin(streamed);
  std::vector<Piece> pieces, ignored;
  const auto write = [&] {
    for (const Piece& piece : pieces) text += format.piece(streamed, 0, piece);
    pieces.clear();
  };
  EndReason end = stream.end;
  for (size_t i = 0; i < stream.ids.size(); ++i) {
    const std::vector<TokenLogprob> top = {{65, -1.5F}};
    const GeneratedToken token{0, stream.ids[i], static_cast<int64_t>(i), -0.5F, &top};
    const bool go_on = streamed.choices[0].push(token, pieces);
    EXPECT_EQ(kept.choices[0].push(token, ignored), go_on);
    if (cuts[i % cuts.size()]) write();
    if (stream.ids[i] == v.tokenizer.special("<|end_of_msg|>"))
      end = EndReason::stop_token;
    else if (!go_on)
      end = EndReason::stopped;
    else
      continue;
    break;
  }
  streamed.choices[0].finish(end, pieces);
  write();
  text += format.end_choice(streamed, 0) + format.end(streamed, true);
  kept.choices[0].finish(end, ignored);
  whole = Json::parse(format.whole(kept));
  return text;
}

void check(const Vocabulary& v, const TokenStream& stream, Draws& draws) {
  const bool thinking = stream.thinking && stream.open != OpenChannel::response;
  std::vector<std::vector<bool>> cuttings = {{true}, {false}};
  for (int i = 0; i < 6; ++i) {
    std::vector<bool> cuts;
    for (size_t t = 0; t < std::max<size_t>(1, stream.ids.size()); ++t)
      cuts.push_back(draws.below(2 + static_cast<uint64_t>(i)) == 0);
    cuttings.push_back(std::move(cuts));
  }
  // Short streams: every place for one cut.
  for (size_t t = 0; t < stream.ids.size() && stream.ids.size() <= 40; ++t) {
    std::vector<bool> cuts(stream.ids.size());
    cuts[t] = true;
    cuttings.push_back(std::move(cuts));
  }
  Json first;
  for (const std::vector<bool>& cuts : cuttings) {
    Json whole;
    const std::string text = play(v, stream, cuts, whole);
    const std::vector<Json> frames = test::stream_frames(text);
    const Json got = test::reassemble(frames, 0, thinking);
    const Json& choice = whole["choices"][0];
    ASSERT_EQ(got["message"], choice["message"]) << stream.name;
    ASSERT_EQ(got["finish_reason"], choice["finish_reason"]) << stream.name;
    ASSERT_EQ(got["logprobs"], choice["logprobs"]["content"]) << stream.name;
    ASSERT_EQ(got["usage"], whole["usage"]) << stream.name;
    if (first.is_null()) first = whole;
    ASSERT_EQ(whole, first) << stream.name;
    // Only a call that max_tokens cut may leave arguments that are no JSON.
    if (choice["message"].contains("tool_calls") && choice["finish_reason"] == "tool_calls" &&
        stream.name.find("json") == std::string::npos) {
      for (const Json& call : choice["message"]["tool_calls"]) {
        ASSERT_TRUE(Json::accept(call["function"]["arguments"].get<std::string>())) << stream.name << choice;
      }
    }
  }
}

TEST(StreamEquality, RecordedStreams) {
  const std::string text = read_file(K3_SOURCE_DIR "/tests/data/streams/k3_mini.jsonl").value();
  Draws draws(1);
  int count = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const Json line = Json::parse(text.substr(at, end - at));
    at = end + 1;
    TokenStream stream;
    stream.ids = line["ids"].get<std::vector<int32_t>>();
    stream.thinking = line["open"] == "think";
    stream.open = stream.thinking ? OpenChannel::think : OpenChannel::response;
    stream.name = "recorded " + std::to_string(count++);
    if (count % 5 == 0) stream.stops = {"the", ". "};
    check(mini(), stream, draws);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(count, 250);
}

// One output for each row of the table, and what must come of it: "content | calls | finish".
struct Row {
  const char* name;
  const char* output;
  const char* expected;
  EndReason end = EndReason::length;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {"think not closed, response opens", "t«response»c«/response»«/message»«.»", "c | | stop"},
      {"think not closed, tools open", "t«tools»«call tool=\"f\"»«/call»«/tools»«.»", "null | f({}) | tool_calls"},
      {"response marker missing", "t«/think»c«/response»«/message»«.»", "c | | stop"},
      {"response not closed", "t«/think»«response»c«/message»«.»", "c | | stop"},
      {"response not closed at all", "t«/think»«response»c«.»", "c | | stop"},
      {"tools not closed", "t«/think»«response»«/response»«tools»«call tool=\"f\"»«/call»«.»", "null | f({}) | tool_calls"},
      {"call cut by the limit",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«argument key=\"k\" type=\"string\"»ab",
       "null | f({\"k\": \"ab) | length"},
      {"call without tool",
       "t«/think»«response»c«/response»«tools»«call index=\"1\"»«argument key=\"k\"»v«/argument»«/call»«/tools»«.»",
       "c | | stop"},
      {"undeclared tool", "t«/think»«response»c«/response»«tools»«call tool=\"nobody\"»«/call»«/tools»«.»",
       "c | nobody({}) | tool_calls"},
      {"argument without key",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«argument type=\"string\"»v«/argument»«/call»«/tools»«.»",
       "null | f({}) | tool_calls"},
      {"same key twice",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«argument key=\"k\" type=\"string\"»1«/argument»«argument "
       "key=\"k\" type=\"string\"»2«/argument»«/call»«/tools»«.»",
       "null | f({\"k\": \"1\"}) | tool_calls"},
      {"value that is no JSON",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«argument key=\"k\" type=\"number\"»a "
       "lot«/argument»«/call»«/tools»«.»",
       "null | f({\"k\": \"a lot\"}) | tool_calls"},
      {"unknown element in a call",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«note»x«/note»«argument key=\"k\" "
       "type=\"number\"»1«/argument»«/call»«/tools»«.»",
       "null | f({\"k\": 1}) | tool_calls"},
      {"json block, an object",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«json type=\"object\"»{\"a\":1}«/json»«/call»«/tools»«.»",
       "null | f({\"a\":1}) | tool_calls"},
      {"json block, something else",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«json type=\"object\"»{oops«/json»«/call»«/tools»«.»",
       "null | f({oops) | tool_calls"},
      {"call after the tools",
       "t«/think»«response»c«/response»«tools»«call tool=\"f\"»«/call»«/tools»«call tool=\"g\"»«/call»more«.»",
       "c | f({}) | tool_calls"},
      {"escaped attributes",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«argument key=\"a&quot;b&amp;quot;\" "
       "type=\"number\"»1«/argument»«/call»«/tools»«.»",
       "null | f({\"a\\\"b&quot;\": 1}) | tool_calls"},
      {"empty tools", "t«/think»«response»c«/response»«tools»«/tools»«.»", "c | | stop"},
      {"markers spelled in text",
       "t«/think»«response»«/response»«tools»«call tool=\"f\"»«argument key=\"k\" "
       "type=\"string\"»<|close|>argument<|sep|>é«/argument»«/call»«/tools»«.»",
       "null | f({\"k\": \"<|close|>argument<|sep|>é\"}) | tool_calls"},
      {"two calls",
       "t«/think»«response»c«/response»«tools»«call tool=\"f\" index=\"7\"»«argument key=\"k\" type=\"object\"»{\"x\": [1, "
       "2]}«/argument»«/call»«call tool=\"g\" index=\"7\"»«/call»«/tools»«/message»«.»",
       "c | f({\"k\": {\"x\": [1, 2]}}) g({}) | tool_calls"},
  };
  return kRows;
}

std::string outcome(const Json& whole) {
  const Json& choice = whole["choices"][0];
  const Json& message = choice["message"];
  std::string out = message["content"].is_null() ? "null" : message["content"].get<std::string>();
  out += " |";
  if (message.contains("tool_calls")) {
    for (const Json& call : message["tool_calls"]) {
      out +=
          " " + call["function"]["name"].get<std::string>() + "(" + call["function"]["arguments"].get<std::string>() + ")";
    }
  }
  return out + " | " + choice["finish_reason"].get<std::string>();
}

TEST(StreamEquality, EveryRowOfTheTable) {
  Draws draws(2);
  for (const Row& row : rows()) {
    TokenStream stream{
        .ids = test::output_ids(bytes().tokenizer, row.output), .end = row.end, .stops = {}, .name = row.name};
    Json whole;
    play(bytes(), stream, {true}, whole);
    EXPECT_EQ(outcome(whole), row.expected) << row.name;
    check(bytes(), stream, draws);
    if (HasFatalFailure()) return;
  }
}

// Tokens dropped, doubled, exchanged, moved; the stream cut; stop strings; other channels to start in.
TokenStream mutated(Draws& draws, int number) {
  const auto& table = rows();
  const Row& row = table[static_cast<size_t>(number) % table.size()];
  const Row& other = table[draws.below(table.size())];
  TokenStream stream;
  stream.name = fmt::format("{} ({}, then {})", number, row.name, other.name);
  stream.ids = test::output_ids(bytes().tokenizer, row.output);
  if (draws.below(3) == 0) {
    const auto more = test::output_ids(bytes().tokenizer, other.output);
    stream.ids.pop_back();
    stream.ids.insert(stream.ids.end(), more.begin(), more.end());
  }
  const uint64_t changes = draws.below(6);
  for (uint64_t i = 0; i < changes && stream.ids.size() > 2; ++i) {
    const size_t a = draws.below(stream.ids.size()), b = draws.below(stream.ids.size());
    switch (draws.below(5)) {
      case 0: stream.ids.erase(stream.ids.begin() + static_cast<std::ptrdiff_t>(a)); break;
      case 1: stream.ids.insert(stream.ids.begin() + static_cast<std::ptrdiff_t>(a), stream.ids[b]); break;
      case 2: std::swap(stream.ids[a], stream.ids[b]); break;
      case 3: stream.ids[a] = static_cast<int32_t>(draws.below(266)); break;  // any byte, any special
      default: stream.ids.resize(std::max<size_t>(a, 1)); break;
    }
  }
  constexpr OpenChannel kOpen[] = {OpenChannel::think, OpenChannel::think, OpenChannel::response, OpenChannel::none};
  stream.open = kOpen[draws.below(4)];
  stream.thinking = draws.below(4) != 0;
  constexpr EndReason kEnds[] = {EndReason::length, EndReason::context, EndReason::interrupted};
  stream.end = kEnds[draws.below(3)];
  if (draws.below(4) == 0) stream.stops = {"c", "«no»", "é"};
  stream.name += " json";  // what a mutation leaves of a json block is emitted as it is
  return stream;
}

TEST(StreamEquality, MutatedStreams) {
  Draws draws(3);
  for (int i = 0; i < 250; ++i) {
    check(bytes(), mutated(draws, i), draws);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace k3::server
