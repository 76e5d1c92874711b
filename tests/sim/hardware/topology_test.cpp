#include "sim/hardware/topology.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shardlens::sim {
namespace {

std::vector<TopologyLink> star(int gpus, double gbps) {
  std::vector<TopologyLink> links;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    links.push_back({fmt::format("gpu{}", gpu), "switch", gbps});
  }
  return links;
}

TEST(Topology, ThroughASwitchEachWireIsPassedOnce) {
  EXPECT_DOUBLE_EQ(ring_gbps(star(8, 370.8), 8), 370.8);
  EXPECT_DOUBLE_EQ(ring_gbps(star(16, 100), 16), 100);
}

// Two GPUs below each of two processors, by hand: 0-1-3-2 crosses the processors' link once each
// way; 0-2-1-3 would cross it twice.
TEST(Topology, TheBestOrderCrossesTheSlowLinkOnce) {
  const std::vector<TopologyLink> links{{"gpu0", "cpu0", 25},
                                        {"gpu2", "cpu0", 25},
                                        {"gpu1", "cpu1", 25},
                                        {"gpu3", "cpu1", 25},
                                        {"cpu0", "cpu1", 20}};
  EXPECT_DOUBLE_EQ(ring_gbps(links, 4), 20);
}

// A bridge between pairs; other hops go through the processor, to which each GPU has its own link.
TEST(Topology, DirectWiresGoBeforeLongerWays) {
  const std::vector<TopologyLink> links{{"gpu0", "gpu1", 100}, {"gpu2", "gpu3", 100},
                                        {"gpu0", "cpu", 12},   {"gpu1", "cpu", 12},
                                        {"gpu2", "cpu", 12},   {"gpu3", "cpu", 12}};
  EXPECT_DOUBLE_EQ(ring_gbps(links, 4), 12);
}

// Hop 0-1, 2-3, … crosses the link between the switches to the right, 1-2, 3-4, … to the left.
TEST(Topology, MoreThanEightGpusAreTakenByNumber) {
  for (const int gpus : {10, 4096}) {
    std::vector<TopologyLink> links{{"left", "right", 100}};
    for (int gpu = 0; gpu < gpus; ++gpu) {
      links.push_back({fmt::format("gpu{}", gpu), gpu % 2 == 0 ? "left" : "right", 100});
    }
    EXPECT_DOUBLE_EQ(ring_gbps(links, gpus), 100.0 / (gpus / 2));
  }
}

TEST(Topology, NoRingWhereAGpuCannotBeReached) {
  EXPECT_EQ(ring_gbps(star(3, 10), 4), 0);
  EXPECT_EQ(ring_gbps({}, 2), 0);
}

// Four GPUs in six pairs: two of them have a third of a GPU's links.
TEST(Topology, AGroupWithoutASwitchHasTheLinksOfItsPairs) {
  std::vector<TopologyLink> links;
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      links.push_back({fmt::format("gpu{}", a), fmt::format("gpu{}", b), 150});
    }
  }
  EXPECT_DOUBLE_EQ(group_gbps(links, 2, 360), 120);
  EXPECT_DOUBLE_EQ(group_gbps(links, 3, 360), 240);
  EXPECT_DOUBLE_EQ(group_gbps(links, 4, 360), 360);
  EXPECT_DOUBLE_EQ(group_gbps(links, 2, 150), 150);  // a ring over one link of each GPU
  EXPECT_DOUBLE_EQ(group_gbps(star(8, 450), 2, 344), 344);
  EXPECT_DOUBLE_EQ(group_gbps({}, 2, 344), 344);
}

}  // namespace
}  // namespace shardlens::sim
