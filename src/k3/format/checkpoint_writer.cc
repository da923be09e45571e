#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <unordered_set>
#include <utility>

#include "k3/base/check.h"
#include "k3/base/file.h"
#include "k3/base/json_writer.h"
#include "k3/base/utf8.h"
#include "k3/format/checkpoint.h"
#include "k3/format/safetensors_scan.h"

namespace k3 {
namespace {

using safetensors::shown;

constexpr const char* kIndexName = "model.safetensors.index.json";

std::string shard_name(size_t shard, size_t count) {
  return fmt::format("model-{:05}-of-{:06}.safetensors", shard + 1, count);
}

// Length prefix and JSON, padded with spaces so that the data starts at a multiple of 8.
std::string header_text(const std::vector<TensorSpec>& tensors) {
  JsonWriter json;
  json.begin_object().key("__metadata__").begin_object().field("format", "pt").end_object();
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    json.key(tensor.name).begin_object().field("dtype", dtype_name(tensor.dtype)).key("shape").begin_array();
    for (const int64_t dim : tensor.dims) json.value(dim);
    json.end_array().key("data_offsets").begin_array().value(offset);
    offset += tensor.size_bytes();
    json.value(offset).end_array().end_object();
  }
  json.end_object();
  std::string text(8, '\0');
  text += json.text();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size() - 8;
  for (size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> 8 * i & 0xFF);
  return text;
}

Status check_specs(const std::string& folder, const std::vector<std::vector<TensorSpec>>& shards) {
  std::unordered_set<std::string_view> seen;
  for (const auto& shard : shards) {
    for (const TensorSpec& tensor : shard) {
      const std::string name = shown(tensor.name);
      if (tensor.name.empty()) return fail(Code::invalid_argument, "{}: a tensor has no name", folder);
      if (!is_utf8(tensor.name)) return fail(Code::invalid_argument, "{}: tensor '{}': the name is not UTF-8", folder, name);
      if (tensor.name == "__metadata__" || tensor.name.size() > UINT16_MAX) {
        return fail(Code::invalid_argument, "{}: tensor '{}': the format cannot hold this name", folder, name);
      }
      if (!seen.insert(tensor.name).second)
        return fail(Code::invalid_argument, "{}: tensor '{}' appears twice", folder, name);
      int64_t bytes = dtype_bytes(tensor.dtype);
      for (const int64_t dim : tensor.dims) {
        if (dim < 0 || (dim > 0 && __builtin_mul_overflow(bytes, dim, &bytes))) {
          return fail(Code::invalid_argument, "{}: tensor '{}': shape [{}] is impossible", folder, name,
                      fmt::join(tensor.dims, ", "));
        }
      }
    }
  }
  return {};
}

// "model.safetensors" or "model-00001-of-000005.safetensors", with any digits.
bool is_shard_name(std::string_view name) {
  if (name == "model.safetensors") return true;
  constexpr std::string_view kForm = "model-#####-of-######.safetensors";
  if (name.size() != kForm.size()) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    if (kForm[i] == '#' ? !digit : name[i] != kForm[i]) return false;
  }
  return true;
}

// Shards of an older checkpoint with another number of them: without its index they are of no use, and would lie there forever.
Status remove_stale_shards(const std::string& folder, size_t count) {
  std::unordered_set<std::string> wanted;
  for (size_t i = 0; i < count; ++i) wanted.insert(shard_name(i, count));
  std::error_code error;
  std::vector<std::filesystem::path> stale;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (is_shard_name(name) && !wanted.contains(name)) stale.push_back(it->path());
  }
  for (const auto& path : stale) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return fail(Code::invalid_argument, "{}: cannot remove the old shard: {}", path.string(), std::strerror(errno));
    }
  }
  return {};
}

}  // namespace

int64_t TensorSpec::size_bytes() const {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : dims) bytes *= dim;
  return bytes;
}

