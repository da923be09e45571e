// Purpose:  the ops on a GPU: what each op's function calls when Ctx::device is one.
// Shapes:   those of the op; activations BF16, router logits, weights and lm_head's logits FP32; every pointer is device memory.
// Units:    none.
// Memory:   scratch from the workspace, which lies on the device.
// Threads:  everything is queued on Ctx::stream and may be captured in a graph; values that vary come from Ctx::step.
// Errors:   a launch that fails is remembered in Ctx::gpu (OpState::first_error) and reported at the end of the step; later
//           ops of the step still queue. Shapes no kernel exists for: refused when the model is put on the device.
//           Built without CUDA these functions abort: no Ctx can have such a device then.
// Source:   that of the op; tolerances in the headers of the kernels (ops/<op>/cuda).
#pragma once

#include <functional>
#include <span>

#include "k3/ops/ctx.h"
#include "k3/ops/paged.h"
#include "k3/ops/weight.h"

namespace k3::ops {

struct AttnResSite;
struct KdaMixArgs;
struct KdaTrainArgs;
struct KdaTrainSaved;
struct KdaTrainGrads;
struct MlaArgs;
struct LinearPart;
struct LinearOne;
struct LinearOptions;
struct Glu;
struct RouterOptions;
struct RoutedExperts;
struct ExpertBank;

namespace cuda {

struct SampleRow;

// The OpState of a Ctx (op_state.h), for layers that do not see CUDA.
OpState* new_op_state();
void delete_op_state(OpState* state);
Status take_error(OpState* state);
// unsupported: the current device is older than what kernels are built for, or not a Hopper GPU where that is wanted.
Status check_device(bool hopper = false);
bool tracing(const OpState* state);  // each op is waited for: nothing can be captured
// Calls `watch` with the ids [T, topk] (device memory, queued on the stream) of every router from now on; empty: no more.
void watch_routes(OpState* state, std::function<void(const Tensor& ids)> watch);
// Chooses the library's algorithm for a product of up to `tokens` rows by measuring; done before steps, never in one.
Status prepare_product(OpState* state, const Weight& w, DType out, int64_t tokens, Stream stream);
using OpStateHandle = DeviceHandle<OpState*, delete_op_state>;

// An expert's three matrices, in device memory as a checkpoint stores them, to place `index` of a bank whose arrays have
// expert_bank_bytes() bytes.
struct ExpertBankBytes {
  int64_t gate_up = 0, down = 0, factors = 0;
};
ExpertBankBytes expert_bank_bytes(const ops::ExpertBank& bank);
// `tokens` tokens are computed by the kernels that read every expert's weights once; else by those that read the chosen ones.
bool moe_in_parts(const ops::ExpertBank& bank, int64_t tokens) noexcept;
Status pack_expert(const ops::ExpertBank& bank, int64_t index, const Weight& w1, const Weight& w2, const Weight& w3, Stream stream);

void embedding(const Ctx& ctx, const Weight& table, const Tensor& out) noexcept;  // ids: Ctx::step
void attn_res_site(const Ctx& ctx, const ops::AttnResSite& site) noexcept;
void rms_norm(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept;
void add(const Ctx& ctx, const Tensor& x, const Tensor& y) noexcept;
void copy(const Ctx& ctx, const Tensor& from, const Tensor& to) noexcept;
void gather_rows(const Ctx& ctx, const Tensor& from, std::span<const int64_t> rows, const Tensor& to) noexcept;
void sigmoid_gate(const Ctx& ctx, const Tensor& gate, const Tensor& y) noexcept;
void glu(const Ctx& ctx, const Tensor& gate, const Tensor& up, const ops::Glu& activation, const Tensor& out) noexcept;
void linear_many(const Ctx& ctx, const Tensor& x, std::span<const ops::LinearPart> parts, const Tensor& x_rest = {}) noexcept;
void linear_many(const Ctx& ctx, const ops::AttnResSite& site, std::span<const ops::LinearPart> parts) noexcept;
void linear_two(const Ctx& ctx, const ops::LinearOne& a, const ops::LinearOne& b) noexcept;
void kda_mix(const Ctx& ctx, const ops::KdaMixArgs& args, const StateSlots& state, std::span<const StateExport> exports,
             const DeviceExports& device_exports) noexcept;
Status kda_train_supported(int64_t heads, int64_t dim, int64_t taps);
void kda_train_forward(const Ctx& ctx, const ops::KdaTrainArgs& args, const Tensor& y, ops::KdaTrainSaved* saved) noexcept;
void kda_train_vjp(const Ctx& ctx, const ops::KdaTrainArgs& args, const ops::KdaTrainSaved& saved, const Tensor& dy,
                   const ops::KdaTrainGrads& grads) noexcept;
void latent_append(const Ctx& ctx, const Tensor& kv, const Tensor& norm_weight, float eps, const PagedTable& table) noexcept;
void mla(const Ctx& ctx, const ops::MlaArgs& args) noexcept;
void router(const Ctx& ctx, const Tensor& logits, const Tensor& bias, const ops::RouterOptions& options, const Tensor& ids,
            const Tensor& weights) noexcept;
void routed_experts(const Ctx& ctx, const ops::RoutedExperts& args) noexcept;
void moe(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, const ops::ExpertBank& experts, const ops::Glu& activation,
         const Tensor& out) noexcept;
// Tokens of rows of logits (ops/sampling/cuda): params [T], or null where all are greedy; ids and flags [T]. All in device memory.
// can_choose: there is a kernel for the current device and so many ids.
bool can_choose(int64_t vocab) noexcept;
void choose_rows(const Ctx& ctx, const Tensor& logits, const SampleRow* params, int32_t* ids, uint32_t* flags) noexcept;

}  // namespace cuda
}  // namespace k3::ops
