#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/analysis/analysis.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/analysis/figures/stream_figures.h"
#include "profiler/analysis/figures/window_figures.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using trace::Category;

void expect_sums(const WindowFigures& f) {
  EXPECT_EQ(f.compute + f.exposed_comm + f.exposed_copy + f.idle, f.duration());
  EXPECT_EQ(f.comm, f.overlap + f.exposed_comm);
  EXPECT_GE(f.idle, 0);
  Nanoseconds exposed = f.unknown.exposed;
  for (const auto& [kind, figures] : f.collectives) {
    exposed += figures.exposed;
  }
  EXPECT_EQ(exposed, f.exposed_comm);
}

// Compute [0,10) [30,40); all-gather [5,20), reduce-scatter [15,35); memcpy [18,25) and [42,44);
// last event ends at 50.
TEST(FiguresTest, DeviceTraceByHand) {
  TraceBuilder b;
  b.device(Category::kKernel, "gemm", 7, -1, 0, 10);
  b.device(Category::kKernel, "gemm", 7, -1, 30, 40);
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL(x)", 20, -1, 5, 20);
  b.device(Category::kKernel, "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", 21, -1, 15, 35);
  b.device(Category::kGpuMemcpy, "Memcpy DtoD", 7, -1, 18, 25);
  b.device(Category::kGpuMemset, "Memset", 7, -1, 42, 44);
  b.device(Category::kKernel, "gemm", 7, -1, 48, 50);
  // Neither is busy time: a range around kernels, and a synchronisation.
  b.trace.add_complete(Category::kGpuUserAnnotation, "ProfilerStep#1", b.trace.track(0, 7), 0, 90);
  b.trace.add_complete(Category::kCudaSync, "Stream Wait Event", b.trace.track(0, 7), 40, 95);
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  const WindowFigures& f = result.ranks.at(0).figures;
  EXPECT_EQ(f.duration(), 50);
  EXPECT_EQ(f.compute, 10 + 10 + 2);
  EXPECT_EQ(f.comm, 30);          // [5,35)
  EXPECT_EQ(f.overlap, 5 + 5);    // [5,10) [30,35)
  EXPECT_EQ(f.exposed_comm, 20);  // [10,30)
  EXPECT_EQ(f.exposed_copy, 2);   // [42,44); the memcpy is under communication
  EXPECT_EQ(f.idle, 50 - 22 - 20 - 2);
  EXPECT_DOUBLE_EQ(*f.overlap_ratio(), 10.0 / 30.0);
  const KindFigures &gather = f.collectives.at(CollectiveKind::kAllGather),
                    &scatter = f.collectives.at(CollectiveKind::kReduceScatter);
  EXPECT_EQ(gather.busy, 15);
  EXPECT_EQ(scatter.busy, 20);
  EXPECT_EQ(gather.exposed, 10);   // [10,20): it started first
  EXPECT_EQ(scatter.exposed, 10);  // [20,30)
  expect_sums(f);
}

// Two steps of 100, with a gap of 20 between them that belongs to neither.
TEST(FiguresTest, HostTraceCoversItsSteps) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.step(2, 120, 220);
  b.op("aten::mm", 10, 50);
  b.op("aten::mm", 90, 130);   // across the gap
  b.op("aten::mm", 300, 400);  // outside
  b.communication({.kind = CollectiveKind::kAllGather, .start = 40, .end = 70}, 0);
  b.communication({.kind = CollectiveKind::kReduceScatter, .start = 210, .end = 260}, 0);
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  const RankAnalysis& rank = result.ranks.at(0);
  EXPECT_EQ(rank.figures.duration(), 200);
  EXPECT_EQ(rank.figures.compute, 40 + 10 + 10);
  EXPECT_EQ(rank.figures.comm, 30 + 10);
  EXPECT_EQ(rank.figures.overlap, 10);
  EXPECT_EQ(rank.figures.exposed_comm, 20 + 10);
  EXPECT_EQ(rank.figures.idle, 200 - 60 - 30);
  ASSERT_EQ(rank.steps.size(), 2U);
  EXPECT_EQ(rank.steps[0].step, 1);
  EXPECT_EQ(rank.steps[0].figures.compute, 50);
  EXPECT_EQ(rank.steps[0].figures.exposed_comm, 20);
  EXPECT_EQ(rank.steps[1].figures.compute, 10);
  EXPECT_EQ(rank.steps[1].figures.exposed_comm, 10);
  EXPECT_EQ(rank.steps[1].figures.collectives.at(CollectiveKind::kReduceScatter).bytes, 400);
  for (const StepAnalysis& step : rank.steps) {
    expect_sums(step.figures);
  }
  expect_sums(rank.figures);
}

