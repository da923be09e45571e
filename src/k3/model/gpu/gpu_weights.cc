#include "k3/model/gpu/gpu_weights.h"

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "k3/base/log.h"
#include "k3/base/units.h"
#include "k3/model/gpu/pinned_feeder.h"
#include "k3/model/wiring.h"
#include "k3/ops/cuda/dispatch.h"

namespace k3 {
namespace {

constexpr int64_t kExpertsAtOnce = 64;  // of one read and copy, without a plan

// Every view of a part of the weights, as a pointer to be moved from the host's arena to the device's.
struct Mover {
  const std::byte* from;
  int64_t size;
  std::byte* to;

  template <class T>
  void pointer(T*& p) const {
    if (p == nullptr) return;
    const auto* at = reinterpret_cast<const std::byte*>(p);
    K3_CHECK(at >= from && at < from + size, "a view of weights outside its arena");
    p = reinterpret_cast<T*>(to + (at - from));
  }
  void operator()(ops::Weight& w) const {
    pointer(w.data);
    pointer(w.scales);
  }
  void operator()(Tensor& t) const { pointer(t.data); }
  template <class... Views>
  void all(Views&... views) const {
    ((*this)(views), ...);
  }
  void layer(LayerWeights& l) const {
    all(l.input_norm, l.post_attention_norm, l.attention_res_query, l.mlp_res_query);
    KdaWeights& k = l.kda;
    all(k.q, k.k, k.v, k.f_a, k.f_b, k.b, k.o, k.g, k.g_a, k.g_b, k.q_conv, k.k_conv, k.v_conv, k.a_log, k.dt_bias, k.o_norm);
    MlaWeights& m = l.mla;
    all(m.q, m.q_a, m.q_b, m.q_a_norm, m.kv_a, m.kv_b, m.o, m.g, m.kv_a_norm);
    all(l.mlp.gate, l.mlp.up, l.mlp.down);
    MoeWeights& e = l.moe;
    all(e.router, e.router_bias, e.down, e.up, e.latent_norm, e.shared.gate, e.shared.up, e.shared.down);
  }
  void tables(WeightSet& set) const { all(set.embed, set.lm_head, set.final_norm, set.output_res_query); }
};

class Loader {
 public:
  Loader(Device device, const Checkpoint& checkpoint, const Config& config, const GpuPlan* plan, ThreadPool& pool,
         const LoadProgress& progress, std::span<const uint64_t> uses)
      : device_(device), checkpoint_(checkpoint), config_(config), pool_(pool), progress_(progress), uses_(uses) {
    if (plan == nullptr || plan->everything) return;
    plan_ = plan;
    whole_layers_left_ = plan->whole_layers;
    // The plan has room for twice what it reads at once: two places of half of it, and what is packed from one of them.
    at_once_ = std::max<int64_t>(1, plan->at_once / 2);
    places_ = plan->at_once > 1 ? 2 : 1;
  }
  // After an error copies may still be under way from memory that goes now.
  ~Loader() {
    feeder_.reset();
    for (const StreamHandle* stream : {&stream_, &small_stream_, &pack_stream_}) {
      if (*stream) (void)synchronize(stream->get());
    }
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  Result<WeightSet> run() {
    K3_TRY(set_current_device(device_));
    Clock clock;
    K3_TRY_ASSIGN(stream_, make_stream());
    K3_TRY_ASSIGN(small_stream_, make_stream());
    K3_TRY_ASSIGN(pack_stream_, make_stream());
    K3_TRY_ASSIGN(fed_, make_event());
    for (Unpacked& u : unpacked_) {
      K3_TRY_ASSIGN(u.packed, make_event());
    }
    K3_TRY_ASSIGN(feeder_, PinnedFeeder::start(device_, pool_, stream_.get(), checkpoint_, text_weight_bytes(config_), progress_));
    clock.lap(start_seconds_);
    if (plan_ != nullptr) {
      K3_TRY_ASSIGN(set_.experts, ops::ExpertStore::create(device_, plan_->store));
    }
    clock.lap(place_seconds_);
    set_.layers.resize(static_cast<size_t>(config_.num_hidden_layers));
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      LayerWeights& layer = set_.layers[static_cast<size_t>(l)];
      K3_TRY(trunk([&](ArenaPlan& plan) { return wire_trunk(plan, config_, l, layer); }, [&](const Mover& move) { move.layer(layer); }));
      if (config_.is_moe(l)) K3_TRY(experts(l, layer.moe));
    }
    const auto wire = [&](ArenaPlan& plan) -> Status {
      K3_TRY(wire_tables(plan, config_, set_));
      return wire_final(plan, config_, set_);
    };
    K3_TRY(trunk(wire, [&](const Mover& move) { move.tables(set_); }));
    while (!parts_.empty()) K3_TRY(finish_first());
    clock = {};
    K3_TRY(synchronize(small_stream_.get()));
    K3_TRY(synchronize(stream_.get()));
    K3_TRY(synchronize(pack_stream_.get()));
    clock.lap(feed_seconds_);
    feeder_.reset();
    for (Unpacked& u : unpacked_) u.memory = Storage();
    packed_ = Storage();
    if (set_.experts) K3_TRY(set_.experts->finish(pack_stream_.get(), scores_));
    clock.lap(end_seconds_);
    log_info("weights onto {}: {} to begin, {} in memory, {} in names and places, {} waiting for reads and copies, {} in small parameters, "
             "{} to end", device_name(device_), format_seconds(start_seconds_), format_seconds(place_seconds_), format_seconds(wire_seconds_),
             format_seconds(feed_seconds_), format_seconds(small_seconds_), format_seconds(end_seconds_));
    return std::move(set_);
  }

