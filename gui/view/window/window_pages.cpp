#include "gui/view/window/window_pages.h"

#include <QAction>
#include <QStackedWidget>
#include <QStatusBar>
#include <QToolBar>
#include <QVBoxLayout>

#include "gui/model/run/run_notes.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/headline_strip.h"
#include "gui/view/widgets/notice_bar.h"
#include "gui/view/widgets/start_page.h"
#include "gui/view/window/preview_page.h"

namespace shardlens::gui {
namespace {

constexpr int kStateVersion = 1;  // of the saved layout; other versions are not restored
const QString kStateKey = QStringLiteral("state");
const QString kGeometryKey = QStringLiteral("geometry");

}  // namespace

WindowPages::WindowPages(QMainWindow& window, QSettings& settings, SelectionContext& context)
    : window_(window),
      settings_(settings),
      context_(context),
      pages_(new QStackedWidget),
      preview_(new PreviewPage),
      workspace_(new QWidget),
      notice_(new NoticeBar),
      strip_(new HeadlineStrip(context)),
      timeline_(new TimelineView(context)),
      bar_(new QToolBar(QMainWindow::tr("Headline"))) {
  // Before there are docks, which these do not rearrange.
  window_.setDockOptions(QMainWindow::AnimatedDocks | QMainWindow::AllowNestedDocks |
                         QMainWindow::AllowTabbedDocks);
  window_.resize(1280, 800);
  auto* column = new QVBoxLayout(workspace_);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  column->addWidget(notice_);
  column->addWidget(timeline_, 1);
  bar_->setObjectName(QStringLiteral("headline"));
  bar_->setMovable(false);
  bar_->addWidget(strip_);
  bar_->toggleViewAction()->setEnabled(false);
  window_.addToolBar(Qt::TopToolBarArea, bar_);
  window_.setCentralWidget(pages_);
}

void WindowPages::complete(ActionRegistry& actions, Panels& panels) {
  panels_ = &panels;
  start_ = new StartPage(actions);
  start_->setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Ignored);  // it is shown without docks
  pages_->addWidget(start_);
  pages_->addWidget(workspace_);
  pages_->addWidget(preview_);
}

void WindowPages::showStart() {
  panels_->setLarge(false);
  pages_->setCurrentWidget(start_);
}

void WindowPages::showWorkspace() {
  endPreview();
  pages_->setCurrentWidget(workspace_);
}

void WindowPages::toggle() {
  panels_->setLarge(false);
  if (pages_->currentWidget() == start_) {
    showWorkspace();
  } else {
    showStart();
  }
}

void WindowPages::showPreview(const RunPointer& part, const QString& title) {
  if (preview_->view() == std::nullopt) {
    panels_->setLarge(false);
    before_ = window_.saveState(kStateVersion);
    title_before_ = window_.windowTitle();
    hideWorkspace();
    window_.statusBar()->hide();
  }
  window_.setWindowTitle(QMainWindow::tr("%1, being read – Shardlens").arg(title));
  preview_->setRun(part);
  pages_->setCurrentWidget(preview_);
}

void WindowPages::endPreview() {
  if (preview_->view() == std::nullopt) {
    return;
  }
  preview_->setRun(nullptr);
  panels_->setLarge(false);
  window_.setWindowTitle(title_before_);
  window_.restoreState(before_, kStateVersion);
  window_.statusBar()->show();
  if (pages_->currentWidget() == preview_) {
    pages_->setCurrentWidget(start_);
  }
}

void WindowPages::showRun(const RunPointer& run, const QString& title) {
  const bool first = context_.run() == nullptr;
  showWorkspace();
  bar_->show();
  if (first) {
    panels_->arrange();
    window_.restoreState(settings_.value(kStateKey).toByteArray(), kStateVersion);
  }
  notice_->show(notes_of(*run));
  context_.setRun(run);
  setTitle(title);
  timeline_->setFocus();
}

void WindowPages::hideWorkspace() {
  panels_->hide();
  bar_->hide();
}

void WindowPages::setTitle(const QString& title) {
  const QString simulated = QMainWindow::tr(", simulated");
  const bool says_so =
      title.endsWith(simulated) || context_.run() == nullptr || !is_simulated(*context_.run());
  window_.setWindowTitle(
      QStringLiteral("%1[*] – Shardlens").arg(says_so ? title : title + simulated));
}

void WindowPages::setTheme(const Theme& theme) {
  strip_->setTheme(theme);
  timeline_->setTheme(theme);
  preview_->setTheme(theme);
  panels_->setTheme(theme);
}

void WindowPages::saveLayout() {
  panels_->setLarge(false);
  if (context_.run() != nullptr) {
    settings_.setValue(kStateKey, window_.saveState(kStateVersion));
  }
  settings_.setValue(kGeometryKey, window_.saveGeometry());
}

}  // namespace shardlens::gui
