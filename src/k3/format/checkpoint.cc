#include "k3/format/checkpoint.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "k3/base/file.h"
#include "k3/format/safetensors_header.h"
#include "k3/format/safetensors_index.h"
#include "k3/format/safetensors_names.h"
#include "k3/format/safetensors_scan.h"

namespace k3 {
namespace {

using safetensors::Header;
using safetensors::NameTable;
using safetensors::Record;
using safetensors::shown;
using safetensors::Text;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr uint32_t kNoRecord = UINT32_MAX;

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

std::string first_bytes_of(const File& file) {
  std::string bytes(static_cast<size_t>(std::min<int64_t>(file.size_bytes(), 64)), '\0');
  if (!file.read_at(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))).ok()) bytes.clear();
  return bytes;
}

// Read, not mapped: the pages of a mapping whose file shrinks raise SIGBUS, a short pread is an error.
Result<Text> read_text(const File& file, int64_t offset, int64_t bytes) {
  K3_TRY_ASSIGN(Text text, Text::allocate(static_cast<size_t>(bytes)));
  K3_TRY(file.read_at(offset, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Result<Header> read_header(const File& file) {
  K3_TRY_ASSIGN(const int64_t bytes, safetensors::header_bytes(first_bytes_of(file), file.size_bytes(), file.path()));
  K3_TRY_ASSIGN(Text text, read_text(file, safetensors::kPrefixBytes, bytes));
  return safetensors::parse_header(std::move(text), file.size_bytes(), file.path());
}

// The files of a folder that could have been meant, for the message of a failed open.
struct FolderContent {
  std::vector<std::string> safetensors, other;
  bool pytorch = false, gguf = false;
};

Result<FolderContent> list_folder(const std::string& folder) {
  FolderContent content;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    content.pytorch |= ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".pth");
    content.gguf |= ends_with(name, ".gguf");
    (ends_with(name, ".safetensors") ? content.safetensors : content.other).push_back(name);
  }
  if (error) return fail(Code::not_found, "{}: cannot list the folder: {}", folder, error.message());
  std::sort(content.safetensors.begin(), content.safetensors.end());
  std::sort(content.other.begin(), content.other.end());
  return content;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i ? ", " : "") + shown(names[i]);
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

Error nothing_to_open(const std::string& folder, const FolderContent& content) {
  if (content.safetensors.size() > 1) {
    return fail(Code::not_found, "{}: {} safetensors files ({}) but no {}: name one file, or restore the index", folder,
                content.safetensors.size(), listed(content.safetensors), kIndexName);
  }
  if (content.gguf) {
    return fail(Code::unsupported, "{}: holds GGUF files ({}): {}", folder, listed(content.other),
                safetensors::container_hint("GGUF"));
  }
  if (content.pytorch) {
    return fail(Code::unsupported, "{}: no safetensors here; {} ({})", folder, safetensors::container_hint("PK\x03\x04"),
                listed(content.other));
  }
  return fail(Code::not_found, "{}: no {}, {} or *.safetensors in this folder ({})", folder, kIndexName, kSingleName,
              content.other.empty() ? "it is empty" : "it holds " + listed(content.other));
}

}  // namespace

struct Checkpoint::Impl {
  struct Shard {
    std::string file;
    bool present = false;
    std::mutex mutex;                 // held while the header is parsed
    std::atomic<bool> parsed{false};  // what follows, and record_of of this shard's names, is immutable once set
    std::optional<File> data;
    std::vector<Record> records;
    std::vector<int64_t> dims;
    std::vector<std::string> foreign_dtypes;
    std::string elsewhere;  // a tensor that lies here although the index names another shard
  };

  std::string source;  // the index, or the only file: where names come from
  std::string folder;
  NameTable names;
  std::vector<std::unique_ptr<Shard>> shards;
  // By name id: index into the records of its shard. Written by the thread that parses that shard.
  std::vector<uint32_t> record_of;
  std::map<std::string, TensorInfo, std::less<>> declared;  // instead of all that

  static Result<std::unique_ptr<Impl>> open_index(const std::string& path);
  static Result<std::unique_ptr<Impl>> open_single(const std::string& path);

  std::string shard_path(const Shard& shard) const { return join_path(folder, shard.file); }
  Status parse_shard(size_t number);
  Error missing_shard(std::string_view name, const Shard& shard) const;
  Result<TensorInfo> info(std::string_view name, uint32_t id);
};

namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string(".") : slash == 0 ? std::string("/") : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// A model of several hundred shards keeps one descriptor each: use what the system grants.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Result<std::unique_ptr<Checkpoint::Impl>> Checkpoint::Impl::open_index(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->source = path;
  impl->folder = folder_of(path);
  K3_TRY_ASSIGN(const File file, File::open(path));
  if (file.size_bytes() > static_cast<int64_t>(NameTable::kMaxTextBytes)) {
    return fail(Code::unsupported, "{}: an index of {} bytes is more than the limit of {}", path, file.size_bytes(),
                NameTable::kMaxTextBytes);
  }
  K3_TRY_ASSIGN(Text text, read_text(file, 0, file.size_bytes()));
  K3_TRY_ASSIGN(safetensors::Index index, safetensors::parse_index(std::move(text), path));
  impl->names = std::move(index.names);
  impl->record_of.assign(impl->names.size(), kNoRecord);
  for (std::string& shard_file : index.shard_files) {
    auto shard = std::make_unique<Shard>();
    shard->file = std::move(shard_file);
    shard->present = path_exists(impl->shard_path(*shard));
    impl->shards.push_back(std::move(shard));
  }
  if (impl->shards.size() > 512) raise_descriptor_limit();
  return impl;
}

Result<std::unique_ptr<Checkpoint::Impl>> Checkpoint::Impl::open_single(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->source = path;
  impl->folder = folder_of(path);
  K3_TRY_ASSIGN(File file, File::open(path));
  K3_TRY_ASSIGN(Header header, read_header(file));
  impl->names = std::move(header.names);
  impl->record_of.resize(impl->names.size());
  for (uint32_t id = 0; id < impl->names.size(); ++id) impl->record_of[id] = id;
  auto shard = std::make_unique<Shard>();
  shard->file = name_of(path);
  shard->present = true;
  shard->data = std::move(file);
  shard->records = std::move(header.records);
  shard->dims = std::move(header.dims);
  shard->foreign_dtypes = std::move(header.foreign_dtypes);
  shard->parsed = true;
  impl->shards.push_back(std::move(shard));
  return impl;
}

Error Checkpoint::Impl::missing_shard(std::string_view name, const Shard& shard) const {
  const auto missing = std::count_if(shards.begin(), shards.end(), [](const auto& s) { return !s->present; });
  return fail(Code::not_found,
              "{}: tensor '{}': its shard '{}' is not in the folder; {} of {} shards are missing (complete the download)",
              source, shown(name), shown(shard.file), missing, shards.size());
}

