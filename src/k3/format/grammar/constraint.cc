#include "k3/format/grammar/constraint.h"

#include <algorithm>

#include "k3/base/check.h"
#include "k3/format/grammar/grammar_impl.h"

namespace k3 {

using grammar::Frame;
using grammar::Stepper;
using grammar::Thread;

Grammar::Grammar(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Grammar::~Grammar() = default;

struct Constraint::Impl {
  std::shared_ptr<const Grammar> grammar;
  std::vector<int32_t> end_ids;
  std::vector<Frame> frames;  // [0] is the bottom
  std::vector<Thread> threads;
  bool complete = false;  // the text may end here
  bool ended = false;     // an end token came

  const Grammar::Impl& g() const { return *grammar->impl_; }
  bool free() const {
    return std::any_of(threads.begin(), threads.end(), [&](const Thread& t) { return g().program.states[t.state].free; });
  }
  bool is_end(int32_t id) const { return std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end(); }
  bool advance(std::string_view bytes);
  bool advance_special(int32_t id);
  void keep(const std::vector<Frame>& all, std::vector<Thread> alive, bool can_end);
};

// Keeps the frames that the threads reach; parents come before their children.
void Constraint::Impl::keep(const std::vector<Frame>& all, std::vector<Thread> alive, bool can_end) {
  std::vector<uint32_t> name(all.size(), 0);
  for (const Thread& t : alive) name[t.stack] = 1;
  for (size_t i = all.size(); i-- > 1;) {
    if (name[i] != 0) name[all[i].parent] = 1;
  }
  std::vector<Frame> kept = {all[0]};
  for (size_t i = 1; i < all.size(); ++i) {
    if (name[i] == 0) continue;
    name[i] = static_cast<uint32_t>(kept.size());
    kept.push_back(all[i]);
    kept.back().parent = all[i].parent == 0 ? 0 : name[all[i].parent];
  }
  for (Thread& t : alive) t.stack = t.stack == 0 ? 0 : name[t.stack];
  frames = std::move(kept);
  threads = std::move(alive);
  complete = can_end;
}

bool Constraint::Impl::advance(std::string_view bytes) {
  if (bytes.empty()) return false;
  Stepper stepper(g().program, 0);
  stepper.frames() = frames;
  std::vector<Thread> now = threads, next;
  bool can_end = complete;
  for (const char c : bytes) {
    can_end = stepper.step(now, static_cast<uint8_t>(c), next);
    now.swap(next);
    if (now.empty() && !can_end) return false;
  }
  keep(stepper.frames(), std::move(now), can_end);
  return true;
}

bool Constraint::Impl::advance_special(int32_t id) {
  Stepper stepper(g().program, 0);
  stepper.frames() = frames;
  std::vector<Thread> next;
  const bool can_end = stepper.step_token(threads, id, next);
  if (next.empty() && !can_end) return false;
  keep(stepper.frames(), std::move(next), can_end);
  return true;
}

Constraint::Constraint(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> end_ids)
    : impl_(std::make_unique<Impl>()) {
  K3_CHECK(grammar != nullptr && !end_ids.empty(), "a constraint needs a grammar and a token that ends the text");
  impl_->grammar = std::move(grammar);
  impl_->end_ids = std::move(end_ids);
  Stepper stepper(impl_->g().program, 0);
  std::vector<Thread> threads;
  const bool can_end = stepper.close({impl_->g().program.start, 0, 0}, threads);
  impl_->keep(stepper.frames(), std::move(threads), can_end);
  if (!impl_->g().given.empty()) {
    const bool fits = impl_->advance(impl_->g().given);
    K3_CHECK(fits, "the given text was checked when the grammar was made");
  }
}

bool Constraint::begin(std::string_view given) { return impl_->advance(given); }

Constraint::Constraint(const Constraint& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
Constraint& Constraint::operator=(const Constraint& other) {
  if (this != &other) *impl_ = *other.impl_;
  return *this;
}
Constraint::Constraint(Constraint&&) noexcept = default;
Constraint& Constraint::operator=(Constraint&&) noexcept = default;
Constraint::~Constraint() = default;

bool Constraint::fill_mask(std::span<uint32_t> mask) {
  const Grammar::Impl& g = impl_->g();
  if (!impl_->ended && impl_->free()) return false;
  K3_CHECK(mask.size() >= mask_words(g.vocabulary().size), "a mask of {} words for {} tokens", mask.size(),
           g.vocabulary().size);
  std::fill(mask.begin(), mask.end(), 0);
  const auto set = [&](int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) / 32 < mask.size()) mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
  };
  if (!impl_->ended) {
    for (const Thread& t : impl_->threads) {
      g.masks.add(t, impl_->frames, mask);
      for (uint32_t e = g.program.states[t.state].tokens; e < g.program.states[t.state + 1].tokens; ++e) {
        grammar::Thread after;
        if (grammar::enter(g.program, t, g.program.tokens[e].to, after)) set(g.program.tokens[e].id);
      }
    }
  }
  if (impl_->complete || impl_->ended) std::for_each(impl_->end_ids.begin(), impl_->end_ids.end(), set);
  return true;
}

bool Constraint::accept(int32_t id) {
  if (impl_->is_end(id) && (impl_->ended || impl_->complete || impl_->free())) {
    impl_->ended = true;
    return true;
  }
  if (impl_->ended) return false;
  const grammar::Vocabulary& v = impl_->g().vocabulary();
  if (id < 0 || id >= v.size) return false;
  return id < v.base ? impl_->advance(v.bytes[static_cast<size_t>(id)]) : impl_->advance_special(id);
}

}  // namespace k3
