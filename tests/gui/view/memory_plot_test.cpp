#include "gui/view/panel_parts/memory_plot.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include <QApplication>
#include <QMouseEvent>
#include <QTemporaryDir>
#include <QTest>
#include <QWheelEvent>

#include "gui/model/base/time_axis.h"
#include "gui/model/memory/measured_memory.h"
#include "gui/model/what_if/edit_history.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/view/recording_canvas.h"

namespace shardlens::gui {
namespace {

using What = Recorder::Drawn::What;

class MemoryPlotTest : public QtTest<QApplication> {
 protected:
  static MemoryPlot::Shown shown(const PlanVersion& version) {
    MemoryPlot::Shown out;
    out.title = "v0";
    out.now = version.memory;
    out.run = version.run;
    out.limit = version.prediction.capacity;
    return out;
  }
  static std::vector<Recorder::Drawn> drawn(MemoryPlot& plot) {
    Recorder recorder;
    plot.drawOn(recorder);
    return recorder.drawn;
  }
  QTemporaryDir folder_;
};

// The curve of a plan without a run: its peak is the simulator's, by category, and its tooltip
// names what is gathered exactly when unsharded parameters are allocated.
TEST_F(MemoryPlotTest, TheCurveIsTheSimulators) {
  PlanSession session;
  session.start(plan::load_model_config(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] { return session.current() != nullptr; }));
  const PlanVersion& version = *session.current();
  ASSERT_TRUE(version.error.isEmpty()) << version.error.toStdString();
  const sim::MemoryCurve& curve = version.memory;
  ASSERT_GT(curve.points.size(), 20);
  EXPECT_EQ(curve.points[curve.peak].sum(), version.peak());
  EXPECT_EQ(curve.points[curve.peak].bytes, version.prediction.memory.at_peak);
  EXPECT_TRUE(std::ranges::is_sorted(curve.points, {}, &sim::MemoryCurve::Point::time));
  EXPECT_LE(curve.points.back().time, curve.end);
  EXPECT_FALSE(curve.at_peak.empty());

  MemoryPlot plot;
  plot.resize(600, 150);
  plot.show(shown(version));
  const Nanoseconds peak = curve.points[curve.peak].time;
  EXPECT_TRUE(plot.textAt(peak).startsWith(QString("v0 at %1: ").arg(durationText(peak))));
  const auto of = static_cast<size_t>(sim::MemoryCategory::kUnsharded);
  size_t gathered = 0;
  for (const sim::MemoryCurve::Point& point : curve.points) {
    const bool named = plot.textAt(point.time).contains("gathered: ");
    gathered += named ? 1 : 0;
    if (named) {
      EXPECT_GT(curve.at(point.time).bytes[of], 0) << point.time;
    }
  }
  EXPECT_GT(gathered, curve.points.size() / 4);

