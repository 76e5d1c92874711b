#include "gui/view/window/main_window.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <random>

#include <QApplication>
#include <QDialog>
#include <QDockWidget>
#include <QDropEvent>
#include <QFile>
#include <QImage>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QMessageBox>
#include <QMimeData>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QTest>
#include <QTextBrowser>
#include <QTreeView>
#include <QWheelEvent>

#include "gui/model/details/inspected.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/panel_parts/module_bar.h"
#include "gui/view/panels/compare_panel.h"
#include "gui/view/panels/notes_panel.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/capture_dialog.h"
#include "gui/view/widgets/command_palette.h"
#include "gui/view/widgets/headline_strip.h"
#include "gui/view/window/selftest.h"
#include "profiler/report/table.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class MainWindowTest : public WindowTest {
 protected:
  // Checks that the headline shows the figures of `exact`, each rounded by itself.
  void expect_headline(const analysis::WindowFigures& exact) {
    const QString text = window_->headline().bar().text();
    const auto said = [](Nanoseconds part) {
      return QString::fromStdString(report::format_duration(part));
    };
    EXPECT_TRUE(text.endsWith(QStringLiteral("%1 = compute %2 + exposed communication %3 + "
                                             "exposed copies %4 + idle %5")
                                  .arg(said(exact.duration()), said(exact.compute),
                                       said(exact.exposed_comm), said(exact.exposed_copy),
                                       said(exact.idle))))
        << text.toStdString();
  }
  TimelineScene& scene() { return window_->timeline().scene(); }
  const RankData& rank() { return *window_->context().rank(); }
  QPoint at(Nanoseconds own, Lane::Source source, Kind kind) {
    for (const TimelineLayout::Band& band : scene().layout().bands) {
      const Lane& lane = rank().lanes[band.lane];
      if (band.kind == TimelineLayout::Band::Kind::kLane && band.row == 0 &&
          lane.source == source && lane.kind == kind) {
        const double x =
            scene().axis.toPixel(window_->context().run()->shown(rank(), {own, own}).start);
        return {static_cast<int>(x + TimelineScene::kGutter),
                static_cast<int>(TimelineScene::kHeader + band.top + band.height / 2)};
      }
    }
    throw std::runtime_error("no such lane");
  }
};

TEST_F(MainWindowTest, SelftestPassesOnOurAndPyTorchsTraces) {
  for (const std::string& path :
       {sample_run(), pytorch_run("fsdp2-default"), pytorch_run("fsdp1-full")}) {
    open(path);
    EXPECT_EQ(selftest(*window_).join("; ").toStdString(), "") << path;
  }
}

TEST_F(MainWindowTest, TheHeadlineSumsAndFollowsADrag) {
  open(sample_run());
  const QString all = window_->headline().bar().text();
  EXPECT_TRUE(all.startsWith("steps ")) << all.toStdString();
  QWidget* canvas = window_->timeline().viewport();
  QTest::mousePress(canvas, Qt::LeftButton, Qt::AltModifier, {300, 200});
  QTest::mouseMove(canvas, {420, 200});
  QTest::mouseMove(canvas, {500, 200});
  const QString during = window_->headline().bar().text();
  EXPECT_NE(during, all);
  QTest::mouseRelease(canvas, Qt::LeftButton, Qt::AltModifier, {500, 200});
  ASSERT_TRUE(window_->context().current().range);
  EXPECT_TRUE(window_->headline().bar().text().startsWith("range "));
  EXPECT_EQ(
      length_of(window_->context().window()),
      rank()
          .live.within(window_->context().run()->own(rank(), *window_->context().current().range))
          .duration());
  QTest::keyClick(window_.get(), Qt::Key_Escape);
  EXPECT_EQ(window_->headline().bar().text(), all);
}

