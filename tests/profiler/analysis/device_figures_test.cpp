// Idle causes, launches and critical paths of small device traces, worked out by hand.
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using trace::Category;

// A call of the runtime, on the main thread; returns its correlation.
uint32_t call(TraceBuilder& b, std::string_view name, Nanoseconds start, Nanoseconds end) {
  static uint32_t correlation = 1000;
  const uint32_t event = b.trace.add_complete(Category::kCudaRuntime, name, b.main, start, end);
  b.trace.events[event].correlation = ++correlation;
  return correlation;
}

// From `instant` on, `stream` waits for the work that was given to `source` before `recorded`.
void stream_wait(
    TraceBuilder& b, int32_t stream, int32_t source, Nanoseconds recorded, Nanoseconds instant) {
  const uint32_t record = call(b, "cudaEventRecord", recorded, recorded + 1);
  const uint32_t wait = call(b, "cudaStreamWaitEvent", instant, instant + 1);
  const uint32_t event = b.trace.add_complete(Category::kCudaSync, "Stream Wait Event",
                                              b.trace.track(0, stream), instant, instant + 1);
  b.trace.events[event].correlation = wait;
  b.trace.events[event].detail_kind = trace::ArgsKind::kSync;
  b.trace.events[event].detail = static_cast<uint32_t>(b.trace.syncs.size());
  trace::SyncArgs sync;
  sync.kind = trace::SyncKind::kStreamWaitEvent;
  sync.stream = stream;
  sync.wait_on_stream = source;
  sync.wait_on_record = record;
  b.trace.syncs.push_back(sync);
}

RankAnalysis analyzed(TraceBuilder& b, bool critical_path = false) {
  AnalysisOptions options;
  options.critical_path = critical_path;
  return analyze(trace::Run::of({b.finish()}), options).ranks.at(0);
}

void expect_sum(const IdleFigures& idle, Nanoseconds sum) {
  EXPECT_EQ(idle.host_late + idle.event_wait + idle.gap + idle.unknown, sum);
}

// Idle: [10,30) launched only at 25; [40,60) launched at 35, free to start; [70,90) no launch.
TEST(IdleTest, HostLateGapAndUnknown) {
  TraceBuilder b;
  b.device(Category::kKernel, "a", 7, 1, 0, 10);
  b.device(Category::kKernel, "b", 7, 25, 30, 40);
  b.device(Category::kKernel, "c", 7, 35, 60, 70);
  b.device(Category::kKernel, "d", 7, -1, 90, 95);
  const RankAnalysis rank = analyzed(b);
  EXPECT_EQ(rank.idle.host_late, 15);
  EXPECT_EQ(rank.idle.gap, 5 + 20);
  EXPECT_EQ(rank.idle.event_wait, 0);
  EXPECT_EQ(rank.idle.unknown, 20);
  expect_sum(rank.idle, rank.figures.idle);
}

// The same stretches, in order, and what a step's figures say of them.
TEST(IdleTest, EachStretchHasItsCause) {
  TraceBuilder b;
  b.device(Category::kKernel, "a", 7, 1, 0, 10);
  b.device(Category::kKernel, "b", 7, 25, 30, 40);
  b.device(Category::kKernel, "c", 7, 35, 60, 70);
  b.device(Category::kKernel, "d", 7, -1, 90, 95);
  AnalysisOptions options;
  options.detail = DetailLevel::kCollectives;
  const RankAnalysis rank = analyze(trace::Run::of({b.finish()}), options).ranks.at(0);
  const std::vector<IdlePart>& parts = rank.detail->idle;
  ASSERT_EQ(parts.size(), 4);
  const auto same = [&parts](size_t i, Nanoseconds start, Nanoseconds end, IdleCause cause) {
    EXPECT_EQ(parts[i].when, (Interval{start, end})) << i;
    EXPECT_EQ(name_of(parts[i].cause), name_of(cause)) << i;
  };
  same(0, 10, 25, IdleCause::kHostLate);
  same(1, 25, 30, IdleCause::kGap);
  same(2, 40, 60, IdleCause::kGap);
  same(3, 70, 90, IdleCause::kUnknown);
}

