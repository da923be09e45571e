// Internal to format.
//
// Typed access to the fields of a JSON document with messages that name the dotted path. The first error is kept
// and later reads do nothing, so a parser reads all fields and looks at status() once. A null counts as absent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::config {

class FieldReader;

class Document {
 public:
  // Strict JSON: no comments, no repeated keys, at most 64 levels, at most 16 MiB. corrupt names line and column.
  static Result<Document> parse(std::string_view text, std::string_view source);
  Document(Document&&) noexcept;
  ~Document();

  FieldReader root();
  bool failed() const { return error_->has_value(); }
  Status status() const { return failed() ? Status(**error_) : Status(); }
  void fail_at(Code code, std::string_view path, std::string_view fact);  // keeps the first error only

 private:
  friend class FieldReader;
  struct Tree;
  Document(std::unique_ptr<Tree> tree, std::string_view source);
  std::unique_ptr<Tree> tree_;
  std::string source_;
  std::unique_ptr<std::optional<Error>> error_;  // at one address while the document moves
};

class FieldReader {
 public:
  std::string path(std::string_view field) const;  // "text_config.linear_attn_config.head_dim"
  bool has(std::string_view field) const;          // present and not null

  // Counts: whole numbers, also when written 1.0 or 1e3.
  int64_t count(std::string_view field, int64_t least, int64_t most) const;  // required
  std::optional<int64_t> maybe_count(std::string_view field, int64_t least, int64_t most) const;
  int64_t count_or(std::string_view field, int64_t otherwise, int64_t least, int64_t most) const;
  std::optional<double> maybe_number(std::string_view field) const;  // finite
  std::optional<bool> maybe_bool(std::string_view field) const;
  std::optional<std::string> maybe_string(std::string_view field) const;
  std::optional<std::vector<int64_t>> maybe_counts(std::string_view field, int64_t least, int64_t most) const;
  std::optional<std::string> first_string(std::string_view field) const;  // of an array of strings, or a string
  // An id, or the first of an array of ids.
  std::optional<int64_t> first_id(std::string_view field, int64_t most) const;
  std::optional<FieldReader> maybe_object(std::string_view field) const;
  std::vector<std::string> object_keys() const;

  void fail_field(Code code, std::string_view field, std::string_view fact) const;

 private:
  friend class Document;
  FieldReader(Document* document, const void* node, std::string path)
      : document_(document), node_(node), path_(std::move(path)) {}
  const void* find(std::string_view field) const;

  Document* document_;
  const void* node_;  // a nlohmann object; its header stays in the .cc
  std::string path_;
};

}  // namespace k3::config
