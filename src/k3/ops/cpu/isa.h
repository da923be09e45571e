// Purpose:  instruction sets of the CPU kernels, detected once and chosen at run time (Ctx::isa, --cpu-isa).
// Shapes:   none.
// Units:    none.
// Memory:   none.
// Threads:  pure functions.
// Errors:   isa_from_name: nullopt for an unknown name.
// Source:   CPUID and XGETBV. avx512bf16 has the BF16 and the 8-bit dot product (Zen 4, Cooper Lake), amx the BF16 tiles as
// well (Sapphire
//           Rapids); a level implies all lower ones.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace k3::ops {

enum class Isa { scalar, avx2, avx512, avx512bf16, amx };

Isa detect_isa();  // the best level of this processor that the operating system allows
std::string_view isa_name(Isa isa);
std::optional<Isa> isa_from_name(std::string_view name);
std::string isa_names();  // all, in order, for messages

}  // namespace k3::ops
