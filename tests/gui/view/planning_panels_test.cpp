// The panels Run plan, Plan space and Scaling, used as their user does.
#include <algorithm>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include <QClipboard>
#include <QComboBox>
#include <QDockWidget>
#include <QFile>
#include <QLabel>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QProcess>
#include <QPushButton>
#include <QSlider>
#include <QTabWidget>
#include <QTableView>

#include "gui/model/base/time_axis.h"
#include "gui/view/panel_parts/part_bars.h"
#include "gui/view/panel_parts/part_errors.h"
#include "gui/view/panel_parts/space_plot.h"
#include "gui/view/timeline/timeline_view.h"
#include "sim/scenario/other_speeds.h"
#include "tests/gui/view/recording_canvas.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class PlanningPanelsTest : public WindowTest {
 protected:
  void openModel(const QString& hardware = "8xH100") {
    window_->openModel(QString::fromStdString(sample_run() + "/config.json"), hardware);
    ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  }
  Panel& panel(const char* id) {
    window_->panels().raise(id);
    QApplication::processEvents();
    return *window_->panels().find(id).panel;
  }
  static QString cell(const QAbstractItemModel& table, int row, const QString& title) {
    for (int column = 0; column < table.columnCount(); ++column) {
      if (table.headerData(column, Qt::Horizontal).toString() == title) {
        return table.index(row, column).data().toString();
      }
    }
    throw RuntimeFault(title.toStdString());
  }
  static QStringList labels(const Panel& of) {
    QStringList out;
    for (const QLabel* label : of.findChildren<QLabel*>()) {
      out.append(label->text());
    }
    return out;
  }
  // The JSON that a command prints of the sample's model with the window's plan, on eight H100.
  nlohmann::json said(QStringList arguments) {
    const PlanState& state = window_->session().state();
    const std::string plan = folder_.path().toStdString() + "/plan.json";
    std::ofstream(plan) << window_->session().planJson();
    QProcess process;
    process.start(SHARDLENS_BIN_DIR "/shardlens",
                  arguments << "--model" << QString::fromStdString(sample_run() + "/config.json")
                            << "--plan" << QString::fromStdString(plan) << "--batch"
                            << QString::number(state.step.batch) << "--seq"
                            << QString::number(*state.step.seq) << "--json");
    EXPECT_TRUE(process.waitForFinished(60'000));
    EXPECT_EQ(process.exitCode(), 0) << process.readAllStandardError().toStdString();
    return nlohmann::json::parse(process.readAllStandardOutput().toStdString(), nullptr, false);
  }
  // The plans that no other one beats are those of `search`, with its figures.
  void expectTheFrontOfTheCommand(const PlanSpace& space) {
    const nlohmann::json front = said({"search", "--hardware", "8xH100", "--memory-limit", "1TiB",
                                       "--context", "1", "--tensor", "1", "--expert", "1"})
                                     .at("pareto");
    // Of plans that are equally good the window has one.
    EXPECT_GT(front.size(), 1U);
    for (const nlohmann::json& row : front) {
      EXPECT_TRUE(std::ranges::any_of(space.points, [&](const SpacePoint& point) {
        return point.front && point.step() <= row.at("step_ns") &&
               point.peak <= row.at("peak_allocated_bytes");
      })) << row;
    }
    for (const SpacePoint& point : space.points) {
      if (point.front) {
        EXPECT_TRUE(std::ranges::any_of(front, [&](const nlohmann::json& row) {
          return row.at("step_ns") == point.step() &&
                 row.at("exposed_comm_ns") == point.figures.exposed_comm &&
                 row.at("peak_allocated_bytes") == point.peak &&
                 row.at("peak_reserved_bytes") == point.reserved;
        })) << sim::name_of(point.candidate, space.base.world_size);
      }
    }
  }
  template <class Widget>
  static Widget& named(const Panel& of, const QString& name) {
    for (Widget* each : of.findChildren<Widget*>()) {
      if (each->accessibleName() == name) {
        return *each;
      }
    }
    throw RuntimeFault(name.toStdString());
  }
  static QPushButton& button(const Panel& of, const QString& text) {
    for (QPushButton* each : of.findChildren<QPushButton*>()) {
      if (each->text() == text) {
        return *each;
      }
    }
    throw RuntimeFault(text.toStdString());
  }
};

TEST_F(PlanningPanelsTest, ThePlanSpaceIsBrushedAndAPointBecomesAVersion) {
  window_->resize(1600, 940);
  openModel();
  Panel& space = panel("space");
  ASSERT_TRUE(window_->actions().trigger("plan.searchSpace"));
  ASSERT_TRUE(wait_for([&] { return !window_->proposals().isBusy(); }));
  const std::vector<SpacePoint>& points = window_->proposals().space().points;
  ASSERT_FALSE(points.empty()) << window_->proposals().note().toStdString();
  auto& plot = *space.findChild<SpacePlot*>();
  QAbstractItemModel& table = *space.view()->model();
  ASSERT_EQ(table.rowCount(), static_cast<int>(points.size()));
  EXPECT_EQ(cell(table, 0, "Step"), durationText(std::ranges::min_element(points, {}, [](auto& p) {
                                                   return p.fits ? p.step() : INT64_MAX;
                                                 })->step()));
  expectTheFrontOfTheCommand(window_->proposals().space());
  // A rectangle around the lower left quarter.
  const QPoint from(70, plot.height() - 45), to(plot.width() / 2, plot.height() / 3);
  QTest::mousePress(&plot, Qt::LeftButton, {}, from);
  QTest::mouseMove(&plot, (from + to) / 2);
  QTest::mouseMove(&plot, to);
  QTest::mouseRelease(&plot, Qt::LeftButton, {}, to);
  const std::vector<size_t> brushed = plot.brushed();
  ASSERT_FALSE(brushed.empty());
  EXPECT_LT(brushed.size(), points.size());
  EXPECT_EQ(table.rowCount(), static_cast<int>(brushed.size()));
  const QRectF rectangle = QRectF(from, to).normalized();
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(rectangle.contains(plot.placeOf(i)), std::ranges::find(brushed, i) != brushed.end());
  }
  // Only knobs that differ have a column.
  const auto* view = qobject_cast<QTableView*>(space.view());
  const std::vector<size_t> differing = differing_knobs(window_->proposals().space(), brushed);
  for (size_t k = 0; k < space_knobs().size(); ++k) {
    EXPECT_EQ(view->isColumnHidden(3 + static_cast<int>(k)),
              std::ranges::find(differing, k) == differing.end())
        << space_knobs()[k].title.toStdString();
  }
  // A click chooses the point's row, a double click makes it a version.
  const size_t best =
      static_cast<size_t>(std::ranges::find(points, true, &SpacePoint::front) - points.begin());
  QTest::mouseClick(&plot, Qt::LeftButton, {}, plot.placeOf(best).toPoint());
  const auto chosen = plot.pointAt(plot.placeOf(best).toPoint());
  ASSERT_TRUE(chosen.has_value());
  QTest::mouseDClick(&plot, Qt::LeftButton, {}, plot.placeOf(best).toPoint());
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  EXPECT_EQ(window_->session().current()->step(), points[*chosen].step());
  EXPECT_EQ(window_->session().current()->peak(), points[*chosen].peak);
  EXPECT_EQ(window_->session().current()->title, window_->proposals().space().title_of(*chosen));
}

