// Internal to tests/emulator. Random experts as moe_stream_pack.h has them in memory, and what they make of a token in
// double.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "k3/ops/moe/cuda/moe_stream_types.h"
#include "tests/emulator/numbers.h"

namespace k3::emulator {

using ops::cuda::MoeExpertsCuda;
using ops::cuda::MoeGlu;
using ops::cuda::MoeWeights;

class Experts {
 public:
  Experts(MoeWeights kind, int experts, int width, int hidden)
      : kind_(kind), experts_(experts), width_(width), hidden_(hidden) {
    bytes_[0] = ops::cuda::moe_packed_bytes(kind, int64_t{2} * hidden, width);
    bytes_[1] = ops::cuda::moe_packed_bytes(kind, width, hidden);
    both_.resize(static_cast<size_t>((bytes_[0] + bytes_[1]) * experts) + 128);
    for (int e = 0; e < experts; ++e) {
      for (int m = 0; m < 3; ++m) matrices_.push_back(random_matrix(e, m));
      for (int m = 0; m < 4; ++m) factors_.push_back(factor(e, m));
    }
    for (int m = 0; m < 2; ++m) {
      packed_[static_cast<size_t>(m)].resize(static_cast<size_t>(bytes_[static_cast<size_t>(m)] * experts) + 128);
      for (int e = 0; e < experts; ++e) pack(e, m);
    }
  }

  MoeExpertsCuda view() {
    return {kind_,
            experts_,
            width_,
            hidden_,
            aligned(packed_[0]),
            aligned(packed_[1]),
            kind_ == MoeWeights::mxfp4 ? factors_.data() : nullptr};
  }
  // Each expert in one piece: every third in host memory, the others in slots from the last on.
  MoeExpertsCuda scattered() {
    MoeExpertsCuda out = view();
    const int64_t each = bytes_[0] + bytes_[1];
    slots_.clear();
    for (int e = 0; e < experts_; ++e) {
      slots_.push_back(e % 3 == 2 ? -1 : experts_ - 1 - e);
      uint8_t* const to = aligned(slots_.back() < 0 ? host_ : both_, static_cast<size_t>(each * experts_)) +
                          (slots_.back() < 0 ? e : slots_.back()) * each;
      std::memcpy(to, aligned(packed_[0]) + e * bytes_[0], static_cast<size_t>(bytes_[0]));
      std::memcpy(to + bytes_[0], aligned(packed_[1]) + e * bytes_[1], static_cast<size_t>(bytes_[1]));
    }
    out.places = {slots_.data(), aligned(both_), aligned(host_), each};
    out.w13 = out.w2 = nullptr;
    return out;
  }

  // w2 glu(w1 z, w3 z) of an expert.
  std::vector<double> result(int expert, const uint16_t* z, const MoeGlu& glu) const {
    const std::vector<double>* const m = &matrices_[static_cast<size_t>(expert) * 3];
    std::vector<double> x(static_cast<size_t>(width_)), h(static_cast<size_t>(hidden_));
    for (size_t i = 0; i < x.size(); ++i) x[i] = from_bf16(z[i]);
    for (size_t r = 0; r < h.size(); ++r) {
      h[r] = gated(glu, dot(&m[0][r * x.size()], x), dot(&m[2][r * x.size()], x));
      h[r] = from_bf16(to_bf16(static_cast<float>(h[r])));
    }
    std::vector<double> out(x.size());
    for (size_t r = 0; r < out.size(); ++r) out[r] = dot(&m[1][r * h.size()], h);
    return out;
  }

 private:
  static uint8_t* aligned(std::vector<uint8_t>& bytes, size_t least = 0) {
    if (bytes.size() < least + 128) bytes.resize(least + 128);
    return bytes.data() + (128 - reinterpret_cast<uintptr_t>(bytes.data()) % 128) % 128;
  }
  static double dot(const double* a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < b.size(); ++i) sum += a[i] * b[i];
    return sum;
  }
  static double gated(const MoeGlu& glu, double g, double u) {
    const auto beta = static_cast<double>(glu.beta), linear = static_cast<double>(glu.linear_beta);
    const double sigmoid = 1 / (1 + std::exp(-g));
    if (!glu.situ) return g * sigmoid * u;
    return beta * std::tanh(g / beta) * sigmoid * (linear == 0 ? u : linear * std::tanh(u / linear));
  }

