#include "sim/cost/collective_cost.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::sim::test {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

FabricSpec two_points() {
  FabricSpec fabric;
  fabric.ring_gbps = 100;
  fabric.ll_gbps = 40;
  fabric.curves.push_back(
      {CollectiveKind::kAllGather, 4, {{1000, 10.0}, {2000, 15.0}, {4000, 35.0}}});
  return fabric;
}

TEST(FabricTimerTest, GoesThroughMeasuredPointsAndStraightBetweenThem) {
  const FabricTimer timer(two_points());
  const auto us = [&timer](Bytes bytes) {
    return timer.duration(CollectiveKind::kAllGather, 4, bytes);
  };
  EXPECT_EQ(us(1000), 10'000);
  EXPECT_EQ(us(1500), 12'500);
  EXPECT_EQ(us(4000), 35'000);
  EXPECT_EQ(us(8), 5'040);      // 5 us of latency and 5 ns a byte
  EXPECT_EQ(us(6000), 52'500);  // in proportion: the last segment is steeper
  EXPECT_EQ(timer.duration(CollectiveKind::kAllGather, 1, 1 << 20), 0);
}

// The published table of two H100 has 122 us for 1 KiB and 14 us for 32 KiB.
TEST(FabricTimerTest, SmallMessagesTakeNoLongerThanLargerOnes) {
  for (const char* name : {"8xH100", "8xH200", "8xB200", "4xGB200", "8xA100-80"}) {
    const auto timer = make_collective_timer(name);
    for (CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
      for (int ranks = 2; ranks <= 8; ranks *= 2) {
        Nanoseconds smaller = 0;
        for (Bytes bytes = 64; bytes <= 64 * kMiB; bytes *= 2) {
          const Nanoseconds larger = timer->duration(kind, ranks, bytes);
          EXPECT_GE(larger, smaller) << name << ' ' << ranks << ' ' << bytes;
          smaller = larger;
        }
      }
    }
  }
}

// By hand from NCCL's formulas: ring of 4 over NVLink, 3 steps, bus 100 GB/s.
TEST(FabricTimerTest, NcclsModelWhereNothingWasMeasured) {
  const FabricTimer timer(two_points());
  // LL: 6.6 + 3 x 0.6 us; 40 GB/s of bus are 40 x 4 / 3 of the message.
  EXPECT_NEAR(timer.model_us(CollectiveKind::kReduceScatter, 4, 4, 4096),
              6.6 + 1.8 + 4096 / (40 * 4.0 / 3 * 1e3), 1e-9);
  // Simple at large messages: 8.4 + 3 x 3.4 us, 100 GB/s.
  EXPECT_NEAR(timer.model_us(CollectiveKind::kReduceScatter, 4, 4, 1024 * kMiB),
              8.4 + 10.2 + 1024.0 * kMiB / (100 * 4.0 / 3 * 1e3), 1e-6);
  // An all-reduce goes around the ring twice.
  EXPECT_NEAR(timer.model_us(CollectiveKind::kAllReduce, 4, 4, 1024 * kMiB),
              8.4 + 20.4 + 1024.0 * kMiB / (100 * 4.0 / 6 * 1e3), 1e-6);
}

// By hand: nothing is passed on, so an all-to-all has one step. Of each message 3/4 go over the
// links of a rank within a node; from the second of two nodes on, each rank's share of the network
// counts, however many ranks a node has.
TEST(FabricTimerTest, AllToAllsHaveOneStep) {
  FabricSpec fabric = two_points();
  const double bytes = 1024.0 * kMiB;
  const auto us = [&fabric](int ranks, int of_node, Bytes size) {
    return FabricTimer(fabric).model_us(CollectiveKind::kAllToAll, ranks, of_node, size);
  };
  EXPECT_NEAR(us(4, 4, 1024 * kMiB), 8.4 + 3.4 + bytes * 3 / 4 / (100 * 1e3), 1e-6);
  // LL, whose bus has at most 40 GB/s.
  EXPECT_NEAR(us(4, 4, 240 * 1024), 6.6 + 0.6 + 240.0 * 1024 * 3 / 4 / (40 * 1e3), 1e-6);
  EXPECT_EQ(us(8, 8, 1024), 10.3);  // as nccl-tests measured 1 KiB on 8 H20
  fabric.network_gbps = 25;
  EXPECT_NEAR(us(8, 4, 1024 * kMiB), 8.4 + 9.6 + bytes * 4 / 8 / (25 * 1e3), 1e-6);
  fabric.network_gbps = 400;  // faster than the links
  EXPECT_NEAR(us(8, 4, 1024 * kMiB), 8.4 + 9.6 + bytes * 3 / 8 / (100 * 1e3), 1e-6);
}

// nccl-tests on 4 H100 at 500 MB: 335 GB/s of bus (NVIDIA/nccl#2169).
TEST(FabricTimerTest, AllToAllsAsPublished) {
  FabricSpec fabric = load_hardware("8xH100").fabric;
  const Bytes bytes = 524'288'000;
  const double gbps =
      static_cast<double>(bytes) * 3 / 4 /
      static_cast<double>(FabricTimer(fabric).duration(CollectiveKind::kAllToAll, 4, bytes));
  EXPECT_NEAR(gbps / 335, 1, 0.1);
}

// By hand: 4 nodes of 4, so 15 steps, 3 of them between nodes; Simple at large messages.
TEST(FabricTimerTest, SlowestLinkOfSeveralNodesCounts) {
  FabricSpec fabric = two_points();
  const double bytes = 1024.0 * kMiB;
  fabric.network_gbps = 10;  // 4 GPUs of a node: 40 GB/s between nodes
  EXPECT_NEAR(FabricTimer(fabric).model_us(CollectiveKind::kAllGather, 16, 4, 1024 * kMiB),
              8.4 + 12 * 3.4 + 3 * 9.6 + bytes / (40 * 16.0 / 15 * 1e3), 1e-6);
  fabric.network_gbps = 1000;  // not the slowest
  EXPECT_NEAR(FabricTimer(fabric).model_us(CollectiveKind::kAllGather, 16, 4, 1024 * kMiB),
              8.4 + 12 * 3.4 + 3 * 9.6 + bytes / (100 * 16.0 / 15 * 1e3), 1e-6);
  const FabricTimer timer(fabric);
  EXPECT_EQ(timer.duration_across(CollectiveKind::kAllGather, 4, 4, 1 << 20),
            timer.duration(CollectiveKind::kAllGather, 4, 1 << 20));
}

// By hand: a tree of 16 nodes with a GPU each, four levels up and down, where a ring has 30 steps.
TEST(FabricTimerTest, SmallAllReducesBetweenNodesTakeATree) {
  FabricSpec fabric = two_points();
  fabric.curves.clear();
  fabric.network_gbps = 25;
  const FabricTimer timer(fabric);
  // LL: 25 x 0.92 / 3.8 GB/s, each byte goes up and down.
  EXPECT_NEAR(timer.model_us(CollectiveKind::kAllReduce, 16, 1, 1024),
              6.8 + 2 * 4 * 5.0 + 1024 / (25 * 0.92 / 3.8 * 0.5 * 1e3), 1e-6);
  // The ring has more bandwidth.
  EXPECT_NEAR(timer.model_us(CollectiveKind::kAllReduce, 4, 1, 4096 * kMiB),
              8.4 + 6 * 9.6 + 4096.0 * kMiB / (25 * 4.0 / 6 * 1e3), 1e-6);
}

// Published on 8 B200 GPUs at 8 GiB (stas00/ml-engineering@744d01e): 778.2 and 811.2 GB/s of bus on
// six and seven of them, in the switches; 673.2 and 677.8 on four and five, by rings. The spec
// has only the figure of eight.
TEST(FabricTimerTest, AllReducesInTheSwitchesAsPublished) {
  FabricSpec fabric = load_hardware("8xB200").fabric;
  fabric.curves.clear();
  const FabricTimer timer(fabric);
  const auto busbw = [&](int ranks) {
    const Bytes bytes = 8192 * kMiB;
    return static_cast<double>(bytes) * 2 * (ranks - 1) / ranks /
           static_cast<double>(timer.duration(CollectiveKind::kAllReduce, ranks, bytes));
  };
  EXPECT_NEAR(busbw(6) / 778.2, 1, 0.03);
  EXPECT_NEAR(busbw(7) / 811.2, 1, 0.03);
  EXPECT_NEAR(busbw(5) / 677.8, 1, 0.03);
  EXPECT_NEAR(busbw(4) / 673.2, 1, 0.03);
}

// Bus bandwidth at 1 GiB as published: H100 344 and 322 GB/s (xla), A100 253.6 (mscclpp).
TEST(FabricTimerTest, PublishedBusBandwidth) {
  const auto busbw = [](const char* spec, CollectiveKind kind) {
    const FabricTimer timer(load_hardware(spec).fabric);
    const Bytes bytes = 1024 * kMiB;
    return static_cast<double>(bytes) * 7 / 8 / static_cast<double>(timer.duration(kind, 8, bytes));
  };
  EXPECT_NEAR(busbw("8xH100", CollectiveKind::kAllGather), 344, 1);
  EXPECT_NEAR(busbw("8xH100", CollectiveKind::kReduceScatter), 322, 1);
  EXPECT_NEAR(busbw("8xA100-80", CollectiveKind::kAllGather), 253.6, 3);
}

// Predicts each measured size from 1 MiB up from a curve without it, whose sizes are then up to
// eight times apart.
TEST(FabricTimerTest, SizesLeftOut) {
  for (const char* spec : {"8xH100", "8xB200"}) {
    double sum = 0;
    int count = 0;
    const FabricSpec whole = load_hardware(spec).fabric;
    for (const CollectiveCurve& curve : whole.curves) {
      if (curve.ranks != 8 || curve.kind == CollectiveKind::kAllReduce) {
        continue;
      }
      for (size_t i = 1; i + 1 < curve.points.size(); ++i) {
        if (curve.points[i].bytes < kMiB) {
          continue;
        }
        FabricSpec without = whole;
        without.curves = {curve};
        auto& points = without.curves[0].points;
        points.erase(points.begin() + static_cast<std::ptrdiff_t>(i));
        const auto ns = static_cast<double>(
            FabricTimer(without).duration(curve.kind, 8, curve.points[i].bytes));
        sum += std::abs(ns / (curve.points[i].us * 1e3) - 1);
        ++count;
      }
    }
    EXPECT_EQ(count, 2 * 7) << spec;
    EXPECT_LT(sum / count, 0.06) << spec;
  }
}

TEST(FabricTimerTest, HardwareByName) {
  EXPECT_EQ(make_collective_timer("ab:5:inf")->duration(CollectiveKind::kAllGather, 8, 1), 5000);
  EXPECT_GT(make_collective_timer("8xH100")->duration(CollectiveKind::kAllGather, 8, kMiB), 0);
  EXPECT_THROW((void)make_collective_timer("9xH100"), InputError);
}

// NVIDIA/Megatron-LM#5596, eight H100: microseconds with rings and with symmetric memory.
TEST(FabricTimerTest, SymmetricMemoryGainsWhatWasMeasured) {
  const struct {
    CollectiveKind kind;
    Bytes mib;
    double ring, symmetric;
  } published[] = {{CollectiveKind::kAllGather, 2, 20.2, 10.9},
                   {CollectiveKind::kAllGather, 8, 43.4, 27.4},
                   {CollectiveKind::kAllGather, 32, 118.9, 95.3},
                   {CollectiveKind::kAllGather, 128, 385.3, 363.2},
                   {CollectiveKind::kReduceScatter, 2, 18.6, 10.8},
                   {CollectiveKind::kReduceScatter, 8, 47.0, 28.8},
                   {CollectiveKind::kReduceScatter, 32, 112.6, 100.5}};
  FabricSpec fabric = load_hardware("8xH100").fabric;
  const FabricTimer ring(fabric);
  fabric.transport = Transport::kSymmetric;
  const FabricTimer symmetric(fabric);
  fabric.transport = Transport::kCopyEngine;
  const FabricTimer copies(fabric);
  const auto ratio = [&](const FabricTimer& timer, CollectiveKind kind, Bytes bytes) {
    return static_cast<double>(ring.duration(kind, 8, bytes)) /
           static_cast<double>(timer.duration(kind, 8, bytes));
  };
  for (const auto& each : published) {
    EXPECT_NEAR(ratio(symmetric, each.kind, each.mib << 20), each.ring / each.symmetric, 1e-3);
    EXPECT_NEAR(ratio(copies, each.kind, each.mib << 20),
                each.kind == CollectiveKind::kAllGather ? 1 : each.ring / each.symmetric, 1e-3);
  }
  // Half way between 8 and 32 MiB over the logarithm.
  EXPECT_NEAR(ratio(symmetric, CollectiveKind::kAllGather, Bytes{16} << 20),
              (43.4 / 27.4 + 118.9 / 95.3) / 2, 1e-3);
  EXPECT_EQ(ratio(symmetric, CollectiveKind::kAllGather, Bytes{1} << 30), 1);
  EXPECT_EQ(ratio(symmetric, CollectiveKind::kAllReduce, Bytes{2} << 20), 1);
  EXPECT_EQ(symmetric.duration_across(CollectiveKind::kAllGather, 16, 8, Bytes{2} << 20),
            ring.duration_across(CollectiveKind::kAllGather, 16, 8, Bytes{2} << 20));
}

}  // namespace
}  // namespace shardlens::sim::test
