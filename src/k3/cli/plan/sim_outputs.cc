#include "k3/cli/plan/sim_outputs.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "k3/base/file.h"

namespace k3::cli {
namespace {

namespace fs = std::filesystem;

struct Named {
  const char* option;
  const std::string& path;
};

// Two names of one file are equal: links and dots are followed.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path one = fs::weakly_canonical(fs::absolute(a, error), error), two = fs::weakly_canonical(fs::absolute(b, error), error);
  return !error && one == two;
}

bool is_regular(const std::string& path) {
  std::error_code error;
  return !fs::exists(path, error) || fs::is_regular_file(path, error);
}

Status check_writable(const Named& output) {
  if (is_directory(output.path))
    return fail(Code::invalid_argument, "{} {}: is a folder; name a file", output.option, output.path);
  // A file is replaced by a new one beside it; a device or a pipe is written in place.
  const bool in_place = !is_regular(output.path);
  const fs::path folder = fs::path(output.path).parent_path();
  const std::string target = in_place ? output.path : folder.empty() ? "." : folder.string();
  if (::access(target.c_str(), in_place ? W_OK : W_OK | X_OK) == 0) return {};
  const int error = errno;
  return fail(error == ENOENT ? Code::not_found : Code::invalid_argument, "{} {}: cannot be written: {}", output.option,
              output.path, std::strerror(error));
}

// A folder that is there, or that can be made in the nearest one that is.
Status check_plots(const std::string& path) {
  if (path.empty()) return {};
  if (path_exists(path) && !is_directory(path)) return fail(Code::invalid_argument, "--plots {}: is a file; name a folder", path);
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  while (!at.empty() && at != at.parent_path() && !fs::exists(at, error)) at = at.parent_path();
  if (!fs::is_directory(at, error)) return fail(Code::invalid_argument, "--plots {}: {} is no folder", path, at.string());
  if (::access(at.c_str(), W_OK | X_OK) == 0) return {};
  return fail(Code::invalid_argument, "--plots {}: {} cannot be written: {}", path, at.string(), std::strerror(errno));
}

}  // namespace

Status check_outputs(const SimOptions& o) {
  const Named outputs[] = {{"--json", o.json}, {"--csv", o.csv}, {"--html", o.html}};
  const Named inputs[] = {{"TRACE", o.trace},           {"CONFIG", o.plan.config},
                          {"--clock", o.clock},         {"--recorded", o.recorded},
                          {"--against", o.against},     {"--recorded-order", o.recorded_order},
                          {"--hw", o.plan.hw}};
  for (const Named& output : outputs) {
    if (output.path.empty()) continue;
    if (output.path == "-") {
      if (&output == outputs) continue;
      return fail(Code::invalid_argument, "{} -: only --json can go to stdout; name a file", output.option);
    }
    for (const Named* other = outputs; other != &output; ++other) {
      if (!other->path.empty() && is_regular(output.path) && same_file(output.path, other->path))
        return fail(Code::invalid_argument, "{} and {} are the same file, {}", other->option, output.option, output.path);
    }
    for (const Named& input : inputs) {
      if (!input.path.empty() && path_exists(input.path) && is_regular(output.path) && same_file(output.path, input.path))
        return fail(Code::invalid_argument, "{} {}: is what {} reads; name another file", output.option, output.path,
                    input.option);
    }
    K3_TRY(check_writable(output));
  }
  return check_plots(o.plots);
}

}  // namespace k3::cli
