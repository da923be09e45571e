// The oracle: token after token forward, the same steps in reverse, in double and with no chunk formula.
#include <cmath>
#include <vector>

#include "k3/ops/kda/kda_train.h"

namespace k3::ops {
namespace {

using Row = std::vector<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

size_t at(int64_t i) { return static_cast<size_t>(i); }

// One head of one sequence. Rows are tokens; every step of the forward is kept.
struct Head {
  const KdaTrainArgs& args;
  int64_t sequence, head, heads, dim, first, length;
  // Convolved before SiLU and after it, of q, k, v; unit keys, scaled unit queries, decay; states [V, K], [0] the initial one.
  std::vector<Row> pre[3], act[3], kn, qn, g, states, out;
  Row beta, k_factor, q_factor;

  Head(const KdaTrainArgs& a, int64_t s, int64_t h)
      : args(a), sequence(s), head(h), heads(a.b.dim(1)), dim(a.q_in.dim(1) / a.b.dim(1)), first(a.offsets[at(s)]),
        length(a.offsets[at(s + 1)] - first) {}

  const double* row(const Tensor& x, int64_t t) const { return x.f64() + ((first + t) * heads + head) * dim; }
  double* row_of(const Tensor& x, int64_t t) const { return x.f64() + ((first + t) * heads + head) * dim; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
  double* state_of(const Tensor& x) const { return x.f64() + (sequence * heads + head) * dim * dim; }
  double tap(int part, int64_t channel, int64_t n) const {
    return args.taps[part].f64()[(head * dim + channel) * args.taps[part].dim(1) + n];
  }
  const Tensor& input(int part) const { return part == 0 ? args.q_in : part == 1 ? args.k_in : args.v_in; }

  void convolve(int64_t t) {
    for (int part = 0; part < 3; ++part) {
      const int64_t taps = args.taps[part].dim(1);
      Row x(at(dim)), y(at(dim));
      for (int64_t c = 0; c < dim; ++c) {
        for (int64_t n = 0; n < taps; ++n) {
          const int64_t from = t - (taps - 1) + n;
          if (from >= 0) x[at(c)] += tap(part, c, n) * row(input(part), from)[c];
        }
        y[at(c)] = x[at(c)] * sigmoid(x[at(c)]);
      }
      pre[part].push_back(x);
      act[part].push_back(y);
    }
  }

  static double normalise(const Row& x, double scale, Row& out) {
    const double factor = 1 / std::sqrt(dot(x.data(), x.data(), static_cast<int64_t>(x.size())) + 1e-6);
    for (const double value : x) out.push_back(scale * factor * value);
    return factor;
  }

  double decay_input(int64_t t, int64_t c) const { return row(args.z, t)[c] + args.dt_bias.f64()[head * dim + c]; }

  void gates(int64_t t) {
    const double a = std::exp(args.a_log.f64()[head]);
    Row decay(at(dim));
    for (int64_t c = 0; c < dim; ++c) {
      const double x = decay_input(t, c);
      decay[at(c)] = args.lower_bound ? static_cast<double>(*args.lower_bound) * sigmoid(a * x) : -a * softplus(x);
    }
    g.push_back(decay);
    beta.push_back(sigmoid(args.b.f64()[(first + t) * heads + head]));
  }

  void step(int64_t t) {
    const Row &q = qn[at(t)], &k = kn[at(t)];
    Row state = states[at(t)], o(at(dim));
    for (int64_t v = 0; v < dim; ++v) {
      double* s = state.data() + v * dim;
      for (int64_t c = 0; c < dim; ++c) s[c] *= std::exp(g[at(t)][at(c)]);
      const double u = beta[at(t)] * (act[2][at(t)][at(v)] - dot(s, k.data(), dim));
      for (int64_t c = 0; c < dim; ++c) s[c] += u * k[at(c)];
      o[at(v)] = dot(s, q.data(), dim);
    }
    states.push_back(std::move(state));
    out.push_back(o);
  }

  void forward() {
    states.emplace_back(at(dim * dim));
    if (args.initial) states[0].assign(state_of(args.initial), state_of(args.initial) + dim * dim);
    for (int64_t t = 0; t < length; ++t) {
      convolve(t);
      Row q, k;
      q_factor.push_back(normalise(act[0].back(), scale(), q));
      k_factor.push_back(normalise(act[1].back(), 1, k));
      qn.push_back(q);
      kn.push_back(k);
      gates(t);
      step(t);
    }
  }

  double out_factor(int64_t t) const {
    return 1 / std::sqrt(dot(out[at(t)].data(), out[at(t)].data(), dim) / static_cast<double>(dim) + static_cast<double>(args.eps));
  }

  void write(const Tensor& y) const {
    for (int64_t t = 0; t < length; ++t) {
      const double factor = out_factor(t);
      for (int64_t c = 0; c < dim; ++c) {
        row_of(y, t)[c] = out[at(t)][at(c)] * factor * args.norm.f64()[c] * sigmoid(row(args.gate, t)[c]);
      }
    }
    if (args.final) std::copy(states.back().begin(), states.back().end(), state_of(args.final));
  }
};

// The reverse of Head, from the last token to the first.
struct Reverse {
  const Head& f;
  const KdaTrainGrads& grads;
  int64_t dim;
  Row d_state;
  std::vector<Row> d_pre[3];  // gradients of Head::pre

