// Tasks of a new user, done with the keyboard only. docs/use/window.md and bench/RESULTS.md list
// them with the number of actions: a key, or a text that is typed, is one. None needs more than
// five.
#include <algorithm>
#include <map>

#include <QAbstractItemView>
#include <QApplication>
#include <QDockWidget>
#include <QFile>
#include <QFileInfo>
#include <QKeySequence>
#include <QLineEdit>
#include <QLocale>
#include <QSlider>
#include <QTableView>
#include <QTextBrowser>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/exposed_list.h"
#include "gui/model/tables/event_groups.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/mesh_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/roofline_table.h"
#include "gui/view/panel_parts/memory_treemap.h"
#include "gui/view/panel_parts/part_bars.h"
#include "gui/view/timeline/timeline_view.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class TasksTest : public WindowTest {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    QObject::connect(window_.get(), &MainWindow::settled, [this] { settled_ = true; });
    window_->activateWindow();
    ASSERT_TRUE(QTest::qWaitForWindowActive(window_.get(), kMostMilliseconds));
  }

  // The widget that has the keyboard: in a dialog if one is open.
  QWidget* focused() {
    QApplication::processEvents();
    if (QWidget* dialog = QApplication::activeModalWidget()) {
      return dialog->focusWidget() != nullptr ? dialog->focusWidget() : dialog;
    }
    QWidget* focus = QApplication::focusWidget();
    return focus != nullptr ? focus : window_.get();
  }
  void press(const char* keys) {
    ++actions_;
    const QKeyCombination chord = QKeySequence(QString(keys))[0];
    QTest::keyClick(focused(), chord.key(), chord.keyboardModifiers());
    QApplication::processEvents();
    if (QApplication::activeModalWidget() == nullptr) {
      window_->activateWindow();  // as a window manager does when a dialog closes
      EXPECT_TRUE(QTest::qWaitForWindowActive(window_.get(), kMostMilliseconds));
    }
  }
  void type(const QString& text) {
    ++actions_;
    QTest::keyClicks(focused(), text);
    QApplication::processEvents();
  }
  void command(const QString& words) {
    press("Ctrl+K");
    type(words);
    press("Return");
  }
  template <class Done>
  void wait(Done done) {
    ASSERT_TRUE(wait_for(done)) << state();
    window_->panels().flush();
    QApplication::processEvents();
  }
  // For messages: the widget that has the keyboard, and what the window reported.
  std::string state() {
    QWidget* dialog = QApplication::activeModalWidget();
    QWidget* popup = QApplication::activePopupWidget();
    return std::string("keys go to ") + focused()->metaObject()->className() + ", dialog " +
           (dialog == nullptr ? "none" : qPrintable(dialog->windowTitle())) + ", popup " +
           (popup == nullptr ? "none" : popup->metaObject()->className()) + "; " +
           window_->lastError().toStdString();
  }
  bool isShown(const char* panel) {
    const QDockWidget* dock = window_->panels().find(panel).dock;
    return dock->isVisible() && !dock->visibleRegion().isEmpty();
  }
  const QTableView& exposedRows() {
    for (const QTableView* each :
         window_->panels().find("exposed").panel->findChildren<QTableView*>()) {
      if (each->model() == &window_->panels().model<ExposedTable>()) {
        return *each;
      }
    }
    throw RuntimeFault("no table of exposed collectives");
  }
  const Selection& chosen() { return window_->context().current(); }
  QString inspector() {
    window_->panels().flush();
    return window_->panels().find("inspector").panel->findChild<QTextBrowser*>()->toPlainText();
  }

  void done(const char* task) {
    EXPECT_EQ(actions_, documented(task).keys) << task;
    EXPECT_LE(actions_, 5) << task;
    actions_ = 0;
  }
  int actions_ = 0;
  bool settled_ = false;
};

TEST_F(TasksTest, OpenThenTheThreeWorstThenWhoOwnsWhat) {
  press("Ctrl+Shift+O");
  type(QFileInfo(QString::fromStdString(sample_run())).canonicalFilePath());
  press("Return");
  wait([&] { return settled_; });
  ASSERT_NE(window_->context().run(), nullptr);
  done("Open a run");

  const RankData& rank = *window_->context().rank();
  const std::vector<ExposedCollective> worst = exposed_within(rank, window_->context().window());
  window_->timeline().setFocus();
  for (size_t i = 0; i < 3; ++i) {
    press("E");
    ASSERT_TRUE(chosen().item.has_value());
    EXPECT_EQ(chosen().item->ref, worst[i].collective);
    // The row of the panel Exposed has the cause and what helps.
    window_->panels().flush();
    EXPECT_TRUE(isShown("exposed"));
    const QTableView& rows = exposedRows();
    const QModelIndex row = rows.currentIndex();
    EXPECT_EQ(row.row(),
              window_->panels().model<ExposedTable>().indexOfCollective(chosen().item->ref).row());
    EXPECT_TRUE(rows.visualRect(row).intersects(rows.viewport()->rect()));
  }
  done("The three worst collectives, and why");

  press("Escape");
  actions_ = 0;
  press("E");
  command("panel Ownership");
  window_->panels().flush();
  EXPECT_TRUE(isShown("ownership"));
  const auto& owners = window_->panels().model<OwnershipTable>();
  EXPECT_GT(owners.rowCount(), 0);
  EXPECT_TRUE(chosen().unit.has_value());
  done("Who owns what, and when");
}

