// Random texts under the masks of schemas, and what the masks cost.
//   k3_grammar_walk VOCABULARY SEEDS SCHEMA.json...
// Prints a JSON line a text ({"schema","seed","complete","text"}) and one a schema ({"schema","compile_ms","masks",
// "p50_us","p99_us","max_us"}), the last over all of them. Every sampled token is one that the mask allows; accept() must
// agree.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/rng.h"
#include "k3/format/grammar/constraint.h"

namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); }

struct Times {
  std::vector<double> us;
  double at(double share) {
    if (us.empty()) return 0;
    std::sort(us.begin(), us.end());
    return us[std::min(us.size() - 1, static_cast<size_t>(share * static_cast<double>(us.size())))];
  }
  std::string line(std::string_view name, double compile_ms) {
    return fmt::format(R"({{"schema":"{}","compile_ms":{:.2f},"masks":{},"p50_us":{:.2f},"p99_us":{:.2f},"max_us":{:.2f}}})",
                       name, compile_ms, us.size(), at(0.5), at(0.99), at(1.0));
  }
};

constexpr int kMostTokens = 1500, kHurry = 60;

struct Letters {
  std::vector<int32_t> closers, single;
};

// Mostly any allowed token; often one that closes something or a single byte, always after kHurry tokens, so that texts end.
int32_t choose(const std::vector<uint32_t>& mask, int32_t end, const k3::Rng& rng, uint64_t step, const Letters& letters) {
  const auto allowed = [&](int32_t id) { return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; };
  const uint32_t mood = rng.bits(2 * step) % 100, pick = rng.bits(2 * step + 1);
  if (allowed(end) && (mood < 60 || step > kHurry)) return end;
  std::vector<int32_t> ids;
  if (mood < 30 || step > kHurry) {
    const auto& few = mood % 3 != 0 ? letters.closers : letters.single;
    std::copy_if(few.begin(), few.end(), std::back_inserter(ids), allowed);
    if (!ids.empty()) return ids[pick % ids.size()];
  }
  for (size_t w = 0; w < mask.size(); ++w) {
    for (uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
      ids.push_back(static_cast<int32_t>(w * 32 + static_cast<size_t>(__builtin_ctz(bits))));
    }
  }
  return ids.empty() ? -1 : ids[pick % ids.size()];
}

}  // namespace

int main(int argc, char** argv) {
  using namespace k3;
  if (argc < 4) {
    std::fputs("k3_grammar_walk VOCABULARY SEEDS SCHEMA.json...\n", stderr);
    return 2;
  }
  const Tokenizer tokenizer = Tokenizer::load(argv[1]).value();
  const auto start = Clock::now();
  const auto trie = TokenTrie::build(tokenizer);
  std::fprintf(stderr, "trie of %d tokens in %.0f ms\n", tokenizer.base_count(), us_since(start) / 1000);
  const int32_t end = tokenizer.special("<|end_of_msg|>").value();
  Letters letters;
  for (const char* text : {"}", "]", "\"", ","}) letters.closers.push_back(tokenizer.encode(text).value().at(0));
  for (char c = ' '; c < 127; ++c) letters.single.push_back(tokenizer.encode(std::string(1, c)).value().at(0));
  std::vector<uint32_t> mask(mask_words(tokenizer.vocab_size()));
  Times all;
  double slowest_ms = 0;
  for (int a = 3; a < argc; ++a) {
    std::string name(argv[a]);
    name = name.substr(name.rfind('/') + 1);
    name = name.substr(0, name.find(".json"));
    const std::string schema = read_file(argv[a]).value();
    const auto begin = Clock::now();
    const auto grammar = Grammar::json_schema(trie, schema);
    const double compile_ms = us_since(begin) / 1000;
    if (!grammar.ok()) {
      std::printf("%s: %s\n", argv[a], grammar.error().message.c_str());
      return 1;
    }
    slowest_ms = std::max(slowest_ms, compile_ms);
    Times times;
    for (int seed = 0; seed < std::atoi(argv[2]); ++seed) {
      Constraint constraint(*grammar, {end});
      const Rng rng(static_cast<uint64_t>(seed), 7);
      std::string text;
      bool complete = false;
      for (uint64_t step = 0; step < kMostTokens && !complete; ++step) {
        const auto before = Clock::now();
        constraint.fill_mask(mask);
        times.us.push_back(us_since(before));
        const int32_t id = choose(mask, end, rng, step, letters);
        if (id < 0 || !constraint.accept(id)) {
          std::printf("%s seed %d: after '%s' token %d is in the mask and not accepted\n", name.c_str(), seed, text.c_str(),
                      id);
          return 1;
        }
        complete = id == end;
        if (!complete) text += tokenizer.bytes(id);
      }
      JsonWriter line;
      line.begin_object().field("schema", name).field("seed", static_cast<int64_t>(seed)).field("complete", complete);
      std::printf("%s\n", line.field("text", text).end_object().text().c_str());
    }
    all.us.insert(all.us.end(), times.us.begin(), times.us.end());
    std::printf("%s\n", times.line(name, compile_ms).c_str());
  }
  std::printf("%s\n", all.line("all", slowest_ms).c_str());
  return 0;
}
