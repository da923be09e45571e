#include "k3/ops/cpu/isa.h"

#include <array>

#if defined(__x86_64__)
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace k3::ops {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};

#if defined(__x86_64__)
// Linux grants the tile registers only on request (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18).
bool request_amx() {
  constexpr int kReqXcompPerm = 0x1023;
  constexpr int kXtileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kXtileData) == 0;
}

bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool tile = (d >> 24 & 1) != 0, bf16 = (d >> 22 & 1) != 0;
  return tile && bf16 && request_amx();
}

// __builtin_cpu_supports of clang 14 does not know the name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

Isa detect() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c() &&
                    __builtin_cpu_supports("bmi2") != 0;
  if (!avx2) return Isa::scalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("avx512vbmi") != 0;
  if (!avx512) return Isa::avx2;
  if (!has_avx512_bf16() || __builtin_cpu_supports("avx512vnni") == 0) return Isa::avx512;
  return has_amx_bf16() ? Isa::amx : Isa::avx512bf16;
}
#else
Isa detect() { return Isa::scalar; }
#endif

}  // namespace

Isa detect_isa() {
  static const Isa kIsa = detect();
  return kIsa;
}

std::string_view isa_name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

std::optional<Isa> isa_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

std::string isa_names() {
  std::string names;
  for (const std::string_view name : kNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace k3::ops