  Reverse(const Head& forward, const KdaTrainGrads& to) : f(forward), grads(to), dim(forward.dim), d_state(at(forward.dim * forward.dim)) {
    if (grads.d_final) d_state.assign(f.state_of(grads.d_final), f.state_of(grads.d_final) + dim * dim);
    for (auto& rows : d_pre) rows.resize(at(f.length));
  }

  // Through norm and gate: the gradient of the recurrence's output.
  Row output(int64_t t, const double* dy) const {
    const Row& o = f.out[at(t)];
    const double factor = f.out_factor(t);
    Row dn(at(dim));
    double mean = 0;
    for (int64_t c = 0; c < dim; ++c) {
      const double x = f.row(f.args.gate, t)[c], s = sigmoid(x), w = f.args.norm.f64()[c], n = o[at(c)] * factor, d = dy[c];
      dn[at(c)] = d * w * s;
      mean += n * dn[at(c)] / static_cast<double>(dim);
      grads.dnorm.f64()[c] += d * n * s;
      f.row_of(grads.dgate, t)[c] = d * n * w * s * sigmoid(-x);
    }
    for (int64_t c = 0; c < dim; ++c) dn[at(c)] = factor * (dn[at(c)] - o[at(c)] * factor * mean);
    return dn;
  }

  struct Inputs {
    Row q, k, v, g;
    double beta = 0;
  };

  // Through one step; d_state becomes the gradient of the state before it.
  Inputs step(int64_t t, const Row& d_out) {
    Inputs d{Row(at(dim)), Row(at(dim)), Row(at(dim)), Row(at(dim))};
    const Row &q = f.qn[at(t)], &k = f.kn[at(t)];
    const double beta = f.beta[at(t)];
    Row decayed(at(dim));
    for (int64_t v = 0; v < dim; ++v) {
      const double *before = f.states[at(t)].data() + v * dim, *after = f.states[at(t + 1)].data() + v * dim;
      double* ds = d_state.data() + v * dim;
      for (int64_t c = 0; c < dim; ++c) decayed[at(c)] = before[c] * std::exp(f.g[at(t)][at(c)]);
      for (int64_t c = 0; c < dim; ++c) d.q[at(c)] += d_out[at(v)] * after[c], ds[c] += d_out[at(v)] * q[at(c)];
      const double delta = f.act[2][at(t)][at(v)] - dot(decayed.data(), k.data(), dim);
      const double du = dot(ds, k.data(), dim), d_delta = beta * du;
      d.beta += du * delta;
      d.v[at(v)] = d_delta;
      for (int64_t c = 0; c < dim; ++c) {
        d.k[at(c)] += beta * delta * ds[c] - d_delta * decayed[at(c)];
        ds[c] -= d_delta * k[at(c)];
        d.g[at(c)] += ds[c] * decayed[at(c)];
        ds[c] *= std::exp(f.g[at(t)][at(c)]);
      }
    }
    return d;
  }

