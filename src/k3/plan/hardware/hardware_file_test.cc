// The records of share/ against the table of the specification, and what is wrong with other people's.
#include "k3/plan/hardware/hardware_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "k3/plan/hardware/toml_file.h"

namespace k3::plan {
namespace {

using testing::HasSubstr;

const std::string kWhole =
    "name = \"X\"\n[hw]\nmemory_bytes = 80e9\nhbm_bytes_per_second = 3e12\nbf16_flops_per_second = 9e14\n"
    "fp8_flops_per_second = 18e14\nscale_up_bytes_per_second = 4e11\ndomain_gpus = 8\nnetwork_bytes_per_second = 5e10\n"
    "host_bytes_per_second = 5e10\nscan_lanes = 100\nscan_chunk_seconds = 2e-6\nscan_head_token_seconds = 4e-10\n";

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

void expect_refused(const std::string& text, std::string_view says) {
  const auto machine = parse_machine(text, "m.toml");
  ASSERT_FALSE(machine.ok()) << says;
  EXPECT_EQ(machine.error().code, Code::invalid_argument);
  EXPECT_THAT(machine.error().message, HasSubstr(says));
}

TEST(Machines, AreTheRowsOfTheSpecification) {
  ASSERT_EQ(machine_names().size(), kSpecHardware.size());
  for (const Hardware& row : kSpecHardware) {
    const auto machine = load_machine(row.name);
    ASSERT_TRUE(machine.ok()) << machine.error().message;
    const Hardware& hw = machine->hw;
    EXPECT_EQ(hw.memory_bytes, row.memory_bytes) << row.name;
    EXPECT_EQ(hw.hbm_bytes_per_second, row.hbm_bytes_per_second) << row.name;
    EXPECT_EQ(hw.bf16_flops_per_second, row.bf16_flops_per_second) << row.name;
    EXPECT_EQ(hw.fp8_flops_per_second, row.fp8_flops_per_second) << row.name;
    EXPECT_EQ(hw.scale_up_bytes_per_second, row.scale_up_bytes_per_second) << row.name;
    EXPECT_EQ(hw.domain_gpus, row.domain_gpus) << row.name;
    EXPECT_EQ(hw.network_bytes_per_second, row.network_bytes_per_second) << row.name;
    EXPECT_EQ(hw.host_bytes_per_second, row.host_bytes_per_second) << row.name;
    EXPECT_EQ(hw.w4a8, row.w4a8) << row.name;
    EXPECT_EQ(hw.scan_lanes, row.scan_lanes) << row.name;
    EXPECT_EQ(hw.scan_chunk_seconds, row.scan_chunk_seconds) << row.name;
    EXPECT_EQ(hw.scan_head_token_seconds, row.scan_head_token_seconds) << row.name;
  }
}

TEST(Machines, AreFoundByFileNameInAnyCase) {
  EXPECT_EQ(load_machine("GB300").value().hw.name, "GB300-NVL72");
  const auto none = load_machine("a100");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::not_found);
  EXPECT_THAT(none.error().message, HasSubstr("no hardware record 'a100'; there are b200, b300"));
}

TEST(Machines, MayBringTheirOwnConstants) {
  const auto machine = parse_machine(kWhole + "w4a8 = true\n[efficiency]\nlink = 0.5\n", "m.toml");
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  EXPECT_EQ(machine->efficiency.link, 0.5);
  EXPECT_EQ(machine->efficiency.gemm_flops, Efficiency{}.gemm_flops);
  EXPECT_TRUE(machine->hw.w4a8);
}

TEST(Machines, ErrorsNameFileLineAndCell) {
  expect_refused("name = ", "m.toml:1:");
  expect_refused("[hw]\n", "m.toml:1: name is missing");
  expect_refused("name = 3\n", "m.toml:1: name is a number; a string is wanted");
  expect_refused("name = \"x\"\n", "hw is missing");
  expect_refused("name = \"x\"\nhw = 3\n", "m.toml:2: hw is a number; a table [hw] is wanted");
  expect_refused(replaced(kWhole, "scan_lanes = 100\n", ""), "m.toml:2: hw.scan_lanes is missing");
  expect_refused(replaced(kWhole, "domain_gpus = 8", "domain_gpus = 8.5"),
                 "m.toml:8: hw.domain_gpus is 8.5; a whole number");
  expect_refused(replaced(kWhole, "memory_bytes = 80e9", "memory_bytes = 0"),
                 "m.toml:3: hw.memory_bytes is 0; a number from");
  expect_refused(replaced(kWhole, "3e12", "3"), "m.toml:4: hw.hbm_bytes_per_second is 3; a number from");
  expect_refused(replaced(kWhole, "3e12", "nan"), "m.toml:4: hw.hbm_bytes_per_second is nan");
  expect_refused(replaced(kWhole, "3e12", "\"fast\""), "m.toml:4: hw.hbm_bytes_per_second is a string; a number is wanted");
  expect_refused(kWhole + "hbm = 3\n", "m.toml:14: hw.hbm is not a name that is read; there are memory_bytes");
  expect_refused(kWhole + "[efficiency]\nlink = 1.5\n", "m.toml:15: efficiency.link is 1.5; a number from 0.0001 to 1");
  expect_refused(kWhole + "[efficiency]\nlink = -0.5\n", "efficiency.link is -0.5");
  expect_refused(kWhole + "made = 2026-01-01\n", "m.toml:14: dates and times");
  expect_refused(kWhole + "name = 3\nname = 4\n", "m.toml:15: name stands there already, from line 14");
  expect_refused(replaced(kWhole, "\"X\"", "\"a\\u001b[31mred\""), "m.toml:1: name holds a control character");
  expect_refused(replaced(kWhole, "\"X\"", "\"a\\u009b31mred\""), "m.toml:1: name holds a control character");
  expect_refused(replaced(kWhole, "\"X\"", "\"" + std::string(101, 'x') + "\""), "m.toml:1: name has 101 bytes; at most 100");
  expect_refused("a" + std::string(40000, '.') + "b = 1\n",
                 "m.toml:1: a name of letters, digits, _ and - is wanted, not '.'");
  expect_refused(std::string(static_cast<size_t>(kMostTomlBytes) + 1, ' '), "at most 1048576 are read");
}

TEST(Machines, NamesMayBeOfAnyScript) {
  EXPECT_EQ(parse_machine(replaced(kWhole, "\"X\"", "\"\\u00b5-\xe6\x9c\xba\""), "m.toml").value().hw.name, "\xc2\xb5-\xe6\x9c\xba");
}

TEST(Cells, AreSetByName) {
  Machine machine = load_machine("h200").value();
  for (const auto& [value, is_set] : {std::pair("true", true), std::pair("false", false), std::pair("1", true), std::pair("0", false)}) {
    ASSERT_TRUE(set_cell(std::string("hw.w4a8=") + value, &machine).ok()) << value;
    EXPECT_EQ(machine.hw.w4a8, is_set) << value;
  }
  ASSERT_TRUE(set_cell("hw.memory_bytes=96GiB", &machine).ok());
  EXPECT_EQ(machine.hw.memory_bytes, 96.0 * (1 << 30));
  ASSERT_TRUE(set_cell("hw.hbm_bytes_per_second=4.4e12", &machine).ok());
  EXPECT_EQ(machine.hw.hbm_bytes_per_second, 4.4e12);
  ASSERT_TRUE(set_cell("hw.domain_gpus=4", &machine).ok());
  EXPECT_EQ(machine.hw.domain_gpus, 4);
  ASSERT_TRUE(set_cell("efficiency.gemm_flops=0.7", &machine).ok());
  EXPECT_EQ(machine.efficiency.gemm_flops, 0.7);
}

TEST(Cells, RefuseWhatCannotBe) {
  Machine machine = load_machine("h200").value();
  const auto says = [&](std::string_view assignment) {
    const Status status = set_cell(assignment, &machine);
    return status.ok() ? std::string("accepted") : status.error().message;
  };
  EXPECT_THAT(says("hw.memory_bytes"), HasSubstr("CELL=NUMBER is wanted"));
  EXPECT_THAT(says("hw.memory_bytes=many"), HasSubstr("'many' is not a number"));
  EXPECT_THAT(says("hw.memory_bytes=0"), HasSubstr("0 is not from 1e+06 to"));
  EXPECT_THAT(says("hw.memory_bytes=inf"), HasSubstr("is not from"));
  EXPECT_THAT(says("hw.memory_bytes=nan"), HasSubstr("is not from"));
  EXPECT_THAT(says("hw.domain_gpus=0"), HasSubstr("not a whole number"));
  EXPECT_THAT(says("hw.w4a8=yes"), HasSubstr("'yes' is not a number"));
  EXPECT_THAT(says("hw.w4a8=2"), HasSubstr("2 is none of true, false, 1, 0"));
  EXPECT_THAT(says("hw.hbm=3"), HasSubstr("no such cell; hw. has memory_bytes"));
  EXPECT_THAT(says("eff.link=0.5"), HasSubstr("no such cell"));
  EXPECT_THAT(says("efficiency.link=75"), HasSubstr("75 is not from 0.0001 to 1"));
}

TEST(Cells, AreAllListedWithinTheirLimits) {
  for (const std::string& name : machine_names()) {
    const std::vector<CellInfo> all = cells(load_machine(name).value());
    EXPECT_EQ(all.size(), 39u);
    for (const CellInfo& cell : all) {
      EXPECT_GE(cell.value, cell.least) << name << " " << cell.name;
      EXPECT_LE(cell.value, cell.most) << name << " " << cell.name;
      EXPECT_FALSE(cell.about.empty());
    }
  }
  Efficiency efficiency;
  ASSERT_NE(efficiency_cell("link", &efficiency), nullptr);
  *efficiency_cell("link", &efficiency) = 0.25;
  EXPECT_EQ(efficiency.link, 0.25);
  EXPECT_EQ(efficiency_cell("name", &efficiency), nullptr);
}

}  // namespace
}  // namespace k3::plan
