// Slots: saving, restoring, erasing and forking sequences between two steps.
#include <algorithm>

#include "k3/engine/core.h"
#include "k3/engine/core_state.h"
#include "k3/engine/slot_file.h"

namespace k3 {
namespace {

Status slot_range(int32_t slot, size_t count) {
  if (slot >= 0 && static_cast<size_t>(slot) < count) return {};
  return fail(Code::not_found, "there is no slot {}; this server has 0 to {}", slot, count - 1);
}

}  // namespace

Result<SlotResult> EngineCore::save_slot(int32_t index, const std::string& path) {
  K3_TRY(slot_range(index, slots_.size()));
  const double begin = executor_.now_seconds();
  const Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.line == nullptr && !slot.idle) return fail(Code::not_found, "slot {} holds no sequence", index);
  const cache::SequenceId sequence = slot.line != nullptr ? *slot.line->sequence : *slot.idle;
  Kept kept = slot.line != nullptr ? kept_of(*slot.line) : slot.kept;
  const SlotHeader header{options_.identity, std::move(kept.salt), kept.prompt_tokens, kept.cached_tokens, std::move(kept.tokens)};
  if (header.tokens.empty()) return fail(Code::unavailable, "slot {} has not computed anything yet; try again", index);
  K3_TRY_ASSIGN(const int64_t bytes,
                write_slot_file(path, header, [&](const ByteSink& sink) { return cache_.save(sequence, sink); }));
  return SlotResult{index, static_cast<int64_t>(header.tokens.size()), bytes, executor_.now_seconds() - begin};
}

Result<SlotResult> EngineCore::restore_slot(int32_t index, const std::string& path) {
  K3_TRY(slot_range(index, slots_.size()));
  const double begin = executor_.now_seconds();
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.line != nullptr) return fail(Code::unavailable, "slot {} is running a request", index);
  K3_TRY_ASSIGN(SlotFileReader file, SlotFileReader::open(path, options_.identity));
  const SlotHeader& header = file.header();
  const auto tokens = static_cast<int64_t>(header.tokens.size());
  if (tokens < 1 || tokens > options_.ctx_tokens) {
    return fail(Code::invalid_argument, "{}: {} tokens; the context here is {}", path, tokens, options_.ctx_tokens);
  }
  const auto take = [&] { return cache_.restore(tokens, [&](std::span<std::byte> bytes) { return file.read(bytes); }); };
  Result<cache::SequenceId> sequence = take();  // what the slot held stays until the file has proved whole
  while (!sequence.ok() && sequence.error().code == Code::exhausted && release_idle()) {
    file.rewind();
    sequence = take();
  }
  if (!sequence.ok()) return std::move(sequence).take_error();
  if (Status status = file.finish(); !status.ok()) {
    cache_.release(*sequence);
    return std::move(status).take_error();
  }
  keep_idle(slot, *sequence, {header.tokens, header.salt, header.prompt_tokens, header.cached_tokens});
  return SlotResult{index, tokens, file.file_bytes(), executor_.now_seconds() - begin};
}

Result<SlotResult> EngineCore::erase_slot(int32_t index) {
  K3_TRY(slot_range(index, slots_.size()));
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.line != nullptr) return fail(Code::unavailable, "slot {} is running a request; cancel it instead", index);
  const SlotResult result{index, slot.kept.size(), 0, 0};
  empty(slot);
  return result;
}

Result<SlotResult> EngineCore::fork_slot(int32_t index) {
  K3_TRY(slot_range(index, slots_.size()));
  const double begin = executor_.now_seconds();
  const Slot& from = slots_[static_cast<size_t>(index)];
  if (from.line == nullptr && !from.idle) return fail(Code::not_found, "slot {} holds no sequence", index);
  const int32_t target = free_slot(index);
  if (target < 0) return fail(Code::exhausted, "no slot is free for a copy of slot {}", index);
  Kept kept = from.line != nullptr ? kept_of(*from.line) : from.kept;
  const cache::SequenceId source = from.line != nullptr ? *from.line->sequence : *from.idle;
  Result<cache::SequenceId> copy = cache_.fork(source);
  while (!copy.ok() && copy.error().code == Code::exhausted && release_idle(&from)) copy = cache_.fork(source);
  if (!copy.ok()) return std::move(copy).take_error();
  const int64_t tokens = kept.size();
  keep_idle(slots_[static_cast<size_t>(target)], *copy, std::move(kept));
  return SlotResult{target, tokens, 0, executor_.now_seconds() - begin};
}

int64_t EngineCore::waiting_requests() const {
  int64_t count = 0;
  for (const Line* line : waiting_) count += line->choice == 0 && !line->resumed ? 1 : 0;
  return count;
}

EngineStats EngineCore::stats() const {
  EngineStats s = counters_;
  s.cache = cache_.stats();
  s.running = static_cast<int64_t>(running_.size());
  s.waiting = waiting_requests();
  for (const Line* line : waiting_) s.swapped += line->resumed ? 1 : 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    SlotInfo info;
    info.index = static_cast<int32_t>(i);
    if (slot.line != nullptr) {
      const Line& line = *slot.line;
      info.state = line.state == Line::State::decode ? SlotState::decode : SlotState::prefill;
      info.request = line.job->request.name;
      info.tokens = line.cached;
      info.prompt_tokens = line.prompt_tokens();
      info.cached_tokens = line.job->summary.admitted.cached_tokens;
      info.generated_tokens = line.generated;
    } else if (slot.idle) {
      info.state = SlotState::idle;
      info.tokens = slot.kept.size();
      info.prompt_tokens = slot.kept.prompt_tokens;
      info.cached_tokens = slot.kept.cached_tokens;
    }
    s.slots.push_back(std::move(info));
  }
  return s;
}

}  // namespace k3
