#include "k3/ops/attn_res/attn_res_train.h"

#include <cmath>

#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/rms_norm/rms_norm_train.h"
#include "k3/ops/rows_sum.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

constexpr int64_t kMostSources = 65;

template <class T>
struct Sources {
  const T* rows[kMostSources];
  int64_t count = 0;
};

template <class T>
Sources<T> sources_of(const Tensor& blocks, const Tensor& prefix, int64_t t) {
  Sources<T> out;
  const int64_t hidden = prefix.dim(1);
  for (int64_t j = 0; blocks && j < blocks.dim(0); ++j) out.rows[out.count++] = blocks.as<T>() + j * blocks.stride(0) + t * hidden;
  out.rows[out.count++] = prefix.as<T>() + t * hidden;
  return out;
}

// p, and for the backward the product q . V_j and r_j.
template <class T>
void weights_of(const Sources<T>& v, const T* query, float eps, int64_t hidden, T* p, T* products, T* inverse) {
  T top = -std::numeric_limits<T>::infinity(), sum = 0;
  for (int64_t j = 0; j < v.count; ++j) {
    products[j] = dot_rows(query, v.rows[j], hidden);
    inverse[j] = T{1} / std::sqrt(dot_rows(v.rows[j], v.rows[j], hidden) / static_cast<T>(hidden) + static_cast<T>(eps));
    p[j] = products[j] * inverse[j];
    top = std::max(top, p[j]);
  }
  for (int64_t j = 0; j < v.count; ++j) sum += p[j] = std::exp(p[j] - top);
  for (int64_t j = 0; j < v.count; ++j) p[j] /= sum;
}

template <class T>
void mix(const Ctx& ctx, const Tensor& blocks, const Tensor& prefix, const Tensor& query, float eps, const Tensor& out) {
  const int64_t hidden = prefix.dim(1);
  ctx.pool->parallel_for(prefix.dim(0), 8, [&](int64_t begin, int64_t end) {
    T p[kMostSources], products[kMostSources], inverse[kMostSources];
    for (int64_t t = begin; t < end; ++t) {
      const Sources<T> v = sources_of<T>(blocks, prefix, t);
      weights_of(v, query.as<T>(), eps, hidden, p, products, inverse);
      T* const to = out.as<T>() + t * hidden;
      for (int64_t i = 0; i < hidden; ++i) to[i] = p[0] * v.rows[0][i];
      for (int64_t j = 1; j < v.count; ++j) {
        for (int64_t i = 0; i < hidden; ++i) to[i] += p[j] * v.rows[j][i];
      }
    }
  });
}

template <class T>
struct SourceGrads {
  T* rows[kMostSources];
  bool fresh[kMostSources];
};

// dm [T, hidden].
template <class T>
void mix_vjp(const Ctx& ctx, const Tensor& blocks, const Tensor& prefix, const Tensor& query, float eps, const Tensor& dm,
             const SourceGrads<T>& grads, const Tensor& dquery) {
  const int64_t hidden = prefix.dim(1);
  const T* const q = query.as<T>();
  sum_over_tokens<T>(ctx, prefix.dim(0), hidden, dquery.as<T>(), [&](int64_t begin, int64_t end, T* dq) {
    T p[kMostSources], products[kMostSources], inverse[kMostSources], along[kMostSources];
    for (int64_t t = begin; t < end; ++t) {
      const Sources<T> v = sources_of<T>(blocks, prefix, t);
      weights_of(v, q, eps, hidden, p, products, inverse);
      const T* const d = dm.as<T>() + t * hidden;
      T mean = 0;
      for (int64_t j = 0; j < v.count; ++j) mean += p[j] * (along[j] = dot_rows(d, v.rows[j], hidden));
      for (int64_t j = 0; j < v.count; ++j) {
        const T ds = p[j] * (along[j] - mean) * inverse[j];
        const T back = ds * products[j] * inverse[j] * inverse[j] / static_cast<T>(hidden);
        T* const to = grads.rows[j] + t * hidden;
        const T* const in = v.rows[j];
        if (grads.fresh[j]) {
          for (int64_t i = 0; i < hidden; ++i) to[i] = p[j] * d[i] + ds * q[i] - back * in[i];
        } else {
          for (int64_t i = 0; i < hidden; ++i) to[i] += p[j] * d[i] + ds * q[i] - back * in[i];
        }
        for (int64_t i = 0; i < hidden; ++i) dq[i] += ds * in[i];
      }
    }
  });
}

