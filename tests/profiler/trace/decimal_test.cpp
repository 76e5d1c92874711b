#include "profiler/trace/json/decimal.h"

#include <gtest/gtest.h>

namespace shardlens::trace {
namespace {

TEST(DecimalTest, KeepsNanosecondsOfAnEpochInMicroseconds) {
  EXPECT_EQ(nanoseconds_of_microseconds("1712195495519689.047"), 1712195495519689047);
  EXPECT_EQ(nanoseconds_of_microseconds("4391404951531.684"), 4391404951531684);
  EXPECT_EQ(nanoseconds_of_microseconds("12"), 12000);
  EXPECT_EQ(nanoseconds_of_microseconds("0.001"), 1);
  EXPECT_EQ(nanoseconds_of_microseconds("-1.5"), -1500);
}

TEST(DecimalTest, RoundsWhatIsFinerThanItCanHold) {
  EXPECT_EQ(scaled_decimal("1.2344", 3), 1234);
  EXPECT_EQ(scaled_decimal("1.2345", 3), 1235);
  EXPECT_EQ(scaled_decimal("-1.2345", 3), -1235);
  EXPECT_EQ(scaled_decimal("0.0004999", 3), 0);
  EXPECT_EQ(scaled_decimal("0.9999", 3), 1000);
}

TEST(DecimalTest, ReadsExponents) {
  EXPECT_EQ(scaled_decimal("1.5e3", 0), 1500);
  EXPECT_EQ(scaled_decimal("1.5E+3", 3), 1500000);
  EXPECT_EQ(scaled_decimal("25e-1", 0), 3);
  EXPECT_EQ(scaled_decimal("1e-400", 3), 0);
  EXPECT_EQ(scaled_decimal("1e-99999999999", 3), 0);
  EXPECT_EQ(scaled_decimal("0e99999999999", 3), 0);
}

TEST(DecimalTest, RefusesWhatDoesNotFitOrIsNoNumber) {
  EXPECT_EQ(scaled_decimal("9223372036854775807", 0), INT64_MAX);
  for (const char* text :
       {"", "-", ".5", "1.", "1e", "1e+", "nan", "1 2", "0x10", "1.2.3", "9223372036854775808",
        "9223372036854775.808", "1e400", "18446744073709551615"}) {
    EXPECT_EQ(scaled_decimal(text, 3), std::nullopt) << text;
  }
  EXPECT_EQ(scaled_decimal("18446744073709551615.5", 0), std::nullopt);  // rounding it up wraps
}

}  // namespace
}  // namespace shardlens::trace
