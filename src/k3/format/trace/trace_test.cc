// Readers of request traces: good lines of every format, and every way a line can be wrong.
#include "k3/format/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "k3/format/trace/trace_fields.h"

namespace k3 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<std::vector<TraceRecord>> read_text(const std::string& text, const TraceOptions& options = {}) {
  K3_TRY_ASSIGN(TraceReader reader, TraceReader::of_text(text, "t", options));
  std::vector<TraceRecord> records;
  while (true) {
    K3_TRY_ASSIGN(std::optional<TraceRecord> record, reader.next());
    if (!record) return records;
    records.push_back(*std::move(record));
  }
}

std::vector<TraceRecord> good(const std::string& text, const TraceOptions& options = {}) {
  auto records = read_text(text, options);
  EXPECT_TRUE(records.ok()) << records.error().message;
  return records.ok() ? *records : std::vector<TraceRecord>{};
}

std::string message(const std::string& text) {
  const auto records = read_text(text);
  EXPECT_FALSE(records.ok()) << text;
  if (records.ok()) return "";
  EXPECT_EQ(records.error().code, Code::invalid_argument);
  return records.error().message;
}

const std::string kLine = R"({"timestamp": 1500, "input_length": 1025, "output_length": 7, "hash_ids": [4, 5, 9]})";
const std::string kAzure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
const std::string kBurst = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n";

TEST(Trace, MooncakeLine) {
  const auto records = good(kLine + "\r\n\n" + kLine);
  ASSERT_EQ(records.size(), 2u);
  const TraceRecord& r = records[0];
  EXPECT_DOUBLE_EQ(r.timestamp_s, 1.5);
  EXPECT_EQ(r.input_tokens, 1025);
  EXPECT_EQ(r.output_tokens, 7);
  EXPECT_THAT(r.block_ids, ElementsAre(4, 5, 9));
  EXPECT_EQ(r.block_tokens, 512);
  EXPECT_EQ(r.session, -1);
  EXPECT_EQ(r.turn_end, -1);
  EXPECT_EQ(r.fork, -1);
}

TEST(Trace, AgentSessionFields) {
  const auto records = good(
      R"({"timestamp":0,"input_length":3,"output_length":2,"hash_ids":[7],"session":3,"turn":2,"turn_end":5,"think_ms":40,"fork":2})");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].session, 3);
  EXPECT_EQ(records[0].turn, 2);
  EXPECT_EQ(records[0].turn_end, 5);
  EXPECT_EQ(records[0].think_ms, 40);
  EXPECT_EQ(records[0].fork, 2);
}

TEST(Trace, BlockLengthIsAnOption) {
  TraceOptions options;
  options.block_tokens = 16;
  const auto records = good(R"({"timestamp":0.25,"input_length":17,"output_length":0,"hash_ids":[1,2]})", options);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].block_tokens, 16);
  EXPECT_DOUBLE_EQ(records[0].timestamp_s, 0.00025);
}

TEST(Trace, IdsAndUnknownFieldsMayBeAbsentOrPresent) {
  const auto records = good(R"({"timestamp":0,"input_length":9,"output_length":1,"model":"x","nested":{"a":[1]}})");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].block_ids.empty());
  EXPECT_EQ(records[0].block_tokens, 0);
}

TEST(Trace, Azure) {
  const auto records = good(kAzure + "2023-11-16 23:59:59.5000000,374,44\r\n2023-11-17 00:00:01.2500000,396,109");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_DOUBLE_EQ(records[0].timestamp_s, 0);
  EXPECT_NEAR(records[1].timestamp_s, 1.75, 1e-6);
  EXPECT_EQ(records[1].input_tokens, 396);
  EXPECT_EQ(records[1].output_tokens, 109);
}

TEST(Trace, AzureWithZonesAndColumnsInAnotherOrder) {
  const auto records = good(
      "ContextTokens,TIMESTAMP,GeneratedTokens,Extra\n1,2024-05-10T00:00:00.009930+00:00,2,\"a,\"\"b\"\n"
      "3,2024-05-10 02:00:01+02:00,4,\n5,2024-05-10 00:00:01.5Z,6,x");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_NEAR(records[1].timestamp_s, 0.99007, 1e-6);
  EXPECT_NEAR(records[2].timestamp_s, 1.49007, 1e-6);
}

