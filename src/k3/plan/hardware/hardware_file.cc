#include "k3/plan/hardware/hardware_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "k3/base/file.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/plan/hardware/shared_files.h"
#include "k3/plan/hardware/toml_file.h"

namespace k3::plan {
namespace {

// Limits keep every product of the cost model finite and refuse a cell given in another unit (4.8 for 4.8 TB/s).
template <class Record>
struct Cell {
  std::string_view name;
  double Record::*value;
  double least, most;
  std::string_view about;
};

constexpr Cell<Hardware> kHardwareCells[] = {
    {"memory_bytes", &Hardware::memory_bytes, 1e6, 1e15, "memory of one GPU"},
    {"hbm_bytes_per_second", &Hardware::hbm_bytes_per_second, 1e8, 1e15, "rate of its memory"},
    {"bf16_flops_per_second", &Hardware::bf16_flops_per_second, 1e9, 1e18, "dense BF16 rate, a multiply-add is two"},
    {"fp8_flops_per_second", &Hardware::fp8_flops_per_second, 1e9, 1e18, "dense FP8 rate"},
    {"scale_up_bytes_per_second", &Hardware::scale_up_bytes_per_second, 1e6, 1e15,
     "link within a domain (NVLink), one direction"},
    {"network_bytes_per_second", &Hardware::network_bytes_per_second, 1e6, 1e15,
     "link between domains, for one GPU, one direction"},
    {"host_bytes_per_second", &Hardware::host_bytes_per_second, 1e6, 1e15, "link to the host's memory, one direction"},
    {"scan_lanes", &Hardware::scan_lanes, 1, 1e6, "KDA scans that run side by side"},
    {"scan_chunk_seconds", &Hardware::scan_chunk_seconds, 1e-9, 1, "one 16-token chunk of the longest scan"},
    {"scan_head_token_seconds", &Hardware::scan_head_token_seconds, 1e-14, 1,
     "parallel part of the scan, for each head and token"},
};
constexpr int64_t kMostDomain = 1 << 20;
constexpr size_t kMostNameBytes = 100;

constexpr double kMostSeconds = 10, kLeastShare = 1e-4;
constexpr Cell<Efficiency> kEfficiencyCells[] = {
    {"weight_bytes", &Efficiency::weight_bytes, kLeastShare, 1, "share of the memory's rate: weights"},
    {"state_bytes", &Efficiency::state_bytes, kLeastShare, 1, "share of the memory's rate: KDA states"},
    {"attention_bytes", &Efficiency::attention_bytes, kLeastShare, 1,
     "share of the memory's rate: latents, AttnRes, elementwise"},
    {"gemm_flops", &Efficiency::gemm_flops, kLeastShare, 1, "share of the peak: dense products"},
    {"decode_gemm_flops", &Efficiency::decode_gemm_flops, kLeastShare, 1,
     "share of the peak: dense products of a decode step"},
    {"routed_flops", &Efficiency::routed_flops, kLeastShare, 1, "share of the peak: routed experts"},
    {"attention_flops", &Efficiency::attention_flops, kLeastShare, 1, "share of the peak: MLA core at prefill"},
    {"link", &Efficiency::link, kLeastShare, 1, "share of every link's rate"},
    {"gemm_loss_per_log2_tp", &Efficiency::gemm_loss_per_log2_tp, 0, 0.19, "gemm_flops lost with each doubling of tp"},
    {"sliced_routed", &Efficiency::sliced_routed, kLeastShare, 1, "factor of routed_flops where experts are sliced"},
    {"collective_overlap", &Efficiency::collective_overlap, 0, 1, "share of a prefill's communication that is hidden"},
    {"hop_overlap", &Efficiency::hop_overlap, 0, 1, "share of a prefill's pipeline hops that is hidden"},
    {"kernels_per_layer", &Efficiency::kernels_per_layer, 0, 1e4, "kernels one after another in a layer"},
    {"verify_kernels_per_layer", &Efficiency::verify_kernels_per_layer, 0, 1e4, "further ones when drafts are verified"},
    {"kernel_seconds", &Efficiency::kernel_seconds, 0, kMostSeconds, "one kernel of that chain"},
    {"fixed_prefill_tokens", &Efficiency::fixed_prefill_tokens, 1, 1e12, "tokens for which a prefill pays the chain once"},
    {"collective_seconds", &Efficiency::collective_seconds, 0, kMostSeconds,
     "small collective of up to 8 ranks in a domain"},
    {"collective_slope", &Efficiency::collective_slope, 0, 100, "its growth with each doubling of ranks beyond 8"},
    {"network_seconds", &Efficiency::network_seconds, 0, kMostSeconds, "small collective or message between domains"},
    {"host_step_seconds", &Efficiency::host_step_seconds, 0, kMostSeconds, "host work of a step"},
    {"draft_seconds", &Efficiency::draft_seconds, 0, kMostSeconds, "draft model of a speculating step"},
    {"request_seconds", &Efficiency::request_seconds, 0, 1000, "fixed part of a request's time to first token"},
    {"elementwise_passes", &Efficiency::elementwise_passes, 0, 1e4,
     "memory passes of the model's width, for each layer and token"},
    {"residual_passes", &Efficiency::residual_passes, 0, 1e4, "of these on the residual stream"},
    {"scan_chunk_tokens", &Efficiency::scan_chunk_tokens, 1, 1e4, "tokens of a chunk of the scan"},
    {"memory_reserve", &Efficiency::memory_reserve, 0, 0.95, "share of the memory left alone"},
    {"extra_bytes", &Efficiency::extra_bytes, 0, 1e15, "workspaces, graphs, buffers of one GPU"},
};
static_assert(std::size(kEfficiencyCells) * sizeof(double) == sizeof(Efficiency), "every constant is a cell");

template <class Record, size_t N>
Status read_cells(TomlFields& fields, const Cell<Record> (&table)[N], Record* record) {
  for (const auto& cell : table) K3_TRY(fields.number(cell.name, cell.least, cell.most, &(record->*cell.value)));
  return {};
}

// A record without a cell would be a machine with a zero.
Status check_whole(const TomlFields& fields, const TomlNode& table) {
  for (const auto& cell : kHardwareCells) {
    if (table.find(cell.name) == nullptr) return fields.wrong(cell.name, fmt::format("is missing ({})", cell.about));
  }
  if (table.find("domain_gpus") == nullptr) return fields.wrong("domain_gpus", "is missing (GPUs that scale_up joins)");
  return {};
}

// The name is printed as it is: to terminals, into tables, into pages.
Status check_name(const TomlFields& fields, std::string_view name) {
  if (name.size() > kMostNameBytes) {
    return fields.wrong("name", fmt::format("has {} bytes; at most {} are wanted", name.size(), kMostNameBytes));
  }
  // C1 controls (U+0080 to U+009F) are c2 80 to c2 9f in UTF-8; terminals obey them as well.
  for (size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    const bool c1 = byte == 0xc2 && i + 1 < name.size() && static_cast<unsigned char>(name[i + 1]) < 0xa0;
    if (byte < 0x20 || byte == 0x7f || c1) return fields.wrong("name", "holds a control character; plain text is wanted");
  }
  return {};
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

constexpr std::string_view kFolder = "/hardware/", kSuffix = ".toml";

std::string_view stem_of(const Asset& asset) {
  if (!asset.path.starts_with(kFolder) || !asset.path.ends_with(kSuffix)) return {};
  return asset.path.substr(kFolder.size(), asset.path.size() - kFolder.size() - kSuffix.size());
}

// A plain number, or a size as parse_bytes has it.
Result<double> parse_value(std::string_view text, std::string_view assignment) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  if (const auto bytes = parse_bytes(text); bytes.ok()) return static_cast<double>(*bytes);
  return fail(Code::invalid_argument, "--set {}: '{}' is not a number", utf8_repair(assignment), utf8_repair(text));
}

template <class Record, size_t N>
const Cell<Record>* find_cell(const Cell<Record> (&table)[N], std::string_view name) {
  for (const auto& cell : table) {
    if (cell.name == name) return &cell;
  }
  return nullptr;
}

template <class Record, size_t N>
std::string cell_list(const Cell<Record> (&table)[N]) {
  std::string list;
  for (const auto& cell : table) list += (list.empty() ? "" : ", ") + std::string(cell.name);
  return list;
}

template <class Record>
Status assign(const Cell<Record>& cell, double value, std::string_view group, Record* record) {
  if (!(value >= cell.least && value <= cell.most)) {
    return fail(Code::invalid_argument, "--set {}.{}: {:g} is not from {:g} to {:g} ({})", group, cell.name, value,
                cell.least, cell.most, cell.about);
  }
  record->*cell.value = value;
  return {};
}

}  // namespace

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const Asset& asset : all_assets()) {
    if (const std::string_view stem = stem_of(asset); !stem.empty()) names.emplace_back(stem);
  }
  return names;
}

