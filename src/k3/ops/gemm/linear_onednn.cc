#include "k3/ops/gemm/linear_onednn.h"

#include "k3/base/check.h"

#if K3_ONEDNN

#include <omp.h>

#include <algorithm>
#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

namespace k3::ops {
namespace {

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// Fewer tokens are bound by reading weights, where the row kernel is as fast and its order fixed.
constexpr int64_t kMinTokens = 16;
// Output rows of a worker are whole tiles of the matrix units.
constexpr int64_t kRowGrain = 32;
constexpr size_t kMaxPrimitives = 128;

struct Product {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

// Everything of oneDNN that belongs to one thread.
struct Local {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<std::array<int64_t, 4>, Product> products;
  std::vector<std::byte> scratch;

  // y [tokens, rows] (row stride y_stride) = x [tokens, cols] w^T; w [rows, cols] row-major.
  const Product& product(int64_t tokens, int64_t cols, int64_t rows, int64_t y_stride) {
    const std::array<int64_t, 4> key = {tokens, cols, rows, y_stride};
    if (const auto it = products.find(key); it != products.end()) return it->second;
    if (products.size() >= kMaxPrimitives) products.clear();
    const dnnl::memory::desc x({tokens, cols}, Type::bf16, Tag::ab), w({cols, rows}, Type::bf16, Tag::ba);
    const dnnl::memory::desc y({tokens, rows}, Type::f32, dnnl::memory::dims{y_stride, 1});
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    Product made;
    made.desc = dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, w, y), attr, engine);
    made.primitive = dnnl::matmul(made.desc);
    return products.emplace(key, std::move(made)).first->second;
  }

  void run(const uint16_t* x, int64_t tokens, int64_t cols, const uint16_t* w, int64_t rows, float* y, int64_t y_stride) {
    omp_set_num_threads(1);  // of this thread's parallel regions only
    const Product& p = product(tokens, cols, rows, y_stride);
    scratch.resize(std::max(scratch.size(), p.desc.scratchpad_desc().get_size() + 64));
    void* aligned = scratch.data();
    size_t space = scratch.size();
    std::align(64, 1, aligned, space);
    // oneDNN does not write through the input handles.
    p.primitive.execute(stream, {{DNNL_ARG_SRC, dnnl::memory(p.desc.src_desc(), engine, const_cast<uint16_t*>(x))},
                                 {DNNL_ARG_WEIGHTS, dnnl::memory(p.desc.weights_desc(), engine, const_cast<uint16_t*>(w))},
                                 {DNNL_ARG_DST, dnnl::memory(p.desc.dst_desc(), engine, y)},
                                 {DNNL_ARG_SCRATCHPAD, dnnl::memory(p.desc.scratchpad_desc(), engine, aligned)}});
    stream.wait();
  }
};

void run_local(const uint16_t* x, int64_t tokens, int64_t cols, const uint16_t* w, int64_t rows, float* y,
               int64_t y_stride) {
  try {
    static thread_local Local local;
    local.run(x, tokens, cols, w, rows, y, y_stride);
  } catch (const dnnl::error& e) {
    K3_CHECK(false, "oneDNN: {} for [{}, {}] x [{}, {}]", e.what(), tokens, cols, rows, cols);
  }
}

}  // namespace

bool linear_onednn_built() { return true; }

bool linear_onednn_wins(Isa isa, Scheme scheme, int64_t tokens) {
  return isa >= Isa::amx && scheme == Scheme::bf16 && tokens >= kMinTokens;
}

void linear_onednn(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y) noexcept {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = x.dim(0), cols = w.cols;
  auto* rounded = static_cast<uint16_t*>(ctx.workspace->bytes(tokens * cols * 2));
  ctx.pool->parallel_for(tokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) convert_from_float(x.row(t), DType::bf16, cols, rounded + t * cols);
  });
  ctx.pool->parallel_for(w.rows, kRowGrain, [&](int64_t begin, int64_t end) {
    const auto* part = static_cast<const uint16_t*>(weight_rows(w, begin, end).data);
    run_local(rounded, tokens, cols, part, end - begin, y.f32() + begin, tokens > 1 ? y.stride(0) : w.rows);
  });
}

}  // namespace k3::ops

#else

namespace k3::ops {

bool linear_onednn_built() { return false; }
bool linear_onednn_wins(Isa, Scheme, int64_t) { return false; }
void linear_onednn(const Ctx&, const Tensor&, const Weight&, const Tensor&) noexcept {
  K3_CHECK(false, "linear: this build has no oneDNN");
}

}  // namespace k3::ops

#endif