// The host waits for the device over [12,22) of the idle [10,30), then launches at 25.
TEST(IdleTest, AHostThatSynchronisesWaits) {
  TraceBuilder b;
  b.device(Category::kKernel, "a", 7, 1, 5, 10);
  call(b, "cudaStreamSynchronize", 8, 22);
  b.device(Category::kKernel, "b", 7, 25, 30, 40);
  const RankAnalysis rank = analyzed(b);
  EXPECT_EQ(rank.idle.event_wait, 12);  // [10,22)
  EXPECT_EQ(rank.idle.host_late, 3);    // [22,25)
  EXPECT_EQ(rank.idle.gap, 5);          // [25,30)
  expect_sum(rank.idle, rank.figures.idle);
}

// Stream 8's kernel was launched at 4 but waits for stream 7's, which ends at 20; it starts at 26.
TEST(IdleTest, AStreamThatWaitsForAnEventWaits) {
  TraceBuilder b;
  b.device(Category::kKernel, "a", 7, 1, 5, 20);
  stream_wait(b, 8, 7, 2, 3);
  b.device(Category::kKernel, "b", 8, 4, 26, 30);
  const RankAnalysis rank = analyzed(b);
  EXPECT_EQ(rank.idle.event_wait, 6);
  expect_sum(rank.idle, rank.figures.idle);
}

// The same, but launched only at 22, after the event had happened: free to start.
TEST(IdleTest, AnEventThatHadHappenedHoldsNobody) {
  TraceBuilder b;
  b.device(Category::kKernel, "a", 7, 1, 5, 20);
  stream_wait(b, 8, 7, 2, 3);
  b.device(Category::kKernel, "b", 8, 22, 26, 30);
  const RankAnalysis rank = analyzed(b);
  EXPECT_EQ(rank.idle.host_late, 2);
  EXPECT_EQ(rank.idle.gap, 4);
  EXPECT_EQ(rank.idle.event_wait, 0);
}

TEST(IdleTest, OnACpuAllIdleTimeIsTheHosts) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.op("aten::mm", 10, 50);
  const RankAnalysis rank = analyzed(b);
  EXPECT_EQ(rank.idle.host_late, 60);
  expect_sum(rank.idle, rank.figures.idle);
}

// Latencies 9, 5 and 30; queued over [1,10), [5,10) and [6,36): two at once from 5, three from 6.
TEST(LaunchTest, LatencyAndQueueDepth) {
  TraceBuilder b;
  b.device(Category::kKernel, "a", 7, 1, 10, 30);
  b.device(Category::kKernel, "b", 8, 5, 10, 36);
  b.device(Category::kKernel, "c", 7, 6, 36, 50);
  const RankAnalysis rank = analyzed(b);
  EXPECT_EQ(rank.launch.count, 3);
  EXPECT_EQ(rank.launch.latency_median, 9);
  EXPECT_EQ(rank.launch.latency_max, 30);
  EXPECT_EQ(rank.launch.before_launch, 0);
  EXPECT_EQ(rank.launch.queue_max, 0);  // all were launched before the window [10,50)
  EXPECT_DOUBLE_EQ(rank.launch.queue_mean, 26.0 / 40);
}

TEST(LaunchTest, AKernelBeforeItsLaunchIsCounted) {
  TraceBuilder b;
  b.device(Category::kKernel, "a", 7, 0, 10, 20);
  b.device(Category::kKernel, "b", 7, 25, 22, 30);
  b.device(Category::kKernel, "c", 7, 24, 40, 50);
  b.device(Category::kKernel, "d", 8, 26, 40, 50);
  const RankAnalysis rank = analyzed(b);
  EXPECT_EQ(rank.launch.before_launch, 1);
  EXPECT_EQ(rank.launch.queue_max, 2);
}

Nanoseconds length(const CriticalPath& path, Bound bound) {
  return path.lengths[static_cast<size_t>(bound)];
}