TEST_F(TasksTest, WhatPrefetchWouldDoAndWhetherThatWasRight) {
  // Of one rank, as the run with prefetching.
  open(pytorch_run("fsdp2-default") + "/rank0.pt.trace.json.gz");
  wait([&] { return window_->session().current() != nullptr; });
  window_->timeline().setFocus();
  command("Prefetch one unit further");
  wait([&] {
    return window_->session().versions().size() == 2 && window_->session().current() != nullptr;
  });
  EXPECT_TRUE(isShown("whatif"));
  EXPECT_TRUE(window_->session().current()->error.isEmpty());
  EXPECT_NE(window_->session().state().plan, window_->session().versions().front().state.plan);
  done("What prefetching would do");

  press("Ctrl+D");
  type(QFileInfo(QString::fromStdString(pytorch_run("fsdp2-prefetch"))).canonicalFilePath());
  press("Return");
  wait([&] { return window_->compare().isOpen(); });
  EXPECT_TRUE(isShown("compare"));
  done("Was it right");
}

TEST_F(TasksTest, CompareTwoRuns) {
  open(pytorch_run("fsdp2-prefetch"));
  window_->timeline().setFocus();
  press("Ctrl+D");
  type(QFileInfo(QString::fromStdString(pytorch_run("fsdp2-no-reshard"))).canonicalFilePath());
  press("Return");
  wait([&] { return window_->compare().isOpen(); });
  EXPECT_TRUE(isShown("compare"));
  done("Compare with another run");
}

TEST_F(TasksTest, PlanAnEightBillionModel) {
  const QString path = folder_.path() + "/config.json";
  QFile file(path);
  ASSERT_TRUE(file.open(QIODevice::WriteOnly));
  // Llama 3 8B. Source: its config.json on Hugging Face.
  file.write(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false})");
  file.close();
  press("Ctrl+N");
  type(path);
  press("Return");
  type("8xH100");
  press("Return");
  wait([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  });
  EXPECT_EQ(window_->session().state().world_size, 8);
  done("Plan an 8B model on 8 GPUs");
}

// The model is small: the same search of the 8B model takes minutes of a processor.
TEST_F(TasksTest, FindTheBestPlan) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  wait([&] { return settled_ && window_->session().current() != nullptr; });
  window_->timeline().setFocus();
  const size_t versions = window_->session().versions().size();
  command("Find the best plan");
  wait([&] { return !window_->proposals().isBusy() && !window_->proposals().list().empty(); });
  EXPECT_TRUE(isShown("advice"));
  const Nanoseconds best = window_->proposals().list().front().step;
  press("Return");
  wait([&] {
    return window_->session().versions().size() > versions &&
           window_->session().current() != nullptr;
  });
  EXPECT_EQ(window_->session().current()->step(), best);
  done("Find the best plan");
}

TEST_F(TasksTest, MeasureAndExport) {
  open(sample_run());
  window_->timeline().setFocus();
  const QString file = folder_.path() + "/window.png";
  press("E");
  press("R");
  EXPECT_EQ(chosen().range, window_->context().itemInterval());
  press("Ctrl+E");
  type(file);
  press("Return");
  wait([&] { return QFileInfo::exists(file); });
  done("Measure the worst one and save a picture");

  // From one event to another.
  const analysis::Interval first = *chosen().range;
  window_->timeline().setFocus();
  press("E");
  press("R");
  const analysis::Interval second = *window_->context().itemInterval();
  EXPECT_EQ(chosen().range, (analysis::Interval{std::min(first.start, second.start),
                                                std::max(first.end, second.end)}));
}

// Of eight ranks, of which one is slow. With so many samples the device is busy all the time, so
// the others wait for it.
TEST_F(TasksTest, StragglerGatheredAndKept) {
  constexpr size_t kSlow = 5;
  open(simulated_ranks("a", {"--batch", "64", "--seq", "256", "--slow-rank", "5:1.3"})
           .toStdString());
  ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
  window_->timeline().setFocus();
  command("panel Ranks");
  press("Home");
  EXPECT_EQ(chosen().rank, kSlow);
  done("Jump to the straggler");

  window_->context().clear();
  window_->timeline().setFocus();
  command("lm_head");
  EXPECT_EQ(chosen().unit, "");  // it belongs to the root's unit
  EXPECT_TRUE(inspector().contains("gathered\n")) << inspector().toStdString();
  done("When is lm_head gathered");

  window_->context().clear();
  window_->timeline().setFocus();
  command("rank 3");
  EXPECT_EQ(chosen().rank, 3);
  const plan::ResolvedPlan& plan = *plan_of(window_->context().run());
  Bytes kept = 0;
  for (const plan::ParameterPlace& place : plan::parameter_places(plan)) {
    kept += plan.layout(place.unit).slice(3, place.index).numel * 4;
  }
  EXPECT_TRUE(inspector().contains("keeps\n" + bytesText(kept) + " of"))
      << inspector().toStdString();
  done("What does rank 3 keep");
}