struct CheckpointWriter::Impl {
  std::string folder;
  std::vector<std::vector<TensorSpec>> shards;
  std::optional<FileWriter> file;  // of shard `shard`
  size_t shard = 0, tensor = 0;
  int64_t done_bytes = 0;  // of the current tensor

  Status begin_shard();
  Status skip_finished();
  Status write_index() const;
};

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;
CheckpointWriter& CheckpointWriter::operator=(CheckpointWriter&&) noexcept = default;
CheckpointWriter::~CheckpointWriter() = default;

Result<CheckpointWriter> CheckpointWriter::create(const std::string& folder, std::vector<std::vector<TensorSpec>> shards) {
  K3_TRY(check_specs(folder, shards));
  K3_TRY(make_directories(folder));
  const std::string index = join_path(folder, kIndexName);
  if (::unlink(index.c_str()) != 0 && errno != ENOENT) {
    return fail(Code::invalid_argument, "{}: cannot remove the old index: {}", index, std::strerror(errno));
  }
  K3_TRY(remove_stale_shards(folder, shards.size()));
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  impl->shards = std::move(shards);
  K3_TRY(impl->begin_shard());
  return CheckpointWriter(std::move(impl));
}

Status CheckpointWriter::Impl::begin_shard() {
  if (shard == shards.size()) return {};
  K3_TRY_ASSIGN(FileWriter writer, FileWriter::create(join_path(folder, shard_name(shard, shards.size()))));
  K3_TRY(writer.write(header_text(shards[shard])));
  file.emplace(std::move(writer));
  return {};
}

// Passes over the tensor just completed, tensors of no bytes that nobody appended, and the ends of shards.
Status CheckpointWriter::Impl::skip_finished() {
  while (shard < shards.size()) {
    const auto& plan = shards[shard];
    if (tensor < plan.size()) {
      if (done_bytes < plan[tensor].size_bytes()) return {};
      ++tensor;
      done_bytes = 0;
      continue;
    }
    K3_TRY(file->commit());
    file.reset();
    ++shard;
    tensor = 0;
    K3_TRY(begin_shard());
  }
  return {};
}

Status CheckpointWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  Impl& w = *impl_;
  if (bytes.empty()) return {};  // a tensor without bytes takes its turn by itself
  K3_TRY(w.skip_finished());
  K3_CHECK(w.shard < w.shards.size(), "tensor '{}' is not in the plan", name);
  const TensorSpec& next = w.shards[w.shard][w.tensor];
  K3_CHECK(next.name == name, "tensor '{}' appended, '{}' is next", name, next.name);
  const auto count = static_cast<int64_t>(bytes.size());
  K3_CHECK(count <= next.size_bytes() - w.done_bytes, "tensor '{}': {} + {} of {} bytes", name, w.done_bytes, count,
           next.size_bytes());
  K3_TRY(w.file->write(bytes).with_context(fmt::format("tensor '{}'", shown(name))));
  w.done_bytes += count;
  return w.skip_finished();
}

Status CheckpointWriter::Impl::write_index() const {
  std::vector<std::pair<std::string_view, size_t>> names;
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const TensorSpec& spec : shards[i]) {
      names.emplace_back(spec.name, i);
      total += spec.size_bytes();
    }
  }
  std::sort(names.begin(), names.end());
  JsonWriter json(2);
  json.begin_object().key("metadata").begin_object().field("total_size", total).end_object();
  json.key("weight_map").begin_object();
  for (const auto& [name, number] : names) json.field(name, shard_name(number, shards.size()));
  json.end_object().end_object();
  return write_file(join_path(folder, kIndexName), json.text() + "\n");
}

Status CheckpointWriter::finish() {
  Impl& w = *impl_;
  K3_TRY(w.skip_finished());
  K3_CHECK(w.shard == w.shards.size(), "finish() before tensor '{}' is complete", w.shards[w.shard][w.tensor].name);
  return w.write_index();
}

}  // namespace k3
