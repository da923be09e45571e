// Tiers: what was evicted comes back as it was; what is damaged, foreign or half written never does.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "k3/base/file.h"
#include "k3/cache/fake_model_test.h"

namespace k3::cache {
namespace {

using namespace testing;

class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "k3_tier_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

CacheOptions disk_options(const Folder& folder, int64_t pages, int64_t slots = 200) {
  CacheOptions options = tiny_options(pages);
  options.disk_folder = folder.path();
  options.disk_bytes = slots * 4096;  // a page of 1536 bytes and 48 ids
  return options;
}

std::unique_ptr<HybridCache> make(const CacheOptions& options) {
  auto made = HybridCache::create(options);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return made.ok() ? *std::move(made) : nullptr;
}

std::vector<int32_t> conversation(int32_t number) { return joined(text(60, number), text(70, number + 1000)); }

// Leaves so many conversations of 130 tokens in the folder.
void fill_folder(const Folder& folder, int32_t conversations) {
  const auto cache = make(disk_options(folder, 64));
  for (int32_t i = 0; i < conversations; ++i) serve(*cache, conversation(i));
  ASSERT_TRUE(cache->flush().ok());
}

// How many tokens of each conversation are found; their content is checked on the way.
std::vector<int64_t> hits(HybridCache& cache, int32_t conversations) {
  std::vector<int64_t> out;
  for (int32_t i = 0; i < conversations; ++i) out.push_back(serve(cache, joined(conversation(i), text(5, 7))).cached_tokens);
  return out;
}

class CacheTiers : public OnBoth {};
INSTANTIATE_TEST_SUITE_P(Pools, CacheTiers, ::testing::Values(Where::host, Where::device), where_name);

TEST_P(CacheTiers, HostKeepsWhatThePoolEvicts) {
  CacheOptions options = tiny_options(16);
  options.host_bytes = 200 * options.shape.page_bytes;
  const auto cache = make(options);
  for (int32_t i = 0; i < 20; ++i) serve(*cache, conversation(i));
  EXPECT_EQ(hits(*cache, 20), std::vector<int64_t>(20, 128));
  const CacheStats stats = cache->stats();
  EXPECT_GT(stats.host_hits, 20);
  EXPECT_GT(stats.host_entries, 20);
  EXPECT_LE(stats.host_bytes, options.host_bytes);
  EXPECT_EQ(stats.tier_errors, 0);
  cache->reset();
  EXPECT_EQ(cache->stats().host_entries, 0);
  EXPECT_EQ(hits(*cache, 1)[0], 0);
}

TEST_P(CacheTiers, HostOverflowsToDisk) {
  const Folder folder;
  CacheOptions options = disk_options(folder, 16);
  options.host_bytes = 12 * options.shape.page_bytes;
  const auto cache = make(options);
  for (int32_t i = 0; i < 20; ++i) serve(*cache, conversation(i));
  EXPECT_EQ(hits(*cache, 20), std::vector<int64_t>(20, 128));
  EXPECT_GT(cache->stats().disk_hits, 10);
  EXPECT_LE(cache->stats().host_bytes, options.host_bytes);
}

TEST_P(CacheTiers, AFullDiskTierKeepsTheNewest) {
  const Folder folder;
  const auto cache = make(disk_options(folder, 16, 24));
  for (int32_t i = 0; i < 20; ++i) serve(*cache, conversation(i));
  const auto found = hits(*cache, 20);
  EXPECT_EQ(found[0], 0);
  EXPECT_LE(cache->stats().disk_bytes, 24 * 4096);
  serve(*cache, conversation(50));
  serve(*cache, conversation(51));
  serve(*cache, conversation(52));
  EXPECT_EQ(serve(*cache, joined(conversation(50), text(5, 7))).cached_tokens, 128);
}

TEST_P(CacheTiers, DiskSurvivesTheProcess) {
  const Folder folder;
  fill_folder(folder, 10);
  uint64_t seed = 0;
  for (int round = 0; round < 2; ++round) {
    const auto cache = make(disk_options(folder, 64));
    if (round == 0) seed = cache->key_seed();
    EXPECT_EQ(cache->key_seed(), seed);
    EXPECT_EQ(hits(*cache, 10), std::vector<int64_t>(10, 128));
    EXPECT_GE(cache->stats().disk_hits, 40);
    EXPECT_EQ(cache->stats().tier_errors, 0);
  }
}

TEST_P(CacheTiers, OneProcessAFolder) {
  const Folder folder;
  const auto cache = make(disk_options(folder, 64));
  const auto second = HybridCache::create(disk_options(folder, 64));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::unavailable);
  EXPECT_NE(second.error().message.find(folder.path()), std::string::npos);
}

TEST_P(CacheTiers, AFolderOfSomeoneElseIsRefusedAndLeftAlone) {
  for (const std::string name : {"holiday.jpg", "index", "slab-0000", "slab-of-beef"}) {
    const Folder folder;
    write_file(folder.file(name), "dear to someone").value();
    const auto made = HybridCache::create(disk_options(folder, 64));
    ASSERT_FALSE(made.ok()) << name;
    EXPECT_EQ(made.error().code, Code::invalid_argument);
    for (const std::string& part : {folder.path(), "'" + name + "'", std::string("new or empty")}) {
      EXPECT_NE(made.error().message.find(part), std::string::npos) << made.error().message;
    }
    EXPECT_EQ(*read_file(folder.file(name)), "dear to someone");
    EXPECT_FALSE(path_exists(folder.file("lock")));
  }
  const Folder folder;
  fill_folder(folder, 1);
  write_file(folder.file("about.tmp-77"), "left by a process that was killed").value();
  std::filesystem::create_directory(folder.file("lost+found"));
  EXPECT_NE(make(disk_options(folder, 64)), nullptr);
  write_file(folder.file("notes.txt"), "mine").value();
  EXPECT_FALSE(HybridCache::create(disk_options(folder, 64)).ok());
}

TEST_P(CacheTiers, AnotherIdentityOrShapeStartsEmpty) {
  const Folder folder;
  fill_folder(folder, 3);
  CacheOptions other = disk_options(folder, 64);
  other.identity = "another model";
  {
    const auto cache = make(other);
    EXPECT_EQ(cache->stats().disk_entries, 0);
    EXPECT_EQ(hits(*cache, 3), std::vector<int64_t>(3, 0));
    ASSERT_TRUE(cache->flush().ok());
  }
  other.shape = *make_shape({2, 3, 150, 9, 4}, {.conv = DType::bf16}, 32);
  other.pool_bytes = 64 * other.shape.page_bytes;
  EXPECT_EQ(make(other)->stats().disk_entries, 0);
  EXPECT_EQ(make(disk_options(folder, 64))->stats().disk_entries, 0);
}

TEST_P(CacheTiers, ASmallerTierTakesWhatFits) {
  const Folder folder;
  fill_folder(folder, 10);
  write_file(folder.file("slab-0009"), "of a larger tier").value();
  const auto cache = make(disk_options(folder, 64, 12));
  EXPECT_LE(cache->stats().disk_bytes, 12 * 4096);
  EXPECT_FALSE(path_exists(folder.file("slab-0009")));
  hits(*cache, 10);
}

std::string contents_of(const std::string& path) { return *read_file(path); }

void overwrite(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CREAT, 0600);
  ASSERT_EQ(::write(file, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::close(file);
}

// Every file, damaged at many places and cut at many lengths: opening works, what is found is true (serve checks it), and
// new entries can be written.
TEST_P(CacheTiers, DamageIsAMiss) {
  const Folder original;
  fill_folder(original, 4);
  int64_t errors = 0, found = 0;
  for (const std::string name : {"about", "index", "slab-0000"}) {
    const std::string bytes = contents_of(original.file(name));
    for (int place = 0; place < 36; ++place) {
      const Folder folder;
      for (const char* file : {"about", "index", "slab-0000"}) overwrite(folder.file(file), contents_of(original.file(file)));
      const size_t at = bytes.size() * static_cast<size_t>(place) / 36;
      std::string damaged = bytes;
      if (place % 3 == 0) {
        damaged.resize(at);
      } else if (place % 3 == 1) {
        damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      } else {
        const size_t count = std::min<size_t>(512, damaged.size() - at);
        std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(at), count, static_cast<char>(place));
      }
      overwrite(folder.file(name), damaged);
      const auto cache = make(disk_options(folder, 64));
      ASSERT_NE(cache, nullptr) << name << " " << place;
      for (const int64_t tokens : hits(*cache, 4)) found += tokens;
      ASSERT_TRUE(cache->flush().ok());
      errors += cache->stats().tier_errors;
    }
  }
  EXPECT_GT(errors, 10);
  EXPECT_GT(found, 36 * 128);
}

TEST_P(CacheTiers, StaleSlotsAreAMiss) {
  const Folder folder;
  fill_folder(folder, 4);
  // Slots in other places: every entry reads the bytes of another one.
  const std::string slab = contents_of(folder.file("slab-0000"));
  overwrite(folder.file("slab-0000"), slab.substr(4096) + slab.substr(0, 4096));
  const auto cache = make(disk_options(folder, 64));
  EXPECT_EQ(hits(*cache, 4), std::vector<int64_t>(4, 0));
  EXPECT_GT(cache->stats().tier_errors, 0);
}

TEST_P(CacheTiers, AFullDiskDropsEntriesAndGoesOn) {
  const Folder folder;
  rlimit old_limit{};
  ::getrlimit(RLIMIT_FSIZE, &old_limit);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const auto cache = make(disk_options(folder, 16));
  const rlimit limit{50 * 1024, old_limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  for (int32_t i = 0; i < 30; ++i) serve(*cache, conversation(i));
  (void)cache->flush().ok();
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_GT(cache->stats().tier_dropped, 10);
  // There is room again.
  for (int32_t i = 0; i < 30; ++i) serve(*cache, conversation(i));
  EXPECT_TRUE(cache->flush().ok());
  const auto found = hits(*cache, 30);
  EXPECT_GT(std::ranges::count(found, 128), 20);
}

TEST_P(CacheTiers, KilledAtAnyTime) {
  const Folder folder;
  int64_t found = 0;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto cache = HybridCache::create(disk_options(folder, 16, 40));
      for (int32_t i = 0; cache.ok(); ++i) serve(**cache, conversation(i % 9));
      ::_exit(1);
    }
    ::usleep(static_cast<useconds_t>(20000 + 13000 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto cache = make(disk_options(folder, 64, 40));
    ASSERT_NE(cache, nullptr);
    for (const int64_t tokens : hits(*cache, 9)) found += tokens;
    EXPECT_EQ(cache->stats().tier_errors, 0);
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace k3::cache
