#include "sim/calibrate/measured_points.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/calibrate/calibrated_cost_model.h"
#include "sim/cost/collective_curve.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {
namespace {

// Two sizes 768 bytes apart, as embedding and head often are: no slope follows from them.
TEST(MeasuredPoints, NeighboursAreOnePoint) {
  const std::vector<LinePoint> merged =
      merged_neighbours({{4719360, 6.1, 7}, {1000000, 2, 21}, {4718592, 4.3, 7}});
  ASSERT_EQ(merged.size(), 2U);
  EXPECT_DOUBLE_EQ(merged[1].x, 4718976);
  EXPECT_DOUBLE_EQ(merged[1].y, (4.3 + 6.1) / 2);
  EXPECT_DOUBLE_EQ(merged[1].weight, 14);
  const CollectiveCurve curve = measured_curve(CollectiveKind::kAllGather, 2, merged);
  EXPECT_DOUBLE_EQ(curve_us(curve, 4718976 + 3718976), 5.2 + 3.2);
}

// The mean of the central half: of four equal weights the two in the middle; of 30 and 10 samples
// those of the 30.
TEST(MeasuredPoints, UnusualTimesOfNeighboursDoNotCount) {
  EXPECT_DOUBLE_EQ(merged_neighbours({{100, 5}, {101, 500}, {102, 7}, {103, 1}})[0].y, 6);
  EXPECT_DOUBLE_EQ(merged_neighbours({{100, 5, 30}, {104, 500, 10}})[0].y, 5);
}

// 8 % apart each: none is a neighbour of all others.
TEST(MeasuredPoints, AChainOfNeighboursIsNotOnePoint) {
  std::vector<LinePoint> chain;
  for (double x = 1000; x < 16000; x *= 1.08) {
    chain.push_back({x, x});
  }
  const std::vector<LinePoint> merged = merged_neighbours(chain);
  EXPECT_GT(merged.size(), 12U);
  for (size_t i = 1; i < merged.size(); ++i) {
    EXPECT_GE(merged[i].x, kNeighbours * merged[i - 1].x);
  }
}

// Times that no machine has, and times with noise.
class RandomTimes {
 public:
  explicit RandomTimes(unsigned seed) : random_(seed) {}

  std::vector<LinePoint> points() {
    const int kind = pick(6);
    const double base = std::exp2(uniform(0, 32)), rate = std::exp2(uniform(-20, 8));
    std::vector<LinePoint> out(static_cast<size_t>(1 + (kind == 0 ? 0 : pick(40))));
    for (LinePoint& each : out) {
      each.x = std::floor(kind == 1   ? base + pick(3)             // nearly equal
                          : kind == 2 ? base * (1 + pick(3))       // duplicates
                          : kind == 3 ? std::exp2(uniform(0, 50))  // tiny to huge
                                      : base * std::exp2(uniform(0, 6)));
      const double noise = std::exp2(uniform(-4, 4));
      each.y = kind == 4 ? std::exp2(uniform(-6, 30))  // any
                         : std::min(1e9, (20 + rate * each.x) * noise);
      each.weight = 1 + pick(100);
    }
    return out;
  }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  int pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

 private:
  std::mt19937 random_;
};

// A calibration with curves of random times for the three collectives.
Calibration random_calibration(unsigned seed) {
  RandomTimes times(seed);
  Calibration out;
  out.host = times.pick(2) == 0 ? HostMode::kCompute : HostMode::kAhead;
  for (const CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
    if (times.pick(5) != 0) {
      out.curves.push_back(measured_curve(kind, 4, times.points()));
    }
  }
  return out;
}

// Checks one kind: durations at sizes from a byte to a thousand times the largest one.
void expect_sane(const Calibration& calibration, const CollectiveCurve& curve) {
  const CalibratedCostModel model(calibration);
  const CalibratedCostModel least(calibration, nullptr, nullptr, -kOffBeyond);
  const CalibratedCostModel most(calibration, nullptr, nullptr, kOffBeyond);
  // Beyond the sizes of all curves: an all-reduce may follow from the others' sizes.
  Bytes largest = 0;
  for (const CollectiveCurve& each : calibration.curves) {
    largest = std::max(largest, each.points.back().bytes);
  }
  double before = 0, before_bytes = 0;
  double width = 1;
  for (double at = 1; at <= 1000.0 * static_cast<double>(largest); at *= 1.37) {
    const Bytes bytes = std::llround(at);
    const auto us = static_cast<double>(model.duration(curve.kind, 4, bytes));
    ASSERT_GE(us + 1, before) << bytes;  // a nanosecond: durations are rounded
    if (before_bytes >= static_cast<double>(largest)) {
      ASSERT_LE(us - 1, (before + 1) * static_cast<double>(bytes) / before_bytes) << bytes;
    }
    const auto low = static_cast<double>(least.duration(curve.kind, 4, bytes));
    const auto high = static_cast<double>(most.duration(curve.kind, 4, bytes));
    ASSERT_GE(low, 0) << bytes;
    ASSERT_LE(low, us) << bytes;
    ASSERT_GE(high, us) << bytes;
    ASSERT_LT(high, 1e16) << bytes;
    // (A large all-reduce follows from the other two kinds, whose sizes may be nearer; durations
    // end at 1e15 ns.)
    if (high < 1e15 && before_bytes >= static_cast<double>(largest) && us > 1e3 &&
        curve.kind != CollectiveKind::kAllReduce) {
      ASSERT_GE(high / us, width * 0.999) << bytes;  // grows with the distance
      width = high / us;
    }
    before = us;
    before_bytes = static_cast<double>(bytes);
  }
}

TEST(MeasuredPoints, RandomTimesGiveMonotoneCurvesNoSteeperThanInProportion) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Calibration calibration = random_calibration(seed);
    for (const CollectiveCurve& curve : calibration.curves) {
      for (size_t i = 1; i < curve.points.size(); ++i) {
        ASSERT_GE(curve.points[i].us, curve.points[i - 1].us);
        ASSERT_GE(static_cast<double>(curve.points[i].bytes) + 1,
                  kNeighbours * static_cast<double>(curve.points[i - 1].bytes));
      }
      ASSERT_NO_FATAL_FAILURE(expect_sane(calibration, curve));
    }
  }
}

