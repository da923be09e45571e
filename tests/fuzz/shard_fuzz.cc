// Shards of token ids and their manifest: first byte even: a shard, odd: a manifest. What is accepted has to be readable whole.
#include <cstdlib>
#include <cstring>

#include "k3/train/data/data_manifest.h"
#include "k3/train/data/shard_format.h"

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

// A reader of fuzzed bytes would never see behind the hashes; so they are set right, and the rest is as it came.
void repair_hashes(std::span<std::byte> bytes) {
  if (bytes.size() < k3::train::kShardHeaderBytes) return;
  const uint64_t payload = k3::train::hash_bytes(bytes.subspan(k3::train::kShardHeaderBytes));
  std::memcpy(bytes.data() + 48, &payload, sizeof payload);
  const uint64_t header = k3::train::hash_bytes(bytes.first(56));
  std::memcpy(bytes.data() + 56, &header, sizeof header);
}

void shard(std::span<const std::byte> input) {
  std::vector<uint64_t> aligned(input.size() / 8 + 1);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(aligned)).first(input.size());
  std::memcpy(bytes.data(), input.data(), input.size());
  (void)k3::train::parse_shard(bytes, "fuzz");
  repair_hashes(bytes);
  const auto view = k3::train::parse_shard(bytes, "fuzz");
  if (!view.ok()) return;
  const k3::train::ShardHeader& header = view->header;
  k3::train::ShardContent content;
  for (int64_t i = 0; i < header.tokens; ++i) {
    check(view->id(i) >= 0 && view->id(i) < header.vocab);
    content.ids.push_back(view->id(i));
    if (header.has_mask) content.learned.push_back(view->learned(i) ? 1 : 0);
  }
  content.ends.assign(view->ends, view->ends + header.documents);
  content.text_bytes.assign(view->text_bytes, view->text_bytes + header.documents);
  check(content.ends.empty() ? header.tokens == 0 : static_cast<int64_t>(content.ends.back()) == header.tokens);
  (void)k3::train::encode_shard(content, header.vocab);
}

void manifest(std::string_view text) {
  const auto parsed = k3::train::parse_manifest(text, "fuzz");
  if (!parsed.ok()) return;
  const std::string json = k3::train::manifest_json(*parsed);
  const auto again = k3::train::parse_manifest(json, "fuzz");
  check(again.ok() && k3::train::manifest_json(*again) == json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) shard(std::as_bytes(std::span(data + 1, size - 1)));
  else manifest(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
