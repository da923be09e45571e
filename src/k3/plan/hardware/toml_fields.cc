#include <algorithm>
#include <cmath>

#include "k3/plan/hardware/toml_file.h"

namespace k3::plan {

TomlFields::TomlFields(const TomlNode& node, std::string path, std::string source)
    : node_(node), path_(std::move(path)), source_(std::move(source)) {}

const TomlNode* TomlFields::get(std::string_view key) {
  known_.emplace_back(key);
  return node_.find(key);
}

Error TomlFields::wrong(std::string_view key, std::string_view what) const {
  const TomlNode* const field = node_.find(key);
  return fail(Code::invalid_argument, "{}:{}: {}{}{} {}", source_, (field != nullptr ? *field : node_).line, path_,
              path_.empty() ? "" : ".", key, what);
}

Status TomlFields::read_number(std::string_view key, double least, double most, double* out, bool* found) {
  const TomlNode* const field = get(key);
  *found = field != nullptr;
  if (field == nullptr) return {};
  if (field->kind != TomlNode::Kind::number)
    return wrong(key, fmt::format("is {}; a number is wanted", toml_kind_name(field->kind)));
  if (!(field->number >= least && field->number <= most)) {  // NaN is refused, too
    return wrong(key, fmt::format("is {:g}; a number from {:g} to {:g} is wanted", field->number, least, most));
  }
  *out = field->number;
  return {};
}

Status TomlFields::number(std::string_view key, double least, double most, double* out) {
  bool found = false;
  return read_number(key, least, most, out, &found);
}

Status TomlFields::number(std::string_view key, double least, double most, std::optional<double>* out) {
  bool found = false;
  double value = 0;
  K3_TRY(read_number(key, least, most, &value, &found));
  if (found) *out = value;
  return {};
}

Status TomlFields::whole(std::string_view key, int64_t least, int64_t most, int64_t* out) {
  bool found = false;
  double value = 0;
  K3_TRY(read_number(key, static_cast<double>(least), static_cast<double>(most), &value, &found));
  if (!found) return {};
  if (value != std::floor(value)) return wrong(key, fmt::format("is {}; a whole number is wanted", value));
  *out = static_cast<int64_t>(value);
  return {};
}

Status TomlFields::text(std::string_view key, std::string* out) {
  const TomlNode* const field = get(key);
  if (field == nullptr) return {};
  if (field->kind != TomlNode::Kind::text)
    return wrong(key, fmt::format("is {}; a string is wanted", toml_kind_name(field->kind)));
  *out = field->text;
  return {};
}

Status TomlFields::flag(std::string_view key, bool* out) {
  const TomlNode* const field = get(key);
  if (field == nullptr) return {};
  if (field->kind != TomlNode::Kind::flag)
    return wrong(key, fmt::format("is {}; true or false is wanted", toml_kind_name(field->kind)));
  *out = field->flag;
  return {};
}

Status TomlFields::finish() const {
  for (size_t i = 0; i < node_.keys.size(); ++i) {
    if (std::find(known_.begin(), known_.end(), node_.keys[i]) != known_.end()) continue;
    std::string list;
    for (const std::string& name : known_) list += (list.empty() ? "" : ", ") + name;
    return wrong(node_.keys[i], "is not a name that is read; there are " + list);
  }
  return {};
}

}  // namespace k3::plan