TEST(FiguresTest, HostTraceWithoutStepsCoversItsOperators) {
  TraceBuilder b;
  b.op("aten::mm", 10, 50);
  b.op("aten::add", 80, 90);
  b.communication({.start = 0, .end = 20}, 0);
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  EXPECT_EQ(result.ranks.at(0).figures.duration(), 80);
  EXPECT_EQ(result.ranks.at(0).figures.comm, 10);
  EXPECT_TRUE(result.ranks.at(0).steps.empty());
}

// A step on the device: from its first launched event to the next step's first.
TEST(FiguresTest, DeviceStepsFollowTheLaunches) {
  TraceBuilder b;
  b.step(7, 0, 10);
  b.step(8, 10, 20);
  b.device(Category::kKernel, "a", 7, 1, 100, 110);
  b.device(Category::kKernel, "b", 7, 9, 130, 180);
  b.device(Category::kKernel, "c", 7, 11, 170, 175);
  b.device(Category::kKernel, "d", 7, 19, 200, 230);
  b.device(Category::kKernel, "e", 7, 50, 240, 250);  // launched after the last step
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  const RankAnalysis& rank = result.ranks.at(0);
  ASSERT_EQ(rank.steps.size(), 2U);
  EXPECT_EQ(rank.steps[0].window, (Interval{100, 170}));
  EXPECT_EQ(rank.steps[1].window, (Interval{170, 230}));
  EXPECT_EQ(rank.figures.duration(), 150);
  EXPECT_EQ(rank.steps[0].figures.compute, 50);
}

TEST(FiguresTest, StepsCanBeChosen) {
  TraceBuilder b;
  for (int k = 1; k <= 4; ++k) {
    b.step(k, k * 100, k * 100 + 100);
    b.op("aten::mm", k * 100 + 10, k * 100 + 10 + k);
  }
  const trace::Run run = trace::Run::of({b.finish()});
  AnalysisOptions options;
  options.steps = StepRange{2, 4};
  const Analysis result = analyze(run, options);
  EXPECT_EQ(result.ranks.at(0).figures.duration(), 200);
  EXPECT_EQ(result.ranks.at(0).figures.compute, 5);
  EXPECT_EQ(result.ranks.at(0).steps.size(), 2U);
  options.steps = StepRange{9, 10};
  EXPECT_THROW((void)analyze(run, options), InputError);
}

TEST(FiguresTest, RatioIsNullWithoutCommunicationAndSaysWhy) {
  TraceBuilder b;
  b.op("aten::mm", 0, 10);
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  EXPECT_EQ(result.ranks.at(0).figures.overlap_ratio(), std::nullopt);
  bool said = false;
  for (const trace::Diagnostic& d : result.diagnostics) {
    said = said || d.message.find("overlap_ratio is null") != std::string::npos;
  }
  EXPECT_TRUE(said);
}

TEST(FiguresTest, AnEmptyTraceHasFiguresOfNothing) {
  trace::Trace empty;
  const Analysis result = analyze(trace::Run::of({std::move(empty)}));
  expect_sums(result.ranks.at(0).figures);
  EXPECT_EQ(result.ranks.at(0).figures.duration(), 0);
}