TEST_F(MainWindowTest, AClickSelectsAndEverythingFollows) {
  open(sample_run());
  const analysis::Collective& first = rank().timeline.collectives.front();
  const QPoint where =
      at(first.when.start + first.when.length() / 2, Lane::Source::kCollectives, kind_of(first));
  QTest::mouseClick(window_->timeline().viewport(), Qt::LeftButton, {}, where);
  const Selection& chosen = window_->context().current();
  ASSERT_TRUE(chosen.item);
  EXPECT_EQ(chosen.item->ref, 0);
  EXPECT_EQ(chosen.unit, rank().owner_of(0));
  EXPECT_TRUE(inspected(window_->context()).contains(durationText(first.when.length())));
  QTest::keyClick(window_.get(), Qt::Key_F);
  const auto shown = *window_->context().itemInterval();
  EXPECT_LE(scene().axis.view().start, shown.start);
  EXPECT_NEAR(static_cast<double>(scene().axis.view().length()),
              1.2 * static_cast<double>(shown.length()), 2.0);
  QTest::keyClick(window_.get(), Qt::Key_0);
  EXPECT_EQ(scene().axis.view(), scene().axis.bounds());
}

TEST_F(MainWindowTest, WheelAndKeysMoveTheView) {
  open(sample_run());
  QWidget* canvas = window_->timeline().viewport();
  const Nanoseconds under = scene().axis.toTime(400 - TimelineScene::kGutter);
  const auto wheel = [&](int delta, Qt::KeyboardModifiers keys) {
    QWheelEvent event({400, 150}, canvas->mapToGlobal(QPointF(400, 150)), {}, {0, delta},
                      Qt::NoButton, keys, Qt::NoScrollPhase, false);
    QApplication::sendEvent(canvas, &event);
  };
  const Nanoseconds before = scene().axis.view().length();
  wheel(120, {});
  EXPECT_LT(scene().axis.view().length(), before);
  EXPECT_NEAR(scene().axis.toPixel(under), 400 - TimelineScene::kGutter, 1);
  const Nanoseconds coarse = scene().axis.view().length();
  wheel(120, Qt::ControlModifier);
  EXPECT_GT(scene().axis.view().length(),
            static_cast<Nanoseconds>(0.9 * static_cast<double>(coarse)));
  const analysis::Interval view = scene().axis.view();
  QTest::keyClick(window_.get(), Qt::Key_D);
  EXPECT_GT(scene().axis.view().start, view.start);
  QTest::keyClick(window_.get(), Qt::Key_A);
  EXPECT_EQ(scene().axis.view(), view);
  QTest::keyClick(window_.get(), Qt::Key_W);
  EXPECT_LT(scene().axis.view().length(), view.length());
}

TEST_F(MainWindowTest, ExposedOnesAreWalkedFromTheWorstOn) {
  open(sample_run());
  std::vector<Nanoseconds> costs;
  for (uint32_t i = 0; i < rank().timeline.collectives.size(); ++i) {
    costs.push_back(analysis::length_of(rank().exposed(i)));
  }
  std::sort(costs.rbegin(), costs.rend());
  const auto chosen = [this] {
    return analysis::length_of(rank().exposed(window_->context().current().item->ref));
  };
  for (size_t i = 0; i < 3; ++i) {
    QTest::keyClick(window_.get(), Qt::Key_E);
    EXPECT_EQ(chosen(), costs[i]);
  }
  QTest::keyClick(window_.get(), Qt::Key_E, Qt::ShiftModifier);
  EXPECT_EQ(chosen(), costs[1]);
}

TEST_F(MainWindowTest, ThePaletteFindsCommandsAndUnits) {
  open(sample_run());
  QTest::keyClick(window_.get(), Qt::Key_K, Qt::ControlModifier);
  auto* palette = window_->findChild<CommandPalette*>();
  ASSERT_NE(palette, nullptr);
  QTest::keyClicks(&palette->edit(), "layers.4");
  ASSERT_GE(palette->count(), 1);
  QTest::keyClick(&palette->edit(), Qt::Key_Return);
  EXPECT_EQ(window_->context().current().unit, "model.layers.4");
}

