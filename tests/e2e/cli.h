// What the tests of the command line share: the program, the model of the repository, scratch folders, golden values.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "k3/format/npy.h"
#include "k3/format/tokenizer.h"
#include "tests/e2e/subprocess.h"

namespace k3::e2e {

namespace fs = std::filesystem;

inline std::string source_path(const std::string& relative) { return std::string(K3_SOURCE_DIR) + "/" + relative; }
inline const std::string kMini = source_path("models/k3-mini");
inline const std::string kFrance = "What is the capital of France?";
inline const std::string kStory = "Please tell me the story \"The small boat\".";  // as the model was taught to be asked for a long answer

inline Spawn k3_spawn(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), K3_BINARY);
  Spawn spawn;
  spawn.argv = std::move(arguments);
  spawn.env = {"NO_COLOR", "K3_LOG", "TERM=xterm"};
  return spawn;
}

inline Outcome k3(std::vector<std::string> arguments, std::string_view input = {}) {
  return run_process(k3_spawn(std::move(arguments)), input);
}

// From the least --ram with which a command works to just below what keeps all of the model in memory, in MiB.
struct RamRange {
  int64_t least = 0, most = 0;
  int64_t at(double part) const { return least + static_cast<int64_t>(part * static_cast<double>(most - least)); }
};

inline RamRange ram_range(const std::vector<std::string>& arguments) {
  const auto said = [&](const char* ram, const char* pattern) -> double {
    std::vector<std::string> with_ram = arguments;
    with_ram.insert(with_ram.end(), {"--ram", ram});
    const std::string err = k3(with_ram).err;
    std::smatch found;
    EXPECT_TRUE(std::regex_search(err, found, std::regex(pattern))) << err;
    return found.empty() ? 0 : std::stod(found[1]);
  };
  // What it says is rounded to three digits.
  return {static_cast<int64_t>(said("1MiB", " = ([0-9.]+) MiB")) + 2, static_cast<int64_t>(said("2GiB", "total +([0-9.]+) MiB")) - 2};
}

// The output of a command that has to succeed.
inline std::string k3_ok(std::vector<std::string> arguments, std::string_view input = {}) {
  std::string line;
  for (const std::string& argument : arguments) line += " " + argument.substr(0, 80);
  const Outcome outcome = k3(std::move(arguments), input);
  EXPECT_EQ(outcome.code, 0) << "k3" << line << "\n" << outcome.err << (outcome.timed_out ? "(timed out)" : "");
  return outcome.out;
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  EXPECT_TRUE(in.good()) << path;
  std::string text(in.good() ? static_cast<size_t>(in.tellg()) : 0, '\0');
  in.seekg(0).read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

inline void put_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  EXPECT_TRUE(out.good()) << path;
}

// What the float64 forward of k3-mini answers to kFrance, greedily (golden.json): these tests are about the program, and whatever the
// model of the day says is right. It has to say a sentence and close it.
struct GoldenAnswer {
  std::vector<int32_t> prompt_ids, ids;  // ids of the text, without what closes the message
  std::string text;
  // The text of its first tokens.
  std::string first(size_t count) const {
    return Tokenizer::load(kMini).value().decode(std::vector<int32_t>(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count))).value();
  }
  // A string of the text that begins in its second half, and what stands before its first occurrence.
  std::string stop() const { return text.substr(text.size() / 2, 3); }
  std::string before_stop() const { return text.substr(0, text.find(stop())); }
};

inline const GoldenAnswer& france_answer() {
  static const GoldenAnswer answer = [] {
    const auto chat = nlohmann::json::parse(file_text(kMini + "/golden/golden.json")).at("prompts").at("chat");
    const int32_t specials = nlohmann::json::parse(file_text(kMini + "/config.json")).at("bos_token_id");  // the first of them
    const Tokenizer tokenizer = Tokenizer::load(kMini).value();
    GoldenAnswer a;
    a.prompt_ids = chat.at("prompt_ids").get<std::vector<int32_t>>();
    const auto ids = chat.at("greedy_ids").get<std::vector<int32_t>>();
    const auto end = std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= specials; });
    EXPECT_NE(end, ids.end()) << "models/k3-mini does not close its answer to '" << kFrance << "' within " << ids.size() << " tokens";
    a.ids.assign(ids.begin(), end);
    EXPECT_GE(a.ids.size(), 5u) << "models/k3-mini hardly answers '" << kFrance << "'";
    a.text = tokenizer.decode(a.ids).value();
    return a;
  }();
  return answer;
}

// As `k3 run` and `k3 chat` print it.
inline std::string france_line() { return france_answer().text + "\n"; }

// The weight files of k3-mini, in order, and the one that holds a tensor.
inline std::vector<std::string> mini_shards() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kMini)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string mini_shard_of(const std::string& tensor) {
  return nlohmann::json::parse(file_text(kMini + "/model.safetensors.index.json")).at("weight_map").at(tensor);
}

// A folder of this test, removed at its end.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "k3-e2e-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  std::string path(const std::string& name = "") const { return name.empty() ? root_ : root_ + "/" + name; }

  // A model folder whose files are links to those of k3-mini: what a test replaces is its own.
  std::string linked_mini(const std::string& name = "model") const {
    fs::create_directories(path(name));
    for (const auto& entry : fs::directory_iterator(kMini)) {
      if (entry.is_regular_file()) fs::create_symlink(entry.path(), path(name) + "/" + entry.path().filename().string());
    }
    return path(name);
  }

 private:
  std::string root_;
};

// Replaces a link (or file) by a file with this text.
inline void replace_file(const std::string& path, std::string_view text) {
  fs::remove(path);
  put_file(path, text);
}

inline std::string join_ids(const std::vector<int32_t>& ids, const char* separator = ",") {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : separator) + std::to_string(id);
  return text;
}

inline size_t count_of(std::string_view text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

inline NpyMatrix npy(const std::string& path) {
  Result<NpyMatrix> matrix = read_npy(path);
  EXPECT_TRUE(matrix.ok()) << (matrix.ok() ? "" : matrix.error().message);
  return matrix.ok() ? *std::move(matrix) : NpyMatrix{};
}

// Largest difference over the rows that both have.
inline double largest_difference(const NpyMatrix& a, const NpyMatrix& b) {
  EXPECT_EQ(a.cols, b.cols);
  const size_t count = std::min(a.values.size(), b.values.size());
  EXPECT_GT(count, 0u);
  double worst = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(a.values[i]) || !std::isfinite(b.values[i])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(a.values[i]) - b.values[i]));
  }
  return worst;
}

}  // namespace k3::e2e
