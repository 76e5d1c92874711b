#include "gui/view/window/main_window.h"

#include <algorithm>

#include <QApplication>
#include <QCloseEvent>
#include <QDockWidget>
#include <QDragEnterEvent>
#include <QKeyEvent>
#include <QMimeData>
#include <QStatusBar>
#include <QStyleFactory>
#include <QTabBar>

#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/headline_strip.h"
#include "gui/view/widgets/notice_bar.h"
#include "gui/view/widgets/start_page.h"
#include "gui/view/window/commands.h"

namespace shardlens::gui {

MainWindow::MainWindow(QSettings& settings, QWidget* parent)
    : QMainWindow(parent),
      settings_(settings),
      messages_(*this),
      recent_(settings),
      pages_(*this, settings, context_),
      panels_(*new Panels({context_, session_, proposals_, compare_, actions_, runs_}, *this)),
      parts_{*this,    settings_, actions_,  context_, loader_, session_, proposals_,
             compare_, opened_,   messages_, recent_,  pages_,  panels_},
      status_(*this, context_, pages_.timeline()),
      bookmarks_(parts_),
      ghosts_(parts_),
      comparison_(parts_, bookmarks_, status_),
      project_(parts_, comparison_),
      opener_(parts_, bookmarks_, project_),
      export_(parts_),
      context_menu_(parts_, bookmarks_) {
  setWindowTitle(QStringLiteral("Shardlens"));
  setAcceptDrops(true);
  setContextMenuPolicy(Qt::NoContextMenu);
  addCommands();
  pages_.complete(actions_, panels_);
  menus_ = std::make_unique<WindowMenus>(*this, actions_, recent_);
  connectParts();
  refreshOnChanges();
  pages_.start().setRecent(recent_.entries());
  pages_.hideWorkspace();
  setDark(settings_.value(QStringLiteral("dark"), false).toBool());
  restoreGeometry(settings_.value(QStringLiteral("geometry")).toByteArray());
}

MainWindow::~MainWindow() {
  // Signals emitted during destruction would reach a partly destroyed window.
  for (QObject* member :
       std::initializer_list<QObject*>{&actions_, &context_, &loader_, &session_,
                                       &session_.undoStack(), &proposals_, &compare_, &runs_}) {
    member->disconnect(this);
  }
}

void MainWindow::addCommands() {
  add_file_commands(parts_, opener_, project_, export_);
  add_go_commands(parts_, bookmarks_);
  add_plan_commands(parts_, ghosts_);
  comparison_.addCommands();
  add_view_commands(parts_, [this] { setDark(!dark_); });
  add_help_commands(parts_);
}

void MainWindow::connectParts() {
  StartPage& start = pages_.start();
  connect(&start, &StartPage::openRequested, &opener_, &RunOpener::open);
  connect(&start, &StartPage::cancelRequested, &opener_, &RunOpener::cancel);
  connect(&loader_, &RunLoader::progress, &start, &StartPage::showProgress);
  connect(&pages_.preview(), &PreviewPage::cancelRequested, &opener_, &RunOpener::cancel);
  connect(&loader_, &RunLoader::progress, &pages_.preview(), &PreviewPage::showProgress);
  connect(&recent_, &RecentFiles::changed, &start,
          [this, &start] { start.setRecent(recent_.entries()); });
  connect(menus_.get(), &WindowMenus::openRequested, &opener_, &RunOpener::open);
  connect(&opener_, &RunOpener::settled, this, &MainWindow::settled);
  connect(&comparison_, &ComparisonController::settled, this, &MainWindow::settled);
  connect(&comparison_, &ComparisonController::swapRequested, this, [this] {
    project_.whenSaved([this] {
      comparison_.swap();
      project_.leaveProject();
    });
  });
  connect(&runs_, &PlanRuns::measured, this,
          [this](size_t run) { comparison_.open(runs_.list()[run]); });
  connect(&timeline(), &TimelineView::dragging, this,
          [this](std::optional<analysis::Interval> range) { headline().showRange(range); });
  connect(&notice(), &NoticeBar::moreRequested, this,
          [this] { actions_.trigger(QStringLiteral("panel.diagnostics")); });
  connect(&panels_, &Panels::goRequested, this, [this] {
    panels_.setLarge(false);  // the timeline is shown
    timeline().goToSelection();
  });
  connect(&timeline(), &TimelineView::cursorMoved, &panels_, &Panels::showCursor);
  connect(&panels_, &Panels::focusLost, &timeline(), qOverload<>(&QWidget::setFocus));
  connect(&session_, &PlanSession::progress, &status_, &StatusLine::showProgress);
  connect(&session_, &PlanSession::observed, &status_, &StatusLine::endProgress);
  connect(&proposals_, &PlanProposals::tried, this, [this](const QString& result) {
    constexpr int kMilliseconds = 15'000;
    statusBar()->showMessage(result, kMilliseconds);
  });
}

void MainWindow::refreshOnChanges() {
  const auto refresh = [this] { actions_.refresh(); };
  connect(&context_, &SelectionContext::runChanged, this, refresh);
  connect(&context_, &SelectionContext::changed, this, refresh);
  connect(&session_, &PlanSession::stateChanged, this, refresh);
  connect(&session_, &PlanSession::simulatedOne, this, refresh);
  connect(&session_.undoStack(), &QUndoStack::canUndoChanged, this, refresh);
  connect(&session_.undoStack(), &QUndoStack::canRedoChanged, this, refresh);
  connect(&proposals_, &PlanProposals::changed, this, refresh);
  connect(&compare_, &CompareSession::changed, this, refresh);
  connect(&runs_, &PlanRuns::changed, this, refresh);
  connect(&compare_, &CompareSession::progress, this, refresh);
  connect(&compare_, &CompareSession::failed, this, refresh);
  connect(&timeline(), &TimelineView::bookmarksChanged, this, refresh);
  connect(&timeline(), &TimelineView::viewChanged, this, refresh);
  connect(this, &MainWindow::settled, this, refresh);
  refresh();
}

bool MainWindow::applyPlan(const QString& path) {
  return apply_plan(parts_, path);
}

void MainWindow::setDark(bool dark) {
  dark_ = dark;
  settings_.setValue(QStringLiteral("dark"), dark);
  const Theme& theme = dark ? Theme::night() : Theme::light();
  QApplication::setStyle(QStyleFactory::create(QStringLiteral("Fusion")));
  QApplication::setPalette(theme.palette);
  setStyleSheet(theme.style);
  pages_.setTheme(theme);
}

// Qt treats panels behind a tab as visible, although they are covered. Tab skips them.
bool MainWindow::focusNextPrevChild(bool next) {
  const auto covered = [this](const QWidget* widget) {
    return std::ranges::any_of(panels_.all(), [widget](const Panels::Docked& docked) {
      return docked.dock->isAncestorOf(widget) && docked.dock->visibleRegion().isEmpty();
    });
  };
  const QWidget* first = focusWidget();
  do {
    if (!QMainWindow::focusNextPrevChild(next)) {
      return false;
    }
  } while (focusWidget() != nullptr && focusWidget() != first && covered(focusWidget()));
  return true;
}

// Left and Right are shortcuts, but switch tabs while a tab bar of panels has the focus.
bool MainWindow::event(QEvent* event) {
  if (event->type() == QEvent::ShortcutOverride &&
      qobject_cast<QTabBar*>(QApplication::focusWidget()) != nullptr) {
    const int key = static_cast<QKeyEvent*>(event)->key();
    if (key == Qt::Key_Left || key == Qt::Key_Right) {
      event->accept();
      return true;
    }
  }
  return QMainWindow::event(event);
}

void MainWindow::closeEvent(QCloseEvent* event) {
  if (project_.mustAsk()) {
    event->ignore();
    project_.whenSaved([this] { close(); });
    return;
  }
  pages_.saveLayout();
  QMainWindow::closeEvent(event);
}

void MainWindow::dragEnterEvent(QDragEnterEvent* event) {
  if (event->mimeData()->hasUrls()) {
    event->acceptProposedAction();
  }
}

void MainWindow::dropEvent(QDropEvent* event) {
  QStringList paths;
  for (const QUrl& url : event->mimeData()->urls()) {
    if (url.isLocalFile()) {
      paths.append(url.toLocalFile());
    }
  }
  event->acceptProposedAction();
  open(paths);
}

}  // namespace shardlens::gui