// Step [10,100): gemm a [10,30) then, launched late at 38 after host work, gemm b [40,60); the
// reduce-scatter waits for b and runs [62,100).
TEST(CriticalPathTest, GoesBackThroughEventsLaunchesAndTheHost) {
  TraceBuilder b;
  b.step(1, 0, 70);
  b.device(Category::kKernel, "gemm_a", 7, 1, 10, 30);
  call(b, "cudaStreamSynchronize", 12, 33);
  b.device(Category::kKernel, "gemm_b", 7, 38, 40, 60);
  stream_wait(b, 20, 7, 42, 43);
  b.device(Category::kKernel, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", 20, 44, 62, 100);
  const RankAnalysis rank = analyzed(b, true);
  ASSERT_EQ(rank.critical_paths.size(), 1U);
  const CriticalPath& path = rank.critical_paths[0].path;
  EXPECT_EQ(length(path, Bound::kCommunication), 38);
  EXPECT_EQ(length(path, Bound::kIdle), 2);      // [60,62)
  EXPECT_EQ(length(path, Bound::kCompute), 40);  // b, and a that the host waited for
  EXPECT_EQ(length(path, Bound::kLaunch), 2);    // [38,40)
  EXPECT_EQ(length(path, Bound::kHost), 8);      // [30,38)
  EXPECT_EQ(length(path, Bound::kCopy), 0);
  EXPECT_EQ(path.bound(), Bound::kCompute);
  Nanoseconds at = 10;
  for (const PathSegment& segment : path.segments) {
    EXPECT_EQ(segment.when.start, at);
    at = segment.when.end;
  }
  EXPECT_EQ(at, 100);
  EXPECT_EQ(rank.critical_paths[0].parts.at(0).length, 38);
}

// A step ends where the next one's first kernel could start, so that kernel's launch bounds it.
TEST(CriticalPathTest, AStepThatEndsIdleIsBoundByTheNextOnesLaunch) {
  TraceBuilder b;
  b.step(1, 0, 50);
  b.step(2, 50, 60);
  b.device(Category::kKernel, "a", 7, 1, 10, 20);
  b.device(Category::kKernel, "b", 7, 55, 60, 70);
  const RankAnalysis rank = analyzed(b, true);
  const CriticalPath& path = rank.critical_paths.at(0).path;
  EXPECT_EQ(length(path, Bound::kLaunch), 5);
  EXPECT_EQ(length(path, Bound::kHost), 45);
}

TEST(CriticalPathTest, OnACpuTheHostIsThePath) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.op("aten::mm", 10, 50);
  b.communication({.kind = CollectiveKind::kAllReduce, .fqn = "", .start = 40, .end = 70}, 0);
  const RankAnalysis rank = analyzed(b, true);
  const CriticalPath& path = rank.critical_paths.at(0).path;
  EXPECT_EQ(length(path, Bound::kCompute), 40);
  EXPECT_EQ(length(path, Bound::kCommunication), 20);
  EXPECT_EQ(length(path, Bound::kHost), 40);
}

// Both ranks' critical paths, for two traces that are matched by order.
std::vector<RankAnalysis> analyzed_together(TraceBuilder& first, TraceBuilder& second) {
  AnalysisOptions options;
  options.critical_path = true;
  return analyze(trace::Run::of({first.finish(), second.finish()}), options).ranks;
}

struct Stretch {
  Nanoseconds start, end;
  Bound bound;
  uint32_t rank;
  friend bool operator==(const Stretch&, const Stretch&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Stretch& s) {
    return out << "[" << s.start << ", " << s.end << ") " << name_of(s.bound) << " on " << s.rank;
  }
};

std::vector<Stretch> stretches(const RankAnalysis& rank) {
  std::vector<Stretch> out;
  for (const PathSegment& s : rank.critical_paths.at(0).path.segments) {
    out.push_back({s.when.start, s.when.end, s.bound, s.rank});
  }
  return out;
}

constexpr std::string_view kAllGather = "ncclDevKernel_AllGather_RING_LL(x)";

// Rank 0 reaches the all-gather at 30. Rank 1, whose clock is 1000 ahead, reaches it at 80, after
// its gemm. Data moves from 80 on.
TEST(CriticalPathTest, ACollectiveHangsOnTheRankThatComesLast) {
  TraceBuilder early(0), late(1);
  early.step(1, 0, 20);
  early.device(Category::kKernel, "gemm", 7, 1, 10, 30);
  stream_wait(early, 20, 7, 3, 4);
  early.device(Category::kKernel, kAllGather, 20, 5, 30, 100);
  late.step(1, 1000, 1020);
  late.device(Category::kKernel, "gemm", 7, 1001, 1012, 1080);
  stream_wait(late, 20, 7, 1003, 1004);
  late.device(Category::kKernel, kAllGather, 20, 1005, 1080, 1100);
  const std::vector<RankAnalysis> ranks = analyzed_together(early, late);
  using enum Bound;
  EXPECT_EQ(stretches(ranks[0]),
            (std::vector<Stretch>{
                {10, 12, kLaunch, 1}, {12, 80, kCompute, 1}, {80, 100, kCommunication, 0}}));
  EXPECT_EQ(stretches(ranks[1]),
            (std::vector<Stretch>{{1012, 1080, kCompute, 1}, {1080, 1100, kCommunication, 1}}));
  const PathPart& longest = ranks[0].critical_paths[0].parts.at(0);
  EXPECT_EQ(longest.rank, 1);
  EXPECT_EQ(longest.name, "gemm");
  EXPECT_EQ(longest.length, 68);
}