  // The column of the peak is the highest of the picture, and as high as its share of the memory.
  double highest = 0, lowest = 0;
  for (const Recorder::Drawn& d : drawn(plot)) {
    if (d.what == What::kFill && d.opacity == 0.9) {
      highest = highest == 0 ? d.area.top() : std::min(highest, d.area.top());
      lowest = std::max(lowest, d.area.bottom());
    }
  }
  EXPECT_NEAR(lowest - highest, 150 - 20 - 32, 1.5);  // the limit is far above
}

// An 8B model keeps a GPU busy long after the host has issued the step. The activations are most
// when forward ends, and backward has twice as many operations: after a third of the step.
TEST_F(MemoryPlotTest, TheCurveIsOnTheTimeOfTheDevice) {
  const std::string path = folder_.path().toStdString() + "/config.json";
  std::ofstream(path) << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "tie_word_embeddings": false})";
  PlanSession session;
  session.start(plan::load_model_config(path), "8xH100");
  ASSERT_TRUE(wait_for([&] { return session.current() != nullptr; }));
  const PlanVersion& version = *session.current();
  ASSERT_TRUE(version.error.isEmpty()) << version.error.toStdString();
  const sim::MemoryCurve& curve = version.memory;
  const auto of = static_cast<size_t>(sim::MemoryCategory::kActivations);
  const auto most = std::ranges::max_element(
      curve.points, {}, [of](const sim::MemoryCurve::Point& point) { return point.bytes[of]; });
  ASSERT_GT(most->bytes[of], 0);
  EXPECT_NEAR(static_cast<double>(most->time) / static_cast<double>(curve.end), 1.0 / 3, 0.08);
  EXPECT_GT(curve.points.back().time, curve.end / 4 * 3);

  // A time axis, with the labels of its ticks, which follow the zoom.
  MemoryPlot plot;
  plot.resize(600, 200);
  plot.show(shown(version));
  const auto labels = [&plot] {
    QStringList out;
    for (const Recorder::Drawn& d : drawn(plot)) {
      if (d.what == What::kText && d.text.endsWith("ms")) {
        out.append(d.text);
      }
    }
    return out;
  };
  EXPECT_TRUE(labels().contains("0 ms")) << labels().join("; ").toStdString();
  const analysis::Interval all = plot.axis().view();
  EXPECT_EQ(all, (analysis::Interval{0, curve.end}));
  QWheelEvent closer({300, 100}, plot.mapToGlobal(QPointF(300, 100)), {}, {0, 360}, Qt::NoButton,
                     Qt::NoModifier, Qt::NoScrollPhase, false);
  QApplication::sendEvent(&plot, &closer);
  EXPECT_NEAR(static_cast<double>(plot.axis().view().length()),
              static_cast<double>(all.length()) * 0.8 * 0.8 * 0.8, 1e4);
  EXPECT_FALSE(labels().contains("0 ms"));
  // The cursor's line is where the time is.
  const Nanoseconds middle = plot.axis().view().start + plot.axis().view().length() / 2;
  plot.setCursorTime(middle);
  bool found = false;
  const double center = 600 - 8 - plot.axis().width() / 2.0;  // the scale of bytes is at the left
  for (const Recorder::Drawn& d : drawn(plot)) {
    found = found || (d.what == What::kLine && d.ink == Ink::kAccent &&
                      std::abs(d.area.left() - center) < 2);
  }
  EXPECT_TRUE(found);
  // The wheel of a touchpad moves the view, and so does the middle button, as in the timeline.
  const analysis::Interval before = plot.axis().view();
  QWheelEvent sideways({300, 100}, plot.mapToGlobal(QPointF(300, 100)), {}, {-120, 40},
                       Qt::NoButton, Qt::NoModifier, Qt::NoScrollPhase, false);
  QApplication::sendEvent(&plot, &sideways);
  EXPECT_EQ(plot.axis().view().length(), before.length());
  EXPECT_NEAR(static_cast<double>(plot.axis().view().start - before.start),
              static_cast<double>(before.length()) / 10, 1);
  QTest::mousePress(&plot, Qt::MiddleButton, {}, {200, 100});
  QMouseEvent drag(QEvent::MouseMove, {400, 100}, plot.mapToGlobal(QPointF(400, 100)), Qt::NoButton,
                   Qt::MiddleButton, Qt::NoModifier);
  QApplication::sendEvent(&plot, &drag);
  QTest::mouseRelease(&plot, Qt::MiddleButton, {}, {400, 100});
  EXPECT_NEAR(static_cast<double>(before.start + before.length() / 10 - plot.axis().view().start),
              200 * static_cast<double>(before.length()) / plot.axis().width(), 2);
  QTest::mouseDClick(&plot, Qt::LeftButton);
  EXPECT_EQ(plot.axis().view(), all);
}

TEST_F(MemoryPlotTest, AnotherPlanTheLimitAndTheMeasurementAreLines) {
  MemoryPlot::Shown both;
  both.title = "v1";
  both.before_title = "v0";
  both.now.points = {{0, {100}}, {50, {100, 60}}, {80, {100}}};
  both.now.peak = 1;
  both.now.end = both.before.end = 100;
  both.before.points = {{0, {100}}, {40, {100, 90}}, {80, {100}}};
  both.before.peak = 1;
  both.limit = 200;
  both.measured = {{0, 90}, {45, 150}, {90, 95}};
  MemoryPlot plot;
  plot.resize(400, 152);  // the plot is 100 high, so that 200 bytes are its height
  plot.show(both);
  int measured = 0, limit = 0;
  bool other = false;
  for (const Recorder::Drawn& d : drawn(plot)) {
    measured += d.what == What::kLine && d.ink == Ink::kAccent ? 1 : 0;
    limit += d.what == What::kLine && d.ink == Ink::kWarning ? 1 : 0;
    other = other || (d.what == What::kLine && d.ink == Ink::kText && d.area.top() < 26);
    if (d.what == What::kLine && d.ink == Ink::kWarning) {
      EXPECT_DOUBLE_EQ(d.area.top(), 20);
    }
  }
  EXPECT_EQ(limit, 1);
  EXPECT_GE(measured, 3);
  EXPECT_TRUE(other);  // 190 of 200 bytes
  std::map<QString, double> scale;
  for (const Recorder::Drawn& d : drawn(plot)) {
    if (d.what == What::kText && d.text.endsWith(" B")) {
      scale[d.text] = d.area.center().y();
    }
  }
  const std::map<QString, double> expected{
      {"0 B", 120}, {"50 B", 95}, {"100 B", 70}, {"150 B", 45}, {"200 B", 20}};
  EXPECT_EQ(scale, expected);
  plot.resize(200, 152);  // too narrow for the scale
  for (const Recorder::Drawn& d : drawn(plot)) {
    EXPECT_FALSE(d.text.endsWith(" B")) << d.text.toStdString();
  }
  EXPECT_EQ(plot.textAt(60).split('\n').front(), "v1 at 60 ns: 160 B allocated");
  MemoryPlot::Shown unfit;
  unfit.unfit = "v1 does not fit";
  plot.show(unfit);
  const std::vector<Recorder::Drawn> only = drawn(plot);
  ASSERT_EQ(only.size(), 1U);
  EXPECT_EQ(only[0].text, unfit.unfit);
  EXPECT_EQ(only[0].ink, Ink::kWarning);
  plot.show({});
  EXPECT_TRUE(drawn(plot).empty());
  EXPECT_EQ(plot.textAt(0), "");
}