TEST_F(MainWindowTest, TheMenuShowsWhatACommandOfThePaletteChanged) {
  open(sample_run());
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  const auto* fit = window_->findChild<QAction*>("plan.fit");
  ASSERT_NE(fit, nullptr);
  EXPECT_FALSE(fit->isEnabled());
  QTest::keyClick(window_.get(), Qt::Key_K, Qt::ControlModifier);
  auto* palette = window_->findChild<CommandPalette*>();
  ASSERT_NE(palette, nullptr);
  QTest::keyClicks(&palette->edit(), "own plan, simulated");
  ASSERT_EQ(palette->count(), 1);
  QTest::keyClick(&palette->edit(), Qt::Key_Return);
  EXPECT_NE(scene().ghost().run, nullptr);
  EXPECT_TRUE(fit->isEnabled());
}

TEST_F(MainWindowTest, TypingInTheSearchIsNoShortcut) {
  open(sample_run());
  const analysis::Interval view = scene().axis.view();
  QTest::keyClick(window_.get(), Qt::Key_F, Qt::ControlModifier);
  QApplication::processEvents();
  auto* edit = qobject_cast<QLineEdit*>(QApplication::focusWidget());
  ASSERT_NE(edit, nullptr);
  QTest::keyClicks(edit, "wasd0");
  EXPECT_EQ(edit->text(), "wasd0");
  EXPECT_EQ(scene().axis.view(), view);
}

TEST_F(MainWindowTest, EveryCorruptFileIsAMessage) {
  int files = 0, refused = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SHARDLENS_TEST_DATA) + "/corrupt")) {
    if (entry.path().filename() == "expected.json") {
      continue;
    }
    open(entry.path().string());
    ++files;
    refused += window_->lastError().isEmpty() ? 0 : 1;
    window_->grab();
  }
  EXPECT_GT(files, 60);
  EXPECT_GT(refused, 40);
  open(sample_run());
  EXPECT_TRUE(window_->lastError().isEmpty());
}

TEST_F(MainWindowTest, PicturesAreTheSameTwice) {
  open(sample_run());
  const QImage a = window_->timeline().viewport()->grab().toImage();
  const QImage b = window_->timeline().viewport()->grab().toImage();
  EXPECT_EQ(a, b);
  window_->setDark(true);
  EXPECT_NE(window_->timeline().viewport()->grab().toImage(), a);
}

TEST_F(MainWindowTest, LayoutThemeAndRecentFilesAreKept) {
  open(sample_run());
  window_->setDark(true);
  window_->panels().all().front().dock->hide();
  window_->close();
  window_.reset();
  make();
  EXPECT_TRUE(window_->isDark());
  open(sample_run());
  EXPECT_FALSE(window_->panels().all().front().dock->isVisible());
  EXPECT_EQ(settings_->value("recent").toStringList().size(), 1);
  window_->actions().trigger("view.reset");
  EXPECT_TRUE(window_->panels().all().front().dock->isVisible());
}

TEST_F(MainWindowTest, BookmarksAreSetFoundAndRemoved) {
  open(sample_run());
  window_->context().selectRange(analysis::Interval{1'000'000, 2'000'000});
  QTest::keyClick(window_.get(), Qt::Key_M);
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].time, 1'000'000);
  open(sample_run());
  ASSERT_EQ(scene().bookmarks.size(), 1);  // stored with the run
  EXPECT_EQ(scene().bookmarks[0].time, 1'000'000);
  window_->context().selectRange(analysis::Interval{1'000'000, 2'000'000});
  QTest::keyClick(window_.get(), Qt::Key_M);
  EXPECT_TRUE(scene().bookmarks.empty());
}

