// Without CUDA nothing of MLA runs on a device.
#include "k3/ops/mla/cuda/mla_cuda.h"

namespace k3::ops::cuda {
namespace {
constexpr int kNoDevice = 100;  // cudaErrorNoDevice
}

CudaStatus latent_append_cuda(const LatentAppend&, Stream) { return {kNoDevice}; }
CudaStatus latent_gather_cuda(const LatentGather&, Stream) { return {kNoDevice}; }
CudaStatus mla_absorb_cuda(const MlaAbsorb&, Stream) { return {kNoDevice}; }
CudaStatus mla_values_cuda(const MlaValues&, Stream) { return {kNoDevice}; }
int64_t mla_decode_workspace_bytes(const MlaDecodeConfig&) { return 0; }
CudaStatus mla_decode_cuda(const MlaDecode&, Stream) { return {kNoDevice}; }
CudaStatus mla_prefill_cuda(const MlaPrefill&, Stream) { return {kNoDevice}; }

}  // namespace k3::ops::cuda
