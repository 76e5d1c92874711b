#include "gui/model/base/time_axis.h"

#include <gtest/gtest.h>

#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

TimeAxis axis(Nanoseconds length, int width) {
  TimeAxis out;
  out.setBounds({0, length});
  out.setWidth(width);
  return out;
}

TEST(TimeAxisTest, PixelsAndTimesMapOntoEachOther) {
  TimeAxis a = axis(1'000'000, 500);
  EXPECT_DOUBLE_EQ(a.nanosecondsPerPixel(), 2000);
  EXPECT_DOUBLE_EQ(a.toPixel(500'000), 250);
  EXPECT_EQ(a.toTime(250), 500'000);
  a.setView({100'000, 200'000});
  for (const Nanoseconds t : {100'000, 123'456, 200'000}) {
    EXPECT_NEAR(static_cast<double>(a.toTime(a.toPixel(t))), static_cast<double>(t), 1);
  }
}

TEST(TimeAxisTest, ZoomKeepsWhatIsUnderThePointer) {
  TimeAxis a = axis(1'000'000'000, 1000);
  const Nanoseconds under = a.toTime(300);
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(a.zoom(0.7, 300));
    EXPECT_NEAR(a.toPixel(under), 300, 0.6);
  }
}

TEST(TimeAxisTest, ViewsStayWithinTheRunAndNoShorterThanTheShortest) {
  TimeAxis a = axis(1'000'000, 1000);
  EXPECT_FALSE(a.zoom(2, 500));
  EXPECT_FALSE(a.pan(-50));
  for (int i = 0; i < 100; ++i) {
    a.zoom(0.5, 999);
  }
  EXPECT_EQ(a.view().length(), TimeAxis::kShortest);
  EXPECT_LE(a.view().end, 1'000'000);
  a.pan(1e9);
  EXPECT_EQ(a.view().end, 1'000'000);
  EXPECT_TRUE(a.fitAll());
  EXPECT_EQ(a.view(), (analysis::Interval{0, 1'000'000}));
  EXPECT_TRUE(a.fit({500'000, 600'000}));
  EXPECT_EQ(a.view(), (analysis::Interval{490'000, 610'000}));
}

TEST(TimeAxisTest, TheWheelZoomsAndWithShiftOrSidewaysPans) {
  TimeAxis a = axis(1'000'000, 1000);
  EXPECT_TRUE(a.turn({.up = 1}, 500));
  EXPECT_EQ(a.view(), (analysis::Interval{100'000, 900'000}));
  EXPECT_TRUE(a.turn({.up = -1}, 500));
  EXPECT_EQ(a.view(), (analysis::Interval{0, 1'000'000}));
  EXPECT_TRUE(a.turn({.up = 1, .fine = true}, 0));
  EXPECT_EQ(a.view(), (analysis::Interval{0, 950'000}));
  EXPECT_FALSE(a.turn({.up = 1, .shift = true}, 500));  // already at the left end
  EXPECT_TRUE(a.turn({.up = -0.2, .shift = true}, 500));
  EXPECT_EQ(a.view(), (analysis::Interval{19'000, 969'000}));
  EXPECT_TRUE(a.turn({.up = 0.5, .right = 0.6}, 500));
  EXPECT_EQ(a.view(), (analysis::Interval{0, 950'000}));
  EXPECT_FALSE((TimeAxis::Wheel{.up = 1, .right = -1}).pans());
}

TEST(TimeAxisTest, TicksAreRoundAndFarEnoughApart) {
  for (const Nanoseconds length : {150LL, 7'000LL, 1'234'567LL, 98'765'432'100LL}) {
    TimeAxis a = axis(length, 1200);
    double last = -1e9;
    int labels = 0;
    for (const TimeAxis::Tick& tick : a.ticks(90)) {
      if (!tick.label.isEmpty()) {
        EXPECT_GE(tick.x - last, 89.9);
        last = tick.x;
        ++labels;
      }
    }
    EXPECT_GE(labels, 2) << length;
    EXPECT_LE(labels, 14) << length;
  }
}

TEST(TimeAxisTest, TextsHaveTheDigitsThatTheyNeed) {
  EXPECT_EQ(timeText(12'345'678, 1e6), "12 ms");
  EXPECT_EQ(timeText(12'345'678, 1e3), "12.346 ms");
  EXPECT_EQ(timeText(0, 1e6), "0 ms");
  EXPECT_EQ(timeText(1'500'000'000, 1e8), "1.5 s");
  EXPECT_EQ(timeText(41'300, 1e3, 79'314'000), "0.041 ms");
  EXPECT_EQ(timeText(12'345'678, 1e3, 79'000'000'000), "0.012346 s");
  EXPECT_EQ(deltaText(-41'300, 79'314'000), "▼ 0.041 ms");
  EXPECT_EQ(deltaText(0, 79'314'000), "=");
  EXPECT_EQ(durationText(812), "812 ns");
  EXPECT_EQ(durationText(4'200), "4.200 µs");
  EXPECT_EQ(durationText(-9'100'000), "-9.100 ms");
}

// A duration has the same text in the headline, in tables, in notes and on the command line.
TEST(TimeAxisTest, DurationsAreSaidAsTheHeadlineSaysThem) {
  for (const Nanoseconds duration :
       {100'000LL, 412'345LL, 388'814'123LL, 388'814'700LL, 1'250'000'000LL, 12'250'499'999LL}) {
    EXPECT_EQ(durationText(duration).toStdString(), report::format_duration(duration));
    EXPECT_EQ(durationText(-duration).toStdString(), report::format_duration(-duration));
  }
  EXPECT_EQ(durationText(388'814'123), "388.814 ms");
  EXPECT_EQ(durationText(99'999), "99.999 µs");
  EXPECT_EQ(durationText(0), "0 ns");
}

TEST(DurationTextTest, AColumnHasTheUnitOfItsLargest) {
  EXPECT_EQ(durationText(41'300, 79'314'000), "0.041 ms");
  EXPECT_EQ(durationText(-41'300, 79'314'000), "-0.041 ms");
  EXPECT_EQ(durationText(79'314'000, 79'314'000), durationText(79'314'000));
  EXPECT_EQ(durationText(812, 4'200), "0.812 µs");
  EXPECT_EQ(durationText(4'200, 4'200), "4.200 µs");
  EXPECT_EQ(durationText(12'000'000, 12'250'000'000), "0.012 s");
  EXPECT_EQ(durationText(812, 900), "812 ns");
  EXPECT_EQ(durationText(0, 0), "0 ns");
}

}  // namespace
}  // namespace shardlens::gui