TEST(Trace, BurstGptSessionsAreNumberedByAppearance) {
  const auto records = good(kBurst +
                            "5.0,abc,1.5,ChatGPT,472,18,490,Conversation log\n6,,2,GPT-4,10,0,10,API log\n"
                            "7,xyz,2,GPT-4,11,1,12,API log\n9,abc,1,ChatGPT,500,3,503,Conversation log");
  ASSERT_EQ(records.size(), 4u);
  EXPECT_DOUBLE_EQ(records[0].timestamp_s, 5);
  EXPECT_EQ(records[0].session, 0);
  EXPECT_EQ(records[1].session, -1);
  EXPECT_EQ(records[2].session, 1);
  EXPECT_EQ(records[3].session, 0);
  EXPECT_EQ(records[3].turn, 1);
  EXPECT_EQ(records[3].input_tokens, 500);
}

TEST(Trace, TurnsThatTheTraceDoesNotNumberAreCounted) {
  const std::string line = R"({"timestamp":1,"input_length":1,"output_length":1,"session":4})";
  const auto records = good(line + "\n" + line);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].turn, 0);
  EXPECT_EQ(records[1].turn, 1);
}

TEST(Trace, BurstGptWithoutSessions) {
  const auto records = good("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].session, -1);
}

struct Bad {
  std::string text, says;
};

TEST(Trace, BadLinesNameFileLineAndField) {
  const std::string azure = kAzure, burst = kBurst;
  const std::vector<Bad> table = {
      {"", "t: no records"},
      {"\n \n", "t: no records"},
      {"hello", "t:1: 'hello' begins neither"},
      {"a,b,c\n1,2,3", "t:1: 'a,b,c' begins neither"},
      {"[1]", "t:1: '[1]' begins neither"},
      {"{", "t:1: "},
      {kLine + "\n[1]", "t:2: an array where an object belongs"},
      {kLine + "\n\n" + "nonsense", "t:3: "},
      {kLine + kLine, "t:1: "},
      {R"({"input_length":1,"output_length":1})", "t:1: timestamp: missing"},
      {R"({"timestamp":1,"output_length":1})", "t:1: input_length: missing"},
      {R"({"timestamp":1,"input_length":1})", "t:1: output_length: missing"},
      {R"({"timestamp":"1","input_length":1,"output_length":1})", "t:1: timestamp: a string where a number belongs"},
      {R"({"timestamp":-1,"input_length":1,"output_length":1})", "t:1: timestamp: -1 is below 0"},
      {R"({"timestamp":1e999,"input_length":1,"output_length":1})", "t:1: timestamp: '1e999' is no number"},
      {R"({"timestamp":1e300,"input_length":1,"output_length":1})", "t:1: timestamp: 1e300 is above 10000000000000"},
      {kLine + "\n" + R"({"timestamp":2e12,"input_length":1,"output_length":1})",
       "t:2: timestamp: 2e+09 s after the first record"},
      {burst + "1e300,a,1,m,1,1,2,l", "t:2: Timestamp: 1e300 is above 10000000000"},
      {R"({"timestamp":1,"input_length":0,"output_length":1})", "t:1: input_length: 0 is not between 1 and"},
      {R"({"timestamp":1,"input_length":1.5,"output_length":1})", "t:1: input_length: '1.5' is no whole number"},
      {R"({"timestamp":1,"input_length":1,"output_length":-3})", "t:1: output_length: -3 is not between 0 and"},
      {R"({"timestamp":1,"input_length":99999999999999999999,"output_length":1})", "t:1: input_length: "},
      {R"({"timestamp":1,"input_length":1,"input_length":2,"output_length":1})", "t:1: "},
      {R"({"timestamp":1,"input_length":513,"output_length":1,"hash_ids":[1]})", "blocks of 512 tokens need 2"},
      {R"({"timestamp":1,"input_length":512,"output_length":1,"hash_ids":[1,2]})", "blocks of 512 tokens need 1"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[-1]})", "t:1: hash_ids[0]: -1 is not between"},
      {R"({"timestamp":1,"input_length":600,"output_length":1,"hash_ids":[1,"2"]})", "hash_ids[1]: a string where a number"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":5})", "t:1: hash_ids: a number where an array"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"session":-1})", "t:1: session: -1 is not between"},
      {R"({"timestamp":1,"input_length":4,"output_length":1,"turn_end":3})", "t:1: turn_end: 3 is not between 4"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"think_ms":-1})", "t:1: think_ms: "},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"fork":-2})", "t:1: fork: "},
      {kLine + "\n" + R"({"timestamp":1499,"input_length":1,"output_length":1})",
       "t:2: timestamp: 1.499 s is before the 1.500 s"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"session":4,"turn":9223372036854775807})", "t:1: turn: 9223372036854775807 is not between 0"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"session":4,"turn":1})" "\n"
       R"({"timestamp":2,"input_length":1,"output_length":1,"session":4,"turn":0})",
       "t:2: turn: 0 of session 4 comes after its turn 1"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"session":4,"turn":0})" "\n"
       R"({"timestamp":2,"input_length":1,"output_length":1,"session":4,"turn":0})",
       "t:2: turn: 0 of session 4 comes after its turn 0"},
      {azure + "2023-11-16 18:15:46,374", "t:2: 2 cells; the header has 3"},
      {azure + "2023-13-16 18:15:46,1,1", "t:2: TIMESTAMP: '2023-13-16 18:15:46' is no time"},
      {azure + "2023-02-29 18:15:46,1,1", "TIMESTAMP: "},
      {azure + "2023-11-16 24:15:46,1,1", "TIMESTAMP: "},
      {azure + "2023-11-16 18:15:46.,1,1", "TIMESTAMP: "},
      {azure + "2023-11-16 18:15:46+1,1,1", "TIMESTAMP: "},
      {azure + "5,1,1", "TIMESTAMP: "},
      {azure + "2023-11-16 18:15:46,x,1", "t:2: ContextTokens: 'x' is no whole number"},
      {azure + "2023-11-16 18:15:46,1,", "t:2: GeneratedTokens: '' is no whole number"},
      {azure + "2023-11-16 18:15:46,-1,2", "t:2: ContextTokens: -1 is not between"},
      {azure + "\"2023-11-16 18:15:46,1,1", "t:2: a quote that is not closed, column 1"},
      {azure + "2023\"-11-16 18:15:46,1,1", "t:2: a quote inside a cell, column 1"},
      {azure + "\"2023-11-16 18:15:46\"x,1,1", "t:2: text behind a closed quote, column 1"},
      {azure + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1", "t:3: timestamp: "},
      {burst + "x,a,1,m,1,1,2,l", "t:2: Timestamp: 'x' is no number"},
      {burst + "1,a,1,m,,1,2,l", "t:2: Request tokens: '' is no whole number"},
      {burst + "1,a,1,m,3,1.0,2,l", "t:2: Response tokens: '1.0' is no whole number"},
  };
  for (const Bad& bad : table) EXPECT_THAT(message(bad.text), HasSubstr(bad.says)) << bad.text;
}

