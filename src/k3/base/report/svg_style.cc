#include "k3/base/report/svg.h"
#include "k3/base/utf8.h"

namespace k3 {

// Eight colours that stay apart for the common kinds of colour blindness (after Okabe and Ito), lighter on dark ground.
std::string_view svg_style() {
  return R"css(:root{color-scheme:light dark;--paper:#ffffff;--card:#f6f7f9;--ink:#1b1f24;--soft:#59636e;--grid:#e1e5ea;--frame:#aeb6bf;
--s0:#0b6fb8;--s1:#c8500a;--s2:#0a8a66;--s3:#a8508a;--s4:#a97a00;--s5:#3f9fd0;--s6:#6b6f76;--s7:#7a4a2b}
@media(prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1c2026;--ink:#e6e9ed;--soft:#9aa4af;--grid:#2b313a;--frame:#5a636e;
--s0:#5db3f0;--s1:#ff8f4d;--s2:#3ecfa4;--s3:#e79ccb;--s4:#edbe4b;--s5:#9bdcff;--s6:#b4b9c0;--s7:#d3a07c}}
svg.k3{display:block;font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
svg.k3 text{fill:var(--soft)}svg.k3 text.i{fill:var(--ink)}svg.k3 text.o{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}svg.k3 text.t{fill:var(--ink);font-size:14px;font-weight:600}
svg.k3 .g{stroke:var(--grid);fill:none}svg.k3 .h{stroke:var(--grid);stroke-opacity:.45;fill:none}svg.k3 .f{stroke:var(--frame);fill:none}
svg.k3 .r{stroke:var(--ink);stroke-dasharray:5 4;stroke-opacity:.6;fill:none}svg.k3 .x{fill:var(--s2);fill-opacity:.13;stroke:var(--s2);stroke-opacity:.6}
svg.k3 .l{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}svg.k3 .d{stroke-dasharray:6 4;stroke-linecap:butt}
svg.k3 .p{fill:none;stroke-width:5;stroke-linecap:round;stroke-opacity:.55}svg.k3 .m{stroke:none;fill-opacity:.75}
svg.k3 .c{fill:none;stroke-width:1.6;stroke-opacity:.85}svg.k3 .a{stroke:none;fill-opacity:.62}svg.k3 .w{stroke:none;fill-opacity:.16}svg.k3 .b{stroke:none;fill-opacity:.85}
svg.k3 .e{fill:var(--ink);stroke:var(--paper);stroke-width:1.5}
.s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s2{stroke:var(--s2)}.s3{stroke:var(--s3)}.s4{stroke:var(--s4)}.s5{stroke:var(--s5)}.s6{stroke:var(--s6)}.s7{stroke:var(--s7)}
.f0{fill:var(--s0)}.f1{fill:var(--s1)}.f2{fill:var(--s2)}.f3{fill:var(--s3)}.f4{fill:var(--s4)}.f5{fill:var(--s5)}.f6{fill:var(--s6)}.f7{fill:var(--s7)}
)css";
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : utf8_repair(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

}  // namespace k3