  int rows_of(int matrix) const { return matrix == 1 ? width_ : hidden_; }
  int columns_of(int matrix) const { return matrix == 1 ? hidden_ : width_; }
  float factor(int expert, int matrix) const {
    return kind_ == MoeWeights::mxfp4 && matrix < 3 ? static_cast<float>(1 << (expert + matrix) % 2) : 1;
  }
  static uint64_t bits(int expert, int matrix, int64_t at, int stream) {  // a hash, because there are so many
    uint64_t x = static_cast<uint64_t>(at) * 64 + static_cast<uint64_t>(expert * 3 + matrix) * 0x9E3779B97F4A7C15U +
                 static_cast<uint64_t>(stream);
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
    x = (x ^ x >> 27) * 0x94D049BB133111EBU;
    return x ^ x >> 31;
  }
  unsigned code(int expert, int matrix, int row, int column) const {
    return static_cast<unsigned>(bits(expert, matrix, int64_t{row} * columns_of(matrix) + column, 1) % 16);
  }
  int scale(int expert, int matrix, int row, int group) const {
    return 118 + static_cast<int>(bits(expert, matrix, int64_t{row} * 1024 + group, 2) % 4);
  }
  uint16_t bf16(int expert, int matrix, int row, int column) const {
    return to_bf16(
        0.05F *
        static_cast<float>(static_cast<int>(bits(expert, matrix, int64_t{row} * columns_of(matrix) + column, 3) % 65) - 32) /
        16);
  }
  std::vector<double> random_matrix(int expert, int matrix) const {
    constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    std::vector<double> out;
    for (int r = 0; r < rows_of(matrix); ++r) {
      for (int c = 0; c < columns_of(matrix); ++c) {
        const unsigned x = code(expert, matrix, r, c);
        out.push_back(kind_ == MoeWeights::bf16
                          ? from_bf16(bf16(expert, matrix, r, c))
                          : std::ldexp(x < 8 ? kValues[x] : -kValues[x - 8], scale(expert, matrix, r, c / 32) - 127) *
                                static_cast<double>(factor(expert, matrix)));
      }
    }
    return out;
  }

  // Units of 16 rows, chunks of columns, lanes as moe_stream_pack.h says. packed: 0: w1 and w3, 1: w2.
  void pack(int expert, int packed) {
    const auto columns = static_cast<int>(ops::cuda::moe_chunk_columns(kind_)),
               bytes = static_cast<int>(ops::cuda::moe_chunk_bytes(kind_));
    const int rows = packed == 0 ? hidden_ : width_, cols = packed == 0 ? width_ : hidden_, of_unit = packed == 0 ? 8 : 16;
    const int chunks = (cols + columns - 1) / columns;
    uint8_t* to = aligned(packed_[static_cast<size_t>(packed)]) + expert * bytes_[static_cast<size_t>(packed)];
    for (int unit = 0; unit < (rows + of_unit - 1) / of_unit; ++unit) {
      for (int chunk = 0; chunk < chunks; ++chunk, to += bytes) {
        for (int q = 0; q < columns / 32; ++q) {
          for (int half = 0; half < 2; ++half) {
            for (int lane = 0; lane < 32; ++lane) {
              const int g = lane / 4, column = chunk * columns + q * 32 + lane % 4 * 8;
              const int matrix = packed == 1 ? 1 : 2 * half, row = packed == 1 ? 16 * unit + 8 * half + g : 8 * unit + g;
              const bool inside = row < rows && column < cols;
              if (kind_ == MoeWeights::bf16) {
                uint16_t x[8] = {};
                for (int i = 0; inside && i < 8; ++i) x[i] = bf16(expert, matrix, row, column + i);
                std::memcpy(to + q * 1024 + half * 512 + lane * 16, x, 16);
                continue;
              }
              uint32_t word = 0;
              for (int i = 0; inside && i < 8; ++i) {
                for (int bit = 0; bit < 4; ++bit)
                  word |= (code(expert, matrix, row, column + i) >> bit & 1) << ops::cuda::mxfp4_word_bit(i, bit);
              }
              std::memcpy(to + 128 + q / 2 * 512 + lane * 16 + q % 2 * 8 + half * 4, &word, 4);
              to[g * 16 + q * 2 + half] = static_cast<uint8_t>(126 + (inside ? scale(expert, matrix, row, column / 32) : 0));
            }
          }
        }
      }
    }
  }

  MoeWeights kind_;
  int experts_, width_, hidden_;
  std::array<int64_t, 2> bytes_ = {};
  std::vector<std::vector<double>> matrices_;  // w1, w2, w3 of each
  std::vector<float> factors_;
  std::array<std::vector<uint8_t>, 2> packed_;
  std::vector<uint8_t> both_, host_;
  std::vector<int32_t> slots_;
};

}  // namespace k3::emulator
