#include "k3/base/hash/hash64.h"

#include <xxhash.h>

#include <new>

namespace k3 {

struct Hash64::State {
  XXH3_state_t* state = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(state); }
};

Hash64::Hash64(uint64_t seed) : state_(std::make_unique<State>()) {
  if (state_->state == nullptr) throw std::bad_alloc();  // as any other allocation of a few hundred bytes
  XXH3_64bits_reset_withSeed(state_->state, seed);
}
Hash64::Hash64(Hash64&&) noexcept = default;
Hash64& Hash64::operator=(Hash64&&) noexcept = default;
Hash64::~Hash64() = default;

void Hash64::update(std::span<const std::byte> bytes) { XXH3_64bits_update(state_->state, bytes.data(), bytes.size()); }
uint64_t Hash64::digest() const { return XXH3_64bits_digest(state_->state); }

}  // namespace k3
