#include "k3/cli/plan/plan_setup.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "k3/base/file.h"
#include "k3/base/utf8.h"
#include "k3/plan/advise/advice.h"
#include "k3/plan/hardware/shared_files.h"

namespace k3::cli {
namespace {

constexpr std::string_view kModels = "/models/", kJson = ".json";

std::string known_models() {
  std::string list;
  for (const plan::Asset& asset : plan::all_assets()) {
    if (!asset.path.starts_with(kModels)) continue;
    const std::string_view stem = asset.path.substr(kModels.size(), asset.path.size() - kModels.size() - kJson.size());
    list += (list.empty() ? "" : ", ") + std::string(stem);
  }
  return list;
}

std::optional<double> real_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  return whole ? std::optional(value) : std::nullopt;
}

// "1.84,2.45,2.87": tokens a step, each at most one more than the drafted ones, none fewer than the one before.
Result<plan::AcceptanceCurve> listed_acceptance(const std::string& text) {
  plan::AcceptanceCurve curve;
  curve.name = "as given";
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::optional<double> tokens = real_of(std::string_view(text).substr(begin, end - begin));
    const auto drafted = static_cast<double>(curve.tokens_per_step.size() + 1);
    const double least = curve.tokens_per_step.empty() ? 1 : curve.tokens_per_step.back();
    if (!tokens || *tokens < least || *tokens > drafted + 1) {
      return fail(Code::invalid_argument, "--acceptance {}: with {} drafted, tokens a step are a number from {} to {}",
                  utf8_repair(text), drafted, least, drafted + 1);
    }
    curve.tokens_per_step.push_back(*tokens);
    begin = end + 1;
  }
  return curve;
}

Result<plan::AcceptanceCurve> acceptance_of(const std::string& text) {
  const auto& published = plan::published_acceptance();
  if (text.empty()) return published.front();
  for (const plan::AcceptanceCurve& curve : published) {
    if (curve.name == text) return curve;
  }
  if (text.find(',') != std::string::npos) return listed_acceptance(text);
  if (const std::optional<double> alpha = real_of(text); alpha && *alpha > 0 && *alpha < 1) {
    return plan::constant_acceptance(fmt::format("alpha {}", *alpha), *alpha, 16);
  }
  std::string list;
  for (const plan::AcceptanceCurve& curve : published) list += (list.empty() ? "" : ", ") + curve.name;
  return fail(Code::invalid_argument, "--acceptance {}: none of {}, no chance between 0 and 1, no list of tokens a step",
              utf8_repair(text), list);
}

// "131072,524288,0.3": from which length, to which, and what share of the accepted drafts is left there.
Result<plan::ContextDecay> fade_of(const std::string& text) {
  std::vector<double> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::optional<double> number = real_of(std::string_view(text).substr(begin, end - begin));
    if (!number) break;
    numbers.push_back(*number);
    begin = end + 1;
  }
  const bool three = numbers.size() == 3 && std::count(text.begin(), text.end(), ',') == 2;
  if (!three || numbers[0] < 1 || numbers[1] <= numbers[0] || numbers[2] < 0 || numbers[2] > 1) {
    return fail(Code::invalid_argument,
                "--fade {}: FROM,TO,SHARE is wanted: two rising lengths in tokens and a share from 0 to 1",
                utf8_repair(text));
  }
  return plan::ContextDecay{numbers[0], numbers[1], numbers[2]};
}

void set_precision(const PlanOptions& o, plan::Precision* precision) {
  precision->state = o.state == "bf16" ? plan::kBf16Bytes : plan::kFp32Bytes;
  precision->cache = o.latent == "f8_e4m3" ? plan::kFp8Bytes : plan::kBf16Bytes;
}

Status check_said(const PlanOptions& o) {
  const std::tuple<bool, const char*, const char*> idle[] = {
      {o.draft == 0 && !o.acceptance.empty(), "--acceptance", "--draft N"},
      {o.draft == 0 && !o.fade.empty(), "--fade", "--draft N"},
      {o.draft == 0 && o.scheme != PlanOptions().scheme, "--scheme", "--draft N"},
      {o.hit == 0 && o.hit_tier != PlanOptions().hit_tier, "--hit-tier", "--hit X"},
      {o.calibration.empty() && !o.calibration_model.empty(), "--calibration-model", "--calibration FILE"}};
  for (const auto& [is_idle, option, needed] : idle) {
    if (is_idle) return fail(Code::invalid_argument, "{} says nothing without {}", option, needed);
  }
  return {};
}

Status set_draft(const PlanOptions& o, plan::Drafting* draft) {
  draft->tokens = o.draft;
  K3_TRY_ASSIGN(draft->acceptance, acceptance_of(o.acceptance));
  if (!o.fade.empty()) {
    K3_TRY_ASSIGN(draft->acceptance.decay, fade_of(o.fade));
  }
  draft->scheme = o.scheme == "snapshot" ? plan::SpeculationScheme::snapshot
                  : o.scheme == "replay" ? plan::SpeculationScheme::replay
                                         : plan::SpeculationScheme::fused;
  return {};
}

void set_wish(const PlanOptions& o, plan::LayoutWish* wish) {
  wish->tp = o.tp, wish->dp = o.dp, wish->pp = o.pp, wish->dcp = o.dcp, wish->kcp = o.kcp;
  if (o.moe == "tp") wish->moe = plan::MoeSharding::tp;
  if (o.moe == "ep") wish->moe = plan::MoeSharding::ep;
  wish->sp = o.sp;
  wish->up_sharded = !o.up_replicated;
}

