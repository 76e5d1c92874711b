#include <utility>

#include <QAction>
#include <QDockWidget>
#include <QFileDialog>
#include <QInputDialog>
#include <QLineEdit>
#include <QMenu>
#include <QMenuBar>
#include <QMessageBox>
#include <QPointer>
#include <QStackedWidget>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/start_page.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {
namespace {

constexpr size_t kFoundPlaces = 40;

}  // namespace

void MainWindow::addFileCommands() {
  const auto has_run = [this] { return context_.run() != nullptr; };
  const QString menu = tr("&File"), no_run = tr("Open a run first");
  actions_.add(
      {QStringLiteral("file.open"), menu, tr("Open traces …"), {QStringLiteral("Ctrl+O")}, [this] {
         chooseFiles(false);
       }});
  actions_.add({QStringLiteral("file.openDirectory"),
                menu,
                tr("Open a capture directory …"),
                {QStringLiteral("Ctrl+Shift+O")},
                [this] { chooseFiles(true); }});
  actions_.add({QStringLiteral("file.sample"),
                menu,
                tr("Open the sample run"),
                {},
                [this] { open({sampleRun()}); },
                [this] { return !sampleRun().isEmpty(); },
                tr("The sample run was not installed with the program")});
  actions_.add({QStringLiteral("file.newPlan"),
                menu,
                tr("New plan for a model's config.json …"),
                {QStringLiteral("Ctrl+N")},
                [this] { chooseModel(); }});
  actions_.add({QStringLiteral("file.reload"),
                menu,
                tr("Read the run again"),
                {QStringLiteral("F5")},
                [this] { reload(); },
                has_run,
                no_run,
                true});
  actions_.add({QStringLiteral("file.start"),
                menu,
                tr("Start page"),
                {QStringLiteral("Ctrl+Home")},
                [this] { pages_->setCurrentIndex(pages_->currentWidget() == workspace_ ? 0 : 1); },
                has_run,
                no_run});
  actions_.add({QStringLiteral("file.export"),
                menu,
                tr("Export picture or table …"),
                {QStringLiteral("Ctrl+E")},
                [this] { chooseExport(); },
                has_run,
                no_run});
}

void MainWindow::addGoCommands() {
  const auto has_run = [this] { return context_.run() != nullptr; };
  const QString menu = tr("&Go"), no_run = tr("Open a run first");
  const auto go = [&](const char* id, const QString& title, const QStringList& keys,
                      std::function<void()> run, std::function<bool()> enabled,
                      const QString& needs, bool separated = false) {
    actions_.add({QString::fromUtf8(id), menu, title, keys, std::move(run), std::move(enabled),
                  needs, separated});
  };
  go(
      "go.back", tr("Back to the previous selection"), {QStringLiteral("Alt+Left")},
      [this] { context_.back(); }, [this] { return context_.canGoBack(); },
      tr("Nothing was selected before"));
  go(
      "go.forward", tr("Forward to the next selection"), {QStringLiteral("Alt+Right")},
      [this] { context_.forward(); }, [this] { return context_.canGoForward(); },
      tr("Nothing was selected after this"));
  const QString no_exposed = tr("No exposed collective there"),
                no_item = tr("Select an event that has a neighbour there"),
                no_arrow = tr("Select a collective that compute waited for"),
                no_mark = tr("No bookmark there");
  go(
      "go.nextExposed", tr("Next exposed collective"), {QStringLiteral("E")},
      [this] { timeline_->selectExposed(1); },
      [this] { return timeline_->nextExposed(1).has_value(); }, no_exposed, true);
  go(
      "go.previousExposed", tr("Previous exposed collective"), {QStringLiteral("Shift+E")},
      [this] { timeline_->selectExposed(-1); },
      [this] { return timeline_->nextExposed(-1).has_value(); }, no_exposed);
  go(
      "go.next", tr("Next on the same row"), {QStringLiteral("."), QStringLiteral("Right")},
      [this] { timeline_->selectNeighbour(1); },
      [this] { return timeline_->neighbour(1).has_value(); }, no_item);
  go(
      "go.previous", tr("Previous on the same row"), {QStringLiteral(","), QStringLiteral("Left")},
      [this] { timeline_->selectNeighbour(-1); },
      [this] { return timeline_->neighbour(-1).has_value(); }, no_item);
  go(
      "go.follow", tr("Follow the arrow to the compute that waits"), {QStringLiteral("]")},
      [this] { timeline_->followArrow(1); }, [this] { return timeline_->arrowEnd(1).has_value(); },
      no_arrow);
  go(
      "go.followBack", tr("Follow the arrow back to the collective"), {QStringLiteral("[")},
      [this] { timeline_->followArrow(-1); },
      [this] { return timeline_->arrowEnd(-1).has_value(); },
      tr("Select an event with an earlier collective that was needed"));
  go(
      "go.mark", tr("Set or remove a bookmark"), {QStringLiteral("M")},
      [this] { timeline_->toggleBookmark(timeline_->markedTime()); }, has_run, no_run, true);
  go(
      "go.note", tr("Bookmark with a note …"), {QStringLiteral("Shift+M")},
      [this] { editBookmark(timeline_->markedTime()); }, has_run, no_run);
  go(
      "go.nextMark", tr("Next bookmark"), {QStringLiteral("Ctrl+]")},
      [this] { timeline_->jumpToBookmark(1); },
      [this] { return timeline_->nextBookmark(1).has_value(); }, no_mark);
  go(
      "go.previousMark", tr("Previous bookmark"), {QStringLiteral("Ctrl+[")},
      [this] { timeline_->jumpToBookmark(-1); },
      [this] { return timeline_->nextBookmark(-1).has_value(); }, no_mark);
  go(
      "go.find", tr("Find events by name"), {QStringLiteral("Ctrl+F")},
      [this] { panels_->focusSearch(); }, has_run, no_run, true);
  actions_.add({QStringLiteral("go.palette"),
                menu,
                tr("Command, unit or step …"),
                {QStringLiteral("Ctrl+K"), QStringLiteral("Ctrl+Shift+P")},
                [this] { showPalette(); }});
  go(
      "go.clear", tr("Clear the selection"), {QStringLiteral("Escape")},
      [this] { context_.clear(); }, [this] { return context_.canClear(); },
      tr("Nothing is selected"));
}

