// Purpose:  which shapes of Muon's units go through Newton-Schulz together on a GPU. Zeros around a unit stay zero, so units of several
//           shapes can share one padded shape: more arithmetic, fewer launches.
// Shapes:   a shape is [r, c] with r <= c (tall units are turned), multiples of 8.
// Units:    microseconds, estimated.
// Memory:   none.
// Threads:  pure functions.
// Errors:   none.
// Source:   times measured on an H200: a launch takes 3 us where little is computed, batched products of such sizes run at about 300
//           TFLOP/s, the kernels around them at 3 TB/s. A plan that is off costs time, never precision.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace k3::ops::cuda {

struct MuonShape {
  int64_t r = 0, c = 0;
  int64_t units = 0;
};

double muon_group_us(const MuonShape& shape);

// For each shape the group it belongs to, and the groups; every shape fits into that of its group. Groups are numbered in the order in
// which their first shape comes.
struct MuonGroups {
  std::vector<size_t> group_of;
  std::vector<MuonShape> groups;
};
MuonGroups muon_groups(std::span<const MuonShape> shapes);

}  // namespace k3::ops::cuda
