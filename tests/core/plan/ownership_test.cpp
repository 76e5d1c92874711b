#include "core/plan/ownership.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/model_config.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Shapes = std::vector<std::vector<int64_t>>;

const Shapes kLinears{{7, 5}, {7}, {5, 7}, {5}};

// A root with parameters p0, p1, … of these shapes.
ModuleTree model_of(const Shapes& shapes) {
  ModuleTree tree;
  tree.modules.push_back({.fqn = "", .type = "Model"});
  for (const std::vector<int64_t>& shape : shapes) {
    const auto index = static_cast<uint32_t>(tree.parameters.size());
    tree.modules[0].parameters.push_back(index);
    tree.parameters.push_back(
        {.fqn = fmt::format("p{}", index), .shape = shape, .numel = numel_of(shape)});
  }
  return tree;
}

// One unit with all parameters; `more`: further keys of the plan.
ResolvedPlan sharded(const Shapes& shapes, int64_t ranks, const std::string& more) {
  return resolve(
      parse_plan(R"({"version": 1, "units": [{"modules": ""}], )" + more + "}", "plan.json"),
      model_of(shapes), ranks);
}

constexpr const char* kFlat = R"("layout": "flat")";
constexpr const char* kPerParameter = R"("layout": "per_parameter")";

std::vector<HeldPart> parts_of(const ResolvedPlan& plan, uint32_t parameter) {
  return Ownership(plan).parts({parameter, 0, parameter});
}

TEST(OwnershipTest, FlatPartsCrossRanks) {
  // [0, 35) pad [36, 43) pad [44, 79) pad [80, 85) pad, in shards of 29.
  const ResolvedPlan plan = sharded(kLinears, 3, kFlat);
  const RankSet first{0, 3, 1, 1}, second{1, 3, 1, 1}, third{2, 3, 1, 1};
  // Elements 0 to 28 of rows of 5 are five rows and four elements; 29 to 34 one element and a row.
  EXPECT_THAT(parts_of(plan, 0),
              ElementsAre(HeldPart{first, {{{0, 0}, {5, 5}}, {{5, 0}, {1, 4}}}, 0, 0},
                          HeldPart{second, {{{5, 4}, {1, 1}}, {{6, 0}, {1, 5}}}, 0, 0}));
  EXPECT_THAT(parts_of(plan, 1), ElementsAre(HeldPart{second, {{{0}, {7}}}, 7, 0}));
  EXPECT_THAT(parts_of(plan, 2), ElementsAre(HeldPart{second, {{{0, 0}, {2, 7}}}, 15, 0},
                                             HeldPart{third, {{{2, 0}, {3, 7}}}, 0, 0}));
  EXPECT_THAT(parts_of(plan, 3), ElementsAre(HeldPart{third, {{{0}, {5}}}, 22, 0}));
  EXPECT_THAT(Ownership(plan).padding(0),
              ElementsAre(HeldPadding{second, 6, 1}, HeldPadding{second, 14, 1},
                          HeldPadding{third, 21, 1}, HeldPadding{third, 27, 2}));
}

TEST(OwnershipTest, ReplicasHoldTheSame) {
  const ResolvedPlan plan =
      sharded(Shapes{{6}}, 6, R"("layout": "flat", "mesh": {"replicate": 3, "shard": 2})");
  EXPECT_THAT(parts_of(plan, 0), ElementsAre(HeldPart{{0, 2, 3, 1}, {{{0}, {3}}}, 0, 0},
                                             HeldPart{{1, 2, 3, 1}, {{{3}, {3}}}, 0, 0}));
  const ResolvedPlan whole = sharded(Shapes{{6}}, 6, R"("layout": "flat", "mesh": {"shard": 1})");
  EXPECT_THAT(parts_of(whole, 0), ElementsAre(HeldPart{{0, 1, 6, 1}, {{{0}, {6}}}, 0, 0}));
}

TEST(OwnershipTest, PerParameterPartsAreRowsAndThenPadding) {
  // Two rows of 3 on four ranks: ranks 2 and 3 hold padding only.
  const ResolvedPlan plan = sharded(Shapes{{2, 3}, {4}}, 4, kPerParameter);
  EXPECT_THAT(parts_of(plan, 0), ElementsAre(HeldPart{{0, 4, 1, 1}, {{{0, 0}, {1, 3}}}, 0, 0},
                                             HeldPart{{1, 4, 1, 1}, {{{1, 0}, {1, 3}}}, 0, 0}));
  EXPECT_EQ(parts_of(plan, 1)[3], (HeldPart{{3, 4, 1, 1}, {{{3}, {1}}}, 3, 0}));
  EXPECT_THAT(Ownership(plan).padding(0),
              ElementsAre(HeldPadding{{2, 4, 1, 1}, 0, 3}, HeldPadding{{3, 4, 1, 1}, 0, 3}));
  EXPECT_EQ(Ownership(plan).part({0, 0, 0}, 2), (HeldPart{{2, 4, 1, 1}, {}, 0, 3}));
}

