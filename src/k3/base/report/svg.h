// Draws a plot as SVG: crisp at the size it is asked for, colours by CSS variables so that light and dark need one drawing.
#pragma once

#include <string>
#include <string_view>

#include "k3/base/report/plot.h"

namespace k3 {

struct SvgOptions {
  double width = 520, height = 320;  // CSS pixels
  bool standalone = false;           // a file of its own: title, note and colours are inside
  std::string css_class;             // of the <svg> element
};

std::string render_svg(const Plot& plot, const SvgOptions& options);

// The colours, for pages that hold drawings: variables of :root for light and dark, and the classes that drawings use.
std::string_view svg_style();

// Text for XML: markup escaped, invalid UTF-8 repaired, control characters left out.
std::string xml_text(std::string_view text);

}  // namespace k3
