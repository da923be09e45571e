#include "k3/cache/tier/entry_store.h"

#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "k3/base/file.h"
#include "k3/base/log.h"

namespace k3::cache {

namespace {

constexpr unsigned kFlags = MDB_NOSUBDIR | MDB_NOLOCK;
constexpr uint64_t kSumSeed = 0x6B33656E747279;
constexpr uint32_t kVersion = 1;
constexpr unsigned kMostCheckSeconds = 60;

struct Head {
  uint32_t version, checkpoint, slots, keys;
  uint64_t stamp;
};

Status status_of(int code, const char* what) {
  if (code == 0) return {};
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG || code == MDB_MAP_FULL;
  return fail(full ? Code::exhausted : Code::internal, "cache index: {}: {}", what, mdb_strerror(code));
}

// Head, slots, sums, keys, checksum.
std::string encode(const StoredEntry& entry) {
  const Head head{kVersion, entry.checkpoint ? 1u : 0u, static_cast<uint32_t>(entry.slots.size()),
                  static_cast<uint32_t>(entry.keys.size()), entry.stamp};
  std::string out(reinterpret_cast<const char*>(&head), sizeof head);
  const auto append = [&](const auto& values) { out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]); };
  append(entry.sums);
  append(entry.keys);
  append(entry.slots);
  const uint64_t sum = XXH3_64bits_withSeed(out.data(), out.size(), kSumSeed);
  out.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  return out;
}

bool decode(std::string_view bytes, int32_t name, StoredEntry* out) {
  Head head;
  uint64_t sum;
  if (bytes.size() < sizeof head + sizeof sum) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof sum, sizeof sum);
  bytes.remove_suffix(sizeof sum);
  if (sum != XXH3_64bits_withSeed(bytes.data(), bytes.size(), kSumSeed)) return false;
  const uint64_t expected = sizeof head + uint64_t{head.slots} * (sizeof(int32_t) + sizeof(uint64_t)) + uint64_t{head.keys} * sizeof(BlockKey);
  if (head.version != kVersion || head.slots == 0 || head.keys == 0 || bytes.size() != expected) return false;
  bytes.remove_prefix(sizeof head);
  const auto take = [&](auto* values, size_t count) {
    values->resize(count);
    std::memcpy(values->data(), bytes.data(), count * sizeof((*values)[0]));
    bytes.remove_prefix(count * sizeof((*values)[0]));
  };
  out->checkpoint = head.checkpoint != 0;
  out->stamp = head.stamp;
  take(&out->sums, head.slots);
  take(&out->keys, head.keys);
  take(&out->slots, head.slots);
  return out->slots.front() == name;
}