Result<Machine> parse_machine(std::string_view toml, const std::string& source) {
  K3_TRY_ASSIGN(const TomlNode root, parse_toml(toml, source));
  Machine machine;
  machine.source = source;
  TomlFields top(root, "", source);
  K3_TRY(top.text("name", &machine.hw.name));
  const TomlNode* const hw = top.get("hw");
  const TomlNode* const efficiency = top.get("efficiency");
  K3_TRY(top.finish());
  if (machine.hw.name.empty()) return top.wrong("name", "is missing");
  K3_TRY(check_name(top, machine.hw.name));
  for (const auto& [node, name] : {std::pair(hw, "hw"), std::pair(efficiency, "efficiency")}) {
    if (node != nullptr && node->kind != TomlNode::Kind::table) {
      return top.wrong(name, fmt::format("is {}; a table [{}] is wanted", toml_kind_name(node->kind), name));
    }
  }
  if (hw == nullptr) return top.wrong("hw", "is missing: a table [hw] with the cells of the machine");
  TomlFields hardware(*hw, "hw", source);
  K3_TRY(read_cells(hardware, kHardwareCells, &machine.hw));
  K3_TRY(hardware.whole("domain_gpus", 1, kMostDomain, &machine.hw.domain_gpus));
  K3_TRY(hardware.flag("w4a8", &machine.hw.w4a8));
  K3_TRY(hardware.finish());
  K3_TRY(check_whole(hardware, *hw));
  if (efficiency != nullptr) {
    TomlFields fields(*efficiency, "efficiency", source);
    K3_TRY(read_cells(fields, kEfficiencyCells, &machine.efficiency));
    K3_TRY(fields.finish());
  }
  return machine;
}