 private:
  // Where the time of the calling thread goes, for the log.
  struct Clock {
    std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
    void lap(double& seconds) {
      const auto now = std::chrono::steady_clock::now();
      seconds += std::chrono::duration<double>(now - std::exchange(last, now)).count();
    }
  };

  // One arena on its way: views are addresses in `host`, most of which is never touched.
  struct Part {
    ArenaPlan plan;
    Storage host;
    std::byte* device = nullptr;
    int64_t number = 0;            // of the feeder
    std::function<Status()> then;  // when its copies are on the stream
    Part(const Checkpoint& checkpoint, const Config& config) : plan(checkpoint, config, Slack::none) { plan.keep_stored_order(); }
  };

  // Begins to bring one arena to the memory that `place(bytes)` gives. Parts end in their order, and so many are under way at a time
  // that reading does not wait for this thread.
  template <class Wire, class Place>
  Result<Part*> begin(const Wire& wire, const Place& place) {
    constexpr size_t kAhead = 3;
    while (parts_.size() >= kAhead) K3_TRY(finish_first());
    Clock clock;
    auto part = std::make_unique<Part>(checkpoint_, config_);
    K3_TRY(wire(part->plan));
    K3_TRY_ASSIGN(part->host, Storage::reserve(part->plan.used()));
    clock.lap(wire_seconds_);
    K3_TRY_ASSIGN(part->device, place(part->plan.used()));
    clock.lap(place_seconds_);
    part->plan.start_placing(part->host.data());
    K3_TRY(wire(part->plan));
    part->number = feeder_->feed(part->plan.jobs(), part->host.data(), part->device);
    clock.lap(wire_seconds_);
    parts_.push_back(std::move(part));
    return parts_.back().get();
  }

  Status finish_first() {
    Part& part = *parts_.front();
    Clock clock;
    K3_TRY(feeder_->wait(part.number));
    clock.lap(feed_seconds_);
    K3_TRY(part.plan.complete());
    for (const ReadJob& job : part.plan.jobs()) {
      if (!PinnedFeeder::is_small(job)) continue;
      K3_TRY(copy_async(part.device + (job.target - part.host.data()), job.target, 4 * job.info.count(), small_stream_.get()));
    }
    if (part.then) K3_TRY(part.then());
    parts_.pop_front();
    clock.lap(small_seconds_);
    return {};
  }

