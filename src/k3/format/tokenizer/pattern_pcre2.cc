#include "k3/format/tokenizer/pattern_pcre2.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <string>

namespace k3 {
namespace {

// White_Space, for use inside a class.
#define K3_SPACE "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define K3_NOT_HAN "(?!\\p{Script=Han})"
#define K3_UPPER "(?:" K3_NOT_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define K3_LOWER "(?:" K3_NOT_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define K3_CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

constexpr const char* kPattern =
    "\\p{Script=Han}+"
    "|[^\\r\\n\\p{L}\\p{N}]?" K3_UPPER "*" K3_LOWER "+" K3_CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?" K3_UPPER "+" K3_LOWER
    "*" K3_CONTRACTION
    "|\\p{N}{1,3}"
    "| ?[^" K3_SPACE
    "\\p{L}\\p{N}]+[\\r\\n]*"
    "|[" K3_SPACE
    "]*[\\r\\n]+"
    "|[" K3_SPACE "]+(?![^" K3_SPACE
    "])"
    "|[" K3_SPACE "]+";

#undef K3_SPACE
#undef K3_NOT_HAN
#undef K3_UPPER
#undef K3_LOWER
#undef K3_CONTRACTION

// A run of 25,000 characters (the longest that reaches the pattern) backtracks over each of them.
constexpr size_t kJitStackStart = size_t{64} << 10, kJitStackMax = size_t{64} << 20;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};

std::string describe(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct Compiled {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> code;
  bool jit = false;
  std::string error;
};

const Compiled& compiled() {
  static const Compiled instance = [] {
    Compiled c;
    int error = 0;
    PCRE2_SIZE offset = 0;
    c.code.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, nullptr));
    if (!c.code) {
      c.error = fmt::format("{} at offset {} of the split pattern", describe(error), offset);
    } else {
      c.jit = pcre2_jit_compile(c.code.get(), PCRE2_JIT_COMPLETE) == 0;
    }
    return c;
  }();
  return instance;
}

struct ThreadState {
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};
  ThreadState() {
    if (context && stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

Status split_by_pcre2(std::string_view text, std::vector<size_t>& ends) {
  const Compiled& pattern = compiled();
  if (!pattern.code) return fail(Code::internal, "PCRE2: {}", pattern.error);
  thread_local ThreadState state;
  if (!state.data || !state.context) return fail(Code::exhausted, "PCRE2: no memory for a match");
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t pos = 0;
  while (pos < text.size()) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern.jit) {
      rc = pcre2_jit_match(pattern.code.get(), subject, text.size(), pos, 0, state.data.get(), state.context.get());
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // no JIT, or not enough stack for it: the interpreter uses the heap
      rc = pcre2_match(pattern.code.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data.get(),
                       state.context.get());
    }
    if (rc < 0) return fail(Code::internal, "PCRE2: {} at byte {} of a segment", describe(rc), pos);
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(state.data.get());
    if (ovector[0] != pos || ovector[1] <= pos) {
      return fail(Code::internal, "PCRE2: no piece at byte {} of a segment", pos);
    }
    pos = ovector[1];
    ends.push_back(pos);
  }
  return {};
}

}  // namespace k3