// The same for operators: a class's time over its work.
TEST(MeasuredPoints, RandomTimesOfOperatorsGiveMonotoneTimesToo) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<LinePoint> points = merged_neighbours(RandomTimes(seed).points());
    const Line line = fit_line(points);
    KernelClass of;
    of.us = line.at_zero;
    of.us_per_unit = line.slope;
    of.least_work = points.front().x;
    of.most_work = points.back().x;
    double before = 0;
    for (double work = 1; work < 1000 * of.most_work; work *= 1.37) {
      const double us = of.microseconds(work);
      ASSERT_TRUE(std::isfinite(us));
      ASSERT_GT(us, 0);
      ASSERT_GE(us * (1 + 1e-12), before);
      if (work > 1.37 * of.most_work) {
        ASSERT_LE(us, before * 1.37 * (1 + 1e-12));
      }
      before = us;
    }
  }
}

// NCCL's measured curves, cut at each size of at least 1 MiB and extended to the larger ones: nine
// of ten times are within the bounds, and not nearly all, so that the bounds are not too wide.
TEST(MeasuredPoints, ExtendedCurvesAreWithinTheirBounds) {
  int all = 0, within = 0;
  for (const std::string& name : hardware_names()) {
    for (const CollectiveCurve& whole : load_hardware(name).fabric.curves) {
      for (size_t end = 2; end < whole.points.size(); ++end) {
        CollectiveCurve cut = whole;
        cut.points.resize(end);
        if (cut.points.back().bytes < (1 << 20)) {
          continue;
        }
        for (size_t i = end; i < whole.points.size(); ++i) {
          const CollectiveCurve::Point& truth = whole.points[i];
          const double error = std::abs(std::log(curve_us(cut, truth.bytes) / truth.us));
          ++all;
          within += error <= kOffBeyond * std::log(size_beyond(cut, truth.bytes)) ? 1 : 0;
        }
      }
    }
  }
  ASSERT_GT(all, 500);
  EXPECT_GE(within, all * 88 / 100) << within << " of " << all;
  EXPECT_LE(within, all * 97 / 100) << within << " of " << all;
}

// Over Gloo between two ranks, measured by tests/tools/other_degrees.py: FSDP2's collectives of one
// program, and those of 1 MiB of the same model with tensor parallelism.
TEST(MeasuredPoints, SmallCollectivesOfACpuAreWithinTheirBounds) {
  Calibration of_fsdp;
  of_fsdp.host = HostMode::kCompute;
  of_fsdp.curves = {
      {CollectiveKind::kAllGather, 2, {{11'603'968, 5697.5}, {16'779'264, 16528.9}}},
      {CollectiveKind::kReduceScatter, 2, {{11'603'968, 6900.1}, {16'779'264, 12514.6}}}};
  of_fsdp.peer_wait_us[static_cast<size_t>(CollectiveKind::kAllGather)] = 1195.1;
  of_fsdp.peer_wait_us[static_cast<size_t>(CollectiveKind::kReduceScatter)] = 1483.5;
  const CalibratedCostModel least(of_fsdp, nullptr, nullptr, -kOffBeyond);
  const CalibratedCostModel most(of_fsdp, nullptr, nullptr, kOffBeyond);
  for (const auto& [kind, us] : {std::pair{CollectiveKind::kAllGather, 977.1},
                                 {CollectiveKind::kReduceScatter, 2498.2},
                                 {CollectiveKind::kAllReduce, 2495.2}}) {
    EXPECT_LT(static_cast<double>(least.duration(kind, 2, 1 << 20)) * 1e-3, us);
    EXPECT_GT(static_cast<double>(most.duration(kind, 2, 1 << 20)) * 1e-3, us);
  }
  // Ranks come as late to an all-reduce as to what it is priced as: in the mean of both.
  EXPECT_EQ(least.peer_wait(CollectiveKind::kAllReduce, 2), 1'339'300);
  EXPECT_EQ(least.peer_wait(CollectiveKind::kAllReduce, 4), 0);  // between 4 none is known
}

}  // namespace
}  // namespace shardlens::sim