// If there is already a bookmark, its note is edited; it stays until the dialog is accepted.
void MainWindow::editBookmark(Nanoseconds time) {
  const std::optional<Bookmark> there = timeline_->bookmarkAt(time);
  auto* dialog = new QInputDialog(this);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setWindowTitle(there ? tr("Note of the bookmark") : tr("Bookmark"));
  dialog->setLabelText(tr("Note"));
  dialog->setTextValue(there ? there->note : QString());
  connect(dialog, &QInputDialog::textValueSelected, this,
          [this, time = there ? there->time : time, run = context_.run()](const QString& note) {
            if (run == context_.run()) {
              timeline_->setBookmark(time, note);
            }
          });
  dialog->open();
}

void MainWindow::addViewCommands() {
  const auto has_run = [this] { return context_.run() != nullptr; };
  const QString menu = tr("&View"), no_run = tr("Open a run first");
  const auto view = [&](const char* id, const QString& title, const QStringList& keys,
                        std::function<void()> run, bool separated = false) {
    actions_.add(
        {QString::fromUtf8(id), menu, title, keys, std::move(run), has_run, no_run, separated});
  };
  view("view.in", tr("Zoom in"), {QStringLiteral("W"), QStringLiteral("Ctrl++")},
       [this] { timeline_->zoomBy(0.75); });
  view("view.out", tr("Zoom out"), {QStringLiteral("S"), QStringLiteral("Ctrl+-")},
       [this] { timeline_->zoomBy(1 / 0.75); });
  view("view.left", tr("Pan left"), {QStringLiteral("A")}, [this] { timeline_->panBy(-0.15); });
  view("view.right", tr("Pan right"), {QStringLiteral("D")}, [this] { timeline_->panBy(0.15); });
  view("view.up", tr("Scroll up"), {QStringLiteral("Shift+W")},
       [this] { timeline_->scrollBy(-60); });
  view("view.down", tr("Scroll down"), {QStringLiteral("Shift+S")},
       [this] { timeline_->scrollBy(60); });
  view(
      "view.fit", tr("Fit the selection"), {QStringLiteral("F")},
      [this] { timeline_->fitSelection(); }, true);
  view("view.all", tr("Fit the whole run"), {QStringLiteral("0")}, [this] { timeline_->fitAll(); });
  view(
      "view.fold", tr("Fold all ranks"), {QStringLiteral("Ctrl+Shift+F")},
      [this] { timeline_->setAllCollapsed(true); }, true);
  view("view.unfold", tr("Unfold all ranks"), {QStringLiteral("Ctrl+Shift+U")},
       [this] { timeline_->setAllCollapsed(false); });
  actions_.add({QStringLiteral("view.dark"),
                menu,
                tr("Switch between light and dark"),
                {QStringLiteral("Ctrl+Shift+D")},
                [this] { setDark(!dark_); },
                [] { return true; },
                {},
                true});
  view("view.reset", tr("Reset the layout of the panels"), {}, [this] { panels_->arrange(); });
  for (const Panels::Panel& panel : panels_->all()) {
    QDockWidget* dock = panel.dock;
    actions_.add({QStringLiteral("panel.") + dock->objectName(),
                  menu,
                  tr("Show the panel %1").arg(dock->windowTitle()),
                  {},
                  [this, dock] { panels_->raise(dock->objectName()); },
                  has_run,
                  no_run,
                  &panel == &panels_->all().front()});
  }
  actions_.add({QStringLiteral("help.shortcuts"),
                tr("&Help"),
                tr("Shortcuts"),
                {QStringLiteral("?"), QStringLiteral("F1")},
                [this] {
                  auto* sheet = new ShortcutSheet(actions_, this);
                  sheet->setAttribute(Qt::WA_DeleteOnClose);
                  sheet->open();
                }});
  actions_.add({QStringLiteral("help.about"), tr("&Help"), tr("About Shardlens"), {}, [this] {
                  auto* box = new QMessageBox(
                      QMessageBox::NoIcon, tr("About Shardlens"),
                      tr("Shardlens %1\nWhich rank owns which bytes, when each collective "
                         "runs, and how much of it is hidden.\nMIT license")
                          .arg(QStringLiteral(SHARDLENS_VERSION)),
                      QMessageBox::Ok, this);
                  box->setAttribute(Qt::WA_DeleteOnClose);
                  box->open();
                }});
}

