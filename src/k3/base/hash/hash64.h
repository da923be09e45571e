// A streaming 64-bit check value (XXH3): finds damage, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace k3 {

class Hash64 {
 public:
  explicit Hash64(uint64_t seed = 0);
  Hash64(Hash64&&) noexcept;
  Hash64& operator=(Hash64&&) noexcept;
  ~Hash64();
  void update(std::span<const std::byte> bytes);
  uint64_t digest() const;  // of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace k3
