#include "k3/ops/mla/mla_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/gemm/dots.h"

namespace k3::ops {
namespace {

constexpr int64_t kStrip = kPackedStrip;

// Cached tokens [begin, end) of a sequence, from token `at` of the slab on. `begin` is a multiple of kMlaSlab.
struct Span {
  size_t sequence;
  int64_t begin, end, at;
  int64_t strips() const { return (end - begin + kStrip - 1) / kStrip; }
};

// Query tokens [first, first + rows) of a span's sequence.
struct Part {
  size_t span;
  int64_t first, rows;
};

class MatrixAttention {
 public:
  MatrixAttention(const Ctx& ctx, const MlaArgs& args, PackedFn product) : ctx_(ctx), args_(args), product_(product) {
    dims_ = mla_dims(args);
    // Maximum and sum of every row from slab to slab; its weighted sum meanwhile lies in `out`.
    states_ = ctx.workspace->tensor({args.q.dim(0), dims_.heads, 2}).f32();
  }

  // Slabs of whole strips: of one long sequence in order, or of several short ones.
  void run(std::span<const size_t> sequences) {
    int64_t tokens = 0;
    std::vector<Span> spans;
    const auto flush = [&] {
      if (!spans.empty()) slab(spans, tokens);
      spans.clear();
      tokens = 0;
    };
    for (const size_t s : sequences) {
      const int64_t cached = history(s) + length(s);
      for (int64_t begin = 0; begin < cached; begin += kMlaSlab) {
        Span span{s, begin, std::min(cached, begin + kMlaSlab), 0};
        if (tokens + span.strips() * kStrip > kMlaSlab) flush();
        span.at = tokens;
        tokens += span.strips() * kStrip;
        spans.push_back(span);
      }
    }
    flush();
  }

 private:
  int64_t history(size_t s) const { return args_.history[s]; }
  int64_t length(size_t s) const { return args_.offsets[s + 1] - args_.offsets[s]; }
  int64_t latent_strip() const { return dims_.width() * kStrip; }
  int64_t key_strip() const { return dims_.key() * kStrip; }

  void slab(const std::vector<Span>& spans, int64_t tokens) {
    const Workspace::Scope scope(*ctx_.workspace);
    slab_tokens_ = tokens;
    const int64_t head = tokens * (dims_.key() + dims_.value);
    const int64_t group = std::clamp<int64_t>(mla_expanded_elements(dims_, worker_count(ctx_)) / head, 1, dims_.heads);
    latents_ = elements(tokens * dims_.width());
    keys_ = elements(group * tokens * dims_.key());
    values_ = elements(group * tokens * dims_.value);
    pack(spans);
    const std::vector<Part> parts = parts_of(spans, group);
    for (int64_t first = 0; first < dims_.heads; first += group) {
      const int64_t heads = std::min(group, dims_.heads - first);
      expand(first, heads);
      attend(spans, parts, first, heads);
    }
  }

  uint16_t* elements(int64_t count) const { return static_cast<uint16_t*>(ctx_.workspace->bytes(count * 2)); }

  void pack(const std::vector<Span>& spans) const {
    for (const Span& span : spans) {
      run_tasks(ctx_, span.strips(), [&](int, int64_t strip) {
        const int64_t begin = span.begin + strip * kStrip;
        mla_pack_strip(args_.caches[span.sequence], begin, std::min(kStrip, span.end - begin),
                       latents_ + (span.at / kStrip + strip) * latent_strip());
      });
    }
  }