// Rank 0 is late to the first collective, and rank 1 to the second because its host launches late:
// the path goes over to rank 1 and back.
TEST(CriticalPathTest, APathGoesFromRankToRank) {
  TraceBuilder first(0), second(1);
  first.step(1, 0, 90);
  first.device(Category::kKernel, "gemm", 7, 1, 10, 40);
  stream_wait(first, 20, 7, 2, 3);
  first.device(Category::kKernel, kAllGather, 20, 4, 40, 50);
  first.device(Category::kKernel, kAllGather, 20, 5, 50, 100);
  second.step(1, 0, 90);
  second.device(Category::kKernel, kAllGather, 20, 4, 10, 50);
  call(second, "cudaStreamSynchronize", 6, 52);
  second.device(Category::kKernel, kAllGather, 20, 60, 65, 100);
  const std::vector<RankAnalysis> ranks = analyzed_together(first, second);
  using enum Bound;
  const std::vector<Stretch> path{{10, 40, kCompute, 0},
                                  {40, 50, kCommunication, 1},
                                  {50, 60, kHost, 1},
                                  {60, 65, kLaunch, 1},
                                  {65, 100, kCommunication, 0}};
  EXPECT_EQ(stretches(ranks[0]), path);
}

// On CPUs: rank 1 computes until 70 before it reaches the all-reduce, where rank 0 waits from 20
// on.
TEST(CriticalPathTest, OnACpuTheHostThatComesLastIsThePath) {
  TraceBuilder early(0), late(1);
  const auto all_reduce = [](TraceBuilder& b, Nanoseconds start) {
    b.communication({.kind = CollectiveKind::kAllReduce,
                     .fqn = "",
                     .issued = start - 2,
                     .start = start,
                     .end = 100},
                    0);
  };
  early.step(1, 0, 110);
  early.op("aten::mm", 0, 20);
  all_reduce(early, 22);
  late.step(1, 0, 110);
  late.op("aten::mm", 5, 65);
  all_reduce(late, 70);
  const std::vector<RankAnalysis> ranks = analyzed_together(early, late);
  using enum Bound;
  EXPECT_EQ(stretches(ranks[0]), (std::vector<Stretch>{{0, 5, kHost, 1},
                                                       {5, 65, kCompute, 1},
                                                       {65, 68, kHost, 1},
                                                       {68, 70, kLaunch, 1},
                                                       {70, 100, kCommunication, 0},
                                                       {100, 110, kHost, 0}}));
  EXPECT_EQ(stretches(ranks[1]), (std::vector<Stretch>{{0, 5, kHost, 1},
                                                       {5, 65, kCompute, 1},
                                                       {65, 70, kHost, 1},
                                                       {70, 100, kCommunication, 1},
                                                       {100, 110, kHost, 1}}));
}

// Rank 1 issued its second all-reduce in time, but the first, which rank 0 was late to, still ran
// on its communicator.
TEST(CriticalPathTest, ACollectiveMayBeLateBehindAnother) {
  TraceBuilder first(0), second(1);
  const auto all_reduce = [](TraceBuilder& b, Nanoseconds issued, Nanoseconds start,
                             Nanoseconds end) {
    b.communication({.kind = CollectiveKind::kAllReduce,
                     .fqn = "",
                     .issued = issued,
                     .start = start,
                     .end = end},
                    0);
  };
  first.step(1, 0, 100);
  first.op("aten::mm", 0, 40);
  all_reduce(first, 40, 40, 50);
  all_reduce(first, 50, 50, 100);
  second.step(1, 0, 100);
  all_reduce(second, 5, 5, 50);
  all_reduce(second, 6, 60, 100);
  const std::vector<RankAnalysis> ranks = analyzed_together(first, second);
  using enum Bound;
  EXPECT_EQ(stretches(ranks[0]), (std::vector<Stretch>{{0, 40, kCompute, 0},
                                                       {40, 50, kCommunication, 1},
                                                       {50, 60, kIdle, 1},
                                                       {60, 100, kCommunication, 0}}));
}

