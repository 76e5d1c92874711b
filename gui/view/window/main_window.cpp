#include "gui/view/window/main_window.h"

#include <algorithm>

#include <QAction>
#include <QApplication>
#include <QCloseEvent>
#include <QCryptographicHash>
#include <QDir>
#include <QDockWidget>
#include <QDragEnterEvent>
#include <QFileInfo>
#include <QInputDialog>
#include <QKeyEvent>
#include <QLabel>
#include <QMessageBox>
#include <QMimeData>
#include <QStackedWidget>
#include <QStatusBar>
#include <QStyleFactory>
#include <QTabBar>
#include <QToolBar>
#include <QVBoxLayout>

#include "core/base/error.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_notes.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/headline_strip.h"
#include "gui/view/widgets/notice_bar.h"
#include "gui/view/widgets/start_page.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::gui {
namespace {

constexpr int kStateVersion = 1;  // of the saved layout; other versions are not restored
constexpr qsizetype kRecent = 10;
const QString kRecentKey = QStringLiteral("recent");

QStringList absolute(const QStringList& paths) {
  QStringList out;
  for (const QString& path : paths) {
    out.append(QFileInfo(path).absoluteFilePath());
  }
  return out;
}

QString bookmarkKey(const QStringList& paths) {
  const QByteArray name = absolute(paths).join(u'\n').toUtf8();
  return QStringLiteral("bookmarks/") +
         QString::fromLatin1(QCryptographicHash::hash(name, QCryptographicHash::Sha1).toHex());
}

}  // namespace

MainWindow::MainWindow(QSettings& settings, QWidget* parent)
    : QMainWindow(parent),
      settings_(settings),
      pages_(new QStackedWidget),
      workspace_(new QWidget),
      notice_(new NoticeBar),
      strip_(new HeadlineStrip(context_)),
      timeline_(new TimelineView(context_)),
      bar_(new QToolBar(tr("Headline"))),
      range_label_(new QLabel),
      hover_label_(new QLabel),
      frame_label_(new QLabel) {
  setWindowTitle(QStringLiteral("Shardlens"));
  setAcceptDrops(true);
  setDockOptions(AnimatedDocks | AllowNestedDocks | AllowTabbedDocks);
  resize(1280, 800);
  auto* column = new QVBoxLayout(workspace_);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  column->addWidget(notice_);
  column->addWidget(timeline_, 1);
  bar_->setObjectName(QStringLiteral("headline"));
  bar_->setMovable(false);
  bar_->addWidget(strip_);
  bar_->toggleViewAction()->setEnabled(false);
  addToolBar(Qt::TopToolBarArea, bar_);
  setContextMenuPolicy(Qt::NoContextMenu);
  setCentralWidget(pages_);
  panels_ = new Panels(context_, session_, compare_, *this);
  addFileCommands();
  addProjectCommands();
  addGoCommands();
  addPlanCommands();
  addCompareCommands();
  addViewCommands();
  start_ = new StartPage(actions_);
  start_->setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Ignored);  // it is shown without docks
  pages_->addWidget(start_);
  pages_->addWidget(workspace_);
  makeMenus();
  makeStatusBar();
  connectViews();
  followActions();
  start_->setRecent(recentFiles());
  for (const Panels::Panel& panel : panels_->all()) {
    panel.dock->hide();
  }
  bar_->hide();
  setDark(settings_.value(QStringLiteral("dark"), false).toBool());
  restoreGeometry(settings_.value(QStringLiteral("geometry")).toByteArray());
}

MainWindow::~MainWindow() {
  // Signals emitted during destruction would reach a partly destroyed window.
  for (QObject* member : std::initializer_list<QObject*>{&actions_, &context_, &loader_, &session_,
                                                         &session_.undoStack(), &compare_}) {
    member->disconnect(this);
  }
}

