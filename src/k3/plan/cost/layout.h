// Purpose:  how a model is spread over accelerators.
// Shapes:   none.
// Units:    ranks.
// Memory:   plain values.
// Threads:  immutable by use.
// Errors:   none here; validate.h names a layout that a model cannot have.
// Source:   cost-model.md 3.2, 7, 8, 10; 13a.
#pragma once

#include <cstdint>

namespace k3::plan {

enum class MoeSharding {
  tp,  // every expert is sliced over all tp * dp ranks
  ep,  // whole experts, E / (tp * dp) of them on a rank
};

struct Layout {
  int64_t tp = 1;   // ranks of one attention group: heads are split, latents are not
  int64_t dp = 1;   // attention groups of a stage; experts spread over all of them
  int64_t pp = 1;   // stages
  int64_t dcp = 1;  // ranks that share a sequence's latents at decode; divides tp
  int64_t kcp = 1;  // ranks that share a sequence's KDA scan at prefill; divides tp * dp
  MoeSharding moe = MoeSharding::tp;
  bool sp = false;         // residual stream and AttnRes sharded by sequence over tp at prefill
  bool up_sharded = true;  // latent up projection and its norm split over tp

  constexpr int64_t stage_ranks() const { return tp * dp; }
  constexpr int64_t gpus() const { return tp * dp * pp; }
  bool operator==(const Layout&) const = default;
};

}  // namespace k3::plan