  // Keys and values of some heads: rows of kv_b by latents, a chunk of tokens at a time.
  void expand(int64_t first, int64_t heads) const {
    const Workspace::Scope scope(*ctx_.workspace);
    const int64_t rows = dims_.nope + dims_.value, chunks = (slab_tokens_ + kMlaChunk - 1) / kMlaChunk;
    float* scratch = ctx_.workspace->tensor({worker_count(ctx_), rows * kMlaChunk}).f32();
    run_tasks(ctx_, heads * chunks, [&](int worker, int64_t task) {
      const int64_t head = task / chunks, token = task % chunks * kMlaChunk;
      float* c = scratch + worker * rows * kMlaChunk;
      PackedJob job;
      job.a = static_cast<const uint16_t*>(args_.kv_b.data) + (first + head) * rows * dims_.rank;
      job.a_stride = dims_.rank;
      job.rows = rows;
      job.b = latents_ + token / kStrip * latent_strip();
      job.b_strip = latent_strip();
      job.columns = std::min(kMlaChunk, slab_tokens_ - token);
      job.depth = dims_.rank;
      job.c = c;
      job.c_stride = kMlaChunk;
      product_(job);
      for (int64_t column = 0; column < job.columns; column += kStrip) {
        const int64_t strip = (token + column) / kStrip;
        mla_store_strip({.dims = dims_,
                         .c = c + column,
                         .c_stride = kMlaChunk,
                         .latents = latents_ + strip * latent_strip(),
                         .keys = keys_of(head) + strip * key_strip(),
                         .values = values_of(head) + strip * kPackedBlock,
                         .value_strip = slab_tokens_ * kStrip});
      }
    });
  }

  uint16_t* keys_of(int64_t head) const { return keys_ + head * slab_tokens_ * dims_.key(); }
  uint16_t* values_of(int64_t head) const { return values_ + head * slab_tokens_ * dims_.value; }

  // Query tokens are split until there are two tasks for each worker, the last tokens first: they see most.
  std::vector<Part> parts_of(const std::vector<Span>& spans, int64_t heads) const {
    std::vector<Part> parts;
    for (int64_t size = kMlaPart; size >= kMlaTile; size /= 2) {
      parts.clear();
      for (size_t i = 0; i < spans.size(); ++i) {
        const int64_t unseen = std::max<int64_t>(0, spans[i].begin - history(spans[i].sequence));
        for (int64_t end = length(spans[i].sequence); end > unseen;) {
          const int64_t first = std::max(unseen, (end - 1) / size * size);
          parts.push_back({i, first, end - first});
          end = first;
        }
      }
      if (worker_count(ctx_) == 1 || static_cast<int64_t>(parts.size()) * heads >= 2 * worker_count(ctx_)) break;
    }
    return parts;
  }

  struct Scratch {
    uint16_t* queries;
    float *sums, *state, *scores;
  };

  void attend(const std::vector<Span>& spans, const std::vector<Part>& parts, int64_t first_head, int64_t heads) const {
    const Workspace::Scope scope(*ctx_.workspace);
    int64_t most = 0;
    for (const Part& part : parts) most = std::max(most, part.rows);
    const int64_t rows = (most + kMlaTile - 1) / kMlaTile * kMlaTile, workers = worker_count(ctx_);
    uint16_t* queries = elements(workers * rows * dims_.key());
    float* sums = ctx_.workspace->tensor({workers, rows * dims_.value}).f32();
    float* state = ctx_.workspace->tensor({workers, rows * 2}).f32();
    float* scores = ctx_.workspace->tensor({workers, kMlaTile * kMlaScoreStride}).f32();
    run_tasks(ctx_, static_cast<int64_t>(parts.size()) * heads, [&](int worker, int64_t task) {
      const Part& part = parts[static_cast<size_t>(task / heads)];
      const Scratch scratch{queries + worker * rows * dims_.key(), sums + worker * rows * dims_.value,
                            state + worker * rows * 2, scores + worker * kMlaTile * kMlaScoreStride};
      attend_part(spans[part.span], part, first_head, task % heads, scratch);
    });
  }

  void attend_part(const Span& span, const Part& part, int64_t first_head, int64_t head, const Scratch& s) const {
    load(span, part, first_head + head, s);
    for (int64_t begin = span.begin; begin < span.end; begin += kMlaMatrixBlock) {
      const int64_t count = std::min(kMlaMatrixBlock, span.end - begin);
      for (int64_t row = 0; row < part.rows; row += kMlaTile) {
        block(span, begin, count, part, row, head, s);
      }
    }
    store(span, part, first_head + head, s);
  }

