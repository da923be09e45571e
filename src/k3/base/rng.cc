#include "k3/base/rng.h"

#include <cmath>
#include <numbers>
#include <random>

namespace k3 {

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}
namespace {

constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

double to_unit(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += kWeyl0;
    k[1] += kWeyl1;
  }
  return c;
}

std::array<uint32_t, 4> Rng::block(uint64_t counter) const {
  return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(stream_),
                     static_cast<uint32_t>(stream_ >> 32)},
                    {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
}

uint32_t Rng::bits(uint64_t counter) const { return block(counter)[0]; }

double Rng::uniform(uint64_t counter) const {
  const auto b = block(counter);
  return to_unit(b[0], b[1]);
}

std::array<double, 2> Rng::normal_pair(uint64_t block_counter) const {
  const auto b = block(block_counter);
  const double radius = std::sqrt(-2.0 * std::log1p(-to_unit(b[0], b[1])));
  const double angle = 2.0 * std::numbers::pi * to_unit(b[2], b[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double Rng::normal(uint64_t counter) const { return normal_pair(counter / 2)[counter % 2]; }

void Rng::fill_normal(uint64_t first, double scale, std::span<float> out) const {
  size_t i = 0;
  if (first % 2 == 1 && !out.empty()) out[i++] = static_cast<float>(normal(first) * scale);
  for (; i + 1 < out.size(); i += 2) {
    const auto pair = normal_pair((first + i) / 2);
    out[i] = static_cast<float>(pair[0] * scale);
    out[i + 1] = static_cast<float>(pair[1] * scale);
  }
  if (i < out.size()) out[i] = static_cast<float>(normal(first + i) * scale);
}

}  // namespace k3
