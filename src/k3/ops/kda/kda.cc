#include "k3/ops/kda/kda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/kda/kda_kernel.h"
#include "k3/ops/rms_norm/rms_norm_kernel.h"
#include "k3/ops/short_conv/short_conv_kernel.h"

namespace k3::ops {
namespace {

// Where one 16-token chunk is cheaper than so many recurrent steps (kda_bench, D = 128).
constexpr int64_t kChunkFrom = 12;

const KdaKernels& kernels(Isa isa) {
  if (isa >= Isa::avx512) return kKdaAvx512;
  return isa == Isa::avx2 ? kKdaAvx2 : kKdaPortable;
}

// The two ways of one call, and which run takes which.
struct Ways {
  void (*recurrent)(const KdaRun&);
  void (*chunk)(const KdaRun&);
  KdaForm form;  // automatic: by the length of a run
  bool round_each_token;
};

Ways choose(const Ctx& ctx, const KdaArgs& args) {
  const KdaKernels& kernel = kernels(ctx.isa);
  const int64_t dim = args.q.dim(2);
  Ways ways{kernel.recurrent, kernel.chunk, args.form, ctx.deterministic && args.state_dtype == DType::bf16};
  if (args.form == KdaForm::automatic && ctx.deterministic) ways.form = KdaForm::recurrent;
  if (args.form == KdaForm::tiles || (args.form == KdaForm::automatic && kda_on_tiles(ctx, dim))) {
    K3_CHECK(ctx.isa >= Isa::avx512bf16 && dim % 32 == 0, "kda: tiles on {}, width {}", isa_name(ctx.isa), dim);
    ways.chunk = ctx.isa >= Isa::amx ? kda_tiles_amx : kda_tiles_emulated;
  }
  return ways;
}

void check_tensor(const Tensor& t, std::initializer_list<int64_t> dims, const char* name) {
  K3_CHECK(t.dtype == DType::f32 && t.contiguous() && t.rank == static_cast<int>(dims.size()) &&
               std::equal(dims.begin(), dims.end(), t.dims.begin()),
           "kda: {} is {}", name, t.shape_text());
}

void check(const KdaArgs& args) {
  K3_CHECK(args.q.rank == 3, "kda: q is {}", args.q.shape_text());
  const int64_t tokens = args.q.dim(0), heads = args.q.dim(1), dim = args.q.dim(2);
  check_tensor(args.q, {tokens, heads, dim}, "q");
  check_tensor(args.k, {tokens, heads, dim}, "k");
  check_tensor(args.v, {tokens, heads, dim}, "v");
  check_tensor(args.z, {tokens, heads, dim}, "z");
  check_tensor(args.out, {tokens, heads, dim}, "out");
  check_tensor(args.b, {tokens, heads}, "b");
  check_tensor(args.a_log, {heads}, "a_log");
  check_tensor(args.dt_bias, {heads, dim}, "dt_bias");
  K3_CHECK(!args.offsets.empty() && args.offsets.front() == 0 && args.offsets.back() == tokens, "kda: offsets");
  K3_CHECK(args.states.size() + 1 == args.offsets.size(), "kda: {} states", args.states.size());
  K3_CHECK(std::is_sorted(args.offsets.begin(), args.offsets.end()), "kda: offsets decrease");
  K3_CHECK(!args.lower_bound || *args.lower_bound < 0, "kda: lower bound {}", args.lower_bound.value_or(0));
  K3_CHECK(args.state_dtype == DType::f32 || args.state_dtype == DType::bf16, "kda: states of dtype {}",
           dtype_name(args.state_dtype));
  for (const KdaExport& e : args.exports) {
    K3_CHECK(e.sequence >= 0 && e.sequence < static_cast<int64_t>(args.states.size()), "kda: export of sequence {}",
             e.sequence);
    const auto s = static_cast<size_t>(e.sequence);
    K3_CHECK(e.tokens >= 1 && e.tokens <= args.offsets[s + 1] - args.offsets[s], "kda: export after {} tokens", e.tokens);
  }
}

// The next position after `done` at which the state of the sequence is wanted, or its end.
int64_t next_stop(const KdaArgs& args, int64_t sequence, int64_t done, int64_t length) {
  int64_t stop = length;
  for (const KdaExport& e : args.exports) {
    if (e.sequence == sequence && e.tokens > done) stop = std::min(stop, e.tokens);
  }
  return stop;
}

// One head's state as the kernels want it. A BF16 state lives widened in the scratch while its tokens pass.
struct HeadState {
  DType dtype;
  int64_t elements, head;
  float* values;