  template <class Wire, class Move>
  Status trunk(const Wire& wire, const Move& move) {
    Storage arena;
    K3_TRY_ASSIGN(const Part* const part, begin(wire, [&](int64_t bytes) -> Result<std::byte*> {
      K3_TRY_ASSIGN(arena, Storage::allocate_on(device_, bytes));
      return arena.data();
    }));
    move(Mover{part->host.data(), part->plan.used(), arena.data()});
    set_.size_bytes += arena.size_bytes();
    set_.arenas.push_back(std::move(arena));
    return {};
  }

  // Experts as the checkpoint has them, in two places: one is packed while the other fills.
  struct Unpacked {
    Storage memory;
    EventHandle packed;
    const Part* part = nullptr;  // that fills it
    bool in_use = false;
  };
  Result<std::byte*> make_room(Unpacked& to, int64_t bytes) {
    if (to.in_use) K3_TRY(wait(stream_.get(), to.packed));
    if (to.memory.size_bytes() < bytes) {
      K3_TRY(synchronize(pack_stream_.get()));  // what is packed from the old place
      K3_TRY_ASSIGN(to.memory, Storage::allocate_on(device_, bytes));
    }
    return to.memory.data();
  }

  Status experts(int64_t l, MoeWeights& moe) {
    ops::ExpertBank& bank = moe.bank;
    bank.experts = config_.num_experts;
    bank.width = config_.expert_width();
    bank.hidden = config_.moe_intermediate_size;
    bank.scheme = config_.experts_mxfp4 ? ops::Scheme::mxfp4 : ops::Scheme::bf16;
    const ops::cuda::ExpertBankBytes bytes = ops::cuda::expert_bank_bytes(bank);
    K3_TRY_ASSIGN(Storage factors, Storage::allocate_on(device_, bytes.factors));
    bank.factors = reinterpret_cast<const float*>(factors.data());
    set_.arenas.push_back(std::move(factors));
    set_.size_bytes += bytes.factors;
    if (plan_ != nullptr && whole_layers_left_-- <= 0) return experts_in_host_memory(l, bank);
    Clock clock;
    K3_TRY_ASSIGN(Storage gate_up, Storage::allocate_on(device_, bytes.gate_up));
    K3_TRY_ASSIGN(Storage down, Storage::allocate_on(device_, bytes.down));
    clock.lap(place_seconds_);
    bank.gate_up = gate_up.data();
    bank.down = down.data();
    set_.size_bytes += bytes.gate_up + bytes.down;
    for (Storage* storage : {&gate_up, &down}) set_.arenas.push_back(std::move(*storage));
    return each_expert(l, bank, [](int64_t, int64_t) { return Status(); },
                       [this, bank](int64_t e, const ops::ExpertWeights& w) {
                         return ops::cuda::pack_expert(bank, e, w.w1, w.w2, w.w3, pack_stream_.get());
                       });
  }

  // Packed on the device, some at a time, and copied back.
  Status experts_in_host_memory(int64_t l, ops::ExpertBank& bank) {
    const ops::ExpertStoreShape& shape = set_.experts->shape();
    bank.store = set_.experts.get();
    bank.store_layer = stored_layers_++;
    if (!uses_.empty()) add_scores(uses_.subspan(static_cast<size_t>(l * bank.experts), static_cast<size_t>(bank.experts)));
    K3_TRY_ASSIGN(std::byte* const host, set_.experts->add_layer());
    if (packed_.size_bytes() == 0) {
      K3_TRY_ASSIGN(packed_, Storage::allocate_on(device_, at_once_ * shape.expert_bytes));
    }
    const int64_t gate_up = ops::cuda::expert_bank_bytes(bank).gate_up / bank.experts, bytes = shape.expert_bytes;
    return each_expert(l, bank,
                       [this, host, bytes](int64_t begin, int64_t count) {
                         return copy_async(host + begin * bytes, packed_.data(), count * bytes, pack_stream_.get());
                       },
                       [this, bank, gate_up, bytes](int64_t e, const ops::ExpertWeights& w) {
                         ops::ExpertBank one = bank;
                         one.gate_up = packed_.data() + e % at_once_ * bytes;
                         one.down = packed_.data() + e % at_once_ * bytes + gate_up;
                         one.factors = bank.factors + 4 * e;
                         return ops::cuda::pack_expert(one, 0, w.w1, w.w2, w.w3, pack_stream_.get());
                       });
  }