// For each step the headline, the exposed list and the tree show the figures of an analysis of only
// that step.
TEST_F(MainWindowTest, EveryStepsNumbersAreTheAnalyzers) {
  for (const std::string& path : {sample_run(), pytorch_run("fsdp2-default")}) {
    open(path);
    const trace::Run run = trace::Run::open(path);
    for (size_t r = 0; r < window_->context().run()->ranks.size(); ++r) {
      window_->context().selectRank(r);
      for (size_t s = 0; s < rank().figures.steps.size(); ++s) {
        const int64_t number = rank().figures.steps[s].step;
        analysis::AnalysisOptions options;
        options.steps = analysis::StepRange{number, number + 1};
        const analysis::RankAnalysis alone = analysis::analyze(run, options).ranks[r];
        window_->context().selectStep(s);
        window_->panels().flush();
        expect_headline(alone.figures);
        EXPECT_EQ(window_->panels().model<ExposedTable>().total(), alone.figures.exposed_comm);
        for (const analysis::UnitFigures& unit : alone.units) {
          Nanoseconds exposed = 0;
          for (const auto& part : unit.parts) {
            exposed += part ? part->exposed : 0;
          }
          const UnitTree& tree = window_->panels().model<UnitTree>();
          QModelIndex index = tree.indexOf(unit.fqn);
          ASSERT_TRUE(index.isValid()) << unit.fqn;
          Nanoseconds below = 0;
          for (int row = 0; row < tree.rowCount(index); ++row) {
            below += tree.exposedAt(tree.index(row, 0, index));
          }
          EXPECT_EQ(tree.exposedAt(index) - below, exposed) << unit.fqn << " step " << number;
        }
      }
    }
  }
}

// For any dragged range the headline, the exposed list and the tree show the figures of a newly
// made partition.
TEST_F(MainWindowTest, AnyRangesNumbersAreTheAnalyzers) {
  open(sample_run());
  const trace::Run run = trace::Run::open(sample_run());
  const analysis::Timeline timeline = analysis::make_timeline(run.traces.front());
  const analysis::Partition partition(timeline);
  std::mt19937 random(23);
  const Nanoseconds length = window_->context().run()->duration;
  std::uniform_int_distribution<Nanoseconds> when(-length / 20, length + length / 20);
  for (int round = 0; round < 40; ++round) {
    const Nanoseconds a = when(random), b = when(random);
    const analysis::Interval shown{std::min(a, b), std::max(a, b) + 1};
    window_->context().selectRange(shown);
    window_->panels().flush();
    const analysis::WindowFigures exact = partition.figures(
        analysis::clip(timeline.span, window_->context().run()->own(rank(), shown)));
    EXPECT_EQ(window_->panels().model<ExposedTable>().total(), exact.exposed_comm);
    const UnitTree& tree = window_->panels().model<UnitTree>();
    Nanoseconds top = 0;
    for (int row = 0; row < tree.rowCount(); ++row) {
      top += tree.exposedAt(tree.index(row, 0));
    }
    EXPECT_EQ(top, exact.exposed_comm);
    expect_headline(exact);
  }
}

TEST_F(MainWindowTest, BlocksAlikeAreInTheInspectorAndAtTheirRow) {
  open(sample_run());
  const QModelIndex fold = window_->panels().model<UnitTree>().indexOf("model.layers.3").parent();
  EXPECT_TRUE(fold.data(Qt::ToolTipRole).toString().startsWith("model.layers.0 to 5: exposed "));
  const auto texts = window_->findChildren<QTextBrowser*>();
  const auto inspector = std::ranges::find_if(
      texts, [](const QTextBrowser* text) { return text->accessibleName() == "Inspector"; });
  ASSERT_NE(inspector, texts.end());
  EXPECT_TRUE((*inspector)->toPlainText().contains("blocks alike, model.layers.0 to 5"));
  window_->context().selectUnit("model.layers.3");
  EXPECT_TRUE((*inspector)->toPlainText().contains("blocks alike, model.layers.0 to 5"));
  window_->context().selectUnit("<optimizer>");
  EXPECT_FALSE((*inspector)->toPlainText().contains("blocks alike"));
}

