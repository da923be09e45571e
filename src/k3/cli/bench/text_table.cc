#include "k3/cli/bench/text_table.h"

#include <algorithm>

#include "k3/base/check.h"
#include "k3/base/utf8.h"

namespace k3::cli {
namespace {

std::string padded(const std::string& text, const Column& column) {
  const std::string pad(static_cast<size_t>(std::max(0, column.width - static_cast<int>(utf8_length(text)))), ' ');
  return column.left ? text + pad : pad + text;
}

std::vector<std::string> names(const std::vector<Column>& columns) {
  std::vector<std::string> out;
  for (const Column& column : columns) out.push_back(column.name);
  return out;
}

}  // namespace

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_) column.width = std::max(column.width, static_cast<int>(utf8_length(column.name)));
}

int TextTable::width() const {
  int width = -2;
  for (const Column& column : columns_) width += column.width + 2;
  return width;
}

std::string TextTable::header() const { return row(names(columns_)); }

std::string TextTable::row(const std::vector<std::string>& cells) const {
  K3_CHECK(cells.size() == columns_.size(), "a row of {} cells in {} columns", cells.size(), columns_.size());
  std::string out;
  for (size_t c = 0; c < cells.size(); ++c) out += (c > 0 ? "  " : "") + padded(cells[c], columns_[c]);
  out.erase(out.find_last_not_of(' ') + 1);
  return out + '\n';
}

std::string TextTable::markdown_header() const {
  std::string rule = "|";
  for (const Column& column : columns_) {
    const std::string dashes(static_cast<size_t>(column.width), '-');
    rule += column.left ? ":" + dashes + " |" : " " + dashes + ":|";
  }
  return markdown_row(names(columns_)) + rule + '\n';
}

std::string TextTable::markdown_row(const std::vector<std::string>& cells) const {
  K3_CHECK(cells.size() == columns_.size(), "a row of {} cells in {} columns", cells.size(), columns_.size());
  std::string out = "|";
  for (size_t c = 0; c < cells.size(); ++c) out += " " + padded(cells[c], columns_[c]) + " |";
  return out + '\n';
}

}  // namespace k3::cli
