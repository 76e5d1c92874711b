#include "core/mesh/mesh.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace shardlens::mesh {
namespace {

using testing::ElementsAre;
using Members = std::vector<int64_t>;

// Every group of this kind, by its first rank.
std::vector<Members> all_of(const Group& group, int64_t ranks) {
  std::vector<Members> out;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (group.first(rank) == rank) {
      out.push_back(group.members(rank));
    }
  }
  return out;
}

TEST(MeshTest, RanksVaryFastestAlongTheLastAxis) {
  const Mesh mesh({{"replicate", 2}, {"shard", 3}, {"tensor", 2}});
  EXPECT_EQ(mesh.ranks(), 12);
  EXPECT_EQ(mesh.size("shard"), 3);
  EXPECT_EQ(mesh.size("context"), 1);
  EXPECT_THAT(mesh.group("tensor").members(7), ElementsAre(6, 7));
  EXPECT_THAT(mesh.group("shard").members(9), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.group("replicate").members(9), ElementsAre(3, 9));
  EXPECT_THAT(mesh.group("context").members(9), ElementsAre(9));
  EXPECT_EQ(mesh.group("shard").position(9), 1);
  EXPECT_EQ(mesh.group("shard").first(9), 7);
  EXPECT_THAT(mesh.group("replicate", "shard", "both").members(9), ElementsAre(1, 3, 5, 7, 9, 11));
  EXPECT_EQ(Mesh().ranks(), 1);
}

TEST(MeshTest, PartsOfAGroupAreNeighboursInIt) {
  const Mesh mesh({{"shard", 4}, {"tensor", 2}});
  const Group part = part_of(mesh.group("shard"), 2, "sub_shard2");
  EXPECT_EQ(part.name, "sub_shard2");
  EXPECT_EQ(all_of(part, 8), (std::vector<Members>{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

// The members that torch's DeviceMesh gave for random meshes and the experts' meshes over the same
// ranks (tests/tools/device_meshes.py), along each axis and along several.
TEST(MeshTest, GroupsAreThoseOfDeviceMesh) {
  std::ifstream in(SHARDLENS_TEST_DATA "/meshes/device_meshes.json");
  const auto document = nlohmann::json::parse(in);
  size_t compared = 0, joined = 0;
  const std::pair<const char*, const char*> kinds[] = {{"axes", "groups"},
                                                       {"expert_axes", "expert_groups"}};
  for (const auto& each : document.at("meshes")) {
    for (const auto& [axes, groups] : kinds) {
      std::vector<Axis> list;
      for (const auto& axis : each.at(axes)) {
        list.push_back({axis[0].get<std::string>(), axis[1].get<int64_t>()});
      }
      const Mesh mesh(list);
      for (const auto& [names, expected] : each.at(groups).items()) {
        const auto is_named = [&names = names](const Axis& axis) {
          return ("," + names + ",").find("," + axis.name + ",") != std::string::npos;
        };
        const auto first = std::ranges::find_if(list, is_named);
        const auto last = std::find_if(list.rbegin(), list.rend(), is_named).base() - 1;
        // Several axes with another in between are no group of equal distances.
        if (std::any_of(first, last,
                        [&](const Axis& axis) { return !is_named(axis) && axis.size > 1; })) {
          continue;
        }
        const Group group = mesh.group(first->name, last->name, names);
        EXPECT_EQ(all_of(group, mesh.ranks()), expected.get<std::vector<Members>>())
            << each.at(axes) << " " << names;
        ++compared;
        joined += first == last ? 0 : 1;
      }
    }
  }
  EXPECT_EQ(document.at("meshes").size(), 200U);
  EXPECT_GT(compared, 1000U);
  EXPECT_GT(joined, 200U);
}

TEST(MeshTest, ImpossibleMeshesAreInternalErrors) {
  const Mesh mesh({{"shard", 2}});
  const Group group{.name = "shard", .size = 4};
  EXPECT_THROW(Mesh({{"shard", 0}}), RuntimeFault);
  EXPECT_THROW(Mesh({{"shard", 2}, {"shard", 2}}), RuntimeFault);
  EXPECT_THROW(static_cast<void>(mesh.group("shard", "tensor", "x")), RuntimeFault);
  EXPECT_THROW(static_cast<void>(part_of(group, 3, "x")), RuntimeFault);
}

}  // namespace
}  // namespace shardlens::mesh
