// Critical paths through CUDA graphs that are generated from their edges, so that the path is
// known.
#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using trace::Category;

constexpr Nanoseconds kUnit = 1000;       // a microsecond
constexpr Nanoseconds kEdge = 1 * kUnit;  // from the end of the last dependency to the start
constexpr Nanoseconds kGraphLaunch = 10 * kUnit, kGraphStart = 30 * kUnit;
constexpr std::array<int64_t, 4> kGraphStreams{7, 13, 20, 24};
constexpr std::string_view kGatherKernel = "ncclDevKernel_AllGather_RING_LL(x)";

struct Node {
  size_t stream = 0;
  bool collective = false;
  Nanoseconds start = 0, end = 0;
  std::optional<size_t> waited_for;  // the dependency that ended last; nullopt: the graph's root
};

// A graph in which each node depends on the one before it in its stream and, half of the time, on
// the latest one of another stream. Ends are at least 5 us apart, as those of kernels that take
// longer than their hand-over mostly are, so that no two dependencies end together.
std::vector<Node> random_graph(std::mt19937& random) {
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  std::vector<Node> nodes;
  std::array<std::optional<size_t>, kGraphStreams.size()> latest;
  const size_t count = 2 + below(30);
  for (size_t i = 0; i < count; ++i) {
    Node node;
    node.stream = i == 0 ? 0 : below(kGraphStreams.size());
    node.collective = i > 0 && node.stream >= 2;
    std::vector<size_t> needs;
    if (latest[node.stream]) {
      needs.push_back(*latest[node.stream]);
    }
    if (i > 0 && (needs.empty() || below(2) == 0)) {
      needs.push_back(below(i));
    }
    node.start = kGraphStart;
    for (const size_t need : needs) {
      if (nodes[need].end + kEdge > node.start || !node.waited_for) {
        node.start = nodes[need].end + kEdge;
        node.waited_for = need;
      }
    }
    node.end = node.start + static_cast<Nanoseconds>(5 + below(200)) * kUnit;
    while (std::any_of(nodes.begin(), nodes.end(), [&](const Node& other) {
      return std::abs(other.end - node.end) < 5 * kUnit;
    })) {
      node.end += 5 * kUnit;
    }
    latest[node.stream] = i;
    nodes.push_back(node);
  }
  return nodes;
}

trace::Trace trace_of(const std::vector<Node>& nodes) {
  TraceBuilder b;
  b.step(1, 0, kGraphStart);
  std::optional<uint32_t> graph;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    const std::string name =
        node.collective ? std::string(kGatherKernel) : "kernel " + std::to_string(i);
    const auto kernel = static_cast<uint32_t>(b.trace.events.size());
    b.device(Category::kKernel, name, kGraphStreams[node.stream], graph ? -1 : kGraphLaunch,
             node.start, node.end);
    graph = graph.value_or(b.trace.events[kernel].correlation);
    b.trace.events[kernel].correlation = *graph;
  }
  return b.finish();
}

// The chain of dependencies back from the event that ends last: its lengths by bound.
std::array<Nanoseconds, kBoundCount> truth_of(const std::vector<Node>& nodes) {
  std::array<Nanoseconds, kBoundCount> lengths{};
  const auto last = std::max_element(nodes.begin(), nodes.end(),
                                     [](const Node& a, const Node& b) { return a.end < b.end; });
  for (auto i = std::optional(static_cast<size_t>(last - nodes.begin())); i;
       i = nodes[*i].waited_for) {
    const Node& node = nodes[*i];
    const Bound bound = node.collective ? Bound::kCommunication : Bound::kCompute;
    lengths[static_cast<size_t>(bound)] += node.end - node.start;
    lengths[static_cast<size_t>(Bound::kIdle)] += node.waited_for ? kEdge : 0;
  }
  return lengths;
}

TEST(GraphPathTest, ThePathFollowsTheEdgesOfAGraph) {
  AnalysisOptions options;
  options.critical_path = true;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Node> nodes = random_graph(random);
    const RankAnalysis rank = analyze(trace::Run::of({trace_of(nodes)}), options).ranks.at(0);
    const CriticalPath& path = rank.critical_paths.at(0).path;
    EXPECT_EQ(path.lengths, truth_of(nodes)) << "seed " << seed;
    for (const PathSegment& segment : path.segments) {
      EXPECT_NE(segment.bound, Bound::kLaunch) << "seed " << seed;
    }
    EXPECT_EQ(rank.launch.count, 1);
  }
}

// Two ranks run one graph: gemm, all-gather on another stream, gemm. Rank 1's first gemm takes
// longer, so rank 0's path goes over to it at the all-gather, and stays inside the graph.
TEST(GraphPathTest, APathCrossesRanksInsideAGraph) {
  const auto ran = [](int64_t rank, Nanoseconds first) {
    TraceBuilder b(rank);
    b.step(1, 0, kGraphStart);
    const auto add = [&](std::string_view name, int64_t stream, Nanoseconds from, Nanoseconds to) {
      const auto kernel = static_cast<uint32_t>(b.trace.events.size());
      b.device(Category::kKernel, name, stream, kernel == 1 ? kGraphLaunch : -1, from, to);
      b.trace.events[kernel].correlation = 1;
    };
    add("gemm", 7, kGraphStart, first);
    add(kGatherKernel, 20, first + kEdge, 200 * kUnit);
    add("gemm", 7, 201 * kUnit, 300 * kUnit);
    return b.finish();
  };
  AnalysisOptions options;
  options.critical_path = true;
  const Analysis result =
      analyze(trace::Run::of({ran(0, 50 * kUnit), ran(1, 150 * kUnit)}), options);
  struct Leg {
    Bound bound;
    uint32_t rank;
    Nanoseconds start;
    bool operator==(const Leg&) const = default;
  };
  std::vector<Leg> found;
  for (const PathSegment& s : result.ranks.at(0).critical_paths.at(0).path.segments) {
    found.push_back({s.bound, s.rank, s.when.start});
  }
  using enum Bound;
  const std::vector<Leg> expected{{kCompute, 1, kGraphStart},
                                  {kIdle, 1, 150 * kUnit},
                                  {kCommunication, 0, 151 * kUnit},
                                  {kIdle, 0, 200 * kUnit},
                                  {kCompute, 0, 201 * kUnit}};
  EXPECT_TRUE(found == expected);
}

}  // namespace
}  // namespace shardlens::analysis
