// state.json, whatever it says: it is read, or refused with the field that is wrong.
#include "k3/train/run/checkpoints.h"

#include <gtest/gtest.h>

namespace k3::train {
namespace {

std::string state(const std::string& step, const std::string& best, const std::string& best_step, const std::string& seconds) {
  return R"({"step": )" + step + R"(, "best_bits_per_byte": )" + best + R"(, "best_step": )" + best_step + R"(, "seconds": )" + seconds +
         R"(, "config_hash": "ab"})";
}

TEST(CheckpointState, IsReadAsItWasWritten) {
  for (const RunState& wrote : {RunState{0, 0, -1, 0, ""}, RunState{30, 1.2345678901234567, 20, 1e6 / 3, "0123ab", "cd", "ef"}}) {
    const RunState read = parse_state(state_json(wrote), "state.json").value();
    EXPECT_EQ(wrote.step, read.step);
    EXPECT_EQ(wrote.best_step, read.best_step);
    EXPECT_EQ(wrote.best_bits_per_byte, read.best_bits_per_byte);
    EXPECT_EQ(wrote.seconds, read.seconds);
    EXPECT_EQ(wrote.config_hash, read.config_hash);
    EXPECT_EQ(wrote.model_hash, read.model_hash);
    EXPECT_EQ(wrote.data_hash, read.data_hash);
  }
}

TEST(CheckpointState, WhatCannotBeIsNamed) {
  EXPECT_TRUE(parse_state(state("3", "1.5", "3", "1"), "f").ok());
  const std::pair<std::string, std::string> wrong[] = {
      {state("-1", "1", "-1", "1"), "'step'"},     {state("1.5", "1", "-1", "1"), "'step'"},      {state("1e300", "1", "-1", "1"), "'step'"},
      {state("\"3\"", "1", "-1", "1"), "'step'"},  {state("null", "1", "-1", "1"), "'step'"},     {state("3", "1", "4", "1"), "'best_step'"},
      {state("3", "1", "-2", "1"), "'best_step'"}, {state("3", "1e999", "-1", "1"), "'best_bits"}, {state("3", "-1", "-1", "1"), "'best_bits"},
      {state("3", "1", "-1", "-1"), "'seconds'"},  {state("3", "1", "-1", "{}"), "'seconds'"},    {"[]", "'step'"},
      {"3", "'step'"},                             {"", "f"},                                     {R"({"step": 3)", "f"}};
  for (const auto& [json, what] : wrong) {
    const Result<RunState> read = parse_state(json, "f");
    ASSERT_FALSE(read.ok()) << json;
    EXPECT_EQ(Code::corrupt, read.error().code) << json;
    EXPECT_NE(std::string::npos, read.error().message.find(what)) << json << ": " << read.error().message;
  }
}

}  // namespace
}  // namespace k3::train
