// The tasks of docs/use/window.md and bench/RESULTS.md with the mouse. The pages list the number of
// actions: a click, a double click, or something that is dropped on the window, is one.
#include <algorithm>

#include <QAbstractButton>
#include <QComboBox>
#include <QDialogButtonBox>
#include <QDockWidget>
#include <QDropEvent>
#include <QFile>
#include <QFileDialog>
#include <QFileInfo>
#include <QHeaderView>
#include <QInputDialog>
#include <QLineEdit>
#include <QListView>
#include <QMenu>
#include <QMenuBar>
#include <QMimeData>
#include <QPushButton>
#include <QSlider>
#include <QTabBar>
#include <QTableView>
#include <QTextBrowser>
#include <QTimer>
#include <QToolButton>

#include "gui/model/run/exposed_list.h"
#include "gui/model/tables/event_groups.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/mesh_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/roofline_table.h"
#include "gui/view/panel_parts/memory_treemap.h"
#include "gui/view/panel_parts/part_bars.h"
#include "gui/view/panel_parts/plan_form.h"
#include "gui/view/widgets/headline_strip.h"
#include "tests/gui/view/mouse_window.h"

namespace shardlens::gui {
namespace {

class MouseTasksTest : public MouseTest {
 protected:
  void SetUp() override {
    MouseTest::SetUp();
    window_->resize(1920, 1080);
    // A box ignores a second click that comes as fast as these: it may belong to the first one.
    interval_ = QApplication::doubleClickInterval();
    QApplication::setDoubleClickInterval(0);
    QObject::connect(window_.get(), &MainWindow::settled, [this] { ++settled_; });
  }
  void TearDown() override {
    QApplication::setDoubleClickInterval(interval_);
    MouseTest::TearDown();
  }
  void openEightRanks(const QStringList& options = {}) {
    open(simulated_ranks("a", options).toStdString());
    ASSERT_EQ(window_->context().run()->ranks.size(), 8);
    ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
    actions_ = 0;
  }
  void drop(const QString& path) {
    ++actions_;
    QMimeData data;
    data.setUrls({QUrl::fromLocalFile(path)});
    QDragEnterEvent enter({100, 100}, Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(window_.get(), &enter);
    QDropEvent event({100, 100}, Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(window_.get(), &event);
    QApplication::processEvents();
  }
  void clickOn(QWidget& widget, const QPoint& where) {
    ++actions_;
    QTest::mouseClick(&widget, Qt::LeftButton, {}, where);
    settle();
  }
  void clickOn(QWidget& widget) { clickOn(widget, widget.rect().center()); }
  void clickTab(const QString& title) {
    for (QTabBar* bar : window_->findChildren<QTabBar*>()) {
      for (int tab = 0; bar->isVisible() && tab < bar->count(); ++tab) {
        if (bar->tabText(tab) == title) {
          clickOn(*bar, bar->tabRect(tab).center());
          return;
        }
      }
    }
    FAIL() << "no tab " << title.toStdString();
  }
  // The table or tree of a panel that must be shown already.
  QAbstractItemView& seen(const char* panel) {
    const Panels::Docked& docked = window_->panels().find(panel);
    EXPECT_FALSE(docked.dock->visibleRegion().isEmpty()) << panel;
    return *docked.panel->view();
  }
  void clickRow(QAbstractItemView& view, const QModelIndex& index) {
    ++actions_;
    click(view, index);
  }
  void clickMenu(const QString& title, const QString& entry) {
    QMenuBar* bar = window_->menuBar();
    for (QAction* menu : bar->actions()) {
      if (menu->text() == title) {
        clickOn(*bar, bar->actionGeometry(menu).center());
        clickEntry(*menu->menu(), entry);
        return;
      }
    }
    FAIL() << "no menu " << title.toStdString();
  }
  void clickEntry(QMenu& menu, const QString& entry) {
    for (QAction* action : menu.actions()) {
      if (action->text().startsWith(entry)) {
        clickOn(menu, menu.actionGeometry(action).center());
        return;
      }
    }
    FAIL() << "no entry " << entry.toStdString();
  }
  template <class Dialog>
  Dialog& dialog() {
    QApplication::processEvents();
    for (Dialog* each : window_->findChildren<Dialog*>()) {
      if (each->isVisible()) {
        return *each;
      }
    }
    throw std::runtime_error("no such dialog");
  }
  void clickButton(QDialog& of, QDialogButtonBox::StandardButton button) {
    clickOn(*of.findChild<QDialogButtonBox*>()->button(button));
  }
  void clickFile(QFileDialog& files, const QString& name) {
    auto& list = *files.findChild<QListView*>("listView");
    const auto found = [&] {
      return list.model()->match(list.model()->index(0, 0, list.rootIndex()), Qt::DisplayRole, name,
                                 1, Qt::MatchExactly);
    };
    ASSERT_TRUE(wait_for([&] { return !found().isEmpty(); }))
        << files.directory().path().toStdString();
    const QModelIndex file = found().front();
    list.scrollTo(file);
    clickOn(*list.viewport(), list.visualRect(file).center());
  }
  void openModel() {
    window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
    ASSERT_TRUE(wait_for([&] { return settled_ > 0 && simulated(); }));
    settle();
  }
  bool simulated() { return window_->session().current() != nullptr; }
  QAbstractButton& button(const char* panel, const QString& text) {
    for (auto* each : window_->panels().find(panel).panel->findChildren<QAbstractButton*>()) {
      if (each->text() == text) {
        return *each;
      }
    }
    throw std::runtime_error("no button " + text.toStdString());
  }
  QComboBox& list(const char* panel, const QString& name) {
    for (auto* each : window_->panels().find(panel).panel->findChildren<QComboBox*>()) {
      if (each->accessibleName() == name) {
        return *each;
      }
    }
    throw std::runtime_error("no list " + name.toStdString());
  }
  void choose(QComboBox& box, const QString& entry) {
    clickOn(box);
    const int row = box.findText(entry, Qt::MatchStartsWith);
    ASSERT_GE(row, 0) << entry.toStdString();
    const QModelIndex index = box.model()->index(row, 0);
    box.view()->scrollTo(index);
    clickOn(*box.view()->viewport(), box.view()->visualRect(index).center());
  }
  // The menu of the button runs until an entry is chosen.
  void chooseOfMenu(QAbstractButton& of, const QString& entry) {
    QTimer::singleShot(0, &of, [this, &of, entry] {
      clickEntry(*qobject_cast<QToolButton*>(&of)->menu(), entry);
    });
    clickOn(of);
  }
  QString inspector() {
    return window_->panels().find("inspector").panel->findChild<QTextBrowser*>()->toPlainText();
  }
  void done(const char* task) {
    EXPECT_EQ(actions_, documented(task).mouse) << task;
    EXPECT_LE(actions_, 5) << task;
    actions_ = 0;
  }
  int actions_ = 0, settled_ = 0, interval_ = 0;
};

TEST_F(MouseTasksTest, OpenThenTheThreeWorstThenWhoOwnsWhat) {
  const QString run = simulated_ranks("a");
  drop(run);
  ASSERT_TRUE(wait_for([&] { return settled_ > 0; }));
  settle();
  ASSERT_NE(window_->context().run(), nullptr);
  EXPECT_EQ(window_->context().run()->ranks.size(), 8);
  done("Open a run");

  const std::vector<ExposedCollective> worst =
      exposed_within(*window_->context().rank(), window_->context().window());
  QAbstractItemView& exposed = seen("exposed");
  for (int i = 0; i < 3; ++i) {
    clickRow(exposed, exposed.model()->index(i, 0));
    ASSERT_TRUE(chosen().item);
    EXPECT_EQ(chosen().item->ref, worst[static_cast<size_t>(i)].collective);
    EXPECT_TRUE(inspector().contains("cause")) << inspector().toStdString();
  }
  done("The three worst collectives, and why");

  clickRow(exposed, exposed.model()->index(1, 0));
  (void)seen("ownership");
  const auto& owners = window_->panels().model<OwnershipTable>();
  ASSERT_GT(owners.rowCount(), 0);
  EXPECT_EQ(owners.unitAt(owners.index(0, 0)), chosen().unit);
  done("Who owns what, and when");
}

TEST_F(MouseTasksTest, WhatPrefetchWouldDo) {
  openEightRanks();
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  const size_t versions = window_->session().versions().size();
  clickTab("What if");
  QComboBox* prefetch = nullptr;
  for (QComboBox* each : window_->findChild<PlanForm*>()->findChildren<QComboBox*>()) {
    prefetch = each->accessibleName() == "Prefetch in forward" ? each : prefetch;
  }
  ASSERT_NE(prefetch, nullptr);
  clickOn(*prefetch);
  const QModelIndex choice = prefetch->model()->index(2, 0);
  clickOn(*prefetch->view()->viewport(), prefetch->view()->visualRect(choice).center());
  ASSERT_TRUE(wait_for([&] {
    return window_->session().versions().size() == versions + 1 &&
           window_->session().current() != nullptr;
  }));
  EXPECT_NE(window_->session().state().plan, window_->session().versions().front().state.plan);
  done("What prefetching would do");
}

TEST_F(MouseTasksTest, CompareWithAnotherRun) {
  simulated_ranks("b", {"--strategy", "shard_grad_op"});
  openEightRanks();
  for (const char* task : {"Was it right", "Compare with another run"}) {
    clickMenu("&Compare", "Compare with another run");
    auto& files = dialog<QFileDialog>();
    clickFile(files, "b");
    clickButton(files, QDialogButtonBox::Open);
    ASSERT_TRUE(wait_for([&] { return window_->compare().isOpen(); }));
    settle();
    (void)seen("compare");
    window_->actions().trigger("compare.close");
    done(task);
  }
}

TEST_F(MouseTasksTest, PlanAnEightBillionModel) {
  const QString path = folder_.path() + "/config.json";
  QFile file(path);
  ASSERT_TRUE(file.open(QIODevice::WriteOnly));
  // Llama 3 8B. Source: its config.json on Hugging Face.
  file.write(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false})");
  file.close();
  drop(path);
  auto& gpus = dialog<QInputDialog>();
  auto& list = *gpus.findChild<QListView*>();
  const QModelIndexList found = list.model()->match(list.model()->index(0, 0), Qt::DisplayRole,
                                                    "8xH100", 1, Qt::MatchExactly);
  ASSERT_EQ(found.size(), 1);
  list.scrollTo(found[0]);
  clickOn(*list.viewport(), list.visualRect(found[0]).center());
  clickButton(gpus, QDialogButtonBox::Ok);
  ASSERT_TRUE(wait_for([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  }));
  EXPECT_EQ(window_->session().state().world_size, 8);
  done("Plan an 8B model on 8 GPUs");
}

// The model is small: the same search of the 8B model takes minutes of a processor.
TEST_F(MouseTasksTest, FindTheBestPlan) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] { return settled_ > 0 && window_->session().current() != nullptr; }));
  settle();
  const size_t versions = window_->session().versions().size();
  clickTab("Advice");
  QToolButton* best = nullptr;
  for (QToolButton* each : window_->panels().find("advice").panel->findChildren<QToolButton*>()) {
    best = each->text() == "Find best" ? each : best;
  }
  ASSERT_NE(best, nullptr);
  clickOn(*best);
  ASSERT_TRUE(wait_for(
      [&] { return !window_->proposals().isBusy() && !window_->proposals().list().empty(); }));
  settle();
  QAbstractItemView& plans = seen("advice");
  ++actions_;
  double_click(plans, plans.model()->index(1, 0));  // the first one below the title
  ASSERT_TRUE(wait_for([&] {
    return window_->session().versions().size() > versions &&
           window_->session().current() != nullptr;
  }));
  EXPECT_EQ(window_->session().current()->step(), window_->proposals().list().front().step);
  done("Find the best plan");
}