// Each point is drawn once in the colour of its value, and the limit and the intervals are there.
TEST_F(PlanningPanelsTest, ThePlotHasAllPointsInColoursOfAnyKnob) {
  openModel();
  window_->proposals().search();
  ASSERT_TRUE(wait_for([&] { return !window_->proposals().isBusy(); }));
  const PlanSpace& space = window_->proposals().space();
  SpacePlot plot;
  plot.resize(700, 300);
  plot.show(space);
  for (size_t k = 0; k < space_knobs().size(); ++k) {
    plot.setKnob(k);
    Recorder recorder;
    plot.drawOn(recorder);
    const std::vector<QString> values = values_of(space_knobs()[k], space);
    for (size_t i = 0; i < space.points.size(); ++i) {
      const QString value =
          space_knobs()[k].value(space.points[i].candidate, space.base.world_size);
      const auto number = static_cast<size_t>(std::ranges::find(values, value) - values.begin());
      EXPECT_TRUE(std::ranges::any_of(
          recorder.drawn,
          [&](const Recorder::Drawn& each) {
            return each.ink == ink_of_value(number) && each.area.width() < 10 &&
                   QPointF(each.area.center() - plot.placeOf(i)).manhattanLength() < 0.01;
          }))
          << space_knobs()[k].title.toStdString() << ' ' << i;
    }
  }
}