Result<Machine> load_machine(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(kSuffix)) {
    K3_TRY_ASSIGN(const std::string text, read_file(name, kMostTomlBytes));
    return parse_machine(text, name);
  }
  const std::string wanted = lower(name);
  for (const Asset& asset : all_assets()) {
    const std::string_view stem = stem_of(asset);
    if (stem.empty()) continue;
    K3_TRY_ASSIGN(Machine machine, parse_machine(asset.bytes, "share" + std::string(asset.path)));
    if (wanted != stem && wanted != lower(machine.hw.name)) continue;
    machine.source = stem;
    return machine;
  }
  std::string list;
  for (const std::string& known : machine_names()) list += (list.empty() ? "" : ", ") + known;
  return fail(Code::not_found, "no hardware record '{}'; there are {}, or give a .toml file", utf8_repair(name), list);
}

Status set_cell(std::string_view assignment, Machine* machine) {
  const size_t equals = assignment.find('=');
  const std::string_view name = assignment.substr(0, equals);
  if (equals == std::string_view::npos) {
    return fail(Code::invalid_argument, "--set {}: CELL=NUMBER is wanted, like hw.memory_bytes=96GiB",
                utf8_repair(assignment));
  }
  const std::string_view text = assignment.substr(equals + 1);
  if (name == "hw.w4a8" && (text == "true" || text == "false")) {  // as in a record
    machine->hw.w4a8 = text == "true";
    return {};
  }
  K3_TRY_ASSIGN(const double value, parse_value(text, assignment));
  constexpr std::string_view kHw = "hw.", kEfficiency = "efficiency.";
  if (name == "hw.domain_gpus") {
    if (!(value >= 1 && value <= static_cast<double>(kMostDomain) && value == std::floor(value))) {
      return fail(Code::invalid_argument, "--set hw.domain_gpus: {} is not a whole number from 1 to {}", value, kMostDomain);
    }
    machine->hw.domain_gpus = static_cast<int64_t>(value);
    return {};
  }
  if (name == "hw.w4a8") {
    if (value != 0 && value != 1) return fail(Code::invalid_argument, "--set hw.w4a8: {} is none of true, false, 1, 0", value);
    machine->hw.w4a8 = value == 1;
    return {};
  }
  if (name.starts_with(kHw)) {
    if (const auto* cell = find_cell(kHardwareCells, name.substr(kHw.size())))
      return assign(*cell, value, "hw", &machine->hw);
  }
  if (name.starts_with(kEfficiency)) {
    if (const auto* cell = find_cell(kEfficiencyCells, name.substr(kEfficiency.size()))) {
      return assign(*cell, value, "efficiency", &machine->efficiency);
    }
  }
  return fail(Code::invalid_argument, "--set {}: no such cell; hw. has {}, domain_gpus, w4a8; efficiency. has {}",
              utf8_repair(name), cell_list(kHardwareCells), cell_list(kEfficiencyCells));
}

std::vector<CellInfo> cells(const Machine& machine) {
  std::vector<CellInfo> out;
  for (const auto& cell : kHardwareCells) {
    out.push_back({"hw." + std::string(cell.name), machine.hw.*cell.value, cell.least, cell.most, cell.about});
  }
  out.push_back({"hw.domain_gpus", static_cast<double>(machine.hw.domain_gpus), 1, static_cast<double>(kMostDomain),
                 "GPUs that scale_up joins"});
  out.push_back({"hw.w4a8", machine.hw.w4a8 ? 1.0 : 0.0, 0, 1, "MXFP4 experts multiply at the FP8 rate"});
  for (const auto& cell : kEfficiencyCells) {
    out.push_back(
        {"efficiency." + std::string(cell.name), machine.efficiency.*cell.value, cell.least, cell.most, cell.about});
  }
  return out;
}

double* efficiency_cell(std::string_view name, Efficiency* efficiency) {
  const auto* const cell = find_cell(kEfficiencyCells, name);
  return cell == nullptr ? nullptr : &(efficiency->*cell->value);
}

}  // namespace k3::plan