TEST_F(MouseTasksTest, MeasureAndExport) {
  openEightRanks();
  QAbstractItemView& exposed = seen("exposed");
  const QPoint where = at(exposed, exposed.model()->index(0, 0));
  ++actions_;  // the right button selects and opens the menu
  QTest::mouseClick(exposed.viewport(), Qt::RightButton, {}, where);
  QContextMenuEvent asks(QContextMenuEvent::Mouse, where, exposed.viewport()->mapToGlobal(where));
  QApplication::sendEvent(exposed.viewport(), &asks);
  settle();
  clickEntry(dialog<QMenu>(), "Measure it");
  ASSERT_TRUE(chosen().item);
  EXPECT_EQ(chosen().range, window_->context().itemInterval());
  clickMenu("&File", "Export picture or table");
  auto& files = dialog<QFileDialog>();
  files.setDirectory(folder_.path());  // the user's own folder stays as it is
  clickButton(files, QDialogButtonBox::Save);
  EXPECT_TRUE(wait_for([&] { return QFileInfo::exists(folder_.path() + "/shardlens.png"); }));
  done("Measure the worst one and save a picture");
}

TEST_F(MouseTasksTest, StragglerGatheredAndKept) {
  constexpr size_t kSlow = 5;
  // With so many samples the device is busy all the time, so the others wait for the slow one.
  openEightRanks({"--batch", "64", "--seq", "256", "--slow-rank", "5:1.3"});
  clickTab("Ranks");
  QAbstractItemView& ranks = seen("ranks");
  clickRow(ranks, ranks.model()->index(0, 0));
  EXPECT_EQ(chosen().rank, kSlow);
  EXPECT_FALSE(scene().collapsed().contains(kSlow));
  done("Jump to the straggler");

  QAbstractItemView& modules = seen("modules");
  const QModelIndexList head =
      modules.model()->match(modules.model()->index(0, 0), Qt::DisplayRole, "lm_head", 1,
                             Qt::MatchStartsWith | Qt::MatchRecursive);
  ASSERT_EQ(head.size(), 1);
  clickRow(modules, head.front());
  const auto& held = window_->context().rank()->residencies;
  const auto root = std::ranges::find(held, "", &Residency::unit);
  ASSERT_NE(root, held.end());
  const auto shown =
      window_->context().run()->shown(*window_->context().rank(), {root->usable, root->when.end});
  EXPECT_TRUE(inspector().contains(
      QString("gathered\n%1 to %2").arg(timeText(shown.start, 1e3), timeText(shown.end, 1e3))))
      << inspector().toStdString();
  done("When is lm_head gathered");

  window_->context().clear();
  settle();
  auto& box = *window_->headline().findChildren<QComboBox*>()[0];
  clickOn(box);
  const QModelIndex third = box.model()->index(3, 0);
  clickOn(*box.view()->viewport(), box.view()->visualRect(third).center());
  EXPECT_EQ(chosen().rank, 3);
  // Each of the eight ranks has an eighth of every unit's padded flat parameter.
  const plan::ResolvedPlan& plan = *plan_of(window_->context().run());
  Bytes kept = 0;
  for (const plan::ParameterPlace& place : plan::parameter_places(plan)) {
    const plan::ShardLayout layout = plan.layout(place.unit);
    kept += layout.slice(3, place.index).numel * 4;
  }
  EXPECT_EQ(window_->panels().model<OwnershipTable>().kept(3), kept);
  EXPECT_TRUE(inspector().contains("keeps\n" + bytesText(kept) + " of"))
      << inspector().toStdString();
  done("What does rank 3 keep");
}

