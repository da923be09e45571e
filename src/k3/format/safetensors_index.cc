#include "k3/format/safetensors_index.h"

#include <map>
#include <utility>

#include "k3/format/safetensors_header.h"
#include "k3/format/safetensors_scan.h"

namespace k3::safetensors {
namespace {

class IndexParser {
 public:
  IndexParser(Text json, const std::string& file) : file_(file), scan_(json.data(), json.size()) {
    hint_ = container_hint(json.view().substr(0, 64));
    index_.names = NameTable(std::move(json));  // the bytes stay where they are
  }

  Result<Index> run() {
    if (!hint_.empty()) return fail(Code::unsupported, "{}: not a safetensors index: {}", file_, hint_);
    std::string_view key;
    bool metadata = false, weight_map = false;
    scan_.begin_object();
    while (scan_.next_member(&key)) {
      if (key == "weight_map") {
        if (std::exchange(weight_map, true)) return fail(Code::corrupt, "{}: weight_map appears twice", file_);
        K3_TRY(read_weight_map());
      } else if (key == "metadata") {
        if (std::exchange(metadata, true)) return fail(Code::corrupt, "{}: metadata appears twice", file_);
        K3_TRY(read_metadata());
      } else {
        scan_.skip_value();
      }
    }
    if (!scan_.failed()) scan_.finish();
    if (scan_.failed()) return fail(Code::corrupt, "{}: {}", file_, scan_.message());
    if (!weight_map) return fail(Code::corrupt, "{}: has no weight_map: not a safetensors index", file_);
    index_.names.shrink();
    return std::move(index_);
  }

 private:
  // Anything may stand here; only a total_size in plain digits is kept.
  Status read_metadata() {
    if (scan_.peek() != '{') {
      scan_.skip_value();
      return {};
    }
    std::string_view key;
    scan_.begin_object();
    while (scan_.next_member(&key)) {
      if (key != "total_size") {
        scan_.skip_value();
        continue;
      }
      int64_t total = 0;
      if (!scan_.read_count(&total)) return fail(Code::corrupt, "{}: metadata.total_size: {}", file_, scan_.message());
      index_.total_size = total;
    }
    return {};
  }

  Status read_weight_map() {
    std::string_view name, shard;
    scan_.begin_object();
    while (scan_.next_member(&name)) {
      if (name.empty()) return fail(Code::corrupt, "{}: weight_map has an empty tensor name", file_);
      if (name.size() > NameTable::kMaxNameBytes) {
        return fail(Code::corrupt, "{}: tensor '{}': the name is longer than {} bytes", file_, shown(name),
                    NameTable::kMaxNameBytes);
      }
      if (!scan_.read_string(&shard)) {
        return fail(Code::corrupt, "{}: tensor '{}': the shard file name: {}", file_, shown(name), scan_.message());
      }
      K3_TRY_ASSIGN(const uint16_t id, shard_id(name, shard));
      if (!index_.names.add(name, id)) return fail(Code::corrupt, "{}: tensor '{}' appears twice", file_, shown(name));
    }
    return {};
  }

  Result<uint16_t> shard_id(std::string_view name, std::string_view shard) {
    if (!index_.shard_files.empty() && index_.shard_files[last_] == shard) return last_;
    if (const auto known = ids_.find(shard); known != ids_.end()) return last_ = known->second;
    K3_TRY(check_shard_name(name, shard));
    if (index_.shard_files.size() == NameTable::kMaxShards) {
      return fail(Code::corrupt, "{}: more than {} shard files", file_, NameTable::kMaxShards);
    }
    last_ = static_cast<uint16_t>(index_.shard_files.size());
    index_.shard_files.emplace_back(shard);
    ids_.emplace(std::string(shard), last_);
    return last_;
  }

  // A shard lies beside its index: a name that leads elsewhere is never followed.
  Status check_shard_name(std::string_view name, std::string_view shard) const {
    bool plain = !shard.empty() && shard != "." && shard != ".." && shard.size() <= 255;
    for (const char c : shard) plain = plain && c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
    if (plain) return {};
    return fail(Code::corrupt, "{}: tensor '{}': shard file name '{}' is not a plain file name (no folders, no \"..\")",
                file_, shown(name), shown(shard));
  }

  const std::string& file_;
  JsonScanner scan_;
  std::string hint_;
  Index index_;
  std::map<std::string, uint16_t, std::less<>> ids_;
  uint16_t last_ = 0;
};

}  // namespace

Result<Index> parse_index(Text json, const std::string& file) {
  if (json.size() > NameTable::kMaxTextBytes) {
    return fail(Code::unsupported, "{}: an index of {} bytes is more than the limit of {}", file, json.size(),
                NameTable::kMaxTextBytes);
  }
  return IndexParser(std::move(json), file).run();
}

}  // namespace k3::safetensors
