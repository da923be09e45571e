#include "k3/plan/published/measurements.h"

#include "k3/base/check.h"
#include "k3/base/file.h"
#include "k3/base/utf8.h"
#include "k3/plan/hardware/hardware_file.h"
#include "k3/plan/hardware/shared_files.h"
#include "k3/plan/hardware/toml_file.h"

namespace k3::plan {
namespace {

constexpr std::pair<Quantity, std::string_view> kQuantities[] = {
    {Quantity::step_seconds, "step_seconds"},
    {Quantity::user_tokens_per_second, "user_tokens_per_second"},
    {Quantity::tpot_seconds, "tpot_seconds"},
    {Quantity::ttft_seconds, "ttft_seconds"},
    {Quantity::output_tokens_per_second, "output_tokens_per_second"},
    {Quantity::tokens_per_second_gpu, "tokens_per_second_gpu"},
    {Quantity::prefill_tokens_per_second_gpu, "prefill_tokens_per_second_gpu"},
};

constexpr int64_t kMostRanks = 1 << 16, kMostRequests = 1 << 20, kMostTokens = int64_t{1} << 24;

Status read_layout(TomlFields& fields, Layout* layout) {
  K3_TRY(fields.whole("tp", 1, kMostRanks, &layout->tp));
  K3_TRY(fields.whole("dp", 1, kMostRanks, &layout->dp));
  K3_TRY(fields.whole("pp", 1, kMostRanks, &layout->pp));
  K3_TRY(fields.whole("dcp", 1, kMostRanks, &layout->dcp));
  K3_TRY(fields.whole("kcp", 1, kMostRanks, &layout->kcp));
  K3_TRY(fields.flag("sp", &layout->sp));
  std::string moe = "tp";
  K3_TRY(fields.text("moe", &moe));
  if (moe != "tp" && moe != "ep") return fields.wrong("moe", fmt::format("is '{}'; tp or ep is wanted", utf8_repair(moe)));
  layout->moe = moe == "ep" ? MoeSharding::ep : MoeSharding::tp;
  return {};
}

Status read_quantity(TomlFields& fields, Quantity* quantity) {
  std::string text, list;
  K3_TRY(fields.text("quantity", &text));
  for (const auto& [value, name] : kQuantities) {
    if (text == name) {
      *quantity = value;
      return {};
    }
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  if (text.empty()) return fields.wrong("quantity", "is missing; there are " + list);
  return fields.wrong("quantity", fmt::format("is '{}'; there are {}", utf8_repair(text), list));
}

// What the quantity needs to be computed.
Status check_work(const TomlFields& fields, const Measurement& m) {
  const auto need = [&](std::string_view name, int64_t value) {
    return value > 0 ? Status() : fields.wrong(name, fmt::format("is missing: {} needs it", quantity_name(m.quantity)));
  };
  switch (m.quantity) {
    case Quantity::step_seconds:
    case Quantity::user_tokens_per_second: K3_TRY(need("batch", m.batch)); return need("context", m.context);
    case Quantity::prefill_tokens_per_second_gpu: K3_TRY(need("sequences", m.sequences)); return need("input", m.input);
    case Quantity::tpot_seconds:
      if (m.output == 1) return fields.wrong("output", "is 1: there is no time between tokens");
      [[fallthrough]];
    case Quantity::ttft_seconds:
    case Quantity::output_tokens_per_second:
    case Quantity::tokens_per_second_gpu:
      K3_TRY(need("users", m.users));
      K3_TRY(need("input", m.input));
      return need("output", m.output);
  }
  return {};
}

Result<Measurement> read_measurement(const TomlNode& node, const std::string& path, const std::string& source) {
  if (node.kind != TomlNode::Kind::table) {
    return fail(Code::invalid_argument, "{}:{}: {} is {}; a table is wanted", source, node.line, path,
                toml_kind_name(node.kind));
  }
  TomlFields fields(node, path, source);
  Measurement m;
  m.line = node.line;
  K3_TRY(fields.text("name", &m.name));
  K3_TRY(fields.text("source", &m.source));
  K3_TRY(fields.text("hw", &m.hw));
  K3_TRY(fields.text("assumed", &m.assumed));
  K3_TRY(fields.text("note", &m.note));
  K3_TRY(fields.flag("fitted", &m.fitted));
  K3_TRY(read_layout(fields, &m.layout));
  K3_TRY(fields.whole("batch", 1, kMostRequests, &m.batch));
  K3_TRY(fields.whole("context", 1, kMostTokens, &m.context));
  K3_TRY(fields.whole("users", 1, kMostRequests, &m.users));
  K3_TRY(fields.whole("input", 1, kMostTokens, &m.input));
  K3_TRY(fields.whole("output", 1, kMostTokens, &m.output));
  K3_TRY(fields.whole("sequences", 1, kMostRequests, &m.sequences));
  K3_TRY(fields.number("latent_bytes", 0.25, 4, &m.latent_bytes));
  K3_TRY(fields.whole("draft", 0, 64, &m.draft));
  K3_TRY(fields.number("accepted", 1, 65, &m.accepted));
  K3_TRY(fields.number("measured", 1e-9, 1e12, &m.measured));
  K3_TRY(fields.number("expected", 1e-9, 1e12, &m.expected));
  K3_TRY(read_quantity(fields, &m.quantity));
  K3_TRY(fields.finish());
  if (m.name.empty()) return fields.wrong("name", "is missing");
  if (m.source.empty()) return fields.wrong("source", "is missing: who published it");
  if (m.measured == 0) return fields.wrong("measured", "is missing");
  // Names alone: a file of measurements opens no other file.
  const bool opens = m.hw.find_first_of("/.") != std::string::npos;
  if (opens || !load_machine(m.hw).ok())
    return fields.wrong("hw", fmt::format("is '{}'; a name of share/hardware is wanted", utf8_repair(m.hw)));
  K3_TRY(check_work(fields, m));
  return m;
}

}  // namespace

std::string_view quantity_name(Quantity quantity) { return kQuantities[static_cast<size_t>(quantity)].second; }

bool is_time(Quantity quantity) {
  return quantity == Quantity::step_seconds || quantity == Quantity::tpot_seconds || quantity == Quantity::ttft_seconds;
}

Result<std::vector<Measurement>> parse_measurements(std::string_view toml, const std::string& source) {
  K3_TRY_ASSIGN(const TomlNode root, parse_toml(toml, source));
  TomlFields top(root, "", source);
  const TomlNode* const list = top.get("measurement");
  K3_TRY(top.finish());
  if (list == nullptr || list->kind != TomlNode::Kind::array || list->items.empty()) {
    return top.wrong("measurement", "is missing: tables [[measurement]] are wanted");
  }
  std::vector<Measurement> out;
  for (size_t i = 0; i < list->items.size(); ++i) {
    K3_TRY_ASSIGN(Measurement m, read_measurement(list->items[i], fmt::format("measurement[{}]", i), source));
    out.push_back(std::move(m));
  }
  return out;
}

Result<std::vector<Measurement>> load_measurements(const std::string& path) {
  K3_TRY_ASSIGN(const std::string text, read_file(path, kMostTomlBytes));
  return parse_measurements(text, path);
}

const std::vector<Measurement>& published_measurements() {
  static const std::vector<Measurement> all = [] {
    const Asset* const file = find_asset("/measurements/k3.toml");
    K3_CHECK(file != nullptr, "share/measurements/k3.toml is not in the program");
    return parse_measurements(file->bytes, "share/measurements/k3.toml").value();
  }();
  return all;
}

}  // namespace k3::plan