// Takes back the mix and the norm of a site: from dout to the gradients of its sources.
void site_vjp(const Ctx& ctx, Tape& tape, const AttnResSite& site, const Tensor& kept, const Tensor& mixed, const Tensor& dout) {
  const Tensor dnorm = tape.parameter_grad(site.norm.data, site.norm.size());
  const bool alone = !site.blocks || site.blocks.dim(0) == 0;
  if (alone) {
    const Tape::Into dprefix = tape.into(site.prefix);
    return rms_norm_vjp(ctx, kept, site.norm, site.eps, dout, dprefix.grad, !dprefix.fresh, dnorm);
  }
  rms_norm_vjp(ctx, mixed, site.norm, site.eps, dout, dout, false, dnorm);  // dout becomes dm
  const Tape::Into dquery = tape.into(site.query);
  with_real(kept.dtype, [&](auto real) {
    using T = decltype(real);
    if (dquery.fresh) std::fill_n(dquery.grad.as<T>(), dquery.grad.size(), T{0});
    SourceGrads<T> grads;
    int64_t count = 0;
    const auto add = [&](const Tensor& source) {
      const Tape::Into into = tape.into(source);
      grads.rows[count] = into.grad.as<T>();
      grads.fresh[count++] = into.fresh;
    };
    for (int64_t j = 0; j < site.blocks.dim(0); ++j) add(site.blocks.at(j));
    add(site.prefix);
    mix_vjp<T>(ctx, site.blocks, kept, site.query, site.eps, dout, grads, dquery.grad);
  });
}

}  // namespace

void attn_res_site_train(const Ctx& ctx, const AttnResSite& site) noexcept {
  K3_CHECK(!site.blocks || site.blocks.dim(0) < kMostSources, "{} AttnRes blocks; training takes {}", site.blocks.dim(0),
           kMostSources - 1);
  if (ctx.device.is_cuda()) return cuda::attn_res_site_train(ctx, site);
  Ctx silent = ctx;
  silent.tape = nullptr;
  if (site.delta) add(silent, site.delta, site.prefix);
  Tensor kept = site.bank_to;
  if (!kept) kept = ctx.workspace->tensor_like(site.prefix);
  copy(silent, site.prefix, kept);
  Tensor mixed = kept;
  if (site.blocks && site.blocks.dim(0) > 0) {
    mixed = ctx.workspace->tensor_like(site.prefix);
    with_real(kept.dtype,
              [&](auto real) { mix<decltype(real)>(ctx, site.blocks, kept, site.query, site.eps, mixed); });
  }
  rms_norm_forward(ctx, mixed, site.norm, site.eps, site.out);
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=](const Ctx& back) {
    if (const Tensor dout = tape->grad(site.out)) {
      site_vjp(back, *tape, site, kept, mixed, dout);
      tape->done(site.out);
    }
    if (site.bank_to) {
      if (const Tensor banked = tape->grad(site.bank_to)) tape->add(back, site.prefix, banked);
      tape->done(site.bank_to);
    }
    if (!site.delta) return;
    if (const Tensor dprefix = tape->grad(site.prefix)) tape->add(back, site.delta, dprefix);
  });
}

void fold_query(const Ctx& ctx, const Tensor& norm, const Tensor& projection, const Tensor& query) noexcept {
  K3_CHECK(norm.size() == query.size() && projection.size() == query.size(), "fold_query: {} and {} to {}", norm.shape_text(),
           projection.shape_text(), query.shape_text());
  if (ctx.device.is_cuda()) return cuda::fold_query(ctx, norm, projection, query);
  with_real(query.dtype, [&](auto real) {
    using T = decltype(real);
    for (int64_t i = 0; i < query.size(); ++i) query.as<T>()[i] = norm.as<T>()[i] * projection.as<T>()[i];
  });
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=](const Ctx&) {
    const Tensor dquery = tape->grad(query);
    if (!dquery) return;
    const Tensor dnorm = tape->parameter_grad(norm.data, norm.size()), dprojection = tape->parameter_grad(projection.data, norm.size());
    with_real(query.dtype, [&](auto real) {
      using T = decltype(real);
      for (int64_t i = 0; i < query.size(); ++i) {
        if (dnorm) dnorm.as<T>()[i] += dquery.as<T>()[i] * projection.as<T>()[i];
        if (dprojection) dprojection.as<T>()[i] += dquery.as<T>()[i] * norm.as<T>()[i];
      }
    });
    tape->done(query);
  });
}

}  // namespace k3::ops
