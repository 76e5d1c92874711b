#include "gui/model/run/run_data.h"

#include <algorithm>
#include <map>
#include <random>

#include <QTemporaryDir>

#include "gui/model/run/run_loader.h"
#include "gui/model/run/selection_context.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

using RunDataTest = QtTest<QCoreApplication>;

void expect_equal(const analysis::WindowFigures& live,
                  const analysis::WindowFigures& exact,
                  const std::string& where) {
  EXPECT_EQ(live.duration(), exact.duration()) << where;
  EXPECT_EQ(live.compute, exact.compute) << where;
  EXPECT_EQ(live.comm, exact.comm) << where;
  EXPECT_EQ(live.overlap, exact.overlap) << where;
  EXPECT_EQ(live.exposed_comm, exact.exposed_comm) << where;
  EXPECT_EQ(live.exposed_copy, exact.exposed_copy) << where;
  EXPECT_EQ(live.idle, exact.idle) << where;
  for (const auto& [kind, figures] : exact.collectives) {
    const auto found = live.collectives.find(kind);
    EXPECT_EQ(found == live.collectives.end() ? 0 : found->second.exposed, figures.exposed)
        << where;
  }
}

// For any dragged range the live headline equals the analyzer's.
TEST_F(RunDataTest, LiveFiguresAreTheAnalyzersForAnyWindow) {
  std::mt19937 random(5);
  for (const std::string& path :
       {sample_run(), pytorch_run("fsdp2-default"), pytorch_run("fsdp1-full")}) {
    const RunPointer run = open_run(path);
    for (const auto& rank : run->ranks) {
      std::uniform_int_distribution<Nanoseconds> when(-run->duration / 10,
                                                      run->duration + run->duration / 10);
      for (int round = 0; round < 300; ++round) {
        const Nanoseconds a = when(random), b = when(random);
        const analysis::Interval own = run->own(*rank, {std::min(a, b), std::max(a, b)});
        expect_equal(rank->live.within(own),
                     rank->partition.figures(analysis::clip(rank->timeline.span, own)), path);
      }
      expect_equal(
          rank->live.within({rank->timeline.span.front().start, rank->timeline.span.back().end}),
          rank->figures.figures, path);
    }
  }
}

// FSDP's collectives have the lanes of their kind; all-reduces of tensor parallelism are none of
// them.
TEST_F(RunDataTest, LanesAreByPurpose) {
  const RunPointer run = open_run(pytorch_run("fsdp2-tensor"));
  std::map<std::string, std::map<Kind, int>> lanes;
  for (const analysis::Collective& c : run->ranks.front()->timeline.collectives) {
    ++lanes[label_of(c).toStdString()][kind_of(c)];
  }
  EXPECT_EQ(lanes["all-gather"], (std::map<Kind, int>{{Kind::kAllGather, 5}}));
  EXPECT_EQ(lanes["reduce-scatter"], (std::map<Kind, int>{{Kind::kReduceScatter, 3}}));
  EXPECT_EQ(lanes["all-reduce, activations"], (std::map<Kind, int>{{Kind::kOtherComm, 6}}));
}

