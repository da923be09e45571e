// One self-contained HTML page: headings, text, figures in tiles, tables, plots. No script, no other file, no other host;
// light and dark by the reader's setting, one column on a phone. The markup is well-formed XML as well.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "k3/base/report/plot.h"

namespace k3 {

struct Tile {
  std::string label, value, note;
};

struct ReportTable {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  int left_columns = 1;    // set left; the others, numbers, right
  bool collapsed = false;  // closed until asked for: long tables
};

class HtmlReport {
 public:
  HtmlReport(std::string title, std::string subtitle);

  void heading(std::string_view text);
  void paragraph(std::string_view text);
  void tiles(const std::vector<Tile>& tiles);
  void table(const ReportTable& table);
  void plot(const Plot& plot);  // plots that follow each other stand side by side where there is room

  std::string html() const;

 private:
  void close_grid();

  std::string title_, body_;
  bool in_grid_ = false;
};

}  // namespace k3
