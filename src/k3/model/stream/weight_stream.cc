#include "k3/model/stream/weight_stream.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/model/stream/expert_stats.h"
#include "k3/ops/embedding/embedding.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/router/router.h"

namespace k3 {
namespace {

using Clock = std::chrono::steady_clock;

// Prompts use most experts of a layer: guessing pays for few tokens only.
constexpr int64_t kMostPredicted = 4;
constexpr int64_t kPage = 4096;

// Adds the time until its end to a sum.
class Waiting {
 public:
  explicit Waiting(double& sum) : sum_(sum), start_(Clock::now()) {}
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  double& sum_;
  Clock::time_point start_;
};

// Behind the slack, aligned to a page as the offset in the file is: the disk then writes where the rows belong.
std::byte* head_place(std::byte* memory, int64_t offset) {
  std::byte* at = memory + kDiskSlack;
  if (offset % 8 != 0) return at;
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(kPage));
  return at + (offset % kPage - address + kPage) % kPage;
}

}  // namespace

Result<std::unique_ptr<WeightStream>> WeightStream::open(Checkpoint checkpoint, const Config& config, ExpertTable experts,
                                                         const MemoryPlan& plan, const StreamOptions& options,
                                                         ThreadPool& pool, const LoadProgress& progress) {
  K3_TRY(check_expert_stats_path(options.expert_stats));
  std::unique_ptr<WeightStream> stream(new WeightStream(std::move(checkpoint), config, plan));
  K3_TRY(stream->open_files(options));
  K3_TRY(stream->load_final());
  K3_TRY(stream->load_head());
  K3_TRY(stream->load_resident(progress));
  const int64_t layers = experts.layers(), of_layer = experts.experts();
  K3_TRY_ASSIGN(stream->experts_, ExpertCache::create(stream->checkpoint_, stream->config_, std::move(experts),
                                                      *stream->reader_, stream->files_, plan.expert_slots));
  stream->stats_path_ = options.expert_stats;
  if (!options.expert_stats.empty() && path_exists(options.expert_stats)) {
    K3_TRY_ASSIGN(const std::vector<uint64_t> counts, read_expert_stats(options.expert_stats, layers, of_layer));
    K3_TRY(stream->experts_->warm(counts, pool));
  }
  return stream;
}

Status WeightStream::open_files(const StreamOptions& options) {
  K3_TRY_ASSIGN(reader_, DiskReader::create(options.disk));
  files_.assign(static_cast<size_t>(checkpoint_.shard_count()), -1);
  for (int32_t s = 0; s < checkpoint_.shard_count(); ++s) {
    if (!checkpoint_.shard_present(s)) continue;  // one that is needed has been missed already
    K3_TRY_ASSIGN(files_[static_cast<size_t>(s)], reader_->open(join_path(checkpoint_.folder(), checkpoint_.shard_file(s))));
  }
  return {};
}

std::vector<DiskTicket> WeightStream::start_jobs(const ArenaPlan& plan, DiskPriority priority) {
  std::vector<DiskTicket> tickets;
  for (const ReadJob& job : plan.jobs()) {
    const DiskRequest read{files_[static_cast<size_t>(job.info.shard)], job.info.offset, job.info.size_bytes,
                           job.needs_widening() ? job.stored : job.target};
    tickets.push_back(reader_->start(std::span(&read, 1), priority));
  }
  return tickets;
}

Status WeightStream::finish_jobs(const ArenaPlan& plan, std::vector<DiskTicket>& tickets) {
  for (size_t i = 0; i < tickets.size(); ++i) {
    const ReadJob& job = plan.jobs()[i];
    K3_TRY(tickets[i].wait().with_context(fmt::format("tensor '{}'", job.name)));
    K3_TRY(finish_job(checkpoint_, job, job.stored));
  }
  return plan.complete();
}

Status WeightStream::start_layer(Load& load, int64_t l, std::byte* at, DiskPriority priority) {
  load = Load();  // waits for reads that nobody wants any more
  load.plan = std::make_unique<ArenaPlan>(checkpoint_, config_, Slack::tensors);
  load.plan->start_placing(at);
  K3_TRY(wire_trunk(*load.plan, config_, l, load.weights));
  load.tickets = start_jobs(*load.plan, priority);
  load.layer = l;
  return {};
}

Status WeightStream::finish_layer(Load& load) {
  if (load.ready) return {};
  const Waiting waiting(stats_.trunk_wait_seconds);
  Status status = finish_jobs(*load.plan, load.tickets);
  if (!status.ok()) {
    load = Load();
    return status;
  }
  load.ready = true;
  load.plan.reset();
  return {};
}

