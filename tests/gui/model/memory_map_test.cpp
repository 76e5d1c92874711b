#include "gui/model/memory/memory_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "gui/model/what_if/edit_history.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class MemoryMapTest : public QtTest<QCoreApplication> {
 protected:
  static constexpr QRectF kArea{10, 20, 500, 160};
  const PlanVersion& simulated() {
    if (!session_.isOpen()) {
      session_.start(plan::load_model_config(sample_run() + "/config.json"), "8xH100");
      EXPECT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
    }
    return *session_.current();
  }
  static double size(const QRectF& area) { return area.width() * area.height(); }
  PlanSession session_;
};

TEST_F(MemoryMapTest, StripsFillTheAreaInOrder) {
  const std::vector<double> weights{6, 6, 4, 3, 2, 2, 1, 0};
  for (const QRectF& area : {QRectF(0, 0, 600, 400), QRectF(5, 7, 90, 300)}) {
    const std::vector<QRectF> tiles = strip_treemap(weights, area);
    ASSERT_EQ(tiles.size(), weights.size());
    double worst = 0;
    for (size_t i = 0; i < tiles.size(); ++i) {
      EXPECT_NEAR(size(tiles[i]), size(area) * weights[i] / 24, 1e-6) << i;
      EXPECT_TRUE(area.adjusted(-1e-6, -1e-6, 1e-6, 1e-6).contains(tiles[i]) || weights[i] == 0);
      for (size_t j = 0; j < i; ++j) {
        const QRectF both = tiles[i].intersected(tiles[j]);
        EXPECT_LT(size(both), 1e-6) << i << " " << j;
      }
      if (weights[i] > 0) {
        worst = std::max(
            {worst, tiles[i].width() / tiles[i].height(), tiles[i].height() / tiles[i].width()});
      }
    }
    EXPECT_LT(worst, 5);
  }
  EXPECT_TRUE(strip_treemap({}, kArea).empty());
  EXPECT_TRUE(strip_treemap({0, 0}, kArea).front().isEmpty());
}

// At every moment what the units hold sums to the curve's categories, and at the peak it is what
// the simulator lists as alive, which a second replay finds.
TEST_F(MemoryMapTest, WhatIsHeldIsTheSimulators) {
  const PlanVersion& version = simulated();
  const sim::MemoryCurve& curve = version.memory;
  for (const sim::MemoryCurve::Point& point : curve.points) {
    std::array<Bytes, sim::kMemoryCategoryCount> sums{};
    const std::vector<Bytes> held = curve.held_at(point);
    for (size_t i = 0; i < held.size(); ++i) {
      EXPECT_GE(held[i], 0);
      sums[static_cast<size_t>(curve.holders[i].category)] += held[i];
    }
    ASSERT_EQ(sums, point.bytes) << point.time;
  }
  std::map<std::tuple<sim::MemoryCategory, UnitId, std::string>, Bytes> alive, held_then;
  for (const sim::AliveAtPeak& each : version.prediction.memory.alive) {
    alive[{each.category, each.unit, each.what}] += each.bytes;
  }
  const std::vector<Bytes> held = curve.held_at(curve.points[curve.peak]);
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i] > 0) {
      const sim::MemoryHolder& of = curve.holders[i];
      held_then[{of.category, of.unit, of.what}] += held[i];
    }
  }
  EXPECT_EQ(held_then, alive);
}

// Tiles have the area of their bytes on one scale through the step, and stay in the model's order.
TEST_F(MemoryMapTest, TilesHaveOneScaleThroughTheStep) {
  const sim::MemoryCurve& curve = simulated().memory;
  const Bytes peak = curve.points[curve.peak].sum();
  for (const auto order : {MemoryMap::Order::kByUnit, MemoryMap::Order::kByCategory}) {
    for (const Nanoseconds time : {Nanoseconds{0}, curve.end / 3, curve.points[curve.peak].time}) {
      const MemoryMap map = memory_map(curve, time, order, kArea);
      if (time == curve.points[curve.peak].time) {
        EXPECT_EQ(map.sum, peak);
      } else {
        EXPECT_GE(map.sum, curve.at(time).sum());  // of several moments at once the highest
      }
      Bytes sum = 0, of_groups = 0;
      for (const MemoryMap::Tile& tile : map.tiles) {
        sum += tile.bytes;
        EXPECT_NEAR(size(tile.area) / size(kArea),
                    static_cast<double>(tile.bytes) / static_cast<double>(peak), 1e-9);
        EXPECT_EQ(map.at(tile.area.center()), &tile);
      }
      std::vector<std::string> units;
      for (const MemoryMap::Group& group : map.groups) {
        of_groups += group.bytes;
        EXPECT_LT(group.begin, group.end);
        const std::span tiles(&map.tiles[group.begin], group.end - group.begin);
        EXPECT_EQ(std::ranges::count(tiles, true, &MemoryMap::Tile::largest), 1);
        EXPECT_EQ(std::ranges::find(tiles, true, &MemoryMap::Tile::largest)->bytes,
                  std::ranges::max(tiles, {}, &MemoryMap::Tile::bytes).bytes);
        if (order == MemoryMap::Order::kByUnit && map.tiles[group.begin].unit) {
          units.push_back(*map.tiles[group.begin].unit);
        }
      }
      EXPECT_EQ(sum, map.sum);
      EXPECT_EQ(of_groups, map.sum);
      EXPECT_NEAR(size(map.used) + size(map.free), size(kArea), 1e-6);
      std::vector<std::string> expected;  // of the model, those that hold something
      for (const std::string& unit : curve.units) {
        if (std::ranges::find(units, unit) != units.end()) {
          expected.push_back(unit);
        }
      }
      EXPECT_EQ(units, expected);
    }
  }
  const MemoryMap map = memory_map(curve, 0, MemoryMap::Order::kByUnit, kArea);
  const MemoryMap::Tile& tile = map.tiles.front();
  Bytes listed = 0;
  for (const HeldMemory& each : held_memory(curve, 0, tile.unit, tile.category)) {
    listed += each.bytes;
  }
  EXPECT_EQ(listed, tile.bytes);
}

}  // namespace
}  // namespace shardlens::gui