  // As if the last tokens had chosen as those of the earlier runs did.
  void add_scores(std::span<const uint64_t> uses) {
    constexpr double kTokens = 350;  // a score halves in so many
    const double sum = std::max(1.0, static_cast<double>(std::accumulate(uses.begin(), uses.end(), uint64_t{0})));
    const double each = kTokens * static_cast<double>(config_.num_experts_per_token) / sum;
    for (const uint64_t n : uses) scores_.push_back(static_cast<float>(static_cast<double>(n) * each));
  }

  // pack(e, matrices on the device) for each expert of a layer; done(begin, count) after some of them.
  template <class Done, class Pack>
  Status each_expert(int64_t l, const ops::ExpertBank& bank, const Done& done, const Pack& pack) {
    for (int64_t begin_expert = 0; begin_expert < bank.experts; begin_expert += at_once_) {
      turn_ = (turn_ + 1) % places_;
      Unpacked& to = unpacked_[turn_];
      while (to.part != nullptr) K3_TRY(finish_first());
      auto some = std::make_shared<std::vector<ops::ExpertWeights>>(static_cast<size_t>(std::min(at_once_, bank.experts - begin_expert)));
      const auto wire = [&](ArenaPlan& plan) -> Status {
        for (size_t i = 0; i < some->size(); ++i) K3_TRY(wire_expert(plan, l, begin_expert + static_cast<int64_t>(i), (*some)[i]));
        return {};
      };
      K3_TRY_ASSIGN(Part* const part, begin(wire, [&](int64_t bytes) { return make_room(to, bytes); }));
      to.part = part;
      part->then = [this, l, begin_expert, some, part, &to, scheme = bank.scheme, done, pack]() -> Status {
        K3_TRY(record(fed_, stream_.get()));
        K3_TRY(wait(pack_stream_.get(), fed_));
        const Mover move{part->host.data(), part->plan.used(), part->device};
        for (size_t i = 0; i < some->size(); ++i) {
          ops::ExpertWeights& e = (*some)[i];
          if (e.w1.scheme != scheme) {
            return fail(Code::unsupported, "the experts of layer {} are neither BF16 nor MXFP4, which is what the GPU kernels read", l);
          }
          move.all(e.w1, e.w2, e.w3);
          K3_TRY(pack(begin_expert + static_cast<int64_t>(i), e));
        }
        K3_TRY(done(begin_expert, static_cast<int64_t>(some->size())));
        to.in_use = true;
        to.part = nullptr;
        return record(to.packed, pack_stream_.get());
      };
    }
    return {};
  }