// Random traces, compared with counting every nanosecond by the definitions.
TEST(FiguresTest, AgreesWithCountingEveryNanosecond) {
  constexpr int kLength = 200;
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    TraceBuilder b;
    std::vector<char> compute(kLength), copy(kLength), any(kLength);
    std::map<std::string, std::set<Nanoseconds>> streams;  // the instants at which each worked
    std::vector<int> owner(kLength,
                           -1);  // exposed instants: the communication that started first
    struct Comm {
      Nanoseconds start, end;
      bool gather;
    };
    std::vector<Comm> comms;
    Nanoseconds first = kLength, last = 0;
    for (size_t n = 1 + random() % 25; n > 0; --n) {
      const auto start = static_cast<Nanoseconds>(random() % kLength);
      const auto end =
          std::min<Nanoseconds>(kLength, start + 1 + static_cast<Nanoseconds>(random() % 30));
      first = std::min(first, start);
      last = std::max(last, end);
      const auto stream = static_cast<int64_t>(random() % 4);
      const auto what = random() % 4;
      if (what == 0) {
        b.device(Category::kGpuMemcpy, "Memcpy", stream, -1, start, end);
      } else if (what == 1) {
        b.device(Category::kKernel, "gemm", stream, -1, start, end);
      } else {
        const bool gather = what == 2;
        b.device(Category::kKernel,
                 gather ? "ncclDevKernel_AllGather_RING" : "ncclDevKernel_ReduceScatter_RING",
                 stream, -1, start, end);
        comms.push_back({start, end, gather});
      }
      for (Nanoseconds t = start; t < end; ++t) {
        (what == 0 ? copy : what == 1 ? compute : any)[static_cast<size_t>(t)] = 1;
        streams["stream " + std::to_string(stream)].insert(t);
      }
    }
    std::stable_sort(comms.begin(), comms.end(),
                     [](const Comm& x, const Comm& y) { return x.start < y.start; });
    Nanoseconds n_compute = 0, n_comm = 0, n_overlap = 0, n_copy = 0, n_idle = 0, n_gather = 0;
    for (Nanoseconds t = first; t < last; ++t) {
      const auto i = static_cast<size_t>(t);
      n_compute += compute[i];
      n_comm += any[i];
      n_overlap += compute[i] && any[i];
      n_copy += copy[i] && !compute[i] && !any[i];
      n_idle += !copy[i] && !compute[i] && !any[i];
      if (any[i] && !compute[i]) {
        const auto of = std::find_if(comms.begin(), comms.end(),
                                     [&](const Comm& c) { return c.start <= t && t < c.end; });
        n_gather += of->gather;
      }
    }
    const Analysis result = analyze(trace::Run::of({b.finish()}));
    const WindowFigures& f = result.ranks.at(0).figures;
    ASSERT_EQ(f.duration(), last - first);
    ASSERT_EQ(f.compute, n_compute);
    ASSERT_EQ(f.comm, n_comm);
    ASSERT_EQ(f.overlap, n_overlap);
    ASSERT_EQ(f.exposed_comm, n_comm - n_overlap);
    ASSERT_EQ(f.exposed_copy, n_copy);
    ASSERT_EQ(f.idle, n_idle);
    const auto gather = f.collectives.find(CollectiveKind::kAllGather);
    ASSERT_EQ(gather == f.collectives.end() ? 0 : gather->second.exposed, n_gather) << round;
    expect_sums(f);
    Nanoseconds units = 0;
    for (const UnitFigures& unit : result.ranks.at(0).units) {
      units += unit.exposed();
    }
    ASSERT_EQ(units, f.exposed_comm);
    ASSERT_EQ(result.ranks.at(0).streams.size(), streams.size());
    for (const StreamFigures& stream : result.ranks.at(0).streams) {
      ASSERT_EQ(stream.busy, static_cast<Nanoseconds>(streams[stream.name].size())) << stream.name;
    }
  }
}

