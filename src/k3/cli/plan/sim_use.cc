#include "k3/cli/plan/sim_use.h"

#include "k3/cli/plan/sim_setup.h"

namespace k3::cli {
namespace {

struct Rule {
  bool useless;
  std::vector<const char*> options;
  const char* why;
};

}  // namespace

Status check_use(const SimOptions& o) {
  const bool synthetic = o.trace == kSynthetic, measured = !o.clock.empty();
  const Rule rules[] = {
      {!synthetic,
       {"--requests", "--input", "--output", "--turns", "--shared-prefix"},
       "is for synthetic requests; a trace has its own (--limit, --max-input, --max-output and --scale cut it)"},
      {synthetic, {"--trace-block"}, "is for a trace with hash ids, and these requests are synthetic"},
      {measured,
       {"--gpus", "--hw", "--set", "--tp", "--dp", "--pp", "--dcp", "--kcp", "--moe", "--sp", "--scheme"},
       "describes a machine for the cost model; with --clock steps take what was measured"},
      {measured, {"--together"}, "is what steps of a --clock do; --apart: they take turns"},
      {!measured, {"--step-overhead-ms"}, "is added to the steps of a --clock, and none is given"},
      {!measured, {"--apart"}, "is what the cost model's steps do; --together: they share"},
      {o.prefill == 0 && o.decode == 0,
       {"--transfer-ms", "--transfer-gbps"},
       "is between prefill and decode engines; give --prefill and --decode"},
      {o.host_bytes.empty(), {"--host-gbps"}, "is of a host tier; give --host-bytes"},
      {o.remote_bytes.empty(), {"--remote-gbps", "--remote-ms"}, "is of a remote store; give --remote-bytes"},
      {o.unbounded, {"--pool-bytes"}, "and --unbounded: a pool has a size or none"},
      {o.rule, {"--pool-bytes"}, "and --rule: the rule is of a pool without end"},
      {!o.recorded.empty() || !o.recorded_order.empty(),
       {"--speed"},
       "is of a trace's clock; recorded requests start as they were recorded"},
  };
  for (const Rule& rule : rules) {
    for (const char* option : rule.options) {
      if (rule.useless && o.given.contains(option)) return fail(Code::invalid_argument, "{} {}", option, rule.why);
    }
  }
  return {};
}

}  // namespace k3::cli
