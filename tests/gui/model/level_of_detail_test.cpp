#include "gui/model/lanes/level_of_detail.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace shardlens::gui {
namespace {

std::vector<LaneItem> random_items(std::mt19937& random, size_t count, Nanoseconds longest) {
  std::uniform_int_distribution<Nanoseconds> gap(0, longest), length(1, longest);
  std::vector<LaneItem> items;
  Nanoseconds at = 1'790'000'000'000'000'000;
  for (uint32_t i = 0; i < count; ++i) {
    at += gap(random);
    const Nanoseconds end = at + length(random);
    items.push_back({at, end, i});
    at = end;
  }
  return items;
}

// A row of all of them, which must outlive it.
ItemTable table_of(const std::vector<LaneItem>& items) {
  return {&items, [](const void* table, uint32_t position) {
            return (*static_cast<const std::vector<LaneItem>*>(table))[position];
          }};
}

std::vector<uint32_t> all_of(const std::vector<LaneItem>& items) {
  std::vector<uint32_t> out(items.size());
  std::iota(out.begin(), out.end(), 0U);
  return out;
}

LaneRow row_of(const std::vector<LaneItem>& items) {
  return {table_of(items), all_of(items)};
}

Nanoseconds busy_within(const std::vector<LaneItem>& items, const analysis::Interval& view) {
  Nanoseconds sum = 0;
  for (const LaneItem& item : items) {
    sum +=
        std::max<Nanoseconds>(0, std::min(item.end, view.end) - std::max(item.start, view.start));
  }
  return sum;
}

double drawn(const std::vector<Tile>& tiles, const analysis::Interval& view, int width) {
  const double ns_per_pixel = static_cast<double>(view.length()) / width;
  double sum = 0;
  for (const Tile& tile : tiles) {
    sum += (tile.right - tile.left) * tile.busy * ns_per_pixel;
  }
  return sum;
}

// At every zoom the drawn tiles represent exactly the row's busy time.
TEST(LevelOfDetailTest, TilesStandForTheRowsTimeAtEveryZoom) {
  std::mt19937 random(7);
  const std::vector<LaneItem> items = random_items(random, 3000, 40'000);
  const LaneRow row = row_of(items);
  const Nanoseconds start = items.front().start, span = items.back().end - start;
  std::uniform_real_distribution<double> part(0, 1);
  for (int round = 0; round < 200; ++round) {
    const auto length = static_cast<Nanoseconds>(std::pow(10.0, 3 + 5 * part(random)));
    const Nanoseconds from =
        start + static_cast<Nanoseconds>(part(random) * static_cast<double>(span));
    const analysis::Interval view{from, from + length};
    const int width = 1 + static_cast<int>(1900 * part(random));
    std::vector<Tile> tiles;
    append_tiles(row, view, width, tiles);
    const double exact = static_cast<double>(busy_within(items, view));
    EXPECT_NEAR(drawn(tiles, view, width), exact, 1e-6 * exact + 2.0)
        << "view of " << length << " ns on " << width << " pixels";
    EXPECT_TRUE(std::is_sorted(tiles.begin(), tiles.end(),
                               [](const Tile& a, const Tile& b) { return a.left < b.left; }));
  }
}

TEST(LevelOfDetailTest, ThePyramidKeepsTheTimeOfManyEvents) {
  std::mt19937 random(11);
  const std::vector<LaneItem> items = random_items(random, 200'000, 3000);
  const LaneRow row = row_of(items);
  ASSERT_FALSE(row.pyramid().empty());
  const Nanoseconds start = items.front().start, span = items.back().end - start;
  for (const double part : {1.0, 0.6, 0.3}) {
    const analysis::Interval view{
        start + span / 7,
        start + span / 7 + static_cast<Nanoseconds>(part * static_cast<double>(span))};
    std::vector<Tile> tiles;
    append_tiles(row, view, 1920, tiles);
    ASSERT_TRUE(
        std::all_of(tiles.begin(), tiles.end(), [](const Tile& t) { return t.item == -1; }));
    const double exact = static_cast<double>(busy_within(items, view));
    EXPECT_NEAR(drawn(tiles, view, 1920) / exact, 1, 0.002) << part;
    // The row is half busy on average, so a solid bar, as from merging tiles only, would fail.
    EXPECT_NEAR(drawn(tiles, view, 1920) / static_cast<double>(view.length()),
                exact / static_cast<double>(view.length()), 0.002);
  }
}

TEST(LevelOfDetailTest, WideItemsAreTilesOfTheirOwn) {
  const std::vector<LaneItem> items{{0, 100, 0}, {100, 101, 1}, {500, 1000, 2}};
  const LaneRow row = row_of(items);
  std::vector<Tile> tiles;
  append_tiles(row, {0, 1000}, 100, tiles);  // 10 ns a pixel
  ASSERT_EQ(tiles.size(), 3);
  EXPECT_EQ(tiles[0].item, 0);
  EXPECT_EQ(tiles[1].item, -1);
  EXPECT_NEAR(tiles[1].busy, 0.1, 1e-9);
  EXPECT_EQ(tiles[2].item, 2);
  EXPECT_EQ(tiles[2].left, 50);
  EXPECT_EQ(tiles[2].right, 100);
}

TEST(LevelOfDetailTest, OverlappingItemsGetRowsAndNoneIsLost) {
  std::mt19937 random(3);
  std::uniform_int_distribution<Nanoseconds> when(0, 100'000), length(0, 3000);
  std::vector<LaneItem> items;
  for (uint32_t i = 0; i < 500; ++i) {
    const Nanoseconds start = when(random);
    items.push_back({start, start + length(random), i});
  }
  std::vector<bool> seen(items.size());
  for (const LaneRow& row : rows_of(table_of(items), all_of(items))) {
    for (size_t i = 0; i < row.items().size(); ++i) {
      EXPECT_FALSE(seen[row.items()[i].ref]);
      seen[row.items()[i].ref] = true;
      if (i > 0) {
        EXPECT_GE(row.items()[i].start, row.items()[i - 1].end);
      }
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 500);
}

TEST(LevelOfDetailTest, NothingToDrawIsNothing) {
  std::vector<Tile> tiles;
  const std::vector<LaneItem> none, one{{0, 5, 0}};
  append_tiles(row_of(none), {0, 10}, 100, tiles);
  append_tiles(row_of(one), {10, 10}, 100, tiles);
  append_tiles(row_of(one), {0, 10}, 0, tiles);
  append_tiles(row_of(one), {6, 10}, 10, tiles);
  EXPECT_TRUE(tiles.empty());
}

// A few events over centuries must not allocate buckets for all the time between them.
TEST(LevelOfDetailTest, APyramidOverCenturiesIsNotBuilt) {
  std::vector<LaneItem> items;
  for (uint32_t i = 0; i < 17'000; ++i) {
    items.push_back({i * 400'000'000'000'000LL, i * 400'000'000'000'000LL + 5, i});
  }
  const LaneRow row = row_of(items);
  EXPECT_TRUE(row.pyramid().empty());
}

}  // namespace
}  // namespace shardlens::gui
