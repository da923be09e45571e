#include "k3/model/stream/expert_stats.h"

#include <charconv>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/format/json/json_tree.h"

namespace k3 {
namespace {

constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr uint64_t kMostCount = uint64_t{1} << 53;  // what JSON readers keep exactly

Result<uint64_t> count_of(const JsonNode* node, const std::string& path, const std::string& what) {
  uint64_t value = 0;
  if (node != nullptr && node->is_number()) {
    const char* end = node->raw.data() + node->raw.size();
    const auto [at, error] = std::from_chars(node->raw.data(), end, value);
    if (error == std::errc() && at == end && value <= kMostCount) return value;
  }
  return fail(Code::corrupt, "{}: {} is not a count; delete the file to begin anew", path, what);
}

}  // namespace

Status check_expert_stats_path(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty() || is_directory(folder)) return {};
  return fail(Code::not_found, "--expert-stats {}: there is no folder {}", path, folder);
}

Result<std::vector<uint64_t>> read_expert_stats(const std::string& path, int64_t layers, int64_t experts) {
  K3_TRY_ASSIGN(const std::string text, read_file(path, kMostBytes));
  auto tree = parse_json(text);
  if (!tree.ok()) return fail(Code::corrupt, "{}: not expert statistics: {}", path, tree.error().message);
  if (!tree->is_object() || tree->find("k3_expert_stats") == nullptr) {
    return fail(Code::corrupt, "{}: not expert statistics: there is no field k3_expert_stats", path);
  }
  K3_TRY_ASSIGN(const uint64_t version, count_of(tree->find("k3_expert_stats"), path, "k3_expert_stats"));
  if (version != 1) return fail(Code::unsupported, "{}: expert statistics of version {}", path, version);
  K3_TRY_ASSIGN(const uint64_t of_layers, count_of(tree->find("layers"), path, "layers"));
  K3_TRY_ASSIGN(const uint64_t of_experts, count_of(tree->find("experts"), path, "experts"));
  if (of_layers != static_cast<uint64_t>(layers) || of_experts != static_cast<uint64_t>(experts)) {
    return fail(Code::invalid_argument, "{}: statistics of {} layers with {} experts; the model has {} with {}", path,
                of_layers, of_experts, layers, experts);
  }
  const JsonNode* rows = tree->find("counts");
  if (rows == nullptr || !rows->is_array() || static_cast<int64_t>(rows->items.size()) != layers) {
    return fail(Code::corrupt, "{}: counts is not a list of {} layers", path, layers);
  }
  std::vector<uint64_t> counts;
  for (const JsonNode& row : rows->items) {
    if (!row.is_array() || static_cast<int64_t>(row.items.size()) != experts) {
      return fail(Code::corrupt, "{}: a row of counts is not a list of {} experts", path, experts);
    }
    for (const JsonNode& item : row.items) {
      K3_TRY_ASSIGN(const uint64_t count, count_of(&item, path, "an entry of counts"));
      counts.push_back(count);
    }
  }
  return counts;
}

Status write_expert_stats(const std::string& path, int64_t layers, int64_t experts, const std::vector<uint64_t>& counts) {
  JsonWriter w;
  w.begin_object().field("k3_expert_stats", 1).field("layers", layers).field("experts", experts).key("counts").begin_array();
  for (int64_t l = 0; l < layers; ++l) {
    w.begin_array();
    for (int64_t e = 0; e < experts; ++e) w.value(std::min(counts[static_cast<size_t>(l * experts + e)], kMostCount));
    w.end_array();
  }
  w.end_array().end_object();
  return write_file(path, w.text() + "\n");
}

}  // namespace k3
