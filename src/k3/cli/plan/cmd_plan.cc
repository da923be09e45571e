#include "k3/base/file.h"
#include "k3/base/utf8.h"
#include "k3/cli/common.h"
#include "k3/cli/plan/plan_text.h"
#include "k3/plan/report/plan_html.h"
#include "k3/plan/report/plan_json.h"

namespace k3::cli {
namespace {

struct Planned {
  PlanSetup setup;
  plan::Answer answer;
};

Result<Planned> plan_one(const PlanOptions& options) {
  Planned out;
  K3_TRY_ASSIGN(out.setup, plan_setup(options));
  K3_TRY_ASSIGN(out.answer, plan::answer(out.setup.scenario));
  return out;
}

std::string text_of(const PlanOptions& o, const Planned& first, const Planned* second) {
  const plan::Scenario& s = first.setup.scenario;
  std::string out;
  if (!first.answer.best) {
    out = missing_text(first.setup, missing_of(s, first.answer));
  } else {
    const plan::LayoutAnswer& chosen = first.answer.layouts[*first.answer.best];
    out = answer_text(first.setup, first.answer);
    if (o.sweep) out += sweep_text(first.setup, first.answer);
    if (o.explain) out += explain_text(first.setup, chosen);
    if (o.launch) out += launch_text(first.setup, chosen);
  }
  if (second != nullptr) out += against_text(first.setup, first.answer, second->setup, second->answer);
  if (first.setup.calibration) out += calibration_text(*first.setup.calibration);
  return out;
}

Status print_check(const PlanOptions& o) {
  K3_TRY_ASSIGN(const plan::Check check, published_check());
  print_out(o.json ? plan::check_json(check) : check_text(check));
  return {};
}

Status print_cells(const PlanOptions& o) {
  K3_TRY_ASSIGN(plan::Machine machine, plan::load_machine(o.hw));
  for (const std::string& assignment : o.set) K3_TRY(plan::set_cell(assignment, &machine));
  print_out(o.json ? plan::cells_json(machine) : cells_text(machine));
  return {};
}

// Two scenarios of the same machines are told apart by what --against changes.
void name_apart(Planned* first, Planned* second, const std::string& against) {
  plan::Scenario &a = first->setup.scenario, &b = second->setup.scenario;
  if (scenario_name(a) != scenario_name(b)) return;
  a.name = "as asked";
  b.name = utf8_repair(against);
}

Status write_plots(const std::string& folder, const std::vector<plan::SvgFile>& files) {
  K3_TRY(make_directories(folder));
  for (const plan::SvgFile& file : files) K3_TRY(write_file(folder + "/" + file.name, file.text));
  note(fmt::format("wrote {} plots to {}", files.size(), utf8_repair(folder)));
  return {};
}

// --check and --cells print one table, each its own; what belongs to a plan is refused beside them.
Status check_tables(const PlanOptions& o) {
  if (!o.check && !o.cells) return {};
  if (o.check && o.cells) return fail(Code::invalid_argument, "--check and --cells: one table at a time");
  const char* const table = o.check ? "--check" : "--cells";
  if (!o.config.empty()) {
    return fail(Code::invalid_argument, "{} takes no CONFIG ('{}'): {}", table, utf8_repair(o.config),
                o.check ? "the measurements are of K3" : "it prints the record of --hw");
  }
  PlanOptions said = o, plain;
  if (o.cells) said.hw = plain.hw, said.set.clear();
  said.check = said.cells = false;
  said.json = false;
  if (said == plain) return {};
  return fail(Code::invalid_argument, "{} prints one table; {}", table,
              o.check ? "beside it goes --json alone" : "beside it go --hw, --set and --json alone");
}

plan::Plan plan_of(const Planned& planned) {
  const auto& calibration = planned.setup.calibration;
  return {planned.setup.scenario, planned.answer, calibration ? &*calibration : nullptr};
}

}  // namespace

Status plan_command(const PlanOptions& o) {
  K3_TRY(check_tables(o));
  if (o.check) return print_check(o);
  if (o.cells) return print_cells(o);
  K3_TRY_ASSIGN(Planned first, plan_one(o));
  std::optional<Planned> second;
  if (!o.against.empty()) {
    K3_TRY_ASSIGN(const PlanOptions other, against_options(o));
    K3_TRY_ASSIGN(second, plan_one(other));
    name_apart(&first, &*second, o.against);
  }
  const plan::Plan one = plan_of(first);
  const std::optional<plan::Plan> two = second ? std::optional(plan_of(*second)) : std::nullopt;
  print_out(o.json ? plan::plan_json(one, two ? &*two : nullptr) : text_of(o, first, second ? &*second : nullptr));
  if (!o.html.empty()) {
    K3_TRY(write_file(o.html, plan::plan_html(one, two ? &*two : nullptr)));
    note("wrote " + o.html);
  }
  if (!o.plots.empty()) K3_TRY(write_plots(o.plots, plan_svgs(one, two ? &*two : nullptr)));
  return {};
}

}  // namespace k3::cli