// Versions with the same step and peak, as those before and after an edit without effect.
TEST_F(PlanningPanelsTest, NamesOfVersionsDoNotCoverEachOther) {
  openModel();
  window_->proposals().search();
  ASSERT_TRUE(wait_for([&] { return !window_->proposals().isBusy(); }));
  SpacePlot plot;
  plot.resize(700, 300);
  plot.show(window_->proposals().space());
  const PlanVersion& own = *window_->session().current();
  std::vector<SpacePlot::Version> versions;
  for (int i = 0; i < 6; ++i) {
    versions.push_back({QStringLiteral("v%1").arg(i), own.step(), own.peak(), i == 4});
  }
  plot.showVersions(versions);
  Recorder recorder;
  plot.drawOn(recorder);
  std::vector<QRectF> names;
  for (const Recorder::Drawn& each : recorder.drawn) {
    if (each.what == Recorder::Drawn::What::kText && each.text.startsWith('v')) {
      for (const QRectF& other : names) {
        EXPECT_FALSE(other.intersects(each.area)) << each.text.toStdString();
      }
      EXPECT_TRUE(QRectF(plot.rect()).contains(each.area)) << each.text.toStdString();
      names.push_back(each.area);
    }
  }
  EXPECT_EQ(names.size(), versions.size());
}

// Without the timeline and the panels at the left, and back.
TEST_F(PlanningPanelsTest, PanelsGetTheWholeWindow) {
  open(sample_run());
  Panel& space = panel("space");
  const QDockWidget& modules = *window_->panels().find("modules").dock;
  const QSize before = space.size();
  ASSERT_TRUE(window_->actions().trigger("view.panels"));
  QApplication::processEvents();
  EXPECT_FALSE(window_->timeline().isVisible());
  EXPECT_FALSE(modules.isVisible());
  EXPECT_GT(space.height(), 2 * before.height());
  EXPECT_GT(space.width(), window_->width() * 9 / 10);
  Panel& scaling = panel("scaling");
  ASSERT_TRUE(window_->actions().trigger("view.panels"));
  QApplication::processEvents();
  EXPECT_TRUE(window_->timeline().isVisible());
  EXPECT_TRUE(modules.isVisible());
  EXPECT_EQ(scaling.size(), before);
  EXPECT_FALSE(scaling.visibleRegion().isEmpty());
  // What needs the timeline shows it.
  ASSERT_TRUE(window_->actions().trigger("view.panels"));
  open(sample_run());
  EXPECT_TRUE(window_->timeline().isVisible());
}

// The rows are those of `simulate` on a spec with as many nodes; a slider's answer is the step of
// the plan at that speed.
TEST_F(PlanningPanelsTest, ScalingIsThatOfTheCommand) {
  std::ifstream in(std::string(SHARDLENS_TEST_DATA) + "/../../sim/hardware/specs/8xH100.json");
  nlohmann::json spec = nlohmann::json::parse(in);
  const std::string node = folder_.path().toStdString() + "/node.json";
  std::ofstream(node) << spec.dump();
  openModel(QString::fromStdString(node));
  Panel& scaling = panel("scaling");
  QAbstractItemModel& table = *scaling.view()->model();
  ASSERT_TRUE(wait_for([&] { return table.rowCount() == 11; }));
  spec["nodes"] = 8;
  const std::string file = folder_.path().toStdString() + "/64.json";
  std::ofstream(file) << spec.dump();
  const nlohmann::json answer =
      said({"simulate", "--hardware", QString::fromStdString(file), "--world-size", "64"});
  ASSERT_EQ(cell(table, 6, "Size"), "64");
  EXPECT_EQ(cell(table, 6, "Step"), durationText(answer.at("step_ns").get<Nanoseconds>()));

  QSlider& compute = named<QSlider>(scaling, "Compute");
  compute.setFocus();
  QTest::keyClick(&compute, Qt::Key_PageDown);  // half as fast
  const sim::Scenario own = scenario_of(window_->session().subject(), window_->session().state());
  const sim::StepPrediction slow = sim::at_speeds(own, sim::evaluate(own), {.compute = 0.5});
  EXPECT_TRUE(wait_for([&] {
    return labels(scaling).join('\n').contains(durationText(slow.figures.duration()));
  })) << labels(scaling).join('\n').toStdString();
  EXPECT_TRUE(wait_for([&] {
    return cell(table, 3, "Step") == durationText(slow.figures.duration());
  })) << cell(table, 3, "Step").toStdString();
  // The bars show the rows' figures.
  const auto& bars = *scaling.findChild<PartBars*>();
  ASSERT_EQ(bars.bars().size(), 11U);
  EXPECT_TRUE(bars.bars()[3].chosen);
}

