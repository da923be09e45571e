// What k3 serve is started with, and what of a plan it cannot do yet. It takes one GPU (or a CPU); every option here is one
// it has.
#include <algorithm>

#include "k3/base/units.h"
#include "k3/cli/plan/plan_text.h"

namespace k3::cli {
namespace {

constexpr int64_t kMostRunning = 4096, kMostContext = int64_t{1} << 24;  // of k3 serve
constexpr int64_t kBlockTokens = 512;

std::string command_of(const PlanSetup& setup, const plan::LayoutAnswer& chosen) {
  const plan::Scenario& s = setup.scenario;
  const int64_t users = chosen.point ? chosen.point->users : 1;
  std::string text =
      fmt::format("k3 serve {} --device cuda --max-running {} --ctx {}", setup.model_is_folder ? s.model : "MODEL",
                  std::min(users, kMostRunning), std::min(s.load.total_tokens(), kMostContext));
  if (s.precision.state == plan::kBf16Bytes) text += " --state-dtype bf16";
  if (s.slots <= 1)
    text += " --no-prefix-cache";
  else
    text += fmt::format(" --block-tokens {} --checkpoints end,turns,second", kBlockTokens);
  return text;
}

std::vector<std::string> gaps_of(const PlanSetup& setup, const plan::LayoutAnswer& chosen) {
  const plan::Scenario& s = setup.scenario;
  const plan::Layout& l = chosen.layout;
  std::vector<std::string> gaps;
  if (l.tp > 1) gaps.push_back(fmt::format("TP{}: heads and matrices split over GPUs", l.tp));
  if (l.pp > 1) gaps.push_back(fmt::format("PP{}: layers split over GPUs", l.pp));
  if (l.dp > 1)
    gaps.push_back(fmt::format("DP{} with experts spread over its {} GPUs", l.dp, l.stage_ranks()));
  else if (l.moe == plan::MoeSharding::ep && l.stage_ranks() > 1)
    gaps.push_back(fmt::format("EP{}: experts on several GPUs", l.stage_ranks()));
  if (l.dcp > 1) gaps.push_back(fmt::format("DCP{}: latents of a sequence on several GPUs", l.dcp));
  if (l.kcp > 1) gaps.push_back(fmt::format("KCP{}: a prefill's scan on several GPUs", l.kcp));
  if (l.sp) gaps.emplace_back("SP: the residual stream split by sequence");
  if (chosen.point && chosen.point->users > kMostRunning) {
    gaps.push_back(fmt::format("{} requests at once: {} is the most", format_grouped(chosen.point->users),
                               format_grouped(kMostRunning)));
  }
  if (s.load.total_tokens() > kMostContext) {
    gaps.push_back(fmt::format("requests of {} tokens: --ctx {} is the most", format_grouped(s.load.total_tokens()), kMostContext));
  }
  if (setup.experts_converted) {
    gaps.push_back(setup.config.experts_mxfp4
                       ? "MXFP4 experts: it serves those of MODEL as they are, and they are not; k3 convert --experts mxfp4 packs them"
                       : "BF16 experts: it serves those of MODEL as they are, and they are MXFP4; k3 convert --experts bf16 unpacks them");
  }
  if (s.draft.tokens > 0) gaps.emplace_back("speculation: k3 serve has no draft model");
  if (s.precision.cache == plan::kFp8Bytes) gaps.emplace_back("FP8 latents on a GPU (on a CPU: --latent-dtype f8_e4m3)");
  if (s.load.tier == plan::Tier::network && s.load.hit > 0)
    gaps.emplace_back("prefixes from other machines (--host-bytes and --disk-folder are local)");
  return gaps;
}

std::string kernels_text(const plan::Hardware& hw) {
  if (hw.name.starts_with("H100") || hw.name.starts_with("H200")) return {};
  if (hw.name.starts_with("MI")) return "k3 has no kernels for AMD GPUs.\n";
  if (hw.name.starts_with("B") || hw.name.starts_with("GB"))
    return "k3's fast kernels are for Hopper; here it would run plain ones, which was never tried.\n";
  return {};
}

}  // namespace

std::string launch_text(const PlanSetup& setup, const plan::LayoutAnswer& chosen) {
  const plan::Scenario& s = setup.scenario;
  const std::vector<std::string> gaps = gaps_of(setup, chosen);
  std::string out = "\n";
  const bool one_gpu = chosen.layout.gpus() == 1;
  if (one_gpu) out += command_of(setup, chosen) + "\n";
  if (!gaps.empty()) {
    out += one_gpu ? "k3 serve cannot yet:\n"
                   : fmt::format("k3 serve cannot serve this layout: it takes one GPU, not {}. Missing:\n",
                                 chosen.layout.gpus());
    for (const std::string& gap : gaps) out += "  - " + gap + "\n";
  }
  if (!one_gpu) {
    out += fmt::format(
        "What it can do today is one GPU with the experts that do not fit in host memory; that is not what was planned "
        "above:\n  {} --vram {}GB\n",
        command_of(setup, chosen), static_cast<int64_t>(s.machine.hw.memory_bytes * 0.9 / 1e9));
  }
  return out + kernels_text(s.machine.hw);
}

}  // namespace k3::cli