TEST(OwnershipTest, ParametersWithoutElementsAreNowhere) {
  for (const char* layout : {kFlat, kPerParameter}) {
    EXPECT_THAT(parts_of(sharded(Shapes{{0, 4}, {4}}, 2, layout), 0), IsEmpty());
  }
}

// Ranks 0 to 7 are 2 replicas of 2 shards of 2 parts: column 0 to 3 and 4 to 5 of 6, and rows 0 to
// 2 and 3 to 4 of 5. The bias is whole on both ranks of a part.
TEST(OwnershipTest, TensorParallelismDividesBeforeShards) {
  const ResolvedPlan plan =
      sharded(Shapes{{5, 6}, {5}}, 8,
              R"("layout": "per_parameter", "mesh": {"replicate": 2, "shard": 2, "tensor": 2},
                 "tensor_parallel": {"p0": 1})");
  EXPECT_THAT(plan.local_shape(0), ElementsAre(5, 3));
  EXPECT_THAT(plan.local_shape(1), ElementsAre(5));
  EXPECT_THAT(parts_of(plan, 0), ElementsAre(HeldPart{{0, 4, 2, 1}, {{{0, 0}, {3, 3}}}, 0, 0},
                                             HeldPart{{1, 4, 2, 1}, {{{0, 3}, {3, 3}}}, 0, 0},
                                             HeldPart{{2, 4, 2, 1}, {{{3, 0}, {2, 3}}}, 0, 3},
                                             HeldPart{{3, 4, 2, 1}, {{{3, 3}, {2, 3}}}, 0, 3}));
  EXPECT_THAT(parts_of(plan, 1), ElementsAre(HeldPart{{0, 4, 2, 2}, {{{0}, {3}}}, 9, 0},
                                             HeldPart{{2, 4, 2, 2}, {{{3}, {2}}}, 9, 1}));
  EXPECT_EQ((RankSet{2, 4, 2, 2}.size()), 4);
  EXPECT_EQ((RankSet{2, 4, 2, 2}.at(3)), 7);
}

// Parameters that the plan ignores are in no shard, but divided all the same.
TEST(OwnershipTest, IgnoredParametersAreDivided) {
  const ResolvedPlan plan = sharded(Shapes{{4, 2}, {4}}, 4,
                                    R"("layout": "per_parameter", "mesh": {"shard": 2, "tensor": 2},
                                       "tensor_parallel": {"p0": 0}, "ignored_parameters": ["p0"])");
  const Ownership ownership(plan);
  EXPECT_THAT(ownership.parts({0, kNoUnit, 0}),
              ElementsAre(HeldPart{{0, 2, 2, 1}, {{{0, 0}, {2, 2}}}, 0, 0},
                          HeldPart{{1, 2, 2, 1}, {{{2, 0}, {2, 2}}}, 0, 0}));
}