  // One tile of queries by one block of cached tokens.
  void block(const Span& span, int64_t begin, int64_t count, const Part& part, int64_t row, int64_t head,
             const Scratch& s) const {
    const int64_t rows = std::min(kMlaTile, part.rows - row);
    const int64_t visible = history(span.sequence) + part.first + row + 1 - begin;  // of the first row
    const int64_t reach = std::min(count, visible + rows - 1);                      // of the last
    if (reach <= 0) return;
    const int64_t strip = (span.at + begin - span.begin) / kStrip;
    PackedJob job;
    job.a = s.queries + row * dims_.key();
    job.a_stride = dims_.key();
    job.rows = rows;
    job.b = keys_of(head) + strip * key_strip();
    job.b_strip = key_strip();
    job.columns = round_up(reach, kStrip);
    job.depth = dims_.key();
    job.c = s.scores;
    job.c_stride = kMlaScoreStride;
    product_(job);
    const bool first = begin == 0;  // every row sees the first token
    mla_softmax_rows({.scores = s.scores,
                      .rows = rows,
                      .columns = job.columns,
                      .visible = visible,
                      .limit = count,
                      .scale = dims_.scale * 1.44269504F,
                      .state = s.state + 2 * row,
                      .sums = s.sums + row * dims_.value,
                      .width = dims_.value,
                      .first = first});
    job.depth = job.columns;
    job.a = reinterpret_cast<const uint16_t*>(s.scores);
    job.a_stride = 2 * kMlaScoreStride;
    job.b = values_of(head) + strip * kPackedBlock;
    job.b_strip = slab_tokens_ * kStrip;
    job.columns = dims_.value;
    job.c = s.sums + row * dims_.value;
    job.c_stride = dims_.value;
    job.add = !first;
    product_(job);
  }

  float* out_row(const Span& span, int64_t token, int64_t head) const {
    return args_.out.f32() + ((args_.offsets[span.sequence] + token) * dims_.heads + head) * dims_.value;
  }
  float* state_row(const Span& span, int64_t token, int64_t head) const {
    return states_ + ((args_.offsets[span.sequence] + token) * dims_.heads + head) * 2;
  }

  // Queries in BF16, and what earlier slabs have left. Rows up to whole tiles of the unit are computed: they hold numbers.
  void load(const Span& span, const Part& part, int64_t head, const Scratch& s) const {
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t token = args_.offsets[span.sequence] + part.first + i;
      to_bf16_avx512bf16(args_.q.f32() + (token * dims_.heads + head) * dims_.key(), dims_.key(),
                         s.queries + i * dims_.key());
    }
    const int64_t whole = round_up(part.rows, kPackedRows);
    std::memset(s.queries + part.rows * dims_.key(), 0, static_cast<size_t>((whole - part.rows) * dims_.key()) * 2);
    if (span.begin == 0) return;
    for (int64_t i = 0; i < part.rows; ++i) {
      std::memcpy(s.sums + i * dims_.value, out_row(span, part.first + i, head), static_cast<size_t>(dims_.value) * 4);
      std::memcpy(s.state + 2 * i, state_row(span, part.first + i, head), 8);
    }
  }

  // Rows that see nothing beyond the span are done.
  void store(const Span& span, const Part& part, int64_t head, const Scratch& s) const {
    for (int64_t i = 0; i < part.rows; ++i) {
      const bool done = history(span.sequence) + part.first + i < span.end;
      const float factor = done ? 1 / s.state[2 * i + 1] : 1;
      float* out = out_row(span, part.first + i, head);
      for (int64_t v = 0; v < dims_.value; ++v) out[v] = s.sums[i * dims_.value + v] * factor;
      std::memcpy(state_row(span, part.first + i, head), s.state + 2 * i, 8);
    }
  }

  static int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

  const Ctx& ctx_;
  const MlaArgs& args_;
  PackedFn product_;
  MlaDims dims_;
  float* states_ = nullptr;
  int64_t slab_tokens_ = 0;
  uint16_t *latents_ = nullptr, *keys_ = nullptr, *values_ = nullptr;
};

}  // namespace

void mla_run_matrix(const Ctx& ctx, const MlaArgs& args, PackedFn product, std::span<const size_t> sequences) noexcept {
  const Workspace::Scope scope(*ctx.workspace);
  MatrixAttention(ctx, args, product).run(sequences);
}

}  // namespace k3::ops
