#include "k3/format/tokenizer/rank_table.h"

#include <algorithm>
#include <bit>

namespace k3 {
namespace {

constexpr std::array<int8_t, 256> make_base64_values() {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < alphabet.size(); ++i) values[static_cast<uint8_t>(alphabet[i])] = static_cast<int8_t>(i);
  return values;
}
constexpr std::array<int8_t, 256> kBase64 = make_base64_values();

// Appends the decoded bytes; false unless the text is canonical (whole groups, padding, no stray low bits).
bool append_base64(std::string_view text, std::string& out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t pad = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  for (size_t i = 0; i < text.size(); i += 4) {
    const size_t digits = i + 4 == text.size() ? 4 - pad : 4;
    uint32_t group = 0;
    for (size_t k = 0; k < digits; ++k) {
      const int8_t value = kBase64[static_cast<uint8_t>(text[i + k])];
      if (value < 0) return false;
      group |= static_cast<uint32_t>(value) << (18 - 6 * k);
    }
    for (size_t k = 0; k + 1 < digits; ++k) out.push_back(static_cast<char>(group >> (16 - 8 * k) & 0xFF));
    if (digits < 4 && (group << (8 + 8 * (digits - 1))) != 0) return false;
  }
  return true;
}

// Canonical decimal below kMaxVocab, or -1.
int32_t parse_rank(std::string_view text) {
  if (text.empty() || text.size() > 7 || (text.size() > 1 && text[0] == '0')) return -1;
  int32_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  return value < kMaxVocab ? value : -1;
}

std::string_view next_line(std::string_view text, size_t* pos) {
  const size_t end = std::min(text.find('\n', *pos), text.size());
  std::string_view line = text.substr(*pos, end - *pos);
  if (line.ends_with('\r')) line.remove_suffix(1);
  *pos = end + 1;
  return line;
}

std::string show(std::string_view token) {
  std::string hex;
  for (const char c : token.substr(0, 16)) hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return hex + (token.size() > 16 ? ".." : "");
}

}  // namespace

Result<RankTable> RankTable::parse(std::string_view text, std::string_view source) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  const size_t count = text.empty() ? 0 : static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  if (count < 256) {
    return fail(Code::corrupt, "{}: {} ranks; the 256 single bytes alone need as many", source, count);
  }
  if (count > kMaxVocab) return fail(Code::exhausted, "{}: {} ranks; at most {} ids", source, count, kMaxVocab);

  RankTable table;
  table.arena_.reserve(text.size());
  table.spans_.resize(count);
  std::vector<uint32_t> lines(count, 0);  // line number of each rank, 0 while unseen
  size_t pos = 0;
  for (uint32_t number = 1; number <= count; ++number) {
    const std::string_view line = next_line(text, &pos);
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) {
      return fail(Code::corrupt, "{}: line {}: expected '<base64> <rank>'", source, number);
    }
    const size_t offset = table.arena_.size();
    if (!append_base64(line.substr(0, space), table.arena_)) {
      return fail(Code::corrupt, "{}: line {}: the token is not canonical base64", source, number);
    }
    const int32_t rank = parse_rank(line.substr(space + 1));
    if (rank < 0) return fail(Code::corrupt, "{}: line {}: the rank is not a plain decimal number", source, number);
    if (static_cast<size_t>(rank) >= count) {
      return fail(Code::corrupt, "{}: line {}: rank {} in a file of {} ranks leaves a gap", source, number, rank, count);
    }
    const auto index = static_cast<size_t>(rank);
    if (lines[index] != 0) {
      return fail(Code::corrupt, "{}: line {}: rank {} repeats line {}", source, number, rank, lines[index]);
    }
    lines[index] = number;
    table.spans_[index] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(table.arena_.size() - offset)};
  }
  K3_TRY(table.insert_all(lines, source));
  return table;
}

Status RankTable::insert_all(const std::vector<uint32_t>& lines, std::string_view source) {
  slots_.resize(std::bit_ceil(spans_.size() * 2));
  mask_ = slots_.size() - 1;
  filter_.resize(std::bit_ceil(spans_.size() * 8) / 64);  // 256 KiB for the released vocabulary, 1 bit in 13 set
  filter_mask_ = filter_.size() - 1;
  two_byte_ranks_.assign(size_t{1} << 16, kNoRank);
  for (const Span& span : spans_) max_token_bytes_ = std::max<size_t>(max_token_bytes_, span.length);
  for (uint32_t rank = 0; rank < spans_.size(); ++rank) {
    const std::string_view token = bytes(rank);
    const Key key = make_key(token.data(), token.size());
    size_t i = key.slot() & mask_;
    for (; slots_[i].rank != kNoRank; i = (i + 1) & mask_) {
      if (slots_[i].word == key.word && bytes(slots_[i].rank) == token) {
        return fail(Code::corrupt, "{}: line {}: token {} repeats line {}", source, lines[rank], show(token),
                    lines[slots_[i].rank]);
      }
    }
    slots_[i] = {key.word, rank, static_cast<uint32_t>(token.size())};
    filter_[key.filter_word(filter_mask_)] |= uint64_t{1} << (key.hash & 63);
    if (token.size() == 2) {
      two_byte_ranks_[size_t{static_cast<uint8_t>(token[0])} << 8 | static_cast<uint8_t>(token[1])] = rank;
    }
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ranks_[byte] = find(&c, 1);
    if (byte_ranks_[byte] == kNoRank) {
      return fail(Code::corrupt, "{}: no rank for the single byte {:02x}; some text could not be encoded", source, byte);
    }
  }
  return {};
}

}  // namespace k3
