// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/wgmma_wide.cuh: wgmma.cuh has every width here.
#pragma once

#include "k3/ops/cuda/wgmma.cuh"