void MainWindow::makeStatusBar() {
  range_label_->setMinimumWidth(260);
  statusBar()->addWidget(range_label_);
  statusBar()->addWidget(hover_label_, 1);
  frame_label_->setContentsMargins(0, 0, 6, 0);
  statusBar()->addPermanentWidget(frame_label_);
  statusBar()->setSizeGripEnabled(false);
}

void MainWindow::connectViews() {
  connect(start_, &StartPage::openRequested, this, &MainWindow::open);
  connect(start_, &StartPage::cancelRequested, this, [this] {
    loader_.cancel();
    if (context_.run() == nullptr && session_.isOpen()) {  // a plan for a model
      session_.stop();
      start_->endProgress();
      emit settled();
    }
  });
  connect(&loader_, &RunLoader::progress, start_, &StartPage::showProgress);
  connect(&loader_, &RunLoader::loaded, this, &MainWindow::loaded);
  connect(&loader_, &RunLoader::failed, this, &MainWindow::fail);
  connect(&loader_, &RunLoader::cancelled, this, [this] {
    start_->endProgress();
    pending_.reset();
    opening_project_.clear();
    if (context_.run() != nullptr) {
      pages_->setCurrentWidget(workspace_);
    }
    emit settled();
  });
  connect(timeline_, &TimelineView::dragging, this,
          [this](std::optional<analysis::Interval> range) { strip_->showRange(range); });
  connect(timeline_, &TimelineView::bookmarksChanged, this, &MainWindow::keepBookmarks);
  connect(timeline_, &TimelineView::hovered, hover_label_, &QLabel::setText);
  connect(notice_, &NoticeBar::moreRequested, this,
          [this] { actions_.trigger(QStringLiteral("panel.diagnostics")); });
  connect(timeline_, &TimelineView::menuRequested, this, &MainWindow::showContextMenu);
  connect(panels_, &Panels::menuRequested, this, &MainWindow::showContextMenu);
  connect(panels_, &Panels::goRequested, timeline_, &TimelineView::goToSelection);
  connect(&session_, &PlanSession::simulatedOne, this, &MainWindow::updateGhost);
  connect(&session_, &PlanSession::stateChanged, this, &MainWindow::updateGhost);
  connect(&session_, &PlanSession::progress, this, [this](int percent, const QString& what) {
    statusBar()->showMessage(percent < 0 ? what : tr("%1, %2 %").arg(what).arg(percent));
  });
  connect(&session_, &PlanSession::observed, statusBar(), &QStatusBar::clearMessage);
  connect(&context_, &SelectionContext::changed, this, &MainWindow::updateGhost);
  const auto say = [this] {
    const TimeAxis& axis = timeline_->scene().axis;
    const double resolution = axis.nanosecondsPerPixel();
    const auto range = context_.current().range.value_or(axis.view());
    if (context_.run() == nullptr) {
      range_label_->clear();
      frame_label_->clear();
      return;
    }
    range_label_->setText(tr("%1%2 – %3,  Δ %4")
                              .arg(context_.current().range ? tr("range ") : tr("view "),
                                   timeText(range.start, resolution),
                                   timeText(range.end, resolution), durationText(range.length())));
    frame_label_->setText((is_simulated(*context_.run()) ? tr("simulated, ") : QString()) +
                          countText(context_.run()->event_count, tr("event"), tr("events")));
  };
  connect(timeline_, &TimelineView::viewChanged, this, say);
  connect(&context_, &SelectionContext::changed, this, say);
  connect(&context_, &SelectionContext::changed, this, [this] {
    if (const auto item = context_.itemInterval()) {
      panels_->setInstant(item->start);
    } else if (context_.current().range) {
      panels_->setInstant(context_.current().range->start);
    }
  });
}

