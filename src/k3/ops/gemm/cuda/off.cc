// Without CUDA: nothing calls these, and everything that could answers "no device".
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/gemm/cuda/gemm_plans.h"

namespace k3::ops::cuda {
namespace {
constexpr CudaStatus kNoDevice{100};  // cudaErrorNoDevice
}

CudaStatus gemm_cuda(const GemmArgs&, const GemmPlans*, Stream) { return kNoDevice; }
Status gemm_prepare(const GemmArgs&, GemmPlans&, Stream) {
  return fail(Code::unsupported, "this program was built without CUDA");
}
CudaStatus gemm_stream_cuda(const GemmArgs&, const RowsConfig&, Stream) { return kNoDevice; }
CudaStatus gemm_wide_cuda(const GemmArgs&, const RowsConfig&, Stream) { return kNoDevice; }
CudaStatus gemm_rows_cuda(const GemmArgs&, const RowsConfig&, Stream) { return kNoDevice; }

struct GemmPlans::Impl {};
GemmPlans::GemmPlans(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GemmPlans::GemmPlans(GemmPlans&&) noexcept = default;
GemmPlans& GemmPlans::operator=(GemmPlans&&) noexcept = default;
GemmPlans::~GemmPlans() = default;
Result<GemmPlans> GemmPlans::create(int64_t) { return fail(Code::unsupported, "this program was built without CUDA"); }
Status GemmPlans::prepare(const GemmShape&, Stream) {
  return fail(Code::unsupported, "this program was built without CUDA");
}
bool GemmPlans::has(const GemmShape&) const { return false; }
double GemmPlans::measured_us(const GemmShape&) const { return 0; }
CudaStatus GemmPlans::run(const GemmShape&, const void*, int64_t, const void*, void*, int64_t, Stream) const {
  return kNoDevice;
}
std::string GemmPlans::save() const { return {}; }
Status GemmPlans::load(std::string_view) { return fail(Code::unsupported, "this program was built without CUDA"); }

}  // namespace k3::ops::cuda