TEST(MemoryTest, PeaksByDeviceAndStep) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.step(2, 100, 200);
  const auto add = [&](Nanoseconds time, Bytes allocated, int32_t type, int32_t device) {
    const uint32_t event = b.trace.add_complete(Category::kCpuOp, "[memory]", b.main, time, time);
    trace::MemoryArgs args;
    args.total_allocated = allocated;
    args.total_reserved = 2 * allocated;
    args.device_type = type;
    args.device = device;
    b.trace.events[event].phase = trace::EventPhase::kInstant;
    b.trace.events[event].detail_kind = trace::ArgsKind::kMemory;
    b.trace.events[event].detail = static_cast<uint32_t>(b.trace.memory_events.size());
    b.trace.memory_events.push_back(args);
  };
  add(10, 100, 1, 0);
  add(20, 300, 1, 0);
  add(150, 200, 1, 0);
  add(30, 7, 0, -1);
  const RankAnalysis rank = analyzed(b);
  ASSERT_EQ(rank.memory.size(), 2U);
  EXPECT_EQ(rank.memory[0].device, "cuda:0");
  EXPECT_EQ(rank.memory[0].peak.allocated, 300);
  EXPECT_EQ(rank.memory[0].peak.time, 20);
  EXPECT_EQ(rank.memory[0].peak_reserved, 600);
  ASSERT_EQ(rank.memory[0].steps.size(), 2U);
  EXPECT_EQ(rank.memory[0].steps[1].allocated, 200);
  EXPECT_EQ(rank.memory[1].device, "cpu");
  EXPECT_FALSE(rank.memory[0].from_driver);
}

// As with Gloo, whose threads may be the last to let go of a collective's tensors: the frees of two
// blocks are missing in the trace. The block that takes the place of the second lies across its
// beginning. An earlier recording of the process left 70 bytes in PyTorch's count.
TEST(MemoryTest, BlocksWhosePlaceIsTakenAgainAreNotCounted) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.step(2, 100, 200);
  Bytes total = 70;  // as PyTorch counts
  const auto add = [&](Nanoseconds time, int64_t address, Bytes bytes) {
    const uint32_t event = b.trace.add_complete(Category::kCpuOp, "[memory]", b.main, time, time);
    trace::MemoryArgs args;
    args.address = address;
    args.bytes = bytes;
    args.total_allocated = total += bytes;
    b.trace.events[event].phase = trace::EventPhase::kInstant;
    b.trace.events[event].detail_kind = trace::ArgsKind::kMemory;
    b.trace.events[event].detail = static_cast<uint32_t>(b.trace.memory_events.size());
    b.trace.memory_events.push_back(args);
  };
  add(10, 1000, 100);
  add(20, 5000, 300);
  add(30, 1000, 100);
  add(40, 1000, -100);
  add(110, 4900, 200);
  add(120, 4900, -200);
  const RankAnalysis rank = analyzed(b);
  ASSERT_EQ(rank.memory.size(), 1U);
  EXPECT_EQ(rank.memory[0].peak.allocated, 400);
  ASSERT_EQ(rank.memory[0].steps.size(), 2U);
  EXPECT_EQ(rank.memory[0].steps[0].allocated, 400);
  EXPECT_EQ(rank.memory[0].steps[1].before, 300);
  EXPECT_EQ(rank.memory[0].steps[1].allocated, 200);
}

// The driver's allocations since recording began are not what the caching allocator gave out.
TEST(MemoryTest, GrowthSinceRecordingBeganIsNoPeak) {
  TraceBuilder b;
  b.step(1, 0, 100);
  for (const auto& [time, reserved] : {std::pair<Nanoseconds, Bytes>{10, 1000}, {20, 400}}) {
    const uint32_t event = b.trace.add_complete(Category::kCpuOp, "[memory]", b.main, time, time);
    trace::MemoryArgs args;
    args.total_allocated = -1;
    args.total_reserved = reserved;
    args.device_type = 1;
    args.device = 0;
    b.trace.events[event].phase = trace::EventPhase::kInstant;
    b.trace.events[event].detail_kind = trace::ArgsKind::kMemory;
    b.trace.events[event].detail = static_cast<uint32_t>(b.trace.memory_events.size());
    b.trace.memory_events.push_back(args);
  }
  const RankAnalysis rank = analyzed(b);
  ASSERT_EQ(rank.memory.size(), 1U);
  EXPECT_TRUE(rank.memory[0].from_driver);
  EXPECT_EQ(rank.memory[0].peak.allocated, 1000);
}

}  // namespace
}  // namespace shardlens::analysis