// What torch's DTensor and fully_shard gave each rank (tests/tools/device_meshes.py).
TEST(OwnershipTest, PartsAreThoseOfDTensorAndFullyShard) {
  std::ifstream in(SHARDLENS_TEST_DATA "/meshes/dtensor_boxes.json");
  const auto document = nlohmann::json::parse(in);
  int compared = 0;
  for (const auto& each : document.at("parameters")) {
    const auto [replicate, shard, divide] = each.at("mesh").get<std::array<int64_t, 3>>();
    const int64_t world = replicate * shard * divide;
    const bool divided = !each.at("dim").is_null();
    const auto shape = each.at("shape").get<std::vector<int64_t>>();
    // A parameter that is divided along dimension 0 is one of experts too.
    for (const bool expert : {false, true}) {
      if (expert && (!divided || each.at("dim") != 0)) {
        continue;
      }
      const std::string plan = fmt::format(
          R"({{"version": 1, "layout": "per_parameter", "mesh": {{"replicate": {}, "shard": {}, "{}": {}}}{},
               "units": [{{"modules": "", "groups": [{{"mesh": "{}", "shard_dim": {}}}]}}]}})",
          replicate, expert ? shard * divide : shard, expert ? "expert" : "tensor", divide,
          expert || !divided
              ? ""
              : fmt::format(R"(, "tensor_parallel": {{"p0": {}}})", each.at("dim").get<int64_t>()),
          expert ? "expert" : "dense", each.at("shard_dim").get<int64_t>());
      const ResolvedPlan resolved =
          resolve(parse_plan(plan, "plan.json"), model_of(Shapes{shape}), world);
      const Ownership ownership(resolved);
      std::map<int64_t, std::vector<Box>> listed;
      for (const HeldPart& part : ownership.parts({0, 0, 0})) {
        for (int64_t i = 0; i < part.ranks.size(); ++i) {
          EXPECT_TRUE(listed.emplace(part.ranks.at(i), part.boxes).second) << each.dump();
        }
      }
      for (int64_t rank = 0; rank < world; ++rank) {
        std::vector<Box> wanted;
        if (const auto& box = each.at("boxes").at(static_cast<size_t>(rank)); !box.is_null()) {
          Box& one = wanted.emplace_back();
          for (const auto& [begin, end] : box.get<std::vector<std::pair<int64_t, int64_t>>>()) {
            one.offset.push_back(begin);
            one.shape.push_back(end - begin);
          }
        }
        EXPECT_EQ(ownership.part({0, 0, 0}, rank).boxes, wanted) << rank << " of " << each.dump();
        EXPECT_EQ(listed[rank], wanted) << rank << " of " << each.dump();
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

// In any layout, every element of a parameter is held once within a replica, and parts and padding
// fill each shard without overlap.
TEST(OwnershipTest, PartsTileParametersAndShards) {
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same cases every time
  for (int i = 0; i < 200; ++i) {
    Shapes shapes(1 + random() % 4);
    for (auto& shape : shapes) {
      shape = {static_cast<int64_t>(random() % 9), static_cast<int64_t>(1 + random() % 5)};
    }
    const auto ranks = static_cast<int64_t>(1 + random() % 6);
    const auto replicas = static_cast<int64_t>(1 + random() % 3);
    const auto tensor = static_cast<int64_t>(1 + random() % 3);
    // Parameters in turn are divided along dimension 0, along dimension 1, and not at all.
    std::string styles;
    for (size_t p = 0; tensor > 1 && p < shapes.size(); ++p) {
      styles +=
          p % 3 == 2 ? "" : fmt::format("{}\"p{}\": {}", styles.empty() ? "" : ", ", p, p % 3);
    }
    const ResolvedPlan plan = sharded(
        shapes, ranks * replicas * tensor,
        fmt::format(R"("layout": "{}", "mesh": {{"replicate": {}, "shard": {}, "tensor": {}}},
                       {}"mixed_precision": {{"param_dtype": "{}"}})",
                    i % 2 == 0 ? "flat" : "per_parameter", replicas, ranks, tensor,
                    styles.empty() ? "" : fmt::format("\"tensor_parallel\": {{{}}}, ", styles),
                    i % 3 == 0 ? "bf16" : "fp32"));
    const Ownership ownership(plan);
    std::map<int64_t, std::vector<int>> shards;  // by rank, how often each element is covered
    const auto cover = [&](const RankSet& set, int64_t begin, int64_t numel) {
      for (int64_t k = 0; k < set.size(); ++k) {
        auto& shard = shards[set.at(k)];
        shard.resize(static_cast<size_t>(plan.layout(0, set.at(k)).shard_numel()));
        for (int64_t at = 0; at < numel; ++at) {
          ++shard.at(static_cast<size_t>(begin + at));
        }
      }
    };
    for (uint32_t p = 0; p < shapes.size(); ++p) {
      // How often each element is held. Ranks between which it is not divided hold it each.
      std::vector<int64_t> elements(static_cast<size_t>(numel_of(shapes[p])));
      for (const HeldPart& part : ownership.parts({p, 0, p})) {
        for (const Box& box : part.boxes) {
          for_each_run(box, shapes[p], 0, numel_of(shapes[p]),
                       [&](int64_t begin, int64_t /*in_box*/, int64_t count) {
                         for (int64_t at = begin; at < begin + count; ++at) {
                           elements[static_cast<size_t>(at)] += part.ranks.size();
                         }
                       });
        }
        cover(part.ranks, part.shard_begin, part.numel());
      }
      const int64_t holders = replicas * (plan.placements[p].group == mesh::kNoGroup ? tensor : 1);
      EXPECT_EQ(std::ranges::count(elements, holders), std::ssize(elements)) << i;
    }
    for (const HeldPadding& padding : ownership.padding(0)) {
      cover(padding.ranks, padding.shard_begin, padding.numel);
    }
    for (const auto& [rank, shard] : shards) {
      EXPECT_TRUE(std::ranges::all_of(shard, [](int times) { return times == 1; }))
          << "case " << i << ", rank " << rank;
    }
  }
}

TEST(OwnershipTest, EveryParameterHasOnePlace) {
  const ModuleTree tree =
      module_tree(load_model_config(std::string(SHARDLENS_TEST_DATA) + "/gpt2-tiny"));
  const ResolvedPlan plan = resolve(
      parse_plan(R"({"version": 1, "units": [{"modules": "transformer.h.*"}, {"modules": ""}],
                     "ignored_parameters": ["transformer.wpe.weight"]})",
                 "plan.json"),
      tree, 2);
  std::set<uint32_t> seen;
  for (const ParameterPlace& place : parameter_places(plan)) {
    EXPECT_TRUE(seen.insert(place.parameter).second);
    if (place.unit == kNoUnit) {
      EXPECT_EQ(tree.parameters[place.parameter].fqn, "transformer.wpe.weight");
    } else {
      EXPECT_EQ(plan.units[place.unit].parameters[place.index], place.parameter);
    }
  }
  EXPECT_EQ(seen.size(), tree.parameters.size());
}

}  // namespace
}  // namespace shardlens::plan