void MainWindow::addPlanCommands() {
  const auto open = [this] { return session_.isOpen(); };
  const QString menu = tr("&Plan");
  const QString no_plan = tr("The run has no plan: the panel What if shows why"),
                no_other = tr("Simulate a plan or compare with another run first");
  actions_.add({QStringLiteral("plan.undo"),
                menu,
                tr("Undo the last edit of the plan"),
                {QStringLiteral("Ctrl+Z")},
                [this] { session_.undoStack().undo(); },
                [this] { return session_.undoStack().canUndo(); },
                tr("The plan was not edited")});
  actions_.add({QStringLiteral("plan.redo"),
                menu,
                tr("Redo"),
                {QStringLiteral("Ctrl+Y"), QStringLiteral("Ctrl+Shift+Z")},
                [this] { session_.undoStack().redo(); },
                [this] { return session_.undoStack().canRedo(); },
                tr("Nothing was undone")});
  actions_.add({QStringLiteral("plan.simulate"),
                menu,
                tr("Show the run's own plan, simulated"),
                {QStringLiteral("Shift+G")},
                [this] {
                  own_ghost_ = !own_ghost_;
                  updateGhost();
                },
                open,
                no_plan,
                true});
  actions_.add({QStringLiteral("plan.ghosts"),
                menu,
                tr("Show or hide the lanes of the other run"),
                {QStringLiteral("G")},
                [this] {
                  ghosts_ = !ghosts_;
                  updateGhost();
                },
                [this] { return session_.isOpen() || compare_.isOpen(); },
                no_other});
  actions_.add({QStringLiteral("plan.fit"),
                menu,
                tr("Fit the lanes of the other run"),
                {QStringLiteral("Shift+F")},
                [this] {
                  const auto shown = timeline_->scene().ghostInterval();
                  if (shown) {
                    timeline_->showInterval(*shown);
                  }
                },
                [this] { return timeline_->scene().ghost().run != nullptr; },
                no_other});
  for (size_t knob = 0; knob < 3; ++knob) {  // the first knobs are the most used ones
    actions_.add({QStringLiteral("plan.knob%1").arg(knob),
                  menu,
                  knob == 0   ? tr("Next kind of sharding")
                  : knob == 1 ? tr("Next grouping into units")
                              : tr("Prefetch one unit further in forward"),
                  {},
                  [this, knob] {
                    const PlanKnob& of = session_.knobs()[knob];
                    size_t next = 0;
                    for (size_t i = 0; i < of.choices.size(); ++i) {
                      next = of.choices[i].holds(session_.state().plan) ? i + 1 : next;
                    }
                    session_.choose(knob, next % of.choices.size());
                  },
                  open,
                  no_plan,
                  knob == 0});
  }
  actions_.add({QStringLiteral("plan.apply"),
                menu,
                tr("Apply a plan file …"),
                {},
                [this] {
                  auto* dialog = new QFileDialog(this, tr("Apply a plan file"));
                  dialog->setAttribute(Qt::WA_DeleteOnClose);
                  dialog->setNameFilters({tr("Plans (*.json)")});
                  connect(dialog, &QFileDialog::fileSelected, this, [this](const QString& path) {
                    if (!applyPlan(path)) {
                      tell(tr("Apply a plan file"), error_);
                    }
                  });
                  dialog->open();
                },
                open,
                no_plan,
                true});
  actions_.add({QStringLiteral("plan.save"),
                menu,
                tr("Save the plan …"),
                {},
                [this] { savePlan(); },
                open,
                no_plan});
}