TEST_F(MainWindowTest, AnotherRunIsComparedBelow) {
  open(pytorch_run("fsdp2-prefetch"));
  bool settled = false;
  QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
  window_->compareWith({QString::fromStdString(pytorch_run("fsdp2-no-reshard"))});
  ASSERT_TRUE(wait_for([&] { return settled; }));
  EXPECT_EQ(window_->lastError().toStdString(), "");
  ComparePanel& panel = window_->panels().get<ComparePanel>();
  EXPECT_GT(panel.tree.rowCount(), 1);
  double sum = 0;
  for (const WaterfallPlot::Part& part : panel.plot().parts()) {
    sum += part.delta;
  }
  for (const check::MetricResult& metric : window_->compare().comparison()->result.metrics) {
    if (metric.metric == check::Metric::kStepTime) {
      EXPECT_NEAR(sum, metric.effect.change, 1e-3);
    }
  }
  // B's step is drawn starting where A's step starts.
  const Ghost& ghost = scene().ghost();
  ASSERT_EQ(ghost.run, window_->compare().b());
  const Nanoseconds a =
      window_->context().run()->shown(rank(), rank().figures.steps[0].window).start;
  EXPECT_EQ(
      ghost.start + ghost.run->shown(ghost.data(), ghost.data().figures.steps[0].window).start, a);
  panel.by().setCurrentIndex(static_cast<int>(ComparisonTree::By::kUnit));
  panel.view()->setCurrentIndex(panel.tree.index(0, 0));
  EXPECT_EQ(window_->context().current().unit, panel.tree.unitAt(panel.tree.index(0, 0)));
  window_->grab();
  const RunPointer first = window_->compare().a();
  settled = false;
  EXPECT_TRUE(window_->actions().trigger("compare.swap"));
  ASSERT_TRUE(wait_for([&] { return settled; }));
  EXPECT_EQ(window_->compare().b(), first);
  EXPECT_TRUE(window_->actions().trigger("compare.close"));
  EXPECT_EQ(scene().ghost().run, nullptr);
  EXPECT_FALSE(window_->actions().trigger("compare.swap"));
}

TEST_F(MainWindowTest, ARunThatCannotBeComparedLeavesTheOtherOpen) {
  window_->setUnattended();
  open(sample_run());
  bool settled = false;
  QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
  window_->compareWith({"/no/such/run"});
  ASSERT_TRUE(wait_for([&] { return settled; }));
  EXPECT_TRUE(window_->lastError().contains("/no/such/run"));
  EXPECT_NE(window_->context().run(), nullptr);
}

TEST_F(MainWindowTest, AProjectKeepsRunsPlansAndNotes) {
  open(sample_run());
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  EXPECT_FALSE(window_->isWindowModified());
  window_->session().choose(2, 2);  // prefetch two units ahead, the sample has one
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  window_->panels().get<NotesPanel>().edit().setPlainText("what I found");
  window_->context().selectRange(analysis::Interval{3'000'000, 4'000'000});
  window_->actions().trigger("go.mark");
  EXPECT_TRUE(window_->isWindowModified());
  const QString file = folder_.path() + "/work.shardlens";
  ASSERT_TRUE(window_->saveProject(file));
  EXPECT_FALSE(window_->isWindowModified());
  const std::string plan = window_->session().planJson();
  open(pytorch_run("fsdp2-default"));
  EXPECT_EQ(window_->panels().get<NotesPanel>().edit().toPlainText(), "");
  open(file.toStdString());
  EXPECT_EQ(window_->lastError().toStdString(), "");
  EXPECT_TRUE(window_->windowTitle().startsWith("work")) << window_->windowTitle().toStdString();
  EXPECT_EQ(window_->panels().get<NotesPanel>().edit().toPlainText(), "what I found");
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].time, 3'000'000);
  // A project that is saved again at once, possibly before the run is observed, still has both
  // plans.
  ASSERT_TRUE(window_->saveProject(file));
  EXPECT_EQ(load_project(file.toStdString()).plans.size(), 2);
  EXPECT_EQ(load_project(file.toStdString()).current, 1);
  ASSERT_TRUE(wait_for([&] { return window_->session().versions().size() == 2; }));
  EXPECT_EQ(window_->session().planJson(), plan);
  EXPECT_FALSE(window_->isWindowModified());
  EXPECT_TRUE(settings_->value("recent").toStringList().first().endsWith("work.shardlens"));
  window_->panels().get<NotesPanel>().edit().setPlainText("more");
  EXPECT_TRUE(window_->isWindowModified());
  EXPECT_FALSE(window_->close());  // it asks the user first
  auto* box = window_->findChild<QMessageBox*>();
  ASSERT_NE(box, nullptr);
  box->button(QMessageBox::Discard)->click();
  EXPECT_TRUE(wait_for([&] { return !window_->isVisible(); }));
  EXPECT_EQ(load_project(file.toStdString()).notes, "what I found");
}

