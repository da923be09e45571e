// A table whose widths are known before its rows: each row is printed when it is ready.
#pragma once

#include <string>
#include <vector>

namespace k3::cli {

struct Column {
  std::string name;
  int width = 0;      // of the widest cell expected; a wider one moves its row
  bool left = false;  // text is set left, numbers right
};

class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns);

  int width() const;
  std::string header() const;
  std::string row(const std::vector<std::string>& cells) const;
  std::string markdown_header() const;  // two lines
  std::string markdown_row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
};

}  // namespace k3::cli
