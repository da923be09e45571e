// Purpose:  a part of TOML to a small tree that knows its lines, and the reader of one table that finds misspelt names.
// Shapes:   none.
// Units:    none.
// Memory:   plain values.
// Threads:  a tree is immutable after parse.
// Errors:   invalid_argument: file, line, dotted name, what is wrong with it and what is wanted.
// Source:   TOML 1.0 without dates, strings over several lines, tables in braces, names in quotes, numbers that are not
// decimal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/base/result.h"

namespace k3::plan {

struct TomlNode {
  enum class Kind { number, text, flag, array, table };
  Kind kind = Kind::table;
  double number = 0;
  std::string text;
  bool flag = false;
  std::vector<TomlNode> items;    // array, table
  std::vector<std::string> keys;  // table: keys[i] belongs to items[i], in the order of the file
  int64_t line = 0;

  const TomlNode* find(std::string_view key) const;
};
std::string_view toml_kind_name(TomlNode::Kind kind);  // "a number", "a table", ...

// Files of more than this are refused: a record has a few kilobytes.
inline constexpr int64_t kMostTomlBytes = int64_t{1} << 20;

Result<TomlNode> parse_toml(std::string_view text, std::string_view source);

// Reads the fields of one table and remembers which, so that finish() finds what nobody asked for.
class TomlFields {
 public:
  // `path` is the dotted name of the table, empty for the file itself; `source` the file.
  TomlFields(const TomlNode& node, std::string path, std::string source);

  const TomlNode* get(std::string_view key);
  Status number(std::string_view key, double least, double most, double* out);  // absent: *out stays
  Status number(std::string_view key, double least, double most, std::optional<double>* out);
  Status whole(std::string_view key, int64_t least, int64_t most, int64_t* out);
  Status text(std::string_view key, std::string* out);
  Status flag(std::string_view key, bool* out);
  Status finish() const;

  // An error at a field, or at the table when it has no such field.
  Error wrong(std::string_view key, std::string_view what) const;

 private:
  Status read_number(std::string_view key, double least, double most, double* out, bool* found);

  const TomlNode& node_;
  std::string path_, source_;
  std::vector<std::string> known_;
};

}  // namespace k3::plan
