#include "sim/calibrate/copy_times.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/schedule/action.h"
#include "sim/calibrate/calibration.h"

namespace shardlens::sim {
namespace {

TEST(CopyTimes, AreLinearBetweenSizesAndInProportionBeyond) {
  const CopyTimes times = copy_times({{7e6, 2000}, {12e6, 3000}});
  for (const bool largest : {false, true}) {
    EXPECT_DOUBLE_EQ(times.microseconds(7'000'000, largest), 2000);
    EXPECT_DOUBLE_EQ(times.microseconds(9'500'000, largest), 2500);
    EXPECT_DOUBLE_EQ(times.microseconds(12'000'000, largest), 3000);
    EXPECT_DOUBLE_EQ(times.microseconds(3'500'000, largest), 1000);
    EXPECT_DOUBLE_EQ(times.microseconds(24'000'000, largest), 6000);
  }
}

// The largest measured size got new pages: so does the largest of another plan, and no other size.
TEST(CopyTimes, OfTheLargestUnitGetNewPages) {
  const CopyTimes times = copy_times({{3e6, 900}, {6e6, 1500}, {12e6, 7200}});
  EXPECT_DOUBLE_EQ(times.microseconds(12'000'000, true), 7200);
  EXPECT_DOUBLE_EQ(times.microseconds(14'000'000, true), 8400);
  EXPECT_DOUBLE_EQ(times.microseconds(6'000'000, true), 3600);
  EXPECT_DOUBLE_EQ(times.microseconds(12'000'000, false), 3000);
  EXPECT_DOUBLE_EQ(times.microseconds(6'000'000, false), 1500);
  EXPECT_DOUBLE_EQ(times.microseconds(4'000'000, false), 1100);
}

TEST(CopyTimes, SizesThatHardlyDifferAreOne) {
  const CopyTimes times = copy_times({{10e6, 100}, {10.5e6, 300}, {20e6, 900}});
  ASSERT_EQ(times.points.size(), 2U);
  EXPECT_EQ(times.points[0].bytes, 10'250'000);
  EXPECT_DOUBLE_EQ(times.points[0].us, 200);
}

// Files of earlier versions have a number for each action.
TEST(CopyTimes, AreReadFromFilesOfBothForms) {
  constexpr auto kCopyIn = static_cast<size_t>(schedule::Op::kCopyIn);
  Calibration measured;
  measured.sources = {"run"};
  measured.copies_of[kCopyIn] = copy_times({{7e6, 2000}, {12e6, 7000}});
  auto json = nlohmann::json::parse(to_json(measured));
  EXPECT_EQ(parse_calibration(json.dump(), "c").copies_of[kCopyIn].points,
            measured.copies_of[kCopyIn].points);
  json["copy"]["by_action"]["copy_in"] = 50;
  EXPECT_DOUBLE_EQ(
      parse_calibration(json.dump(), "c").copies_of[kCopyIn].microseconds(3'000'000, true), 150);
}

}  // namespace
}  // namespace shardlens::sim
