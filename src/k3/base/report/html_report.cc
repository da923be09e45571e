#include "k3/base/report/html_report.h"

#include <fmt/format.h>

#include "k3/base/check.h"
#include "k3/base/report/svg.h"

namespace k3 {
namespace {

// Every plot is drawn twice, for wide and for narrow screens: a drawing that is scaled down cannot be read.
constexpr double kNarrow = 350, kNarrowHeight = 280, kHalf = 530, kHalfHeight = 320, kWhole = 1096, kWholeHeight = 330;

constexpr std::string_view kPageStyle = R"css(*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1136px;margin:0 auto;padding:20px}
h1{font-size:24px;line-height:1.25;margin:0 0 4px}h2{font-size:18px;margin:32px 0 10px}p{margin:0 0 10px;max-width:76ch}
.sub{color:var(--soft);overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:10px;margin:14px 0}
.tile{background:var(--card);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:21px;font-weight:600;font-variant-numeric:tabular-nums}.tile span,.tile i{display:block;color:var(--soft);font-size:13px;font-style:normal}
.plots{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:28px 36px;margin:14px 0}
figure{margin:0;min-width:0}figure.whole{grid-column:1/-1}figcaption{font-weight:600;margin-bottom:8px}figure p{color:var(--soft);font-size:13px;margin:4px 0 0}
svg.k3{max-width:100%;height:auto}svg.small{display:none}
.scroll{overflow-x:auto;margin:10px 0}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
caption,summary{font-weight:600;text-align:left;padding:4px 0}caption span{display:inline-block;max-width:calc(100vw - 36px)}summary{cursor:pointer}
th,td{padding:5px 12px 5px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}th{color:var(--soft);font-weight:500}
th.left,td.left{text-align:left}td.left{white-space:normal;overflow-wrap:anywhere;min-width:10ch}
@media(max-width:820px){main{padding:16px}.plots{grid-template-columns:minmax(0,1fr)}svg.large{display:none}svg.small{display:block}
svg.small{width:100%;max-width:520px}.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}.tile b{font-size:19px}}
)css";

void add_row(std::string& out, const std::vector<std::string>& cells, std::string_view tag, int left) {
  out += "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    const bool is_left = static_cast<int>(i) < left;
    out += fmt::format("<{0}{1}>{2}</{0}>", tag, is_left ? " class=\"left\"" : "", xml_text(cells[i]));
  }
  out += "</tr>\n";
}

}  // namespace

HtmlReport::HtmlReport(std::string title, std::string subtitle) : title_(std::move(title)) {
  body_ = fmt::format("<h1>{}</h1>\n<p class=\"sub\">{}</p>\n", xml_text(title_), xml_text(subtitle));
}

void HtmlReport::close_grid() {
  if (in_grid_) body_ += "</div>\n";
  in_grid_ = false;
}

void HtmlReport::heading(std::string_view text) {
  close_grid();
  body_ += fmt::format("<h2>{}</h2>\n", xml_text(text));
}

void HtmlReport::paragraph(std::string_view text) {
  close_grid();
  body_ += fmt::format("<p>{}</p>\n", xml_text(text));
}

void HtmlReport::tiles(const std::vector<Tile>& tiles) {
  close_grid();
  body_ += "<div class=\"tiles\">\n";
  for (const Tile& tile : tiles) {
    body_ += fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b><i>{}</i></div>\n", xml_text(tile.label),
                         xml_text(tile.value), xml_text(tile.note));
  }
  body_ += "</div>\n";
}

void HtmlReport::table(const ReportTable& table) {
  close_grid();
  if (table.collapsed) body_ += fmt::format("<details><summary>{}</summary>\n", xml_text(table.title));
  body_ += "<div class=\"scroll\"><table>\n";
  if (!table.collapsed && !table.title.empty()) body_ += fmt::format("<caption><span>{}</span></caption>\n", xml_text(table.title));
  body_ += "<thead>";
  add_row(body_, table.header, "th", table.left_columns);
  body_ += "</thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    K3_CHECK(row.size() == table.header.size(), "a row of {} cells under {} names", row.size(), table.header.size());
    add_row(body_, row, "td", table.left_columns);
  }
  body_ += "</tbody></table></div>\n";
  if (table.collapsed) body_ += "</details>\n";
}

void HtmlReport::plot(const Plot& plot) {
  if (!in_grid_) body_ += "<div class=\"plots\">\n";
  in_grid_ = true;
  body_ += fmt::format("<figure{}><figcaption>{}</figcaption>\n", plot.wide ? " class=\"whole\"" : "", xml_text(plot.title));
  body_ += render_svg(plot, {plot.wide ? kWhole : kHalf, plot.wide ? kWholeHeight : kHalfHeight, false, "large"});
  body_ += render_svg(plot, {kNarrow, kNarrowHeight, false, "small"});
  if (!plot.note.empty()) body_ += fmt::format("<p>{}</p>\n", xml_text(plot.note));
  body_ += "</figure>\n";
}

std::string HtmlReport::html() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n<style>\n{}{}</style>\n"
      "</head>\n<body>\n<main>\n{}{}</main>\n</body>\n</html>\n",
      xml_text(title_), svg_style(), kPageStyle, body_, in_grid_ ? "</div>\n" : "");
}

}  // namespace k3