// Every colour of the plot has its name, in as many rows as that takes.
TEST_F(MemoryPlotTest, TheLegendNamesWhatIsDrawn) {
  MemoryPlot::Shown all;
  all.title = "v0";
  all.now.points = {{0, {10, 20, 30, 40, 50, 60}}, {50, {10, 20, 30, 0, 50, 60}}};
  all.now.end = 100;
  MemoryPlot::Shown few = all;
  few.now.points = {{0, {10, 0, 30}}, {50, {10, 0, 40}}};
  few.now.peak = 1;
  MemoryPlot plot;
  for (const int width : {250, 400, 900}) {
    plot.resize(width, 200);
    QApplication::sendPostedEvents();
    for (const auto& [shown, count] : {std::pair(all, 6U), std::pair(few, 2U)}) {
      plot.show(shown);
      std::set<Ink> drawn_inks, named;
      double lowest = 0, top = 200;
      for (const Recorder::Drawn& d : drawn(plot)) {
        if (d.what == What::kFill && d.opacity == 0.9) {
          drawn_inks.insert(d.ink);
          top = std::min(top, d.area.top());
        } else if (d.what == What::kFill && d.area.size() == QSizeF(10, 10)) {
          named.insert(d.ink);
          EXPECT_LE(d.area.right(), width);
          lowest = std::max(lowest, d.area.bottom());
        }
      }
      EXPECT_EQ(named, drawn_inks) << width;
      EXPECT_EQ(named.size(), count) << width;
      EXPECT_LT(lowest, top) << width;
    }
  }
}

// A trace with a record of the allocator, two steps: the second one begins with what is left.
TEST_F(MemoryPlotTest, TheMeasuredCurveIsThatOfTheStep) {
  trace::Trace trace;
  trace.metadata.source = "built";
  const uint32_t main = trace.track(1, 1);
  trace.add_complete(trace::Category::kUserAnnotation, "ProfilerStep#1", main, 100, 200);
  trace.add_complete(trace::Category::kUserAnnotation, "ProfilerStep#2", main, 200, 300);
  trace.add_complete(trace::Category::kCpuOp, "aten::mm", main, 110, 290);
  const auto allocated = [&](Nanoseconds time, Bytes total) {
    const uint32_t event =
        trace.add_complete(trace::Category::kOther, "[memory]", main, time, time);
    trace::MemoryArgs args;
    args.total_allocated = total;
    args.total_reserved = 1000;
    trace.events[event].phase = trace::EventPhase::kInstant;
    trace.events[event].detail_kind = trace::ArgsKind::kMemory;
    trace.events[event].detail = static_cast<uint32_t>(trace.memory_events.size());
    trace.memory_events.push_back(args);
  };
  allocated(120, 300);
  allocated(180, 500);
  allocated(220, 700);
  allocated(280, 400);
  std::vector<trace::Trace> one;
  one.push_back(std::move(trace));
  SelectionContext selection;
  EXPECT_TRUE(measured_memory(selection).empty());
  selection.setRun(std::make_shared<const RunData>(trace::Run::of(std::move(one))));
  ASSERT_FALSE(selection.rank()->figures.memory.empty());
  const auto expect = [&](std::vector<std::pair<Nanoseconds, Bytes>> points) {
    std::vector<std::pair<Nanoseconds, Bytes>> found;
    for (const MeasuredMemory& each : measured_memory(selection)) {
      found.emplace_back(each.time, each.allocated);
    }
    EXPECT_EQ(found, points);
  };
  expect({{0, 500}, {20, 700}, {80, 400}});
  selection.selectStep(0);
  expect({{20, 300}, {80, 500}});
}

}  // namespace
}  // namespace shardlens::gui