void set_load(const PlanOptions& o, PlanSetup* setup) {
  plan::Scenario& s = setup->scenario;
  s.load.input_tokens = o.input, s.load.output_tokens = o.output, s.load.users = o.users, s.load.hit = o.hit;
  s.load.tier = o.hit_tier == "host" ? plan::Tier::host : o.hit_tier == "network" ? plan::Tier::network : plan::Tier::gpu;
  if (o.slo_ttft) s.objective.ttft_seconds = *o.slo_ttft;
  if (o.slo_tpot_ms) s.objective.tpot_seconds = *o.slo_tpot_ms / 1e3;
  // Answers of one token have no TPOT to hold.
  setup->default_objective = o.users == 0 && !o.slo_ttft && !o.slo_tpot_ms && o.output > 1;
  if (setup->default_objective) s.objective.tpot_seconds = kDefaultTpotSeconds;
}

Status set_calibration(const PlanOptions& o, PlanSetup* setup) {
  if (o.calibration.empty()) return {};
  std::vector<plan::MeasuredPoint> points;
  for (const std::string& path : o.calibration) {
    K3_TRY_ASSIGN(const std::vector<plan::MeasuredPoint> run, plan::load_measured_run(path));
    points.insert(points.end(), run.begin(), run.end());
  }
  plan::Scenario& s = setup->scenario;
  plan::Counts counts = s.counts;
  if (!o.calibration_model.empty()) {
    std::string source;
    K3_TRY_ASSIGN(const Config config, plan_config(o.calibration_model, &source));
    K3_TRY_ASSIGN(counts, plan::table_counts(config).with_context(source));
  }
  K3_TRY_ASSIGN(setup->calibration, plan::calibrate(counts, s.machine, s.precision, points, s.band));
  s.machine.efficiency = setup->calibration->efficiency;
  s.band = setup->calibration->band;
  return {};
}

Status set_band(plan::Scenario* s) {
  K3_TRY_ASSIGN(const plan::Check check, published_check());
  s->band = check.scored.most;
  const bool known = std::any_of(check.rows.begin(), check.rows.end(), [&](const plan::CheckRow& row) {
    return row.measurement.scored() && row.measurement.hw == s->machine.source;
  });
  s->band.source = fmt::format("the middle 80 % of {} published measurements of K3{}", check.scored.rows,
                               known ? "" : ", none of them on " + s->machine.hw.name);
  return {};
}

}  // namespace

Result<Config> plan_config(const std::string& name, std::string* source) {
  *source = name;
  // A folder of that name is meant before the known model; a file is not: the program itself is called k3.
  const plan::Asset* const asset =
      is_directory(name) ? nullptr : plan::find_asset(std::string(kModels) + name + std::string(kJson));
  if (asset != nullptr) return parse_config(asset->bytes, "share" + std::string(asset->path));
  if (!path_exists(name) && name.find('/') == std::string::npos && !name.ends_with(kJson)) {
    return fail(Code::not_found, "'{}' is neither a file nor a known model; known are {}", utf8_repair(name),
                known_models());
  }
  return load_config(name);
}

Result<plan::Check> published_check() {
  std::string source;
  K3_TRY_ASSIGN(const Config config, plan_config("k3", &source));
  K3_TRY_ASSIGN(const plan::Counts counts, plan::table_counts(config));
  return plan::check(plan::published_measurements(), counts);
}

Result<PlanSetup> plan_setup(const PlanOptions& o) {
  PlanSetup setup;
  plan::Scenario& s = setup.scenario;
  if (o.config.empty())
    return fail(Code::invalid_argument, "CONFIG is wanted: a config.json, a model folder, or one of {}", known_models());
  K3_TRY(check_said(o));
  K3_TRY_ASSIGN(setup.config, plan_config(o.config, &s.model));
  setup.model_is_folder = is_directory(o.config);
  if (o.experts != "keep") {
    const bool mxfp4 = o.experts == "mxfp4";
    setup.experts_converted = mxfp4 != setup.config.experts_mxfp4;
    setup.config.experts_mxfp4 = mxfp4;
  }
  K3_TRY_ASSIGN(s.counts, plan::table_counts(setup.config).with_context(s.model));
  K3_TRY_ASSIGN(s.machine, plan::load_machine(o.hw));
  for (const std::string& assignment : o.set) K3_TRY(plan::set_cell(assignment, &s.machine));
  set_precision(o, &s.precision);
  set_wish(o, &s.wish);
  set_load(o, &setup);
  K3_TRY(set_draft(o, &s.draft));
  s.slots = static_cast<double>(o.slots);
  s.gpu_hour = o.gpu_hour.value_or(0);
  K3_TRY(set_band(&s));
  K3_TRY(set_calibration(o, &setup));
  s.gpus = o.gpus;
  setup.gpus_chosen = o.gpus == 0;
  if (setup.gpus_chosen) {
    const int64_t fewest = plan::fewest_gpus(s, kMostGpusTried);
    const int64_t given = s.wish.tp.value_or(1) * s.wish.dp.value_or(1) * s.wish.pp.value_or(1);
    s.gpus = fewest > 0 ? fewest : given * std::max<int64_t>(1, kMostGpusTried / given);
  }
  return setup;
}

}  // namespace k3::cli