// The plan of a model on eight GPUs, and what another one would do.
TEST_F(TasksTest, ExploreAPlan) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  const auto simulated = [&] { return window_->session().current() != nullptr; };
  wait([&] { return settled_ && simulated(); });
  window_->timeline().setFocus();
  command("panel Mesh");
  EXPECT_TRUE(isShown("mesh"));
  const MeshTable& ranks = window_->panels().model<MeshTable>();
  ASSERT_EQ(ranks.rowCount(), 8);
  EXPECT_EQ(ranks.index(7, 1).data().toString(), "shard 7");
  done("What does each rank hold");

  command("Replicas: 2");
  wait(simulated);
  EXPECT_TRUE(isShown("mesh"));  // which has the edit
  EXPECT_EQ(ranks.index(7, 1).data().toString(), "replicate 1, shard 3");
  done("Two replicas of four shards");

  press("Ctrl+Z");
  wait(simulated);
  EXPECT_EQ(ranks.index(7, 1).data().toString(), "shard 7");
  done("Take it back");

  command("Checkpoints: every block");
  wait(simulated);
  EXPECT_FALSE(window_->session().state().plan.activation_checkpointing.empty());
  EXPECT_LT(window_->session().current()->peak(), window_->session().versions().front().peak());
  done("Checkpoint every block");

  command("panel Scaling");
  wait([&] { return !window_->panels().isBusy(); });
  const auto& scaling = *window_->panels().find("scaling").panel->findChild<PartBars*>();
  ASSERT_EQ(scaling.bars().size(), 11U);
  EXPECT_EQ(scaling.bars().back().label, QLocale().toString(1024));
  done("What bounds it on 1 024 GPUs");

  window_->timeline().setFocus();
  command("panel Scaling");
  press("Tab");
  press("PgUp");
  const auto sliders = window_->panels().find("scaling").panel->findChildren<QSlider*>();
  ASSERT_FALSE(sliders.isEmpty());
  EXPECT_EQ(sliders.front()->accessibleName(), "Bandwidth");
  EXPECT_EQ(sliders.front()->value(), 10);  // ten steps are a factor of two
  done("With twice the bandwidth");

  window_->timeline().setFocus();
  command("Search the plans");
  wait([&] { return !window_->proposals().isBusy(); });
  EXPECT_TRUE(isShown("space"));
  EXPECT_GT(window_->proposals().space().points.size(), 20U);
  done("All plans by step and memory");
}

TEST_F(TasksTest, WhereTimeAndMemoryOfAPlanGo) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  wait([&] { return settled_ && window_->session().current() != nullptr; });
  window_->timeline().setFocus();
  press("N");
  EXPECT_TRUE(window_->timeline().scene().arrangement().nested);
  done("Operators within operators");

  command("panel Memory");
  press("Down");
  const auto& treemap = *window_->panels().find("memory").panel->findChild<MemoryTreemap*>();
  EXPECT_TRUE(treemap.isVisible());
  EXPECT_EQ(treemap.map().sum, window_->session().current()->peak());
  done("What is allocated at the peak, by unit");

  window_->timeline().setFocus();
  command("panel Events");
  press("Down");
  const auto& events = window_->panels().model<EventGroups>();
  EXPECT_EQ(window_->panels().find("events").panel->view()->model(), &events);
  EXPECT_GT(events.rowCount(), 5);
  done("Time by kernel and operator");

  window_->timeline().setFocus();
  command("panel Roofline");
  press("Down");
  wait([] { return true; });
  const auto& roofline = window_->panels().model<RooflineTable>();
  EXPECT_TRUE(std::ranges::any_of(roofline.rows(), [](const RooflineTable::Row& row) {
    return row.name.contains("mlp.up_proj");
  }));
  done("Each module against the roofline");
}

TEST_F(TasksTest, RunAPlan) {
  open(sample_run());
  wait([&] { return window_->session().current() != nullptr; });
  useProgramThatCopiesTheSample();
  runInTemporaryFolder();
  window_->timeline().setFocus();
  press("Ctrl+R");
  EXPECT_TRUE(isShown("run"));
  press("Space");
  wait([&] { return window_->compare().isOpen(); });
  const Panel& run = *window_->panels().find("run").panel;
  EXPECT_EQ(run.findChild<PartBars*>()->bars().size(), 2U);  // predicted, measured
  done("Run it, next to its prediction");
}

}  // namespace
}  // namespace shardlens::gui