// All resident layers, the reads of one running while the last is finished.
Status WeightStream::load_resident(const LoadProgress& progress) {
  const int64_t layers = config_.num_hidden_layers;
  set_.layers.resize(static_cast<size_t>(layers));
  std::vector<int64_t> resident;
  for (int64_t l = 0; l < layers; ++l) (plan_.layer_streamed[static_cast<size_t>(l)] ? streamed_ : resident).push_back(l);
  int64_t done = 0;
  Load loads[2];
  const auto begin = [&](size_t i) -> Status {
    ArenaPlan sizing(checkpoint_, config_, Slack::tensors);
    LayerWeights ignored;
    K3_TRY(wire_trunk(sizing, config_, resident[i], ignored));
    K3_TRY_ASSIGN(Storage arena, Storage::allocate(sizing.used()));
    set_.arenas.push_back(std::move(arena));
    return start_layer(loads[i % 2], resident[i], set_.arenas.back().data(), DiskPriority::urgent);
  };
  for (size_t i = 0; i < resident.size(); ++i) {
    if (i == 0) K3_TRY(begin(0));
    if (i + 1 < resident.size()) K3_TRY(begin(i + 1));
    Load& load = loads[i % 2];
    const int64_t bytes = load.plan->used();
    K3_TRY(finish_layer(load));
    set_.layers[static_cast<size_t>(resident[i])] = std::move(load.weights);
    done += bytes;
    if (progress) progress(done, plan_.trunk_bytes);
  }
  stats_.trunk_wait_seconds = 0;
  if (streamed_.empty()) return {};
  for (Storage& buffer : buffers_) {
    K3_TRY_ASSIGN(buffer, Storage::allocate(plan_.stream_buffer_bytes));
  }
  return read_ahead(-1);
}

Status WeightStream::load_final() {
  ArenaPlan plan(checkpoint_, config_, Slack::tensors);
  K3_TRY(wire_final(plan, config_, set_));
  K3_TRY_ASSIGN(Storage arena, Storage::allocate(plan.used()));
  plan.start_placing(arena.data());
  K3_TRY(wire_final(plan, config_, set_));
  std::vector<DiskTicket> tickets = start_jobs(plan, DiskPriority::urgent);
  K3_TRY(finish_jobs(plan, tickets));
  set_.arenas.push_back(std::move(arena));
  return {};
}

// Where embedding or lm_head lies, its scales behind it if it has any; `weight` gets scheme and sizes.
Result<std::vector<ReadJob>> WeightStream::table_jobs(ParamId id, ops::Weight& weight) {
  ArenaPlan plan(checkpoint_, config_, Slack::tensors);
  K3_TRY(plan.matrix(id, -1, -1, weight));
  return plan.jobs();
}

// Scales of an 8-bit lm_head: a thirty-second of its codes, so they stay in memory whichever rows do.
Status WeightStream::load_head_scales(ReadJob job) {
  K3_TRY_ASSIGN(head_scales_, Storage::allocate(job.info.size_bytes + 2 * kDiskSlack));
  job.target = head_scales_.data() + kDiskSlack;
  const DiskRequest read{files_[static_cast<size_t>(job.info.shard)], job.info.offset, job.info.size_bytes, job.target};
  K3_TRY(reader_->start(std::span(&read, 1)).wait().with_context(fmt::format("tensor '{}'", job.name)));
  set_.lm_head.scales = reinterpret_cast<const uint8_t*>(job.target);
  return finish_job(checkpoint_, job, job.target);
}

