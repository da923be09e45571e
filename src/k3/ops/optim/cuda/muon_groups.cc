#include "k3/ops/optim/cuda/muon_groups.h"

#include <algorithm>

namespace k3::ops::cuda {
namespace {

constexpr double kLaunches = 18, kLaunchUs = 3;  // momentum, iterate, five times three products, update
constexpr double kFlopsUs = 300e6, kBytesUs = 3e6;

MuonShape joined(const MuonShape& a, const MuonShape& b) { return {std::max(a.r, b.r), std::max(a.c, b.c), a.units + b.units}; }

}  // namespace

double muon_group_us(const MuonShape& s) {
  const auto r = static_cast<double>(s.r), c = static_cast<double>(s.c), units = static_cast<double>(s.units);
  const double flops = units * 5 * (4 * r * r * c + 2 * r * r * r);
  const double bytes = units * (5 * (6 * r * c + 8 * r * r) + 32 * r * c);  // BF16 operands of the products; masters around them
  return kLaunches * kLaunchUs + flops / kFlopsUs + bytes / kBytesUs;
}

MuonGroups muon_groups(std::span<const MuonShape> shapes) {
  MuonGroups out;
  for (size_t i = 0; i < shapes.size(); ++i) {
    out.group_of.push_back(i);
    out.groups.push_back(shapes[i]);
  }
  // The pair that saves most is joined, as long as one saves anything.
  for (;;) {
    double most = 0;
    size_t first = 0, second = 0;
    for (size_t i = 0; i < out.groups.size(); ++i) {
      for (size_t j = i + 1; j < out.groups.size(); ++j) {
        const MuonShape &a = out.groups[i], &b = out.groups[j];
        const double saved = muon_group_us(a) + muon_group_us(b) - muon_group_us(joined(a, b));
        if (saved > most) most = saved, first = i, second = j;
      }
    }
    if (most == 0) return out;
    out.groups[first] = joined(out.groups[first], out.groups[second]);
    out.groups.erase(out.groups.begin() + static_cast<std::ptrdiff_t>(second));
    for (size_t& g : out.group_of) {
      if (g == second) g = first;
      if (g > second) --g;
    }
  }
}

}  // namespace k3::ops::cuda
