#include "k3/ops/optim/cuda/muon_groups.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/optim/optim_cases.h"

namespace k3::ops::cuda {
namespace {

std::vector<MuonShape> shapes_of(const std::vector<NsUnits>& units) {
  std::vector<MuonShape> shapes;
  for (const NsUnits& u : units) shapes.push_back({(std::min(u.rows, u.cols) + 7) / 8 * 8, (std::max(u.rows, u.cols) + 7) / 8 * 8, u.count});
  return shapes;
}

void expect_valid(const std::vector<MuonShape>& shapes, const MuonGroups& g) {
  ASSERT_EQ(g.group_of.size(), shapes.size());
  std::vector<int64_t> units(g.groups.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    ASSERT_LT(g.group_of[i], g.groups.size());
    const MuonShape& group = g.groups[g.group_of[i]];
    EXPECT_LE(shapes[i].r, group.r);
    EXPECT_LE(shapes[i].c, group.c);
    EXPECT_LE(group.r, group.c);
    units[g.group_of[i]] += shapes[i].units;
  }
  for (size_t i = 0; i < units.size(); ++i) EXPECT_EQ(units[i], g.groups[i].units);
  double before = 0, after = 0;
  for (const MuonShape& s : shapes) before += muon_group_us(s);
  for (const MuonShape& s : g.groups) after += muon_group_us(s);
  EXPECT_LE(after, before);
}

TEST(MuonGroups, SmallModelsNeedFewLaunches) {
  const std::vector<MuonShape> shapes = shapes_of(nano_units());
  const MuonGroups g = muon_groups(shapes);
  expect_valid(shapes, g);
  EXPECT_LE(g.groups.size(), 4U);
}

TEST(MuonGroups, LargeShapesStayApart) {
  const std::vector<MuonShape> shapes = {{3072, 3584, 896}, {128, 7168, 96}, {896, 7168, 1}, {128, 7168, 96}};
  const MuonGroups g = muon_groups(shapes);
  expect_valid(shapes, g);
  ASSERT_EQ(g.groups.size(), 3U);
  EXPECT_EQ(g.group_of, (std::vector<size_t>{0, 1, 2, 1}));  // the same shape shares
}

TEST(MuonGroups, EveryTestShapeFits) {
  const std::vector<MuonShape> shapes = shapes_of(ns_cases());
  expect_valid(shapes, muon_groups(shapes));
  EXPECT_TRUE(muon_groups({}).groups.empty());
}

}  // namespace
}  // namespace k3::ops::cuda