// Of the steps [0,10) and [20,30): stream 7 works in [5,9), [8,10) and [20,25), stream 20 in none.
TEST(StreamFiguresTest, StreamsWorkWithinTheWindow) {
  TraceBuilder b;
  b.device(Category::kKernel, "gemm", 7, -1, 5, 9);
  b.device(Category::kKernel, "gemm", 7, -1, 8, 15);
  b.device(Category::kGpuMemcpy, "Memcpy DtoD", 7, -1, 18, 25);
  b.device(Category::kKernel, "gemm", 20, -1, 12, 14);
  b.device(Category::kKernel, "empty", 21, -1, 3, 3);
  const trace::Trace trace = b.finish();
  const std::vector<StreamFigures> streams =
      stream_figures(trace, make_timeline(trace), {{0, 10}, {20, 30}});
  ASSERT_EQ(streams.size(), 2U);  // no event of stream 21 takes time
  EXPECT_EQ(streams[0].name, "stream 7");
  EXPECT_EQ(streams[0].busy, 5 + 5);
  EXPECT_EQ(streams[1].name, "stream 20");
  EXPECT_EQ(streams[1].busy, 0);
}

// On the host a thread works while its leaf operators run, which may overlap, and Gloo's while a
// collective runs.
TEST(StreamFiguresTest, ThreadsOfTheHostWorkWhileOperatorsRun) {
  TraceBuilder b;
  b.op("aten::linear", 0, 30);
  b.op("aten::mm", 10, 30);
  b.op("aten::add", 30, 40);
  b.gloo("all_gather", 35, 60);
  b.op("aten::mul", 50, 55);
  const trace::Trace trace = b.finish();
  const std::vector<StreamFigures> streams =
      stream_figures(trace, make_timeline(trace), {{20, 52}});
  ASSERT_EQ(streams.size(), 2U);
  EXPECT_EQ(streams[0].name, "thread 1");
  EXPECT_EQ(streams[0].busy, 10 + 10 + 2);
  EXPECT_EQ(streams[1].name, "thread 99");
  EXPECT_EQ(streams[1].busy, 52 - 35);
}

// A member without a row would be in no output, and two rows of one member would hide another.
TEST(FigureTableTest, EveryMemberHasOneRow) {
  std::set<std::string_view> keys;
  StepFigures figures;
  size_t rows = 0;
  for (const FigureRow& row : figure_table()) {
    EXPECT_TRUE(keys.insert(row.key).second) << row.key;
    EXPECT_NE(row.time == nullptr, row.ratio == nullptr) << row.key;
    if (row.member != nullptr) {
      EXPECT_EQ(figures.*row.member, 0) << row.key;
      figures.*row.member = 1;
      ++rows;
    }
  }
  EXPECT_EQ(rows * sizeof(Nanoseconds), sizeof(StepFigures));

  IdleFigures idle;
  for (const IdleFigureRow& row : idle_figure_table()) {
    EXPECT_EQ(idle.*row.member, 0) << row.key;
    idle.*row.member = 1;
  }
  EXPECT_EQ(idle_figure_table().size() * sizeof(Nanoseconds), sizeof(IdleFigures));

  KindFigures kind;
  size_t bytes = 0;
  for (const KindFigureRow& row : kind_figure_table()) {
    EXPECT_NE(row.number == nullptr, row.ratio == nullptr) << row.key;
    if (row.number != nullptr) {
      EXPECT_EQ(kind.*row.number, 0) << row.key;
      kind.*row.number = 1;
      bytes += sizeof(int64_t);
    } else {
      EXPECT_FALSE(kind.*row.ratio) << row.key;
      kind.*row.ratio = 1;
      bytes += sizeof(std::optional<double>);
    }
  }
  EXPECT_EQ(bytes, sizeof(KindFigures));
}

TEST(FigureTableTest, TimesAreThoseOfTheMembers) {
  WindowFigures figures;
  Nanoseconds next = 1;
  for (const FigureRow& row : figure_table()) {
    if (row.member != nullptr) {
      figures.*row.member = next++;
      EXPECT_EQ(row.time(figures), figures.*row.member) << row.key;
    }
  }
}

}  // namespace
}  // namespace shardlens::analysis