void MainWindow::savePlan() {
  auto* dialog = new QFileDialog(this, tr("Save the plan"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setAcceptMode(QFileDialog::AcceptSave);
  dialog->setNameFilters({tr("Plans (*.json)")});
  dialog->setDefaultSuffix(QStringLiteral("json"));
  connect(dialog, &QFileDialog::fileSelected, this, [this](const QString& path) {
    try {
      write_file_atomically(path.toStdString(), session_.planJson());
    } catch (const Error& error) {
      tell(tr("Save the plan"), QString::fromStdString(error.what()));
    }
  });
  dialog->open();
}

std::vector<PaletteEntry> MainWindow::found(const QString& text) {
  std::vector<PaletteEntry> out;
  for (const Command* command : actions_.matching(text)) {
    if (command->id != QStringLiteral("go.palette") && command->enabled()) {
      out.push_back({command->title,
                     command->shortcuts.isEmpty() ? QString() : command->shortcuts.front(),
                     command->run});
    }
  }
  const RankData* rank = context_.rank();
  if (rank == nullptr || text.isEmpty()) {
    return out;
  }
  std::vector<PaletteEntry> places;
  for (const analysis::UnitFigures& unit : rank->figures.units) {
    const QString title = QString::fromStdString(unit_label(unit.fqn));
    if (places.size() < kFoundPlaces && title.contains(text, Qt::CaseInsensitive)) {
      places.push_back(
          {tr("unit %1").arg(title), {}, [this, fqn = unit.fqn] { context_.selectUnit(fqn); }});
    }
  }
  for (size_t i = 0; i < rank->figures.steps.size() && places.size() < 2 * kFoundPlaces; ++i) {
    const QString title = tr("step %1").arg(rank->figures.steps[i].step);
    if (title.contains(text, Qt::CaseInsensitive)) {
      places.push_back({title, {}, [this, i] {
                          context_.selectStep(i);
                          timeline_->fitSelection();
                        }});
    }
  }
  out.insert(out.end(), places.begin(), places.end());
  return out;
}

void MainWindow::showPalette() {
  auto* palette = new CommandPalette(
      tr("Command, unit or step"), [this](const QString& text) { return found(text); }, this);
  palette->setAttribute(Qt::WA_DeleteOnClose);
  palette->open();
}

void MainWindow::chooseFiles(bool directory) {
  auto* dialog =
      new QFileDialog(this, directory ? tr("Open a capture directory") : tr("Open traces"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(directory ? QFileDialog::Directory : QFileDialog::ExistingFiles);
  if (!directory) {
    dialog->setNameFilters(
        {tr("Traces (*.json *.json.gz *.json.zst *.spool)"), tr("All files (*)")});
  }
  connect(dialog, &QFileDialog::filesSelected, this, &MainWindow::open);
  dialog->open();
}

void MainWindow::chooseModel() {
  auto* dialog = new QFileDialog(this, tr("New plan for a model"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::ExistingFile);
  dialog->setNameFilters({tr("Hugging Face configurations (config.json)"), tr("All files (*)")});
  connect(dialog, &QFileDialog::fileSelected, this,
          [this](const QString& path) { whenSaved([this, path] { chooseHardware(path); }); });
  dialog->open();
}

void MainWindow::chooseExport() {
  QWidget* view = focusedView();  // before the dialog takes the focus
  QString name = tr("timeline");
  for (const Panels::Panel& panel : panels_->all()) {
    name = panel.dock->widget() == view ? panel.dock->windowTitle() : name;
  }
  const QStringList filters{tr("The window as PNG (*.png)"), tr("%1 as PNG (*.png)").arg(name),
                            tr("%1 as SVG (*.svg)").arg(name), tr("%1 as CSV (*.csv)").arg(name)};
  auto* dialog = new QFileDialog(this, tr("Export"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setAcceptMode(QFileDialog::AcceptSave);
  dialog->setNameFilters(filters);
  connect(dialog, &QFileDialog::fileSelected, this,
          [this, dialog, view = QPointer<QWidget>(view), filters](const QString& path) {
            const qsizetype filter =
                std::max<qsizetype>(0, filters.indexOf(dialog->selectedNameFilter()));
            constexpr const char* kEndings[] = {".png", ".png", ".svg", ".csv"};
            const bool named = path.endsWith(QStringLiteral(".png")) ||
                               path.endsWith(QStringLiteral(".svg")) ||
                               path.endsWith(QStringLiteral(".csv"));
            if (!exportTo(named ? path : path + QString::fromLatin1(kEndings[filter]),
                          filter == 0 && !path.endsWith(QStringLiteral(".csv")) ? nullptr
                                                                                : view.data())) {
              tell(tr("Export"), error_);
            }
          });
  dialog->open();
}

}  // namespace shardlens::gui