TEST_F(MouseTasksTest, ExploreAPlan) {
  openModel();
  clickTab("Mesh");
  auto& ranks = window_->panels().model<MeshTable>();
  ASSERT_EQ(ranks.rowCount(), 8);
  EXPECT_EQ(ranks.index(7, 1).data().toString(), "shard 7");
  done("What does each rank hold");

  clickTab("Mesh");
  chooseOfMenu(button("mesh", "shard 8"), "split: shard 4, replicate 2");
  ASSERT_TRUE(wait_for([&] { return simulated(); }));
  EXPECT_EQ(ranks.index(7, 1).data().toString(), "replicate 1, shard 3");
  done("Two replicas of four shards");

  clickMenu("&Plan", "Undo");
  ASSERT_TRUE(wait_for([&] { return simulated(); }));
  EXPECT_EQ(ranks.index(7, 1).data().toString(), "shard 7");
  done("Take it back");

  clickTab("What if");
  choose(list("whatif", "Checkpoints"), "every block");
  ASSERT_TRUE(wait_for([&] { return simulated(); }));
  EXPECT_FALSE(window_->session().state().plan.activation_checkpointing.empty());
  done("Checkpoint every block");

  clickTab("Scaling");
  ASSERT_TRUE(wait_for([&] { return !window_->panels().isBusy(); }));
  Panel& scaling = *window_->panels().find("scaling").panel;
  EXPECT_EQ(scaling.findChild<PartBars*>()->bars().size(), 11U);
  done("What bounds it on 1 024 GPUs");

  clickTab("Scaling");
  QSlider& bandwidth = *scaling.findChild<QSlider*>();
  EXPECT_EQ(bandwidth.accessibleName(), "Bandwidth");
  clickOn(bandwidth, {bandwidth.width() * 3 / 4, bandwidth.height() / 2});
  EXPECT_EQ(bandwidth.value(), 10);  // ten steps are a factor of two
  done("With twice the bandwidth");

  clickTab("Plan space");
  clickOn(button("space", "Find best"));
  ASSERT_TRUE(wait_for([&] { return !window_->proposals().isBusy(); }));
  EXPECT_GT(window_->proposals().space().points.size(), 20U);
  done("All plans by step and memory");
}

