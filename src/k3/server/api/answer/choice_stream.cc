#include "k3/server/api/answer/choice_stream.h"

#include <algorithm>
#include <utility>

#include "k3/base/utf8.h"

namespace k3::server {
namespace {

StopCause cause_of(EndReason reason) {
  switch (reason) {
    case EndReason::stop_token:
    case EndReason::stopped: return StopCause::stop;
    case EndReason::length:
    case EndReason::context: return StopCause::length;
    default: return StopCause::cancelled;
  }
}

}  // namespace

LogprobToken logprob_token(const Tokenizer& tokenizer, int32_t id, float logprob) {
  return {std::string(tokenizer.bytes(id)), tokenizer.is_special(id), logprob};
}

std::string_view abnormal_finish(EndReason reason) {
  switch (reason) {
    case EndReason::stop_token:
    case EndReason::stopped:
    case EndReason::length:
    case EndReason::context: return "";
    case EndReason::deadline: return "engine_overloaded";
    case EndReason::failed: return "unexpected_state";
    case EndReason::cancelled:
    case EndReason::interrupted: return "server_interrupted";
  }
  return "unknown";
}

ChoiceStream::ChoiceStream(const Tokenizer& tokenizer, std::optional<OutputParser> parser, bool thinking,
                           ChoiceOptions options)
    : tokenizer_(&tokenizer),
      parser_(std::move(parser)),
      decoder_(tokenizer),
      matcher_(options.stops),
      options_(std::move(options)),
      thinking_(thinking) {}

bool ChoiceStream::push(const GeneratedToken& token, std::vector<Piece>& out) {
  if (finished_) return false;
  ++completion_tokens_;
  pending_ids_.push_back(token.id);
  last_id_ = token.id;
  if (options_.logprobs) note_logprob(token);
  std::vector<ChatEvent> events;
  if (parser_) {
    parser_->push(token.id, events);
  } else {
    ChatEvent event;
    event.text = decoder_.push(token.id);
    if (!options_.skip_specials && tokenizer_->is_special(token.id) && token.id < tokenizer_->vocab_size()) {
      event.text = decoder_.finish() + std::string(tokenizer_->bytes(token.id));
    }
    if (!event.text.empty()) events.push_back(std::move(event));
  }
  take(std::move(events), out);
  if (matcher_.matched() || (options_.one_call && call_ended_)) return false;
  return options_.ignore_eos || !parser_ || !parser_->ended();
}

void ChoiceStream::finish(EndReason reason, std::vector<Piece>& out) {
  if (finished_) return;
  std::vector<ChatEvent> events;
  ChatEvent end;
  end.kind = ChatEvent::Kind::finished;
  if (parser_) {
    parser_->finish(cause_of(reason), events);
  } else {
    ChatEvent tail;
    tail.text = decoder_.finish();
    if (!tail.text.empty()) events.push_back(std::move(tail));
    end.reason = cause_of(reason) == StopCause::length ? FinishReason::length : FinishReason::stop;
    events.push_back(std::move(end));
  }
  if (open_entry_) complete_logprob();
  take(std::move(events), out);
  // Past the end of the message, which does not count then, the limit is what ended it.
  if (options_.ignore_eos && cause_of(reason) == StopCause::length) finish_reason_ = "length";
  if (const std::string_view abnormal = abnormal_finish(reason); !abnormal.empty()) finish_reason_ = abnormal;
}

// Only tokens of the response channel have entries; a control token ends it and shows nothing.
void ChoiceStream::note_logprob(const GeneratedToken& token) {
  const bool special = token.id >= 0 && tokenizer_->is_special(token.id);
  const bool shown = parser_ ? parser_->in_content() && !special : !special || !options_.skip_specials;
  if (!shown) {
    if (open_entry_) complete_logprob();
    return;
  }
  if (!open_entry_) {
    open_entry_.emplace();
    open_entry_->text_offset = content_bytes_;
    open_entry_->char_offset = content_chars_;
    open_entry_->token = logprob_token(*tokenizer_, token.id, token.logprob);
    if (token.top != nullptr) {
      for (const TokenLogprob& other : *token.top) {
        open_entry_->top.push_back(logprob_token(*tokenizer_, other.id, other.logprob));
      }
    }
  } else {
    open_entry_->token.bytes += tokenizer_->bytes(token.id);
    open_entry_->token.logprob += token.logprob;
  }
  if (special || utf8_incomplete_suffix(open_entry_->token.bytes) == 0) complete_logprob();
}

void ChoiceStream::complete_logprob() {
  entries_.push_back(*std::move(open_entry_));
  open_entry_.reset();
}

void ChoiceStream::take(std::vector<ChatEvent> events, std::vector<Piece>& out) {
  for (ChatEvent& event : events) {
    if (event.kind != ChatEvent::Kind::content) {
      // Another channel begins, or the end: what was held back is no stop string any more.
      std::string held = matcher_.finish();
      if (!held.empty()) content(std::move(held), out);
    }
    if (options_.one_call && call_ended_ && event.kind != ChatEvent::Kind::finished) continue;
    switch (event.kind) {
      case ChatEvent::Kind::reasoning: emit({.kind = Piece::Kind::reasoning, .text = std::move(event.text)}, out); break;
      case ChatEvent::Kind::content:
        content_bytes_ += static_cast<int64_t>(event.text.size());
        content_chars_ += utf8_length(event.text);
        content(matcher_.push(event.text), out);
        break;
      case ChatEvent::Kind::call_start:
        emit_boundary(out);
        emit({.kind = Piece::Kind::call_start,
              .call_index = event.call_index,
              .call_id = std::move(event.call_id),
              .call_name = std::move(event.call_name)},
             out);
        break;
      case ChatEvent::Kind::call_arguments:
        emit({.kind = Piece::Kind::call_arguments, .text = std::move(event.text), .call_index = event.call_index}, out);
        break;
      case ChatEvent::Kind::call_end: call_ended_ = true; break;
      case ChatEvent::Kind::finished:
        if (!event.cut_in_reasoning) emit_boundary(out);
        finished_ = true;
        finish_reason_ = finish_reason_name(event.reason);
        if (options_.keep) assembler_.add(event);
    }
  }
}

void ChoiceStream::content(std::string text, std::vector<Piece>& out) {
  if (text.empty()) return;
  emit_boundary(out);
  shown_bytes_ += static_cast<int64_t>(text.size());
  Piece piece{.kind = Piece::Kind::content, .text = std::move(text)};
  while (!entries_.empty() && entries_.front().text_offset < shown_bytes_) {
    piece.logprobs.push_back(std::move(entries_.front()));
    entries_.pop_front();
  }
  emit(std::move(piece), out);
}

void ChoiceStream::emit_boundary(std::vector<Piece>& out) {
  if (!thinking_ || boundary_done_) return;
  boundary_done_ = true;
  emit({.kind = Piece::Kind::boundary}, out);
}

void ChoiceStream::emit(Piece piece, std::vector<Piece>& out) {
  if (options_.keep) {
    ChatEvent event;
    event.text = piece.text;
    event.call_index = piece.call_index;
    event.call_id = piece.call_id;
    event.call_name = piece.call_name;
    event.kind = piece.kind == Piece::Kind::reasoning || piece.kind == Piece::Kind::boundary ? ChatEvent::Kind::reasoning
                 : piece.kind == Piece::Kind::content                                        ? ChatEvent::Kind::content
                 : piece.kind == Piece::Kind::call_start                                     ? ChatEvent::Kind::call_start
                                                         : ChatEvent::Kind::call_arguments;
    assembler_.add(event);
    kept_logprobs_.insert(kept_logprobs_.end(), piece.logprobs.begin(), piece.logprobs.end());
  }
  // A token that makes several frames stands in each of them.
  piece.token_ids = std::exchange(pending_ids_, {});
  if (piece.token_ids.empty() && last_id_ >= 0) piece.token_ids.push_back(last_id_);
  // Neighbours of one kind that come from one token are one frame.
  const bool joins = !out.empty() && out.back().kind == piece.kind && out.back().call_index == piece.call_index &&
                     piece.kind != Piece::Kind::call_start && piece.kind != Piece::Kind::boundary;
  if (!joins) {
    out.push_back(std::move(piece));
    return;
  }
  Piece& last = out.back();
  last.text += piece.text;
  if (last.token_ids.back() != piece.token_ids.front() || piece.token_ids.size() > 1) {
    last.token_ids.insert(last.token_ids.end(), piece.token_ids.begin(), piece.token_ids.end());
  }
  last.logprobs.insert(last.logprobs.end(), std::make_move_iterator(piece.logprobs.begin()),
                       std::make_move_iterator(piece.logprobs.end()));
}

}  // namespace k3::server