Status WeightStream::load_head() {
  K3_TRY_ASSIGN(const std::vector<ReadJob> table, table_jobs(ParamId::embed_tokens, set_.embed));
  const TensorInfo& embedding = table.front().info;
  K3_TRY_ASSIGN(rows_, RowCache::create(*reader_, files_[static_cast<size_t>(embedding.shard)],
                                        param_name(config_, ParamId::embed_tokens), embedding, plan_.embedding_rows));
  const ParamId id = config_.tie_word_embeddings ? ParamId::embed_tokens : ParamId::lm_head;
  K3_TRY_ASSIGN(const std::vector<ReadJob> head, table_jobs(id, set_.lm_head));
  head_info_ = head.front().info;
  head_name_ = param_name(config_, id);
  if (ops::scheme_has_scales(set_.lm_head.scheme)) K3_TRY(load_head_scales(head.back()));
  const int64_t row = head_info_.size_bytes / set_.lm_head.rows, resident = plan_.lm_head_resident_rows * row;
  K3_TRY_ASSIGN(head_memory_, Storage::allocate(resident + 2 * kDiskSlack + kPage));
  std::byte* const at = head_place(head_memory_.data(), head_info_.offset);
  set_.lm_head.data = at;
  const DiskRequest read{files_[static_cast<size_t>(head_info_.shard)], head_info_.offset, resident, at};
  K3_TRY(reader_->start(std::span(&read, 1)).wait().with_context(fmt::format("tensor '{}'", head_name_)));
  const int64_t rest = set_.lm_head.rows - plan_.lm_head_resident_rows;
  if (rest == 0) return {};
  head_blocks_ = (rest + plan_.lm_head_block_rows - 1) / plan_.lm_head_block_rows;
  head_tickets_.resize(static_cast<size_t>(plan_.lm_head_buffers));
  K3_TRY_ASSIGN(head_buffers_, Storage::allocate(plan_.lm_head_buffers * head_pitch()));
  while (head_started_ < plan_.lm_head_buffers) start_head_block();
  return {};
}

int64_t WeightStream::head_pitch() const {
  const int64_t row = head_info_.size_bytes / set_.lm_head.rows;
  return (plan_.lm_head_block_rows * row + 2 * kDiskSlack + 2 * kPage - 1) / kPage * kPage;
}

// The next block in the endless sequence of blocks: behind the last one of a step comes the first of the next.
void WeightStream::start_head_block() {
  const int64_t row = head_info_.size_bytes / set_.lm_head.rows, block = head_started_ % head_blocks_;
  const int64_t first = plan_.lm_head_resident_rows + block * plan_.lm_head_block_rows;
  const int64_t rows = std::min(plan_.lm_head_block_rows, set_.lm_head.rows - first);
  const int64_t buffer = head_started_ % plan_.lm_head_buffers;
  const int64_t offset = head_info_.offset + first * row;
  const DiskRequest read{files_[static_cast<size_t>(head_info_.shard)], offset, rows * row,
                         head_place(head_buffers_.data() + buffer * head_pitch(), offset)};
  head_tickets_[static_cast<size_t>(buffer)] = reader_->start(std::span(&read, 1), DiskPriority::ahead);
  ++head_started_;
}

void WeightStream::begin_step(int64_t tokens) {
  ++stats_.steps;
  stats_.tokens += tokens;
  current_ = -1;
}

Status WeightStream::embedding(std::span<const int32_t> ids, const Tensor& out) {
  const Waiting waiting(stats_.trunk_wait_seconds);
  return rows_->read(ids, out);
}

Result<const LayerWeights*> WeightStream::layer(int64_t l) {
  current_ = l;
  if (!plan_.layer_streamed[static_cast<size_t>(l)]) {
    K3_TRY(read_ahead(l));
    return &set_.layers[static_cast<size_t>(l)];
  }
  size_t at = loads_[0].layer == l ? 0 : 1;
  if (loads_[at].layer != l) {
    // Only the first step, or one after a failure: normally it was read ahead.
    at = loads_[0].layer < 0 ? 0 : 1;
    K3_TRY(start_layer(loads_[at], l, buffers_[at].data(), DiskPriority::urgent));
  }
  K3_TRY(finish_layer(loads_[at]));
  K3_TRY(read_ahead(l));
  return &loads_[at].weights;
}

// Buffers whose layer comes later than others that are not in memory yet are given to those: while layer l computes, the
// next streamed ones are read, around the end of the step too.
Status WeightStream::read_ahead(int64_t l) {
  if (streamed_.empty()) return {};
  const auto count = static_cast<int64_t>(streamed_.size());
  const int64_t from = std::upper_bound(streamed_.begin(), streamed_.end(), l) - streamed_.begin();
  const auto at_work = [&](const Load& load) { return load.layer >= 0 && load.layer == current_; };
  int64_t free = 0;
  for (const Load& load : loads_) free += at_work(load) ? 0 : 1;
  // The layers that the buffers not at work should hold.
  std::vector<int64_t> next;
  for (int64_t i = 0; i < count && static_cast<int64_t>(next.size()) < free; ++i) {
    const int64_t candidate = streamed_[static_cast<size_t>((from + i) % count)];
    if (candidate != current_) next.push_back(candidate);
  }
  for (const int64_t want : next) {
    if (loads_[0].layer == want || loads_[1].layer == want) continue;
    for (size_t b = 0; b < 2; ++b) {
      if (at_work(loads_[b]) || std::find(next.begin(), next.end(), loads_[b].layer) != next.end()) continue;
      K3_TRY(start_layer(loads_[b], want, buffers_[b].data(), DiskPriority::ahead));
      break;
    }
  }
  return {};
}