TEST_F(MouseTasksTest, WhereTimeAndMemoryOfAPlanGo) {
  openModel();
  clickMenu("&View", "Show or hide nested operators");
  EXPECT_TRUE(scene().arrangement().nested);
  done("Operators within operators");

  clickTab("Memory");
  choose(list("memory", "How the parts of the memory are shown"), "At the pointer's time, by unit");
  const auto& treemap = *window_->panels().find("memory").panel->findChild<MemoryTreemap*>();
  EXPECT_TRUE(treemap.isVisible());
  done("What is allocated at the peak, by unit");

  clickTab("Events");
  choose(list("events", "What a row is"), "By name");
  EXPECT_EQ(seen("events").model(), &window_->panels().model<EventGroups>());
  done("Time by kernel and operator");

  clickTab("Roofline");
  choose(list("roofline", "What a row is"), "By module");
  EXPECT_TRUE(std::ranges::any_of(
      window_->panels().model<RooflineTable>().rows(),
      [](const RooflineTable::Row& row) { return row.name.contains("mlp.up_proj"); }));
  done("Each module against the roofline");
}

TEST_F(MouseTasksTest, RunAPlan) {
  open(sample_run());
  ASSERT_TRUE(wait_for([&] { return simulated(); }));
  useProgramThatCopiesTheSample();
  runInTemporaryFolder();
  clickTab("Run plan");
  clickOn(button("run", "Run"));
  ASSERT_TRUE(wait_for([&] { return window_->compare().isOpen(); }));
  const Panel& run = *window_->panels().find("run").panel;
  EXPECT_EQ(run.findChild<PartBars*>()->bars().size(), 2U);  // predicted, measured
  done("Run it, next to its prediction");
}

}  // namespace
}  // namespace shardlens::gui
