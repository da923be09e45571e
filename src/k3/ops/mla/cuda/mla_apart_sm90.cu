#define K3_APART
#include "k3/ops/mla/cuda/mla_decode_halves_sm90.cu"