TEST_F(PlanningPanelsTest, AVersionIsRunAndOpensAsBNextToItsPrediction) {
  open(sample_run());
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  Panel& run = panel("run");
  useProgramThatCopiesTheSample();
  named<QLineEdit>(run, "Folder").setText(folder_.path() + "/runs");
  EXPECT_EQ(named<QLineEdit>(run, "Name").text(), "v0-as-it-is");
  named<QLineEdit>(run, "Tokens").setText({});
  QTest::mouseClick(&button(run, "Run"), Qt::LeftButton);
  EXPECT_TRUE(labels(run).join('\n').contains("Tokens: expected"));
  EXPECT_TRUE(window_->runs().list().empty());
  named<QLineEdit>(run, "Tokens").setText("README.md");
  QTest::mouseClick(&button(run, "Run"), Qt::LeftButton);
  EXPECT_FALSE(button(run, "Run").isEnabled());
  EXPECT_TRUE(button(run, "Stop").isEnabled());
  ASSERT_TRUE(wait_for([&] { return window_->compare().isOpen(); }))
      << labels(run).join('\n').toStdString();
  EXPECT_TRUE(button(run, "Run").isEnabled());
  const PlanRun& of = window_->runs().list().front();
  EXPECT_EQ(window_->compare().b(), of.run);
  EXPECT_EQ(window_->compare().a(), window_->context().run());
  EXPECT_TRUE(run.isVisible() && !run.visibleRegion().isEmpty());
  QAbstractItemModel& table = *run.view()->model();
  ASSERT_EQ(table.rowCount(), 1);
  EXPECT_EQ(cell(table, 0, "Predicted"),
            durationText(window_->session().versions().front().step()));
  EXPECT_EQ(cell(table, 0, "Measured"), durationText(window_->session().baseline()->measured));
  EXPECT_EQ(cell(table, 0, "Error"), baselineText(window_->session().baseline()));
  ASSERT_EQ(run.findChild<PartBars*>()->bars().size(), 2U);
  // The parts next to each other, and the error of each.
  const auto& errors = *run.findChild<PartErrors*>();
  EXPECT_TRUE(errors.isVisibleTo(&run));
  EXPECT_EQ(errors.rows().front().predicted, durationText(of.predicted.compute));
  EXPECT_EQ(errors.rows().front().measured, durationText(of.measured->compute));
  EXPECT_EQ(errors.rows().front().error, cell(table, 0, "Compute"));
  EXPECT_EQ(errors.rows().back().error, cell(table, 0, "Error"));
  // As `simulate` has them of the run.
  QProcess process;
  process.start(SHARDLENS_BIN_DIR "/shardlens",
                {"simulate", "--workload", QString::fromStdString(sample_run()), "--json"});
  ASSERT_TRUE(process.waitForFinished(60'000));
  const auto baseline =
      nlohmann::json::parse(process.readAllStandardOutput().toStdString()).at("baseline");
  EXPECT_EQ(cell(table, 0, "Measured"),
            durationText(baseline.at("measured_step_ns").get<Nanoseconds>()));
  EXPECT_EQ(cell(table, 0, "Predicted"),
            durationText(baseline.at("simulated_step_ns").get<Nanoseconds>()));
  // A second run does not replace the first.
  QTest::mouseClick(&button(run, "Run"), Qt::LeftButton);
  ASSERT_TRUE(wait_for([&] { return !window_->runs().isBusy(); }));
  EXPECT_EQ(window_->runs().list().back().name, "v0-as-it-is-2");
  // For another machine.
  auto& tabs = *run.findChild<QTabWidget*>();
  tabs.setCurrentIndex(2);
  QTest::mouseClick(&button(run, "Copy"), Qt::LeftButton);
  const QString script = QApplication::clipboard()->text();
  EXPECT_TRUE(script.startsWith("#!/bin/sh\n# v0 as it is: 8 ranks on one node\n"))
      << script.toStdString();
  EXPECT_TRUE(script.contains("shardlens capture")) << script.toStdString();
}

// A model without a run: A is the prediction of the version that was run.
TEST_F(PlanningPanelsTest, OfAModelThePredictionIsA) {
  openModel();
  PlanState next = window_->session().state();
  next.plan.forward_prefetch = 1;
  window_->session().edit("prefetch", next);
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  Panel& run = panel("run");
  useProgramThatCopiesTheSample();
  named<QLineEdit>(run, "Folder").setText(folder_.path() + "/runs");
  named<QLineEdit>(run, "Tokens").setText("README.md");
  QTest::mouseClick(&button(run, "Run"), Qt::LeftButton);
  ASSERT_TRUE(wait_for([&] { return window_->compare().isOpen(); }))
      << labels(run).join('\n').toStdString();
  EXPECT_EQ(window_->context().run(), window_->session().current()->run);
  EXPECT_EQ(window_->compare().a(), window_->session().current()->run);
}

}  // namespace
}  // namespace shardlens::gui
