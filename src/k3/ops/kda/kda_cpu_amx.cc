#include "k3/ops/cpu/tile_unit_amx.h"
//
#include "k3/ops/cpu/lanes_avx512.h"
#include "k3/ops/kda/kda_tiles_impl.h"

namespace k3::ops {

void kda_tiles_amx(const KdaRun& run) { run_kda_tiles(run); }

}  // namespace k3::ops