TEST_F(MainWindowTest, ABrokenProjectIsAMessage) {
  const QString file = folder_.path() + "/broken.shardlens";
  QFile out(file);
  ASSERT_TRUE(out.open(QIODevice::WriteOnly));
  out.write(R"({"shardlens_project": 1, "traces": ["gone"], "nots": ""})");
  out.close();
  open(file.toStdString());
  EXPECT_TRUE(window_->lastError().contains("notes")) << window_->lastError().toStdString();
  ASSERT_TRUE(out.open(QIODevice::WriteOnly | QIODevice::Truncate));
  out.write(R"({"shardlens_project": 1, "traces": ["gone"]})");
  out.close();
  open(file.toStdString());
  EXPECT_TRUE(window_->lastError().contains("gone")) << window_->lastError().toStdString();
}

TEST_F(MainWindowTest, AModuleIsEditedInTheTree) {
  open(sample_run());
  ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
  UnitTree& tree = window_->panels().model<UnitTree>();
  window_->context().selectUnit("model.layers.3");
  window_->panels().flush();
  ModuleBar& bar = *window_->findChild<ModuleBar*>();
  const auto choose = [&](size_t knob, const QString& label) {
    for (QAction* action : bar.menu(knob).actions()) {
      if (action->text().startsWith(label)) {
        action->trigger();
        return true;
      }
    }
    return false;
  };
  ASSERT_TRUE(choose(1, "kept after forward"));
  const QModelIndex row = tree.indexOf("model.layers.3").siblingAtColumn(UnitTree::kUnits);
  EXPECT_EQ(row.data().toString(), QStringLiteral("unit, kept, →1"));
  EXPECT_TRUE(row.data(UnitTree::kChangedRole).toBool());
  EXPECT_FALSE(tree.indexOf("model.layers.2").data(UnitTree::kChangedRole).toBool());
  ASSERT_TRUE(choose(0, "no unit"));
  EXPECT_EQ(row.data().toString(), "no unit");
  // Choices for a module that is no longer a unit are disabled, with the reason as a tooltip.
  for (QAction* action : bar.menu(1).actions()) {
    EXPECT_FALSE(action->isEnabled());
    EXPECT_FALSE(action->toolTip().isEmpty());
  }
  window_->actions().trigger("plan.undo");
  window_->actions().trigger("plan.undo");
  EXPECT_EQ(row.data().toString(), QStringLiteral("unit, →1"));
  EXPECT_EQ(window_->session().state().plan, sample()->run.planned->plan.plan);
}