  Device device_;
  const Checkpoint& checkpoint_;
  const Config& config_;
  ThreadPool& pool_;
  const LoadProgress& progress_;
  std::span<const uint64_t> uses_;  // [layers, experts] or none
  std::vector<float> scores_;       // of the stored layers
  StreamHandle stream_, pack_stream_;
  StreamHandle small_stream_;  // copies of memory that is not pinned wait for their stream, which is better empty
  double start_seconds_ = 0, place_seconds_ = 0, wire_seconds_ = 0, feed_seconds_ = 0, small_seconds_ = 0, end_seconds_ = 0;
  Unpacked unpacked_[2];
  size_t turn_ = 0, places_ = 2;
  EventHandle fed_;
  const GpuPlan* plan_ = nullptr;  // of a model with experts in host memory
  int64_t at_once_ = kExpertsAtOnce, whole_layers_left_ = 0, stored_layers_ = 0;
  Storage packed_;
  WeightSet set_;
  std::deque<std::unique_ptr<Part>> parts_;  // in the order in which they were begun
  std::unique_ptr<PinnedFeeder> feeder_;     // reads into parts_
};

Status check_matrices(const WeightSet& set) {
  const auto check = [](const ops::Weight& w, std::string_view name) -> Status {
    if (!w || w.scheme == ops::Scheme::bf16 || w.scheme == ops::Scheme::i8) return {};
    return fail(Code::unsupported, "{} is stored in a dtype that the GPU kernels do not read; `k3 convert` writes BF16", name);
  };
  K3_TRY(check(set.embed, "embed_tokens"));
  K3_TRY(check(set.lm_head, "lm_head"));
  for (size_t l = 0; l < set.layers.size(); ++l) {
    const LayerWeights& w = set.layers[l];
    for (const ops::Weight* m : {&w.kda.q, &w.kda.k, &w.kda.v, &w.kda.f_a, &w.kda.f_b, &w.kda.b, &w.kda.o, &w.kda.g, &w.kda.g_a, &w.kda.g_b,
                                 &w.mla.q, &w.mla.q_a, &w.mla.q_b, &w.mla.kv_a, &w.mla.kv_b, &w.mla.o, &w.mla.g, &w.mlp.gate, &w.mlp.up,
                                 &w.mlp.down, &w.moe.router, &w.moe.down, &w.moe.up, &w.moe.shared.gate, &w.moe.shared.up, &w.moe.shared.down}) {
      K3_TRY(check(*m, fmt::format("a matrix of layer {}", l)));
    }
  }
  return {};
}

}  // namespace

Status check_gpu_config(const Config& c) {
  const auto within = [](std::string_view name, int64_t have, int64_t least, int64_t most) -> Status {
    if (have >= least && have <= most) return {};
    return fail(Code::unsupported, "the GPU kernels take {} of {} to {}, this model has {}; --device cpu runs it", name, least, most, have);
  };
  const auto multiple = [](std::string_view name, int64_t have, int64_t of) -> Status {
    if (have % of == 0) return {};
    return fail(Code::unsupported, "the GPU kernels want {} to be a multiple of {}, this model has {}; --device cpu runs it", name, of, have);
  };
  bool kda = false, mla = false, moe = false, dense = false;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    (c.is_kda(l) ? kda : mla) = true;
    (c.is_moe(l) ? moe : dense) = true;
  }
  if (kda) {
    K3_TRY(within("linear_attn_config.head_dim", c.kda_head_dim, 1, 128));
    K3_TRY(within("linear_attn_config.short_conv_kernel_size", c.short_conv_kernel_size, 2, 8));
  }
  if (mla) {
    K3_TRY(within("kv_lora_rank", c.kv_lora_rank, 1, 8192));
    K3_TRY(within("qk_rope_head_dim", c.qk_rope_head_dim, 0, 8192));
    if (c.q_lora_rank) K3_TRY(multiple("q_lora_rank", *c.q_lora_rank, 8));
  }
  K3_TRY(multiple("hidden_size", c.hidden_size, 8));
  K3_TRY(within("hidden_size", c.hidden_size, 8, 16384));
  if (dense) K3_TRY(multiple("intermediate_size", c.intermediate_size, 8));
  if (moe) {
    const int64_t of = c.experts_mxfp4 ? 32 : 8;
    K3_TRY(multiple("moe_intermediate_size", c.moe_intermediate_size, of));
    K3_TRY(multiple("routed_expert_hidden_size", c.expert_width(), of));
    K3_TRY(within("routed_expert_hidden_size", c.expert_width(), of, 8192));
    K3_TRY(within("num_experts", c.num_experts, 1, 1024));
    K3_TRY(within("num_experts_per_token", c.num_experts_per_token, 1, 16));
  }
  return {};
}

Result<WeightSet> load_weights_on(Device device, const Checkpoint& checkpoint, const Config& config, const GpuPlan* plan, ThreadPool& pool,
                                  const LoadProgress& progress, std::span<const uint64_t> uses) {
  K3_TRY(check_gpu_config(config));
  K3_TRY(set_current_device(device));
  K3_TRY(ops::cuda::check_device(plan != nullptr && !plan->everything));
  K3_TRY_ASSIGN(WeightSet set, Loader(device, checkpoint, config, plan, pool, progress, uses).run());
  K3_TRY(check_matrices(set));
  return set;
}

}  // namespace k3
