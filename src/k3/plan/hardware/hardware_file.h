// Purpose:  hardware records from files: the ones of share/hardware by name, or a TOML file; single cells replaced.
// Shapes:   none.
// Units:    as hardware.h.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   not_found: no record of that name (with those there are), no such file. invalid_argument: file, line, cell, its
//           value and what is wanted; a cell that does not exist, with the ones that do.
// Source:   cost-model.md 2, 8.4.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/plan/hardware/hardware.h"

namespace k3::plan {

struct Machine {
  Hardware hw;
  Efficiency efficiency;
  std::string source;  // "h200", or the path of a file
};

// The names of share/hardware.
std::vector<std::string> machine_names();

// A name of machine_names() or of a record ("H200-SXM"), in any case; or a path (with a slash, or ending in .toml).
Result<Machine> load_machine(const std::string& name_or_path);
Result<Machine> parse_machine(std::string_view toml, const std::string& source);

// "hw.CELL=NUMBER" or "efficiency.CONSTANT=NUMBER". A value written like 900GiB or 4.8TB is taken as bytes.
Status set_cell(std::string_view assignment, Machine* machine);

// Every cell with its value, limits and meaning: for --help, the error messages and the README of share/hardware.
struct CellInfo {
  std::string name;  // "hw.memory_bytes"
  double value = 0, least = 0, most = 0;
  std::string_view about;
};
std::vector<CellInfo> cells(const Machine& machine);

// By the name of cells(); null when there is none.
double* efficiency_cell(std::string_view name, Efficiency* efficiency);

}  // namespace k3::plan