// A script replaces `shardlens`; the sample run is used as its output.
TEST_F(MainWindowTest, ACaptureIsStartedFromTheWindow) {
  const QString program = folder_.path() + "/shardlens";
  QFile script(program);
  ASSERT_TRUE(script.open(QIODevice::WriteOnly));
  script.write(
      "#!/bin/sh\necho 'step 1/1'\n[ -e \"$3\" ] || { echo \"$3: no such file\" >&2; exit 3; }\n");
  script.close();
  script.setPermissions(QFile::ReadOwner | QFile::ExeOwner);
  CaptureDialog dialog(program, *settings_, window_.get());
  QString captured;
  QObject::connect(&dialog, &CaptureDialog::captured, [&](const QString& out) { captured = out; });
  dialog.show();
  CaptureOptions options = dialog.options();
  options.model = {};
  dialog.setOptions(options);
  dialog.begin();
  EXPECT_TRUE(dialog.message().startsWith("Model")) << dialog.message().toStdString();
  options.model = "/no/such/model";
  options.tokens = "tokens.bin";
  options.out = folder_.path() + "/captured";
  dialog.setOptions(options);
  dialog.begin();
  ASSERT_TRUE(wait_for([&] { return dialog.message().contains("failed"); }));
  EXPECT_TRUE(dialog.message().contains("/no/such/model: no such file"));
  options.model = QString::fromStdString(sample_run());
  dialog.setOptions(options);
  dialog.begin();
  ASSERT_TRUE(wait_for([&] { return !captured.isEmpty(); }));
  EXPECT_EQ(captured, options.out);
  EXPECT_FALSE(dialog.isVisible());
}

// Each view is exported as PNG, SVG and CSV; an export that is not possible is an error message.
TEST_F(MainWindowTest, AnyViewIsExported) {
  open(sample_run());
  const QString base = folder_.path() + "/view";
  const auto written = [&base](const QString& ending) {
    QFile file(base + ending);
    return file.open(QIODevice::ReadOnly) ? file.readAll() : QByteArray();
  };
  std::vector<std::pair<QWidget*, const QAbstractItemView*>> views{{&window_->timeline(), nullptr}};
  for (const Panels::Docked& panel : window_->panels().all()) {
    window_->panels().raise(panel.dock->objectName());
    QApplication::processEvents();
    views.emplace_back(panel.panel, panel.panel->view());
  }
  for (const auto& [view, table] : views) {
    ASSERT_TRUE(window_->exportTo(base + ".png", view)) << window_->lastError().toStdString();
    EXPECT_EQ(QImage(base + ".png").size(), view->size());
    ASSERT_TRUE(window_->exportTo(base + ".svg", view)) << window_->lastError().toStdString();
    EXPECT_TRUE(written(".svg").contains("<svg") && written(".svg").contains("</svg>"));
    if (table != nullptr) {
      ASSERT_TRUE(window_->exportTo(base + ".csv", view)) << window_->lastError().toStdString();
      const QString title = table->model()->headerData(0, Qt::Horizontal).toString();
      EXPECT_TRUE(QString::fromUtf8(written(".csv")).startsWith(title + ","))
          << title.toStdString();
    }
  }
  EXPECT_FALSE(window_->exportTo(base + ".csv", &window_->timeline()));
  EXPECT_TRUE(window_->lastError().contains("no table")) << window_->lastError().toStdString();
  EXPECT_FALSE(window_->exportTo(base + ".gif"));
  EXPECT_FALSE(window_->exportTo("/not/there.png"));
}

TEST_F(MainWindowTest, WhatIsDroppedIsOpened) {
  QMimeData files;
  files.setUrls({QUrl::fromLocalFile(QString::fromStdString(sample_run()))});
  QDragEnterEvent enter({20, 20}, Qt::CopyAction, &files, Qt::LeftButton, Qt::NoModifier);
  QApplication::sendEvent(window_.get(), &enter);
  EXPECT_TRUE(enter.isAccepted());
  QDropEvent drop({20, 20}, Qt::CopyAction, &files, Qt::LeftButton, Qt::NoModifier);
  QApplication::sendEvent(window_.get(), &drop);
  EXPECT_TRUE(wait_for([this] { return window_->context().run() != nullptr; }));
  QMimeData text;
  text.setText("no file");
  QDragEnterEvent other({20, 20}, Qt::CopyAction, &text, Qt::LeftButton, Qt::NoModifier);
  QApplication::sendEvent(window_.get(), &other);
  EXPECT_FALSE(other.isAccepted());
}

}  // namespace
}  // namespace shardlens::gui
