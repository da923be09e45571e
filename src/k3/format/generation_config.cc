#include "k3/format/generation_config.h"

#include <nlohmann/json.hpp>

#include "k3/base/file.h"

namespace k3 {
namespace {

using Json = nlohmann::json;

Result<std::optional<double>> number(const Json& root, const std::string& path, const char* field) {
  const auto it = root.find(field);
  if (it == root.end() || it->is_null()) return std::optional<double>();
  if (!it->is_number()) return fail(Code::corrupt, "{}: {} is not a number", path, field);
  return std::optional<double>(it->get<double>());
}

Result<int32_t> token_id(const Json& value, const std::string& path) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > INT32_MAX) {
    return fail(Code::corrupt, "{}: eos_token_id holds something that is not a token id", path);
  }
  return value.get<int32_t>();
}

}  // namespace

Result<GenerationConfig> load_generation_config(const std::string& folder) {
  GenerationConfig out;
  const std::string path = join_path(folder, "generation_config.json");
  if (!path_exists(path)) return out;
  K3_TRY_ASSIGN(const std::string text, read_file(path, int64_t{1} << 20));
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) return fail(Code::corrupt, "{}: not a JSON object", path);
  if (const auto eos = root.find("eos_token_id"); eos != root.end() && !eos->is_null()) {
    for (const Json& value : eos->is_array() ? *eos : Json::array({*eos})) {
      K3_TRY_ASSIGN(const int32_t id, token_id(value, path));
      out.eos_token_ids.push_back(id);
    }
  }
  K3_TRY_ASSIGN(out.temperature, number(root, path, "temperature"));
  K3_TRY_ASSIGN(out.top_p, number(root, path, "top_p"));
  K3_TRY_ASSIGN(const std::optional<double> top_k, number(root, path, "top_k"));
  if (top_k && !(*top_k >= 0 && *top_k <= INT32_MAX)) return fail(Code::corrupt, "{}: top_k is {}", path, *top_k);
  if (top_k) out.top_k = static_cast<int64_t>(*top_k);
  return out;
}

}  // namespace k3
