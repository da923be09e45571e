// Text completions: `text` in place of messages, and the older shape of log probabilities.
#include <algorithm>
#include <memory>

#include "k3/base/utf8.h"
#include "k3/server/api/answer/formats.h"
#include "k3/server/api/answer/openai_json.h"

namespace k3::server {
namespace {

// The prompt's text for echo; ids that are not whole characters are repaired.
std::string prompt_text(const AnswerState& state, size_t choice) {
  const size_t prompt = choice / static_cast<size_t>(state.generation.choices);
  const auto text = state.tokenizer->decode(state.prompts[prompt]);
  return text.ok() ? utf8_repair(*text) : std::string();
}

// Tokens of the prompt as entries; the first has no probability, which the reader writes as null.
std::vector<LogprobEntry> prompt_entries(const AnswerState& state, size_t choice) {
  const size_t prompt = choice / static_cast<size_t>(state.generation.choices);
  std::vector<LogprobEntry> out;
  int64_t offset = 0;
  const auto& known = state.prompt_logprobs[prompt];
  for (size_t i = 0; i < state.prompts[prompt].size(); ++i) {
    LogprobEntry entry;
    const bool has = i > 0 && i - 1 < known.size();
    entry.token = logprob_token(*state.tokenizer, state.prompts[prompt][i], has ? known[i - 1].logprob : 0);
    entry.char_offset = offset;
    offset += utf8_length(token_text(entry.token));
    if (has) {
      for (const TokenLogprob& other : known[i - 1].top) {
        entry.top.push_back(logprob_token(*state.tokenizer, other.id, other.logprob));
      }
    }
    out.push_back(std::move(entry));
  }
  return out;
}

// `unknown` leading entries have no probability.
void write_legacy(JsonWriter& w, const std::vector<LogprobEntry>& entries, size_t unknown, int64_t base) {
  w.begin_object().key("tokens").begin_array();
  for (const LogprobEntry& entry : entries) w.value(token_text(entry.token));
  w.end_array().key("token_logprobs").begin_array();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i < unknown) {
      w.null();
    } else {
      w.value(wire_logprob(entries[i].token.logprob));
    }
  }
  w.end_array().key("top_logprobs").begin_array();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i < unknown) {
      w.null();
      continue;
    }
    w.begin_object();
    std::vector<std::string> seen;  // tokens whose bytes are repaired alike would be one key twice
    for (const LogprobToken& other : entries[i].top) {
      std::string text = token_text(other);
      if (std::find(seen.begin(), seen.end(), text) != seen.end()) continue;
      w.field(text, wire_logprob(other.logprob));
      seen.push_back(std::move(text));
    }
    w.end_object();
  }
  w.end_array().key("text_offset").begin_array();
  for (const LogprobEntry& entry : entries) w.value(base + entry.char_offset);
  w.end_array().end_object();
}

void begin_body(JsonWriter& w, const AnswerState& state) {
  w.begin_object().field("id", "cmpl-" + state.id).field("object", "text_completion");
  w.field("created", state.created).field("model", state.model);
}

std::string chunk(const AnswerState& state, size_t choice, std::string_view text, const std::vector<LogprobEntry>* entries,
                  size_t unknown, const std::string* finish, int64_t base) {
  JsonWriter w;
  begin_body(w, state);
  w.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(choice)).field("text", text);
  w.key("logprobs");
  if (entries != nullptr && state.generation.logprobs >= 0) {
    write_legacy(w, *entries, unknown, base);
  } else {
    w.null();
  }
  w.key("finish_reason");
  if (finish != nullptr) {
    w.value(*finish);
  } else {
    w.null();
  }
  w.end_object().end_array();
  if (state.generation.continuous_usage) {
    w.key("usage");
    write_usage(w, state.total());
  }
  w.end_object();
  return frame(w.text());
}

std::string whole(const AnswerState& state, bool echo) {
  JsonWriter w;
  begin_body(w, state);
  w.key("choices").begin_array();
  for (size_t c = 0; c < state.choices.size(); ++c) {
    const ChoiceStream& choice = state.choices[c];
    const std::string before = echo ? prompt_text(state, c) : "";
    w.begin_object().field("index", static_cast<int64_t>(c)).field("text", before + choice.message().content.value_or(""));
    w.key("logprobs");
    if (state.generation.logprobs >= 0) {
      std::vector<LogprobEntry> entries = echo ? prompt_entries(state, c) : std::vector<LogprobEntry>();
      for (LogprobEntry entry : choice.logprobs()) {
        entry.char_offset += utf8_length(before);
        entries.push_back(std::move(entry));
      }
      write_legacy(w, entries, echo ? 1 : 0, 0);
    } else {
      w.null();
    }
    w.field("finish_reason", choice.finish_reason()).end_object();
  }
  w.end_array().key("usage");
  write_usage(w, state.total());
  return w.end_object().text();
}

}  // namespace

AnswerFormat text_format(bool echo) {
  AnswerFormat format;
  // The log-probabilities of the prompt exist when it has been computed, not at admission: with them the echo of a choice goes
  // out in front of its first frame.
  const auto echoed = std::make_shared<std::vector<bool>>();
  const auto late_echo = [echo, echoed](const AnswerState& state, size_t choice) -> std::string {
    if (!echo || state.generation.logprobs < 0) return {};
    echoed->resize(state.choices.size());
    const size_t prompt = choice / static_cast<size_t>(state.generation.choices);
    const bool known = state.prompt_logprobs[prompt].size() + 1 >= state.prompts[prompt].size();
    if (!known || (*echoed)[choice]) return {};
    (*echoed)[choice] = true;
    const auto entries = prompt_entries(state, choice);
    return chunk(state, choice, prompt_text(state, choice), &entries, 1, nullptr, 0);
  };
  format.begin = [echo](const AnswerState& state) {
    std::string out;
    for (size_t c = 0; echo && state.generation.logprobs < 0 && c < state.choices.size(); ++c) {
      out += chunk(state, c, prompt_text(state, c), nullptr, 0, nullptr, 0);
    }
    return out;
  };
  // Characters of each choice's echo, counted once: this runs for every token, on the engine's thread.
  const auto bases = std::make_shared<std::vector<int64_t>>();
  format.piece = [echo, late_echo, bases](const AnswerState& state, size_t choice, const Piece& piece) {
    int64_t base = 0;
    if (echo && state.generation.logprobs >= 0) {
      bases->resize(state.choices.size(), -1);
      int64_t& known = (*bases)[choice];
      if (known < 0) known = utf8_length(prompt_text(state, choice));
      base = known;
    }
    return late_echo(state, choice) + chunk(state, choice, piece.text, &piece.logprobs, 0, nullptr, base);
  };
  format.end_choice = [late_echo](const AnswerState& state, size_t choice) {
    return late_echo(state, choice) + chunk(state, choice, "", nullptr, 0, &state.choices[choice].finish_reason(), 0);
  };
  format.end = [](const AnswerState& state, bool normal) { return end_frames(state, normal, begin_body); };
  format.whole = [echo](const AnswerState& state) { return whole(state, echo); };
  return format;
}

}  // namespace k3::server