  void gates(int64_t t, const Inputs& d) const {
    const double a = std::exp(f.args.a_log.f64()[f.head]);
    for (int64_t c = 0; c < dim; ++c) {
      const double x = f.decay_input(t, c), dg = d.g[at(c)];
      double dx, da;
      if (f.args.lower_bound) {
        const double slope = static_cast<double>(*f.args.lower_bound) * sigmoid(a * x) * sigmoid(-a * x);
        dx = dg * slope * a;
        da = dg * slope * a * x;
      } else {
        dx = -dg * a * sigmoid(x);
        da = dg * f.g[at(t)][at(c)];
      }
      f.row_of(grads.dz, t)[c] = dx;
      grads.ddt_bias.f64()[f.head * dim + c] += dx;
      grads.da_log.f64()[f.head] += da;
    }
    const int64_t i = (f.first + t) * f.heads + f.head;
    grads.db.f64()[i] = d.beta * f.beta[at(t)] * sigmoid(-f.args.b.f64()[i]);
  }

  // Through x -> scale * x * factor(x), then through SiLU.
  static Row normalised(const Row& x, double factor, double scale, const Row& d) {
    Row dx(x.size());
    double along = 0;
    for (size_t c = 0; c < x.size(); ++c) along += x[c] * factor * scale * d[c];
    for (size_t c = 0; c < x.size(); ++c) dx[c] = factor * (scale * d[c] - x[c] * factor * along);
    return dx;
  }
  void silu(int part, int64_t t, Row d) {
    for (int64_t c = 0; c < dim; ++c) {
      const double x = f.pre[part][at(t)][at(c)], s = sigmoid(x);
      d[at(c)] *= s * (1 + x * sigmoid(-x));
    }
    d_pre[part][at(t)] = std::move(d);
  }

  void convolution(int part, const Tensor& to) const {
    const int64_t taps = f.args.taps[part].dim(1);
    for (int64_t c = 0; c < dim; ++c) {
      Row d(at(f.length));
      for (int64_t t = 0; t < f.length; ++t) {
        for (int64_t n = 0; n < taps; ++n) {
          const int64_t from = t - (taps - 1) + n;
          if (from < 0) continue;
          d[at(from)] += f.tap(part, c, n) * d_pre[part][at(t)][at(c)];
          grads.dtaps[part].f64()[(f.head * dim + c) * taps + n] += d_pre[part][at(t)][at(c)] * f.row(f.input(part), from)[c];
        }
      }
      for (int64_t t = 0; t < f.length; ++t) f.row_of(to, t)[c] = d[at(t)];
    }
  }

  void run(const Tensor& dy) {
    for (int64_t t = f.length; t-- > 0;) {
      const Row d_out = output(t, f.row(dy, t));
      const Inputs d = step(t, d_out);
      gates(t, d);
      silu(0, t, normalised(f.act[0][at(t)], f.q_factor[at(t)], f.scale(), d.q));
      silu(1, t, normalised(f.act[1][at(t)], f.k_factor[at(t)], 1, d.k));
      silu(2, t, d.v);
    }
    convolution(0, grads.dq_in);
    convolution(1, grads.dk_in);
    convolution(2, grads.dv_in);
    if (grads.d_initial) std::copy(d_state.begin(), d_state.end(), f.state_of(grads.d_initial));
  }
};

}  // namespace

void kda_train_forward_ref(const KdaTrainArgs& args, const Tensor& y) noexcept {
  for (int64_t s = 0; s + 1 < static_cast<int64_t>(args.offsets.size()); ++s) {
    for (int64_t h = 0; h < args.b.dim(1); ++h) {
      Head head(args, s, h);
      head.forward();
      head.write(y);
    }
  }
}

void kda_train_vjp_ref(const KdaTrainArgs& args, const Tensor& dy, const KdaTrainGrads& grads) noexcept {
  for (int64_t s = 0; s + 1 < static_cast<int64_t>(args.offsets.size()); ++s) {
    for (int64_t h = 0; h < args.b.dim(1); ++h) {
      Head head(args, s, h);
      head.forward();
      Reverse(head, grads).run(dy);
    }
  }
}

}  // namespace k3::ops