TEST_F(RunDataTest, LanesHoldEveryCollectiveOnceAndAllExposedTime) {
  const RunPointer run = sample();
  const RankData& rank = *run->ranks.front();
  std::map<uint32_t, int> seen;
  Nanoseconds exposed = 0;
  for (const Lane& lane : rank.lanes) {
    for (const LaneRow& row : lane.rows) {
      for (const LaneItem& item : row.items()) {
        if (lane.source == Lane::Source::kCollectives) {
          ++seen[item.ref];
          EXPECT_EQ(kind_of(rank.timeline.collectives[item.ref]), lane.kind);
        } else if (lane.source == Lane::Source::kExposed) {
          exposed += item.end - item.start;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), rank.timeline.collectives.size());
  for (const auto& [ref, count] : seen) {
    EXPECT_EQ(count, 1) << ref;
  }
  EXPECT_EQ(exposed, rank.partition.figures(rank.timeline.span).exposed_comm);
}

TEST_F(RunDataTest, EveryCollectiveHasItsSpan) {
  for (const std::string& path :
       {sample_run(), pytorch_run("fsdp2-default"), pytorch_run("fsdp1-full")}) {
    const RunPointer run = open_run(path);
    const RankData& rank = *run->ranks.front();
    ASSERT_FALSE(rank.timeline.collectives.empty()) << path;
    analysis::AnalysisOptions options;
    options.detail = analysis::DetailLevel::kCollectives;
    const analysis::Analysis again = analysis::analyze(run->run, options);
    std::map<uint32_t, const analysis::UnitSpan*> expected;
    for (const analysis::UnitSpan& each : again.ranks.front().detail->spans) {
      expected[each.collective] = &each;
    }
    for (uint32_t i = 0; i < rank.timeline.collectives.size(); ++i) {
      const analysis::Collective& collective = rank.timeline.collectives[i];
      const CollectiveSpan* span = rank.span_of(i);
      if (!contains(rank.timeline.span, collective.when.start)) {
        EXPECT_EQ(span, nullptr) << path << " " << i;
        EXPECT_EQ(rank.slack_of(i), std::nullopt) << path << " " << i;
        continue;
      }
      ASSERT_NE(span, nullptr) << path << " " << i;
      ASSERT_TRUE(expected.contains(i)) << path << " " << i;
      EXPECT_EQ(span->step, expected[i]->step);
      EXPECT_EQ(span->cause, expected[i]->cause);
      EXPECT_EQ(span->part, expected[i]->part);
      EXPECT_EQ(rank.slack_of(i), expected[i]->slack());
      EXPECT_EQ(rank.owner_of(i), expected[i]->owner);
      EXPECT_EQ(length_of(intersect(rank.exposed(i), rank.timeline.span)), expected[i]->exposed);
    }
  }
}

TEST_F(RunDataTest, TimeStartsAtZero) {
  const RunPointer run = sample();
  const RankData& rank = *run->ranks.front();
  EXPECT_GT(run->duration, 0);
  EXPECT_EQ(run->shown(rank, run->own(rank, {5, 9})), (analysis::Interval{5, 9}));
  EXPECT_GE(run->shown(rank, rank.timeline.span.front()).start, 0);
}

TEST_F(RunDataTest, MakingItEndsWhereItIsStopped) {
  trace::Progress progress;
  progress.stop = true;
  EXPECT_THROW(RunData(trace::Run::open(sample_run()), &progress), RuntimeFault);
}

class RunLoaderTest : public QtTest<QCoreApplication> {
 protected:
  // A trace of some megabytes, so that reading it takes a while.
  std::string long_trace() {
    const std::string path = folder_.path().toStdString() + "/rank0.json";
    trace::Trace trace;
    trace.metadata.rank = 0;
    const uint32_t track = trace.track(1, 1);
    for (int i = 0; i < 150'000; ++i) {
      trace.add_complete(trace::Category::kCpuOp, "aten::addmm", track, 10 * i, 10 * i + 7);
    }
    trace::write_kineto(trace, path);
    return path;
  }
  QTemporaryDir folder_;
};

TEST_F(RunLoaderTest, PercentGrows) {
  RunLoader loader;
  RunPointer run;
  std::vector<int> percents;
  QObject::connect(&loader, &RunLoader::loaded, [&](const RunPointer& loaded) { run = loaded; });
  QObject::connect(&loader, &RunLoader::progress, [&](int percent, const QString& what) {
    if (what.startsWith("Reading") && percent >= 0) {
      percents.push_back(percent);
    }
  });
  loader.load({long_trace()});
  ASSERT_TRUE(wait_for([&] { return run != nullptr; }));
  EXPECT_TRUE(std::ranges::is_sorted(percents));
  EXPECT_TRUE(std::ranges::all_of(percents, [](int p) { return p >= 0 && p <= 100; }));
}

// A cancelled load emits nothing more, whether it was reading or analyzing.
TEST_F(RunLoaderTest, CancelWhileReadingAndWhileAnalyzing) {
  const std::string path = long_trace();
  for (const char* doing : {"Reading", "Analyzing"}) {
    RunLoader loader;
    int cancelled = 0, others = 0;
    QObject::connect(&loader, &RunLoader::cancelled, [&] { ++cancelled; });
    QObject::connect(&loader, &RunLoader::loaded, [&] { ++others; });
    QObject::connect(&loader, &RunLoader::failed, [&] { ++others; });
    QObject::connect(&loader, &RunLoader::progress, [&](int, const QString& what) {
      if (what.startsWith(doing)) {
        loader.cancel();
      }
    });
    loader.load({path});
    ASSERT_TRUE(wait_for([&] { return !loader.isLoading(); })) << doing;
    EXPECT_EQ(cancelled + others, 1) << doing;  // it may have been loaded before the cancel
    loader.load({sample_run()});
    ASSERT_TRUE(wait_for([&] { return !loader.isLoading(); })) << doing;
    EXPECT_EQ(cancelled + others, 2) << doing;
  }
}

TEST_F(RunLoaderTest, LoadsOnAnotherThreadAndTellsProgress) {
  RunLoader loader;
  RunPointer run;
  int reports = 0;
  QObject::connect(&loader, &RunLoader::loaded, [&](const RunPointer& loaded) { run = loaded; });
  QObject::connect(&loader, &RunLoader::progress, [&] { ++reports; });
  loader.load({sample_run()});
  EXPECT_TRUE(loader.isLoading());
  ASSERT_TRUE(wait_for([&] { return run != nullptr; }));
  EXPECT_FALSE(loader.isLoading());
  EXPECT_GT(reports, 0);
  EXPECT_EQ(run->event_count, sample()->event_count);
}

TEST_F(RunLoaderTest, ABrokenFileIsAMessageThatNamesIt) {
  RunLoader loader;
  QString message;
  QObject::connect(&loader, &RunLoader::failed, [&](const QString& text) { message = text; });
  for (const std::string name : {"cut.json.gz", "empty.json", "html.json", "nested_deep.json",
                                 "utf16.json", "wrong_checksum.json.gz", "not-there.json"}) {
    message.clear();
    loader.load({std::string(SHARDLENS_TEST_DATA) + "/corrupt/" + name});
    ASSERT_TRUE(wait_for([&] { return !message.isEmpty(); })) << name;
    EXPECT_TRUE(message.contains(QString::fromStdString(name))) << message.toStdString();
  }
}

TEST_F(RunLoaderTest, CancelAnswersAtOnceAndNothingComesAfter) {
  RunLoader loader;
  int cancelled = 0, others = 0;
  QObject::connect(&loader, &RunLoader::cancelled, [&] { ++cancelled; });
  QObject::connect(&loader, &RunLoader::loaded, [&] { ++others; });
  QObject::connect(&loader, &RunLoader::failed, [&] { ++others; });
  loader.load({sample_run()});
  loader.cancel();
  EXPECT_EQ(cancelled, 1);
  loader.cancel();
  EXPECT_EQ(cancelled, 1);
  loader.load({sample_run()});
  ASSERT_TRUE(wait_for([&] { return others > 0; }));
  EXPECT_EQ(others, 1);
}

TEST_F(RunLoaderTest, EndsWhileLoading) {
  RunLoader loader;
  loader.load({sample_run()});
}

using SelectionContextTest = QtTest<QCoreApplication>;

TEST_F(SelectionContextTest, HistoryWalksBackAndForth) {
  SelectionContext context;
  context.setRun(sample());
  int changes = 0;
  QObject::connect(&context, &SelectionContext::changed, [&] { ++changes; });
  context.selectUnit("model.layers.2");
  context.selectStep(1);
  context.selectStep(1);
  EXPECT_EQ(changes, 2);
  context.back();
  EXPECT_EQ(context.current().unit, "model.layers.2");
  EXPECT_FALSE(context.current().step);
  context.back();
  EXPECT_FALSE(context.canGoBack());
  EXPECT_EQ(context.current(), Selection{});
  context.forward();
  EXPECT_EQ(context.current().unit, "model.layers.2");
  context.selectUnit(std::nullopt);
  EXPECT_FALSE(context.canGoForward());
}

TEST_F(SelectionContextTest, TheWindowIsTheRangeElseTheStepElseAll) {
  SelectionContext context;
  EXPECT_TRUE(context.window().empty());
  context.setRun(sample());
  const RankData& rank = *context.rank();
  EXPECT_EQ(context.window(), rank.timeline.span);
  context.selectStep(2);
  EXPECT_EQ(context.window(), analysis::IntervalSet{rank.figures.steps[2].window});
  context.selectRange(analysis::Interval{1'000'000, 2'000'000});
  EXPECT_EQ(length_of(context.window()), 1'000'000);
}

TEST_F(SelectionContextTest, ACollectiveBringsItsUnit) {
  SelectionContext context;
  context.setRun(sample());
  const RankData& rank = *context.rank();
  for (uint32_t i = 0; i < rank.timeline.collectives.size(); ++i) {
    context.selectItem({0, Lane::Source::kCollectives, i});
    EXPECT_EQ(context.current().unit, rank.owner_of(i));
    EXPECT_EQ(context.itemInterval()->length(), rank.timeline.collectives[i].when.length());
  }
}

}  // namespace
}  // namespace shardlens::gui
