// Without CUDA: there is no device, and everything that needs one says so.
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/launch.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/cuda/train_dispatch.h"

namespace k3::ops::cuda {

Status to_status(CudaStatus, std::string_view what) {
  return fail(Code::unsupported, "{}: this program was built without CUDA (nvcc was not found)", what);
}

const DeviceInfo& device_info() {
  static const DeviceInfo none;
  return none;
}

// No Ctx can have a GPU here: parse_device() has refused it.
namespace {
[[noreturn]] void never() { check_failed(__FILE__, __LINE__, "no CUDA", "an op on a GPU in a program built without CUDA"); }
}  // namespace

Ceilings measure_ceilings(Stream) { return {}; }
CudaStatus fill_normal_bf16(void*, int64_t, uint64_t, float, Stream) { never(); }
CudaStatus fill_random_bytes(void*, int64_t, uint64_t, uint8_t, int, Stream) { never(); }
OpState* new_op_state() { never(); }
void delete_op_state(OpState*) {}
Status take_error(OpState*) { never(); }
Status check_device(bool) { never(); }
bool tracing(const OpState*) { never(); }
void watch_routes(OpState*, std::function<void(const Tensor&)>) { never(); }
Status prepare_product(OpState*, const Weight&, DType, int64_t, Stream) { never(); }
ExpertBankBytes expert_bank_bytes(const ops::ExpertBank&) { never(); }
bool moe_in_parts(const ops::ExpertBank&, int64_t) noexcept { never(); }
Status pack_expert(const ops::ExpertBank&, int64_t, const Weight&, const Weight&, const Weight&, Stream) { never(); }
void embedding(const Ctx&, const Weight&, const Tensor&) noexcept { never(); }
void attn_res_site(const Ctx&, const ops::AttnResSite&) noexcept { never(); }
void rms_norm(const Ctx&, const Tensor&, const Tensor&, float, const Tensor&) noexcept { never(); }
void add(const Ctx&, const Tensor&, const Tensor&) noexcept { never(); }
void copy(const Ctx&, const Tensor&, const Tensor&) noexcept { never(); }
void gather_rows(const Ctx&, const Tensor&, std::span<const int64_t>, const Tensor&) noexcept { never(); }
void sigmoid_gate(const Ctx&, const Tensor&, const Tensor&) noexcept { never(); }
void glu(const Ctx&, const Tensor&, const Tensor&, const ops::Glu&, const Tensor&) noexcept { never(); }
void linear_many(const Ctx&, const Tensor&, std::span<const ops::LinearPart>, const Tensor&) noexcept { never(); }
void linear_many(const Ctx&, const ops::AttnResSite&, std::span<const ops::LinearPart>) noexcept { never(); }
void linear_two(const Ctx&, const ops::LinearOne&, const ops::LinearOne&) noexcept { never(); }
void routed_experts(const Ctx&, const ops::RoutedExperts&) noexcept { never(); }
void kda_mix(const Ctx&, const ops::KdaMixArgs&, const StateSlots&, std::span<const StateExport>, const DeviceExports&) noexcept { never(); }
Status kda_train_supported(int64_t, int64_t, int64_t) { never(); }
void kda_train_forward(const Ctx&, const ops::KdaTrainArgs&, const Tensor&, ops::KdaTrainSaved*) noexcept { never(); }
void kda_train_vjp(const Ctx&, const ops::KdaTrainArgs&, const ops::KdaTrainSaved&, const Tensor&, const ops::KdaTrainGrads&) noexcept { never(); }
void latent_append(const Ctx&, const Tensor&, const Tensor&, float, const PagedTable&) noexcept { never(); }
void mla(const Ctx&, const ops::MlaArgs&) noexcept { never(); }
void router(const Ctx&, const Tensor&, const Tensor&, const ops::RouterOptions&, const Tensor&, const Tensor&) noexcept { never(); }
bool can_choose(int64_t) noexcept { return false; }
void choose_rows(const Ctx&, const Tensor&, const SampleRow*, int32_t*, uint32_t*) noexcept { never(); }
void moe(const Ctx&, const Tensor&, const Tensor&, const Tensor&, const ops::ExpertBank&, const ops::Glu&, const Tensor&) noexcept { never(); }

void matmul(const Ctx&, const Tensor&, Op, const Tensor&, Op, const Tensor&, bool) noexcept { never(); }
void accumulate(const Ctx&, const Tensor&, const Tensor&, bool) noexcept { never(); }
void narrow(const Ctx&, const Tensor&, const Tensor&) noexcept { never(); }
void rms_norm_forward(const Ctx&, const Tensor&, const Tensor&, float, const Tensor&) noexcept { never(); }
void rms_norm_vjp(const Ctx&, const Tensor&, const Tensor&, float, const Tensor&, const Tensor&, bool, const Tensor&) noexcept { never(); }
void attn_res_site_train(const Ctx&, const ops::AttnResSite&) noexcept { never(); }
void fold_query(const Ctx&, const Tensor&, const Tensor&, const Tensor&) noexcept { never(); }
void glu_train(const Ctx&, const Tensor&, const Tensor&, const ops::Glu&, const Tensor&) noexcept { never(); }
void glu_vjp(const Ctx&, const Tensor&, const Tensor&, const ops::Glu&, const Tensor&, const Tensor&, const Tensor&) noexcept { never(); }
void embedding_train(const Ctx&, const Weight&, const Tensor&) noexcept { never(); }
void embedding_vjp(const Ctx&, const Tensor&, const Tensor&) noexcept { never(); }
void cross_entropy(const Ctx&, const Tensor&, const Weight&, double) noexcept { never(); }
void routed_experts_train(const Ctx&, const ops::RoutedExperts&) noexcept { never(); }
void mla_train(const Ctx&, const ops::MlaArgs&) noexcept { never(); }
Status check_train_sizes(const TrainSizes&) { never(); }

}  // namespace k3::ops::cuda
