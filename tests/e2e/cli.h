// What the tests of the command line share: the program, the model of the repository, scratch folders, golden values.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "k3/format/npy.h"
#include "tests/e2e/subprocess.h"

namespace k3::e2e {

namespace fs = std::filesystem;

inline std::string source_path(const std::string& relative) { return std::string(K3_SOURCE_DIR) + "/" + relative; }
inline const std::string kMini = source_path("models/k3-mini");
inline const std::string kFrance = "What is the capital of France?";

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