Status WeightStream::lm_head(const ops::Ctx& ctx, const Tensor& x, const Tensor& logits) {
  if (x.dim(0) == 0) return {};
  const ops::Weight& head = set_.lm_head;
  const int64_t resident = plan_.lm_head_resident_rows;
  if (resident > 0) ops::linear(ctx, x, ops::weight_rows(head, 0, resident), logits.columns(0, resident));
  const int64_t row = ops::scheme_row_bytes(head.scheme, head.cols);
  for (int64_t block = 0; block < head_blocks_; ++block) {
    const int64_t buffer = head_done_ % plan_.lm_head_buffers;
    {
      const Waiting waiting(stats_.trunk_wait_seconds);
      Status status = head_tickets_[static_cast<size_t>(buffer)].wait();
      if (!status.ok()) {
        // Start over at the first block; the buffers wait for what is still on its way.
        head_done_ = head_started_ = 0;
        while (head_started_ < plan_.lm_head_buffers) start_head_block();
        return std::move(status).with_context(fmt::format("tensor '{}'", head_name_));
      }
    }
    const int64_t first = resident + block * plan_.lm_head_block_rows;
    const int64_t rows = std::min(plan_.lm_head_block_rows, head.rows - first);
    ops::Weight part = ops::weight_rows(head, first, first + rows);
    part.data = head_place(head_buffers_.data() + buffer * head_pitch(), head_info_.offset + first * row);
    ops::linear(ctx, x, part, logits.columns(first, first + rows));
    ++head_done_;
    start_head_block();
  }
  return {};
}

void WeightStream::predict_next(const ops::Ctx& ctx, int64_t l, const Tensor& x) {
  const int64_t next = l + 1;
  // With layers streamed the disk is never idle, so there is nothing to read ahead with.
  if (!streamed_.empty() || x.dim(0) > kMostPredicted || next >= config_.num_hidden_layers || !config_.is_moe(next)) return;
  if (!experts_->wants_predictions()) return;
  const Workspace::Scope scope(*ctx.workspace);
  const MoeWeights& moe = set_.layers[static_cast<size_t>(next)].moe;
  const int64_t topk = config_.num_experts_per_token;
  const Tensor logits = ctx.workspace->tensor({x.dim(0), config_.num_experts});
  const Tensor ids = ctx.workspace->tensor({x.dim(0), topk}, DType::i32), weights = ctx.workspace->tensor({x.dim(0), topk});
  ops::linear(ctx, x, moe.router, logits, {.full_precision = true});
  ops::router(ctx, logits, moe.router_bias, {.topk = topk}, ids, weights);
  std::vector<int32_t> named;  // the first choices of all tokens, then the second ones
  for (int64_t j = 0; j < topk; ++j) {
    for (int64_t t = 0; t < x.dim(0); ++t) {
      const int32_t e = static_cast<const int32_t*>(ids.data)[t * topk + j];
      if (std::find(named.begin(), named.end(), e) == named.end()) named.push_back(e);
    }
  }
  experts_->predict(next, named);
}

StreamStats WeightStream::stats() const {
  StreamStats out = stats_;
  out.read_bytes = reader_->counters().read_bytes;
  experts_->add_to(out);
  return out;
}

Status WeightStream::save_expert_stats() const {
  if (stats_path_.empty()) return {};
  return write_expert_stats(stats_path_, config_.num_hidden_layers, config_.num_experts, experts_->counts());
}

Status WeightSource::embedding(const ops::Ctx& ctx, std::span<const int32_t> ids, const Tensor& out) const {
  if (stream != nullptr) return stream->embedding(ids, out);
  ops::embedding(ctx, all->embed, ids, out);
  return {};
}

Status WeightSource::lm_head(const ops::Ctx& ctx, const Tensor& x, const Tensor& logits) const {
  if (stream != nullptr) return stream->lm_head(ctx, x, logits);
  ops::linear(ctx, x, all->lm_head, logits);
  return {};
}

Result<const LayerWeights*> WeightSource::layer(int64_t l) const {
  if (stream != nullptr) return stream->layer(l);
  return &all->layers[static_cast<size_t>(l)];
}

}  // namespace k3
