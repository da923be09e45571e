// `k3 logits` and `perplexity`.
#include <nlohmann/json.hpp>

#include "tests/e2e/cli.h"

namespace k3::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Float32 arithmetic against float64 on k3-mini: 2e-4 absolute on logits of a few units (the tolerance of its golden files).
constexpr double kExactTolerance = 2e-4;

const json& golden() {
  static const json values = json::parse(file_text(kMini + "/golden/golden.json"));
  return values;
}

// The ids that the golden logits belong to: prompt, then the greedy continuation.
std::vector<int32_t> golden_ids(const std::string& name) {
  auto ids = golden().at("prompts").at(name).at("prompt_ids").get<std::vector<int32_t>>();
  for (const int32_t id : golden().at("prompts").at(name).at("greedy_ids").get<std::vector<int32_t>>()) ids.push_back(id);
  return ids;
}

std::string logits_file(const Scratch& scratch, const std::string& name, const std::vector<int32_t>& ids,
                        std::vector<std::string> more) {
  more.insert(more.begin(), {"logits", kMini, "--ids", join_ids(ids), "--out", scratch.path(name)});
  k3_ok(more);
  return scratch.path(name);
}

TEST(Logits, ExactAgreesWithTheGoldenValuesHoweverThePromptIsSplit) {
  const Scratch scratch;
  for (const char* name : {"prose", "chat"}) {
    const NpyMatrix expected = npy(kMini + "/golden/logits_" + name + ".npy");
    std::vector<int32_t> ids = golden_ids(name);
    ids.resize(static_cast<size_t>(expected.rows));
    for (const char* chunk : {"", "1", "7"}) {
      std::vector<std::string> more = {"--policy", "exact", "-t", "2"};
      if (*chunk != '\0') more.insert(more.end(), {"--chunk", chunk});
      const NpyMatrix found = npy(logits_file(scratch, "x.npy", ids, more));
      EXPECT_EQ(found.rows, expected.rows);
      EXPECT_EQ(found.cols, 12288);
      EXPECT_LE(largest_difference(found, expected), kExactTolerance) << name << " chunk " << chunk;
    }
  }
}

TEST(Logits, Bf16ChoosesTheSameTokenWhereTheGapIsClear) {
  const Scratch scratch;
  const std::vector<int32_t> ids = golden_ids("prose");
  const NpyMatrix found = npy(logits_file(scratch, "x.npy", ids, {}));
  const json& top_ids = golden().at("prompts").at("prose").at("top8_ids");
  const json& top_logits = golden().at("prompts").at("prose").at("top8_logits");
  int compared = 0;
  for (size_t i = 0; i < top_ids.size(); ++i) {
    if (top_logits[i][0].get<double>() - top_logits[i][1].get<double>() <= 0.25) continue;
    const auto row = found.row(static_cast<int64_t>(i));
    EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), top_ids[i][0].get<int64_t>()) << "position " << i;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST(Logits, DeterministicIsBitEqualAcrossChunksThreadsAndTime) {
  const Scratch scratch;
  const std::vector<int32_t> ids = golden_ids("prose");
  for (const char* policy : {"bf16", "exact"}) {
    const auto bytes = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--deterministic", "--policy", policy});
      return file_text(logits_file(scratch, "x.npy", ids, more));
    };
    const std::string whole = bytes({"-t", "2"});
    EXPECT_TRUE(whole == bytes({"-t", "2"})) << policy << " again";
    EXPECT_TRUE(whole == bytes({"-t", "1"})) << policy << " -t 1";
    EXPECT_TRUE(whole == bytes({"-t", "3", "--chunk", "7"})) << policy << " -t 3 --chunk 7";
    EXPECT_TRUE(whole == bytes({"-t", "2", "--chunk", "1"})) << policy << " --chunk 1";
  }
}

TEST(Logits, IdsFromAFileAndFromStdin) {
  const Scratch scratch;
  const std::string direct = file_text(logits_file(scratch, "a.npy", {12032, 72, 8213}, {"--deterministic"}));
  put_file(scratch.path("ids.json"), "[12032, 72,\n 8213]\n");
  k3_ok({"logits", kMini, "--ids", "@" + scratch.path("ids.json"), "--out", scratch.path("b.npy"), "--deterministic"});
  EXPECT_TRUE(direct == file_text(scratch.path("b.npy")));
  k3_ok({"logits", kMini, "--ids", "@-", "--out", scratch.path("c.npy"), "--deterministic"}, "12032 72 8213");
  EXPECT_TRUE(direct == file_text(scratch.path("c.npy")));
  const json report = json::parse(k3_ok({"logits", kMini, "--ids", "1,2", "--out", scratch.path("d.npy"), "--json"}));
  EXPECT_EQ(report.at("tokens"), 2);
  EXPECT_EQ(report.at("vocab"), 12288);
  EXPECT_EQ(report.at("out"), scratch.path("d.npy"));
}

