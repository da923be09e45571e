// The first byte selects what the rest is: a tiktoken.model, a tokenizer_config.json, or text to encode and decode.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/utf8.h"
#include "k3/format/tokenizer.h"
#include "k3/format/tokenizer/pattern_pcre2.h"
#include "k3/format/tokenizer/pattern_scan.h"

namespace {

using k3::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

// The 256 single bytes, in base64, and a few longer tokens.
std::string small_model() {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (unsigned b = 0; b < 256; ++b) {
    text += {digits[b >> 2], digits[(b & 3) << 4], '=', '=', ' '};
    text += std::to_string(b) + "\n";
  }
  // aa, aaaa, "<|", "|>", 0xE6 0xBC (two thirds of a Han character), " a", "\n\n"
  for (const char* token : {"YWE=", "YWFhYQ==", "PHw=", "fD4=", "5rw=", "IGE=", "Cgo="}) {
    text += std::string(token) + " " + std::to_string(std::count(text.begin(), text.end(), '\n')) + "\n";
  }
  return text;
}

const Tokenizer& small() {
  static const Tokenizer tokenizer =
      Tokenizer::from_text(small_model(), R"({"added_tokens_decoder": {"263": {"content": "<|open|>"}}})", "fuzz").value();
  return tokenizer;
}

void round_trip(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids, with_specials;
  const bool valid = k3::is_utf8(text);
  require(tokenizer.encode(text, ids).ok() == valid);
  require(tokenizer.encode_with_specials(text, with_specials).ok() == valid);
  if (!valid) return;
  require(tokenizer.decode(ids).value() == text);
  require(tokenizer.decode(with_specials).value() == text);
  k3::StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) streamed += decoder.push(id);
  require(streamed + decoder.finish() == text);
  std::vector<size_t> scan, pcre2;
  k3::split_by_scan(text, scan);
  require(k3::split_by_pcre2(text, pcre2).ok() && scan == pcre2);
}

void stream_bytes(std::string_view text) {
  k3::StreamDecoder decoder(small());
  std::string streamed;
  for (const char c : text) streamed += decoder.push(static_cast<uint8_t>(c));  // rank = byte in the small model
  require(streamed + decoder.finish() == k3::utf8_repair(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const auto tokenizer = Tokenizer::from_text(rest, "", "fuzz");
      if (tokenizer.ok()) round_trip(*tokenizer, "aaa \n<|open|> 漢");
      break;
    }
    case 1: {
      static const std::string model = small_model();
      const auto extended = Tokenizer::from_text(model + std::string(rest), "", "fuzz");
      if (extended.ok()) round_trip(*extended, rest.substr(0, k3::utf8_valid_prefix(rest)));
      break;
    }
    case 2: {
      static const std::string model = small_model();
      const auto tokenizer = Tokenizer::from_text(model, rest, "fuzz");
      if (tokenizer.ok()) round_trip(*tokenizer, rest.substr(0, k3::utf8_valid_prefix(rest)));
      break;
    }
    default: round_trip(small(), rest); stream_bytes(rest);
  }
  return 0;
}