// Visits every record of a database; LMDB keeps its free pages in database 0.
int walk(MDB_txn* transaction, MDB_dbi database, uint64_t* sum) {
  MDB_cursor* cursor = nullptr;
  int code = mdb_cursor_open(transaction, database, &cursor);
  if (code != 0) return code;
  MDB_val key, value;
  while ((code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    *sum += XXH3_64bits(key.mv_data, key.mv_size) ^ XXH3_64bits(value.mv_data, value.mv_size);
  }
  mdb_cursor_close(cursor);
  return code == MDB_NOTFOUND ? 0 : code;
}

bool walk_all(const std::string& path, int64_t map_bytes) {
  MDB_env* environment = nullptr;
  MDB_txn* transaction = nullptr;
  MDB_dbi database = 0;
  uint64_t sum = 0;
  return mdb_env_create(&environment) == 0 && mdb_env_set_mapsize(environment, static_cast<size_t>(map_bytes)) == 0 &&
         mdb_env_open(environment, path.c_str(), kFlags | MDB_RDONLY, 0600) == 0 &&
         mdb_txn_begin(environment, nullptr, MDB_RDONLY, &transaction) == 0 && mdb_dbi_open(transaction, nullptr, 0, &database) == 0 &&
         walk(transaction, 0, &sum) == 0 && walk(transaction, database, &sum) == 0;
}

[[noreturn]] void run_child(const std::string& path, int64_t map_bytes) {
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (const int fault : {SIGSEGV, SIGBUS, SIGABRT, SIGALRM}) ::signal(fault, SIG_DFL);
  ::alarm(kMostCheckSeconds);
  ::_exit(walk_all(path, map_bytes) ? 0 : 1);
}

Result<bool> is_sound(const std::string& path, int64_t map_bytes) {
  const pid_t child = ::fork();
  if (child < 0) return fail(Code::unavailable, "{}: cannot be checked: {}", path, std::strerror(errno));
  if (child == 0) run_child(path, map_bytes);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return fail(Code::internal, "{}: cannot be checked: {}", path, std::strerror(errno));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

struct EntryStore::Environment {
  MDB_env* environment = nullptr;
  MDB_dbi database = 0;
  ~Environment() {
    if (environment != nullptr) mdb_env_close(environment);
  }
};

EntryStore::EntryStore(std::unique_ptr<Environment> environment) : environment_(std::move(environment)) {}
EntryStore::~EntryStore() = default;

Result<std::unique_ptr<EntryStore>> EntryStore::open(const std::string& path, int64_t map_bytes, bool* damaged) {
  *damaged = false;
  if (path_exists(path)) {
    K3_TRY_ASSIGN(const bool sound, is_sound(path, map_bytes));
    *damaged = !sound;
  }
  if (*damaged && ::unlink(path.c_str()) != 0) return fail(Code::internal, "{}: damaged, and cannot be removed", path);
  auto made = std::make_unique<Environment>();
  K3_TRY(status_of(mdb_env_create(&made->environment), "create"));
  K3_TRY(status_of(mdb_env_set_mapsize(made->environment, static_cast<size_t>(map_bytes)), "map size"));
  K3_TRY(status_of(mdb_env_open(made->environment, path.c_str(), kFlags, 0600), path.c_str()));
  MDB_txn* transaction = nullptr;
  K3_TRY(status_of(mdb_txn_begin(made->environment, nullptr, 0, &transaction), "begin"));
  const int code = mdb_dbi_open(transaction, nullptr, 0, &made->database);
  K3_TRY(status_of(code == 0 ? mdb_txn_commit(transaction) : (mdb_txn_abort(transaction), code), "open"));
  return std::unique_ptr<EntryStore>(new EntryStore(std::move(made)));
}

Status EntryStore::change(std::span<const int32_t> remove, std::span<const StoredEntry> add) {
  MDB_txn* transaction = nullptr;
  K3_TRY(status_of(mdb_txn_begin(environment_->environment, nullptr, 0, &transaction), "begin"));
  int code = 0;
  for (size_t i = 0; code == 0 && i < remove.size(); ++i) {
    int32_t name = remove[i];
    MDB_val key{sizeof name, &name};
    code = mdb_del(transaction, environment_->database, &key, nullptr);
    if (code == MDB_NOTFOUND) code = 0;
  }
  for (size_t i = 0; code == 0 && i < add.size(); ++i) {
    int32_t name = add[i].slots.front();
    std::string bytes = encode(add[i]);
    MDB_val key{sizeof name, &name}, value{bytes.size(), bytes.data()};
    code = mdb_put(transaction, environment_->database, &key, &value, 0);
  }
  if (code != 0) {
    mdb_txn_abort(transaction);
    return status_of(code, "write");
  }
  return status_of(mdb_txn_commit(transaction), "commit");
}

Status EntryStore::load(std::vector<StoredEntry>* out, std::vector<int32_t>* broken) {
  MDB_txn* transaction = nullptr;
  K3_TRY(status_of(mdb_txn_begin(environment_->environment, nullptr, MDB_RDONLY, &transaction), "begin"));
  MDB_cursor* cursor = nullptr;
  int code = mdb_cursor_open(transaction, environment_->database, &cursor);
  MDB_val key, value;
  while (code == 0 && (code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    int32_t name = -1;
    if (key.mv_size == sizeof name) std::memcpy(&name, key.mv_data, sizeof name);
    StoredEntry entry;
    if (decode({static_cast<const char*>(value.mv_data), value.mv_size}, name, &entry)) {
      out->push_back(std::move(entry));
    } else {
      broken->push_back(name);
    }
  }
  if (cursor != nullptr) mdb_cursor_close(cursor);
  mdb_txn_abort(transaction);
  std::ranges::sort(*out, {}, &StoredEntry::stamp);
  return status_of(code == MDB_NOTFOUND ? 0 : code, "read");
}

}  // namespace k3::cache