// Qt treats panels behind a tab as visible, although they are covered. Tab skips them.
bool MainWindow::focusNextPrevChild(bool next) {
  const auto covered = [this](const QWidget* widget) {
    return std::ranges::any_of(panels_->all(), [widget](const Panels::Panel& panel) {
      return panel.dock->isAncestorOf(widget) && panel.dock->visibleRegion().isEmpty();
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

void MainWindow::setDark(bool dark) {
  dark_ = dark;
  settings_.setValue(QStringLiteral("dark"), dark);
  const Theme& theme = dark ? Theme::night() : Theme::light();
  QApplication::setStyle(QStyleFactory::create(QStringLiteral("Fusion")));
  QApplication::setPalette(theme.palette);
  setStyleSheet(theme.style);
  strip_->setTheme(theme);
  timeline_->setTheme(theme);
  panels_->setTheme(theme);
}

void MainWindow::open(const QStringList& paths) {
  if (paths.isEmpty()) {
    return;
  }
  whenSaved([this, paths] {
    if (paths.size() == 1 && is_project_file(paths.front())) {
      openProject(paths.front());
    } else {
      openTraces(paths);
    }
  });
}

void MainWindow::openTraces(const QStringList& paths) {
  loader_.cancel();
  wanted_ = paths;
  opening_project_.clear();
  pending_.reset();
  error_.clear();
  start_->showMessage({});
  pages_->setCurrentWidget(start_);
  loader_.load(paths_of(paths));
}

// Reads again what is open: a project with its plans and notes, a model, or traces.
void MainWindow::reload() {
  if (!project_path_.isEmpty()) {
    open({project_path_});
  } else if (planned_model_) {
    whenSaved([this, config = opening_.front()] { openModel(config, planned_hardware_); });
  } else {
    open(QStringList(opening_));
  }
}

QStringList MainWindow::recentFiles() const {
  return settings_.value(kRecentKey).toStringList();
}

void MainWindow::forgetRecent() {
  settings_.remove(kRecentKey);
  start_->setRecent({});
  fillRecent();
}

void MainWindow::remember(const QStringList& paths) {
  QStringList recent = recentFiles();
  const QString entry = absolute(paths).join(u'\n');
  recent.removeAll(entry);
  recent.prepend(entry);
  recent = recent.mid(0, kRecent);
  settings_.setValue(kRecentKey, recent);
  start_->setRecent(recent);
  fillRecent();
}

void MainWindow::loaded(const RunPointer& run) {
  start_->endProgress();
  opening_ = wanted_;
  planned_model_ = false;
  if (!pending_) {
    remember(opening_);
  }
  const QString name = QFileInfo(opening_.front()).fileName();
  showRun(run, name.isEmpty() ? opening_.front() : name);
  restoreBookmarks();
  compare_.close();
  session_.start(run, paths_of(opening_));
  restoreProject();
  emit settled();
}

// Bookmarks are stored under the run's absolute paths, each as "nanoseconds note".
void MainWindow::keepBookmarks() {
  QStringList list;
  for (const Bookmark& mark : timeline_->scene().bookmarks) {
    list.append(QStringLiteral("%1 %2").arg(mark.time).arg(mark.note));
  }
  settings_.setValue(bookmarkKey(opening_), list);
}

void MainWindow::restoreBookmarks() {
  for (const QString& line : settings_.value(bookmarkKey(opening_)).toStringList()) {
    bool ok = false;
    const Nanoseconds time = line.section(u' ', 0, 0).toLongLong(&ok);
    if (ok) {
      timeline_->scene().bookmarks.push_back({time, line.section(u' ', 1)});
    }
  }
  timeline_->viewport()->update();
}

void MainWindow::showRun(const RunPointer& run, const QString& title) {
  const bool first = context_.run() == nullptr;
  pages_->setCurrentWidget(workspace_);
  bar_->show();
  if (first) {
    panels_->arrange();
    restoreState(settings_.value(QStringLiteral("state")).toByteArray(), kStateVersion);
  }
  notice_->show(notes_of(*run));
  context_.setRun(run);
  setTitle(title);
  timeline_->setFocus();
}

void MainWindow::setTitle(const QString& title) {
  const QString simulated = tr(", simulated");
  const bool says_so =
      title.endsWith(simulated) || context_.run() == nullptr || !is_simulated(*context_.run());
  setWindowTitle(QStringLiteral("%1[*] – Shardlens").arg(says_so ? title : title + simulated));
}

void MainWindow::openModel(const QString& config, const QString& hardware) {
  error_.clear();
  start_->showMessage({});
  if (hardware.isEmpty() && !unattended_) {
    chooseHardware(config);
    return;
  }
  try {
    if (hardware.isEmpty()) {
      throw UsageError("no machine to simulate the model on: give one with --hardware");
    }
    const plan::ModelConfig model = plan::load_model_config(config.toStdString());
    (void)sim::load_hardware(hardware.toStdString());
    opening_ = {config};
    opening_project_.clear();
    pending_.reset();
    planned_model_ = true;
    planned_hardware_ = hardware;
    compare_.close();
    session_.stop();  // first: without a run, its simulation would be shown as the run
    context_.setRun(nullptr);
    session_.start(model, hardware);
    start_->showProgress(-1, tr("Simulating %1").arg(config));
    pages_->setCurrentWidget(start_);
  } catch (const Error& error) {
    fail(QString::fromStdString(error.what()));
  }
}

void MainWindow::chooseHardware(const QString& config) {
  QStringList names;
  for (const std::string& name : sim::hardware_names()) {
    names.append(QString::fromStdString(name));
  }
  auto* dialog = new QInputDialog(this);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setWindowTitle(tr("Plan a model"));
  dialog->setLabelText(tr("The GPUs to simulate %1 on").arg(QFileInfo(config).fileName()));
  dialog->setComboBoxItems(names);
  dialog->setOption(QInputDialog::UseListViewForComboBoxItems);
  connect(dialog, &QInputDialog::textValueSelected, this,
          [this, config](const QString& name) { openModel(config, name); });
  dialog->open();
}

bool MainWindow::applyPlan(const QString& path) {
  try {
    if (!session_.isOpen()) {
      throw InputError(path.toStdString(), session_.why().toStdString());
    }
    PlanState next = session_.state();
    next.plan = plan::load_plan(path.toStdString());
    session_.edit(QFileInfo(path).fileName(), next);
    return true;
  } catch (const Error& error) {
    error_ = QString::fromStdString(error.what());
    return false;
  }
}

void MainWindow::fail(const QString& message) {
  error_ = message;
  pending_.reset();
  opening_project_.clear();
  project_path_.clear();
  setChanged(false);
  start_->endProgress();
  start_->showMessage(message);
  if (context_.run() != nullptr) {
    for (const Panels::Panel& panel : panels_->all()) {
      panel.dock->hide();
    }
    bar_->hide();
    session_.stop();  // first: without a run, its simulation would be shown as the run
    context_.setRun(nullptr);
    compare_.close();
    setWindowTitle(QStringLiteral("Shardlens"));
  }
  pages_->setCurrentWidget(start_);
  emit settled();
}

void MainWindow::tell(const QString& title, const QString& message) {
  if (unattended_) {
    return;
  }
  auto* box = new QMessageBox(QMessageBox::Warning, title, message, QMessageBox::Ok, this);
  box->setTextFormat(Qt::PlainText);
  box->setAttribute(Qt::WA_DeleteOnClose);
  box->open();
}

void MainWindow::closeEvent(QCloseEvent* event) {
  if (changed_ && !unattended_ && !project_path_.isEmpty()) {
    event->ignore();
    whenSaved([this] { close(); });
    return;
  }
  if (context_.run() != nullptr) {
    settings_.setValue(QStringLiteral("state"), saveState(kStateVersion));
  }
  settings_.setValue(QStringLiteral("geometry"), saveGeometry());
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

QString MainWindow::sampleRun() const {
  for (const QString& folder :
       {QApplication::applicationDirPath() + QStringLiteral("/../share/shardlens/traces"),
        QStringLiteral(SHARDLENS_SAMPLES)}) {
    const QString run = QDir::cleanPath(folder + QStringLiteral("/llama-emulated8"));
    if (QFileInfo::exists(run)) {
      return run;
    }
  }
  return {};
}

}  // namespace shardlens::gui