TEST(Logits, WrongIdsLeaveNoFile) {
  const Scratch scratch;
  struct Case {
    const char* ids;
    const char* fact;
    int code;
  };
  for (const Case& c : {Case{"1,2,12288", "12288 at position 2", 2}, Case{"1,-2", "-2 at position 1", 2},
                        Case{"", "no token id", 2}, Case{"[]", "no token id", 2}, Case{"1,two", "'two'", 2},
                        Case{"99999999999", "'99999999999'", 2}, Case{"@/no/such/ids", "/no/such/ids", 3}}) {
    std::vector<std::string> arguments = {"logits", kMini, "--out", scratch.path("x.npy"), "--ids"};
    c.ids[0] == '1' ? arguments.back() += "=" + std::string(c.ids) : arguments.emplace_back(c.ids);
    const Outcome o = k3(arguments);
    EXPECT_EQ(o.code, c.code) << c.ids << "\n" << o.err;
    EXPECT_THAT(o.err, HasSubstr(c.fact));
  }
  EXPECT_EQ(k3({"logits", kMini, "--ids", "1", "--out", scratch.path("no/folder/x.npy")}).code, 3);
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

json perplexity(std::vector<std::string> more, std::string_view input = {}) {
  more.insert(more.begin(), {"perplexity", kMini, "--json"});
  return json::parse(k3_ok(more, input));
}

TEST(Perplexity, TheGoldenLikelihood) {
  const std::string ids = golden().at("val_ids").dump();
  const double expected = golden().at("val_mean_nll");
  const json exact = perplexity({"--ids", ids, "--policy", "exact"});
  EXPECT_NEAR(exact.at("nats_per_token"), expected, 1e-4);
  EXPECT_EQ(exact.at("tokens"), golden().at("val_ids").size() - 1);
  EXPECT_EQ(exact.at("windows"), 1);
  EXPECT_NEAR(exact.at("perplexity"), std::exp(exact.at("nats_per_token").get<double>()), 1e-9);
  EXPECT_NEAR(perplexity({"--ids", ids}).at("nats_per_token"), expected, 0.02);
}

TEST(Perplexity, OfATextFileAndOfStdin) {
  const Scratch scratch;
  const auto val_ids = golden().at("val_ids").get<std::vector<int32_t>>();
  const std::string text = k3_ok({"detokenize", kMini, "--skip-specials", join_ids(val_ids)});
  put_file(scratch.path("t.txt"), text);
  const json from_file = perplexity({"-f", scratch.path("t.txt"), "--policy", "exact", "--deterministic"});
  EXPECT_EQ(from_file, perplexity({"--policy", "exact", "--deterministic"}, text));
  EXPECT_EQ(from_file.at("bytes"), text.size());
  EXPECT_NEAR(from_file.at("bits_per_byte").get<double>() * static_cast<double>(text.size()),
              from_file.at("nats_per_token").get<double>() * from_file.at("tokens").get<double>() / std::log(2.0), 1e-6);
  const std::string table = k3_ok({"perplexity", kMini, "-f", scratch.path("t.txt")});
  for (const char* line : {"nats per token", "perplexity", "bits per byte"}) EXPECT_THAT(table, HasSubstr(line));
}

TEST(Perplexity, WindowsStartAnew) {
  const auto val_ids = golden().at("val_ids").get<std::vector<int32_t>>();
  const auto part = [&](size_t begin, size_t end) {
    return join_ids({val_ids.begin() + static_cast<int64_t>(begin), val_ids.begin() + static_cast<int64_t>(end)});
  };
  // 60 tokens in windows of 40: 40 and 20.
  const json both = perplexity({"--ids", part(1, 61), "--window", "40", "--policy", "exact"});
  const json first = perplexity({"--ids", part(1, 41), "--policy", "exact"});
  const json second = perplexity({"--ids", part(41, 61), "--policy", "exact"});
  EXPECT_EQ(both.at("windows"), 2);
  EXPECT_NEAR(both.at("nats_per_token").get<double>() * 60,
              first.at("nats_per_token").get<double>() * 40 + second.at("nats_per_token").get<double>() * 20, 1e-2);
}

// -log softmax of a row at an id, by hand.
double nats_of(const NpyMatrix& logits, int64_t row, int32_t id) {
  double sum = 0;
  for (const float x : logits.row(row)) sum += std::exp(static_cast<double>(x));
  return std::log(sum) - static_cast<double>(logits.row(row)[static_cast<size_t>(id)]);
}

// Two documents of a file, one of them longer than a window: the sum over windows that are fed by themselves, each of whose inputs asks
// for the document's next token (docs/training.md, "Bits per byte").
TEST(Perplexity, DocumentsByHand) {
  const Scratch scratch;
  const std::string texts[] = {"The boats came in early that morning, and nobody was there to meet them.", "\xe4\xb8\xad\xe6\x96\x87 and more."};
  put_file(scratch.path("d.txt"), texts[0] + "\n<|endoftext|>\n\n<|endoftext|>\n  " + texts[1] + "\n");
  constexpr size_t kWindow = 6;
  double nats = 0;
  size_t tokens = 0, windows = 0, bytes = 0;
  for (const std::string& text : texts) {
    auto ids = json::parse(k3_ok({"tokenize", kMini, "--json"}, text)).at("ids").get<std::vector<int32_t>>();
    const json config = json::parse(file_text(kMini + "/config.json"));
    ids.insert(ids.begin(), config.at("bos_token_id").get<int32_t>());
    ids.push_back(json::parse(k3_ok({"tokenize", kMini, "--specials", "--json"}, "[EOS]")).at("ids")[0]);
    for (size_t begin = 0; begin + 1 < ids.size(); begin += kWindow, ++windows) {
      const size_t end = std::min(begin + kWindow, ids.size() - 1);
      const std::vector<int32_t> fed(ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(end));
      const NpyMatrix logits = npy(logits_file(scratch, "w.npy", fed, {"--policy", "exact"}));
      for (size_t i = begin; i < end; ++i, ++tokens) nats += nats_of(logits, static_cast<int64_t>(i - begin), ids[i + 1]);
    }
    bytes += text.size();
  }
  ASSERT_GT(windows, 3u);
  const json got = perplexity({"--documents", scratch.path("d.txt"), "--window", std::to_string(kWindow), "--policy", "exact"});
  EXPECT_EQ(got.at("documents"), 2);
  EXPECT_EQ(got.at("tokens"), tokens);
  EXPECT_EQ(got.at("windows"), windows);
  EXPECT_EQ(got.at("bytes"), bytes);
  EXPECT_NEAR(got.at("nats_per_token").get<double>() * static_cast<double>(tokens), nats, 1e-3);
  EXPECT_NEAR(got.at("bits_per_byte").get<double>(), nats / std::log(2.0) / static_cast<double>(bytes), 1e-5);
  const std::string table = k3_ok({"perplexity", kMini, "--documents", scratch.path("d.txt")});
  EXPECT_THAT(table, HasSubstr("2 documents, "));
}

// Of a conversation the answer is asked for, and what closes it; the bytes are the answer's.
TEST(Perplexity, ConversationsCountTheAnswer) {
  const Scratch scratch;
  const std::string answer = "It is Paris.";
  put_file(scratch.path("c.jsonl"),
           json{{"messages", {{{"role", "user"}, {"content", kFrance}}, {{"role", "assistant"}, {"content", answer}}}}}.dump() + "\n");
  const json got = perplexity({"--documents", scratch.path("c.jsonl")});
  const int64_t words = json::parse(k3_ok({"tokenize", kMini, "--json"}, answer)).at("count");
  EXPECT_EQ(got.at("bytes"), answer.size());
  EXPECT_EQ(got.at("tokens"), words + 9);  // two close tags of four tokens each, and the end of the message
  EXPECT_EQ(got.at("documents"), 1);
}

TEST(Perplexity, DocumentsThatAreNone) {
  const Scratch scratch;
  put_file(scratch.path("empty.txt"), "\n<|endoftext|>\n");
  put_file(scratch.path("bad.jsonl"), "{\"messages\": []}\n");
  put_file(scratch.path("table.csv"), "1,2\n");
  const auto refused = [&](const std::string& file, int code, const char* says) {
    const Outcome o = k3({"perplexity", kMini, "--documents", scratch.path(file)});
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_THAT(o.err, HasSubstr(says));
  };
  refused("empty.txt", 2, "no document");
  refused("bad.jsonl", 2, "bad.jsonl: line 1");
  refused("table.csv", 5, ".jsonl");
  refused("none.txt", 3, "none.txt");
  EXPECT_EQ(k3({"perplexity", kMini, "--documents", scratch.path("empty.txt"), "--ids", "1"}).code, 2);
  EXPECT_EQ(k3({"perplexity", kMini, "--documents", scratch.path("empty.txt"), "-f", scratch.path("empty.txt")}).code, 2);
}

TEST(Perplexity, WrongInput) {
  EXPECT_EQ(k3({"perplexity", kMini}, "").code, 2);
  EXPECT_EQ(k3({"perplexity", kMini, "-f", "/no/such/text"}).code, 3);
  EXPECT_EQ(k3({"perplexity", kMini, "--ids", "12288"}).code, 2);
  EXPECT_EQ(k3({"perplexity", kMini, "--ids", "1", "-f", "x"}).code, 2);
  const Outcome window = k3({"perplexity", kMini, "--ids", "1,2,3", "--window", "9223372036854775807"});
  EXPECT_EQ(window.code, 2);
  EXPECT_THAT(window.err, HasSubstr("--window"));
}

}  // namespace
}  // namespace k3::e2e