Status Checkpoint::Impl::parse_shard(size_t number) {
  Shard& shard = *shards[number];
  if (shard.parsed.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(shard.mutex);
  if (shard.parsed.load(std::memory_order_relaxed)) return {};
  K3_TRY_ASSIGN(File file, File::open(shard_path(shard)));
  K3_TRY_ASSIGN(Header header, read_header(file));
  shard.records = std::move(header.records);
  shard.dims = std::move(header.dims);
  shard.foreign_dtypes = std::move(header.foreign_dtypes);
  shard.data = std::move(file);
  for (uint32_t i = 0; i < header.names.size(); ++i) {
    const uint32_t id = names.find(header.names.name(i));
    if (id == NameTable::kNone) continue;  // stored but not indexed: nobody can ask for it
    if (names.shard(id) == number) {
      record_of[id] = i;
    } else if (shard.elsewhere.empty()) {
      shard.elsewhere = header.names.name(i);
    }
  }
  shard.parsed.store(true, std::memory_order_release);
  return {};
}

Result<TensorInfo> Checkpoint::Impl::info(std::string_view name, uint32_t id) {
  const uint16_t number = names.shard(id);
  const Shard& shard = *shards[number];
  if (!shard.present) return missing_shard(name, shard);
  K3_TRY(parse_shard(number).with_context(fmt::format("tensor '{}'", shown(name))));
  const uint32_t at = record_of[id];
  if (at == kNoRecord) {
    return fail(Code::corrupt, "{}: tensor '{}': the index places it in shard '{}', which does not hold it", source,
                shown(name), shown(shard.file));
  }
  const Record& record = shard.records[at];
  if (record.dtype == Record::kForeign) {
    return fail(Code::unsupported,
                "{}: tensor '{}': dtype '{}' is not supported (BF16, F32, F16, F8_E4M3, U8, I32, I64 are)",
                shard_path(shard), shown(name), shown(shard.foreign_dtypes[record.foreign]));
  }
  TensorInfo info;
  info.dtype = static_cast<DType>(record.dtype);
  info.dims.assign(shard.dims.begin() + record.first_dim, shard.dims.begin() + record.first_dim + record.rank);
  info.offset = record.begin;
  info.size_bytes = record.end - record.begin;
  info.shard = number;
  return info;
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  std::string target = path;
  bool index = ends_with(path, ".json");
  if (is_directory(path)) {
    const std::string index_path = join_path(path, kIndexName), single_path = join_path(path, kSingleName);
    if (path_exists(index_path)) {
      target = index_path;
      index = true;
    } else if (path_exists(single_path)) {
      target = single_path;
      index = false;
    } else {
      K3_TRY_ASSIGN(const FolderContent content, list_folder(path));
      if (content.safetensors.size() != 1) return nothing_to_open(path, content);
      target = join_path(path, content.safetensors.front());
      index = false;
    }
  } else if (!path_exists(path)) {
    return fail(Code::not_found, "{}: no such file or folder", path);
  }
  K3_TRY_ASSIGN(auto impl, index ? Impl::open_index(target) : Impl::open_single(target));
  return Checkpoint(std::move(impl));
}

Checkpoint Checkpoint::declare(const std::vector<TensorSpec>& tensors) {
  auto impl = std::make_unique<Impl>();
  impl->source = "random weights";
  impl->shards.push_back(std::make_unique<Impl::Shard>());
  impl->shards.front()->file = impl->source;
  for (const TensorSpec& t : tensors) impl->declared[t.name] = {t.dtype, t.dims, 0, t.size_bytes(), 0};
  return Checkpoint(std::move(impl));
}

bool Checkpoint::contains(std::string_view name) const {
  return impl_->declared.contains(name) || impl_->names.find(name) != NameTable::kNone;
}
int64_t Checkpoint::tensor_count() const { return impl_->names.size(); }

void Checkpoint::for_each_name(const std::function<void(std::string_view, int32_t)>& visit) const {
  for (uint32_t id = 0; id < impl_->names.size(); ++id) visit(impl_->names.name(id), impl_->names.shard(id));
}

Result<TensorInfo> Checkpoint::find(std::string_view name) const {
  if (const auto promised = impl_->declared.find(name); promised != impl_->declared.end()) return promised->second;
  const uint32_t id = impl_->names.find(name);
  if (id == NameTable::kNone) return fail(Code::not_found, "{}: no tensor '{}'", impl_->source, shown(name));
  return impl_->info(name, id);
}

Status Checkpoint::read(std::string_view name, const TensorInfo& info, std::span<std::byte> out) const {
  K3_CHECK(static_cast<int64_t>(out.size()) == info.size_bytes, "tensor '{}': {} bytes for a tensor of {}", name, out.size(),
           info.size_bytes);
  return read_range(name, info, 0, out);
}

Status Checkpoint::read_range(std::string_view name, const TensorInfo& info, int64_t begin_bytes,
                              std::span<std::byte> out) const {
  const auto bytes = static_cast<int64_t>(out.size());
  K3_CHECK(begin_bytes >= 0 && begin_bytes <= info.size_bytes && bytes <= info.size_bytes - begin_bytes,
           "tensor '{}': bytes {} + {} of a tensor of {}", name, begin_bytes, bytes, info.size_bytes);
  K3_CHECK(info.shard >= 0 && info.shard < shard_count(), "shard {} of {}", info.shard, shard_count());
  const Impl::Shard& shard = *impl_->shards[static_cast<size_t>(info.shard)];
  K3_CHECK(shard.parsed.load(std::memory_order_acquire), "tensor '{}': read before find", name);
  return shard.data->read_at(info.offset + begin_bytes, out).with_context(fmt::format("tensor '{}'", shown(name)));
}

int32_t Checkpoint::shard_count() const { return static_cast<int32_t>(impl_->shards.size()); }
const std::string& Checkpoint::shard_file(int32_t shard) const { return impl_->shards.at(static_cast<size_t>(shard))->file; }
bool Checkpoint::shard_present(int32_t shard) const { return impl_->shards.at(static_cast<size_t>(shard))->present; }
const std::string& Checkpoint::folder() const { return impl_->folder; }

Status Checkpoint::verify_all() const {
  for (size_t i = 0; i < impl_->shards.size(); ++i) {
    if (impl_->shards[i]->present) K3_TRY(impl_->parse_shard(i));
  }
  for (uint32_t id = 0; id < impl_->names.size(); ++id) {
    if (auto info = impl_->info(impl_->names.name(id), id); !info.ok() && info.error().code != Code::unsupported) {
      return std::move(info).take_error();
    }
  }
  for (const auto& shard : impl_->shards) {
    if (shard->elsewhere.empty()) continue;
    return fail(Code::corrupt, "{}: tensor '{}': stored in this file, although the index places it in another shard",
                impl_->shard_path(*shard), shown(shard->elsewhere));
  }
  return {};
}

Status check_scales(std::string_view file, std::string_view tensor, std::span<const std::byte> scales,
                    int64_t groups_per_row) {
  // The usual answer first, in a loop that compiles to a few instructions a block: experts are checked at every read.
  constexpr size_t kBlock = 64;
  size_t good = 0;
  for (; good + kBlock <= scales.size(); good += kBlock) {
    const auto* block = reinterpret_cast<const uint8_t*>(scales.data()) + good;
    uint8_t top = 0;
    for (size_t i = 0; i < kBlock; ++i) top = std::max(top, block[i]);
    if (top >= 253) break;
  }
  const auto bad = std::find_if(scales.begin() + static_cast<std::ptrdiff_t>(good), scales.end(), [](std::byte b) { return b >= std::byte{253}; });
  if (bad == scales.end()) return {};
  const int64_t at = bad - scales.begin();
  const std::string where = groups_per_row > 0 ? fmt::format("row {}, group {}", at / groups_per_row, at % groups_per_row)
                                               : fmt::format("index {}", at);
  return fail(Code::corrupt, "{}: tensor '{}': scale byte {} at {} is not a finite factor (at most 252)", file,
              shown(tensor), std::to_integer<int>(*bad), where);
}

}  // namespace k3