TEST(Trace, TheAskedForKindIsChecked) {
  TraceOptions options;
  options.kind = TraceKind::azure;
  const auto records = read_text(kLine, options);
  ASSERT_FALSE(records.ok());
  EXPECT_THAT(records.error().message, HasSubstr("this is Mooncake JSONL, not Azure CSV"));
}

TEST(Trace, FilesAreReadInWindows) {
  std::string path = testing::TempDir() + "k3_trace_XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  std::string ids;  // lines of 150 KiB: windows of 1 MiB end inside them
  for (int64_t i = 0; i < 20000; ++i) ids += (i > 0 ? "," : "") + std::to_string(1000000 + i);
  {
    std::ofstream out(path);
    out << "\xEF\xBB\xBF";
    for (int i = 0; i < 40; ++i) {
      out << R"({"timestamp":)" << i << R"(,"input_length":10240000,"output_length":1,"hash_ids":[)" << ids << "]}\n";
    }
  }
  const auto records = read_trace(path);
  ASSERT_TRUE(records.ok()) << records.error().message;
  ASSERT_EQ(records->size(), 40u);
  for (const TraceRecord& record : *records) {
    ASSERT_EQ(record.block_ids.size(), 20000u);
    EXPECT_EQ(record.block_ids.back(), 1019999);
  }
  const auto some = read_trace(path, {}, 3);
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->size(), 3u);
  std::remove(path.c_str());
  EXPECT_FALSE(read_trace(path).ok());
}

TEST(Trace, LinesTooLongAreRefused) {
  const std::string line(static_cast<size_t>(kMaxLineBytes) + 1, ' ');
  LineReader reader = LineReader::of_text(line + "\nx", "t");
  const auto first = reader.next();
  ASSERT_FALSE(first.ok());
  EXPECT_THAT(first.error().message, HasSubstr("t:1: a line longer than 16 MiB"));
}

TEST(Trace, CalendarTimes) {
  EXPECT_DOUBLE_EQ(trace_calendar_time("1970-01-02 00:00:00").value(), 86400);
  EXPECT_DOUBLE_EQ(trace_calendar_time("2024-02-29 00:00:00.5Z").value(), 1709164800.5);
  EXPECT_DOUBLE_EQ(trace_calendar_time("2024-02-29T01:30:00+01:30").value(), 1709164800);
}

}  // namespace
}  // namespace k3
