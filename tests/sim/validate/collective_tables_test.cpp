#include "sim/validate/collective_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

constexpr const char* kHeader =
    "source,gpu,n_gpus,interconnect,collective,algo,size_bytes,time_us,busbw_GBs\n";

std::string table(const std::string& rows) {
  return kHeader + rows;
}

TEST(CollectiveTables, TimesAreThoseOfTheBusBandwidthWhereNoneIsPrinted) {
  const auto curves = parse_collective_table(table("s,H100,8,x,all_reduce,ring,1048576,,175\n"
                                                   "s,H100,8,x,all_reduce,ring,2097152,20,\n"),
                                             "t.csv")
                          .curves;
  ASSERT_EQ(curves.size(), 1U);
  ASSERT_EQ(curves[0].curve.points.size(), 2U);
  // 2 x 7 / 8 of 1 MiB at 175 GB/s.
  EXPECT_NEAR(curves[0].curve.points[0].us, 1048576 * 1.75 / 175e3, 1e-9);
  EXPECT_DOUBLE_EQ(curves[0].curve.points[1].us, 20);
}

// 1, 2 and 4 MiB at 10, 20 and 30 us: the middle one from its neighbours, by hand, is 10 + 20 / 3.
TEST(CollectiveTables, EachInnerSizeIsPredictedFromTheOthers) {
  const auto errors =
      collective_errors(parse_collective_table(table("s,other,8,x,all_gather,ring,1048576,10,\n"
                                                     "s,other,8,x,all_gather,ring,2097152,20,\n"
                                                     "s,other,8,x,all_gather,ring,4194304,30,\n"),
                                               "t.csv")
                            .curves);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].left_out.sizes, 1);
  EXPECT_NEAR(errors[0].left_out.mean.value(), 1 - (10 + 20.0 / 3) / 20, 1e-9);
  EXPECT_EQ(errors[0].left_out_large.sizes, 0);
  EXPECT_EQ(errors[0].left_out_large.mean, std::nullopt);
  EXPECT_TRUE(errors[0].spec.empty());
}

// 32 MiB is predicted 10 % too long, 64 MiB (on the line through its neighbours) exactly; 16 and
// 128 MiB have no neighbour.
TEST(CollectiveTables, LargeSizesAreCountedApart) {
  const auto errors =
      collective_errors(parse_collective_table(table("s,other,8,x,all_gather,ring,16777216,10,\n"
                                                     "s,other,8,x,all_gather,ring,33554432,20,\n"
                                                     "s,other,8,x,all_gather,ring,67108864,46,\n"
                                                     "s,other,8,x,all_gather,ring,134217728,98,\n"),
                                               "t.csv")
                            .curves);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].left_out.sizes, 2);
  EXPECT_NEAR(errors[0].left_out.mean.value(), 0.1 / 2, 1e-9);
  EXPECT_EQ(errors[0].left_out_large.sizes, 1);
  EXPECT_NEAR(errors[0].left_out_large.mean.value(), 0, 1e-9);
}

// 24 MiB is not in the spec's curve, which is linear from 16 to 32 MiB; 32 MiB is in it.
TEST(CollectiveTables, ASpecIsHeldAgainstSizesThatItLacks) {
  const HardwareSpec spec = load_hardware("8xH100");
  double at16 = 0, at32 = 0;
  for (const CollectiveCurve& curve : spec.fabric.curves) {
    if (curve.kind == CollectiveKind::kAllGather && curve.ranks == 8) {
      for (const auto& point : curve.points) {
        at16 = point.bytes == 16777216 ? point.us : at16;
        at32 = point.bytes == 33554432 ? point.us : at32;
      }
    }
  }
  const double between = (at16 + at32) / 2;
  const auto errors = collective_errors(
      parse_collective_table(
          table("s,H100-SXM,8,x,all_gather,ring,25165824," + std::to_string(between / 1.1) +
                ",\ns,H100-SXM,8,x,all_gather,ring,33554432,1,\n"),
          "t.csv")
          .curves);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].spec, "8xH100");
  EXPECT_EQ(errors[0].unseen.sizes, 1);
  EXPECT_NEAR(errors[0].unseen.mean.value(), 0.1, 1e-4);
}

TEST(CollectiveTables, SaysWhereATableIsWrong) {
  const auto message = [](const std::string& text) {
    try {
      (void)parse_collective_table(text, "t.csv");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message(""), ::testing::HasSubstr("the file is empty"));
  EXPECT_THAT(message("source,gpu\n"), ::testing::HasSubstr("no column 'n_gpus'"));
  EXPECT_THAT(message(table("s,H100,eight,x,all_gather,ring,1,1,\n")),
              ::testing::HasSubstr("t.csv:2"));
  EXPECT_THAT(message(table("s,H100,8\n")), ::testing::HasSubstr("3 fields, but the header has 9"));
  EXPECT_THAT(message(table("s,H100,8,x,all_gather,ring,1024,-3,\n")),
              ::testing::HasSubstr("t.csv:2: column 'time_us': expected a number > 0, found '-3'"));
  EXPECT_THAT(message(table("s,H100,8,x,all_gather,ring,1024,,0\n")),
              ::testing::HasSubstr("column 'busbw_GBs': expected a number > 0, found '0'"));
}

TEST(CollectiveTables, NamesTheRowsThatAreInNoCurve) {
  const CollectiveTable read = parse_collective_table(table("s,H100,8,x,all_gather,ring,1024,5,\n"
                                                            "s,H100,8,x,all_gater,ring,1024,5,\n"
                                                            "s,H100,1,x,all_gather,ring,1024,5,\n"
                                                            "s,H100,8,x,all_gather,ring,peak,5,\n"
                                                            "s,H100,8,x,all_gather,ring,2048,,\n"),
                                                      "t.csv");
  EXPECT_EQ(read.rows, 5);
  ASSERT_EQ(read.curves.size(), 1U);
  EXPECT_EQ(read.curves[0].curve.points.size(), 1U);
  EXPECT_THAT(read.left_out,
              ::testing::ElementsAre("t.csv:3: 'all_gater' is no collective that is simulated",
                                     "t.csv:4: n_gpus '1' is not 2 or more",
                                     "t.csv:5: size_bytes 'peak' is not a number of bytes",
                                     "t.csv:6: it has neither time_us nor busbw_GBs"));
}

}  // namespace
}  // namespace shardlens::sim