  HeadState(const KdaArgs& args, int64_t sequence, int64_t head_, float* scratch)
      : dtype(args.state_dtype), elements(args.q.dim(2) * args.q.dim(2)), head(head_), values(scratch) {
    void* state = args.states[static_cast<size_t>(sequence)];
    if (dtype == DType::f32) {
      values = static_cast<float*>(state) + head * elements;
    } else {
      convert_to_float(static_cast<uint16_t*>(state) + head * elements, dtype, elements, values);
    }
  }
  void store(void* state) const {
    if (dtype == DType::f32) {
      std::memcpy(static_cast<float*>(state) + head * elements, values, static_cast<size_t>(elements) * sizeof(float));
    } else {
      convert_from_float(values, dtype, elements, static_cast<uint16_t*>(state) + head * elements);
    }
  }
  void round() const {
    for (int64_t i = 0; i < elements; ++i) values[i] = round_to_bf16(values[i]);
  }
};

void run_head(const KdaArgs& args, const Ways& ways, int64_t sequence, int64_t head, float* scratch) {
  const int64_t heads = args.q.dim(1), dim = args.q.dim(2);
  const HeadState state(args, sequence, head, scratch + kda_scratch_floats(dim));
  const int64_t first = args.offsets[static_cast<size_t>(sequence)];
  const int64_t length = args.offsets[static_cast<size_t>(sequence) + 1] - first;
  KdaRun run;
  run.dim = dim;
  run.row_stride = heads * dim;
  run.beta_stride = heads;
  run.dt_bias = args.dt_bias.f32() + head * dim;
  run.a = std::exp(args.a_log.f32()[head]);
  run.bounded = args.lower_bound.has_value();
  run.lower_bound = args.lower_bound.value_or(0);
  run.scale = 1 / std::sqrt(static_cast<float>(dim));
  run.state = state.values;
  run.scratch = scratch;
  for (int64_t done = 0; done < length;) {
    const int64_t stop = next_stop(args, sequence, done, length);
    const int64_t at = ((first + done) * heads + head) * dim;
    run.q = args.q.f32() + at;
    run.k = args.k.f32() + at;
    run.v = args.v.f32() + at;
    run.z = args.z.f32() + at;
    run.out = args.out.f32() + at;
    run.b = args.b.f32() + (first + done) * heads + head;
    run.tokens = stop - done;
    if (ways.round_each_token) run.tokens = 1;
    bool chunk = ways.form == KdaForm::chunk || ways.form == KdaForm::tiles;
    if (ways.form == KdaForm::automatic && run.tokens >= kChunkFrom) {
      chunk = true;
      const int64_t rest = run.tokens % kKdaChunk;
      if (rest < kChunkFrom) run.tokens -= rest;  // the rest comes in the next round
    }
    (chunk ? ways.chunk : ways.recurrent)(run);
    done += run.tokens;
    if (ways.round_each_token) state.round();
    for (const KdaExport& e : args.exports) {
      if (e.sequence == sequence && e.tokens == done) state.store(e.state);
    }
  }
  if (args.state_dtype != DType::f32 && length > 0) state.store(args.states[static_cast<size_t>(sequence)]);
}

// Scratch of a worker: that of the kernel, and a widened state.
int64_t worker_floats(const KdaArgs& args) {
  const int64_t dim = args.q.dim(2);
  return kda_scratch_floats(dim) + (args.state_dtype == DType::f32 ? 0 : dim * dim);
}

// Convolution of one part (q, k or v) of one head of a sequence, in runs that end where the tail is wanted.
void convolve(const KdaMixArgs& args, ConvKernel kernel, const Tensor& x, int64_t sequence, size_t part, int64_t begin,
              int64_t end) {
  const int64_t first = args.kda.offsets[static_cast<size_t>(sequence)];
  const int64_t length = args.kda.offsets[static_cast<size_t>(sequence) + 1] - first;
  const Tensor& taps = *args.taps[part];
  const ConvTail& tail = args.tails[static_cast<size_t>(3 * sequence) + part];
  for (int64_t done = 0; done < length;) {
    const int64_t stop = args.export_tails.empty() ? length : next_stop(args.kda, sequence, done, length);
    short_conv_block(kernel, x, taps, first + done, stop - done, tail, x, begin, end);
    done = stop;
    for (size_t e = 0; 3 * e < args.export_tails.size(); ++e) {
      if (args.kda.exports[e].sequence != sequence || args.kda.exports[e].tokens != done) continue;
      const int64_t size = dtype_bytes(tail.dtype), row = taps.dim(0) * size;
      auto* to = static_cast<std::byte*>(args.export_tails[3 * e + part].data);
      const auto* from = static_cast<const std::byte*>(tail.data);
      for (int64_t n = 0; n + 1 < taps.dim(1); ++n) {
        const int64_t at = n * row + begin * size;
        std::memcpy(to + at, from + at, static_cast<size_t>((end - begin) * size));
      }
    }
  }
}

}  // namespace

void kda(const Ctx& ctx, const KdaArgs& args) noexcept {
  check(args);
  const int64_t heads = args.q.dim(1);
  const auto sequences = static_cast<int64_t>(args.states.size());
  if (args.q.size() == 0) return;
  K3_CHECK(ctx.workspace != nullptr, "kda needs a workspace");
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t scratch_floats = worker_floats(args);
  float* scratch = ctx.workspace->tensor({worker_count(ctx), scratch_floats}).f32();
  const Ways ways = choose(ctx, args);
  run_tasks(ctx, sequences * heads, [&](int worker, int64_t task) {
    run_head(args, ways, task / heads, task % heads, scratch + worker * scratch_floats);
  });
}

void kda_mix(const Ctx& ctx, const KdaMixArgs& args) noexcept {
  check(args.kda);
  const int64_t tokens = args.kda.q.dim(0), heads = args.kda.q.dim(1), dim = args.kda.q.dim(2), channels = heads * dim;
  const auto sequences = static_cast<int64_t>(args.kda.states.size());
  K3_CHECK(dim <= kConvBlock && static_cast<int64_t>(args.tails.size()) == 3 * sequences, "kda_mix: {} wide, {} tails", dim,
           args.tails.size());
  for (const Tensor* taps : args.taps) {
    K3_CHECK(taps != nullptr && taps->rank == 2 && taps->contiguous() && taps->dim(0) == channels && taps->dim(1) <= kMaxTaps,
             "kda_mix: taps");
  }
  check_tensor(args.norm, {dim}, "norm");
  check_tensor(args.gate, {tokens, channels}, "gate");
  check_tensor(args.y, {tokens, channels}, "y");
  if (tokens == 0) return;
  const Workspace::Scope scope(*ctx.workspace);
  K3_CHECK(args.export_tails.empty() || args.export_tails.size() == 3 * args.kda.exports.size(), "kda_mix: {} export tails",
           args.export_tails.size());
  const int64_t scratch_floats = worker_floats(args.kda);
  float* scratch = ctx.workspace->tensor({worker_count(ctx), scratch_floats}).f32();
  const Ways ways = choose(ctx, args.kda);
  const ConvKernel conv = conv_kernel(ctx.isa);
  const NormRowFn norm = norm_row_fn(ctx.isa);
  const Tensor* inputs[3] = {&args.kda.q, &args.kda.k, &args.kda.v};
  run_tasks(ctx, sequences * heads, [&](int worker, int64_t task) {
    const int64_t sequence = task / heads, head = task % heads, begin = head * dim;
    const int64_t first = args.kda.offsets[static_cast<size_t>(sequence)];
    const int64_t count = args.kda.offsets[static_cast<size_t>(sequence) + 1] - first;
    if (count == 0) return;
    for (size_t part = 0; part < 3; ++part) {
      convolve(args, conv, inputs[part]->reshape({tokens, channels}), sequence, part, begin, begin + dim);
    }
    run_head(args.kda, ways, sequence, head, scratch + worker * scratch_floats);
    for (int64_t t = first; t < first + count; ++t) {
      norm(args.kda.out.f32() + t * channels + begin, args.norm.f32(), args.gate.row(t) + begin, args.eps, dim,
           args.y.row(t) + begin);
    }
  });
}

void kda_mix(const Ctx& ctx, KdaMixArgs args, const StateSlots& state, std::span<const StateExport> exports,
             const DeviceExports& device_exports) noexcept {
  const bool training = ctx.training;
  if (ctx.device.is_cuda() && !training) return cuda::kda_mix(ctx, args, state, exports, device_exports);
  if (args.z_low) linear(ctx, args.z_low, args.z_up, args.kda.z.reshape({args.z_low.dim(0), args.z_up.rows}));
  if (args.gate_low) linear(ctx, args.gate_low, args.gate_up, args.gate);
  if (training) return kda_mix_train(ctx, args);
  const Tensor& taps = *args.taps[0];
  const int64_t tail_bytes = (taps.dim(1) - 1) * taps.dim(0) * dtype_bytes(state.conv_dtype);
  std::vector<ConvTail> tails, export_tails;
  std::vector<void*> states;
  std::vector<KdaExport> copies;
  const auto add_tails = [&](void* conv, std::vector<ConvTail>& to) {
    for (int part = 0; part < 3; ++part) to.push_back({static_cast<std::byte*>(conv) + part * tail_bytes, state.conv_dtype});
  };
  for (int64_t s = 0; s + 1 < static_cast<int64_t>(args.kda.offsets.size()); ++s) {
    add_tails(state.conv_of(s), tails);
    states.push_back(state.recurrent_of(s));
  }
  for (const StateExport& e : exports) {
    add_tails(state.conv_at(e.slot), export_tails);
    copies.push_back({e.sequence, e.tokens, state.recurrent_at(e.slot)});
  }
  args.kda.states = states;
  args.kda.state_dtype = state.recurrent_dtype;
  args.kda.exports = copies;
  args.tails = tails;
  args.export_tails = export_tails;
  kda_mix(ctx, args);
}

}  // namespace k3::ops
