#include <utility>

#include <QDir>
#include <QFileDialog>
#include <QFileInfo>
#include <QMessageBox>
#include <QPlainTextEdit>

#include "core/base/error.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/capture_dialog.h"
#include "gui/view/widgets/start_page.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {
namespace {

std::vector<std::filesystem::path> absolute_paths(const QStringList& paths) {
  std::vector<std::filesystem::path> out;
  for (const QString& path : paths) {
    out.emplace_back(QDir::cleanPath(QFileInfo(path).absoluteFilePath()).toStdString());
  }
  return out;
}

QStringList strings_of(const std::vector<std::filesystem::path>& paths) {
  QStringList out;
  for (const std::filesystem::path& path : paths) {
    out.append(QString::fromStdString(path.string()));
  }
  return out;
}

}  // namespace

void MainWindow::addProjectCommands() {
  const QString menu = tr("&File");
  const auto has_run = [this] { return context_.run() != nullptr; };
  const QString no_run = tr("Open a run first");
  actions_.add({QStringLiteral("file.capture"),
                menu,
                tr("Capture on this machine …"),
                {},
                [this] { showCapture(); },
                [] { return true; },
                {},
                true});
  actions_.add({QStringLiteral("file.openProject"),
                menu,
                tr("Open a project …"),
                {QStringLiteral("Ctrl+Alt+O")},
                [this] { chooseProject(); },
                [] { return true; },
                {},
                true});
  actions_.add({QStringLiteral("file.saveProject"),
                menu,
                tr("Save the project"),
                {QStringLiteral("Ctrl+S")},
                [this] {
                  if (project_path_.isEmpty()) {
                    chooseProjectToSave({});
                  } else {
                    saveProject(project_path_);
                  }
                },
                has_run,
                no_run});
  actions_.add({QStringLiteral("file.saveProjectAs"),
                menu,
                tr("Save the project as …"),
                {QStringLiteral("Ctrl+Shift+S")},
                [this] { chooseProjectToSave({}); },
                has_run,
                no_run});
  actions_.add({QStringLiteral("file.quit"),
                menu,
                tr("Quit"),
                {QStringLiteral("Ctrl+Q")},
                [this] { close(); },
                [] { return true; },
                {},
                true});
  connect(&panels_->notes(), &QPlainTextEdit::textChanged, this, [this] { setChanged(true); });
  connect(timeline_, &TimelineView::bookmarksChanged, this, [this] { setChanged(true); });
  connect(&session_.undoStack(), &QUndoStack::indexChanged, this, [this](int index) {
    if (index > 0 && !session_.isRestoring()) {
      setChanged(true);
    }
  });
}

void MainWindow::setChanged(bool changed) {
  changed_ = changed && context_.run() != nullptr && !restoring_;
  setWindowModified(changed_);
}

Project MainWindow::project() const {
  Project out;
  const std::vector<std::filesystem::path> opened = absolute_paths(opening_);
  if (planned_model_) {
    out.model = opened.front();
  } else {
    out.traces = opened;
  }
  if (compare_.isOpen()) {
    out.compared = absolute_paths(comparing_);
  }
  for (const PlanVersion& version : session_.versions()) {
    if (version.state == session_.state()) {
      out.current = out.plans.size();
    }
    out.plans.push_back(version.state);
    out.titles.push_back(version.title);
  }
  out.bookmarks = timeline_->scene().bookmarks;
  out.notes = panels_->notes().toPlainText();
  return out;
}

bool MainWindow::saveProject(const QString& path) {
  error_.clear();
  try {
    save_project(project(), path.toStdString());
  } catch (const Error& error) {
    error_ = QString::fromStdString(error.what());
    tell(tr("Save the project"), error_);
    return false;
  }
  project_path_ = path;
  setChanged(false);
  remember({path});
  setTitle(QFileInfo(path).completeBaseName());
  return true;
}

void MainWindow::openProject(const QString& path) {
  try {
    Project project = load_project(path.toStdString());
    const QStringList paths = project.traces.empty()
                                  ? QStringList{QString::fromStdString(project.model.string())}
                                  : strings_of(project.traces);
    const bool model = project.traces.empty();
    if (model) {
      openModel(paths.front(), project.plans.empty() ? QString() : project.plans.front().machine);
    } else {
      openTraces(paths);
    }
    opening_project_ = path;
    pending_ = std::move(project);
  } catch (const Error& error) {
    fail(QString::fromStdString(error.what()));
  }
}

// Restores the rest of a project once its run is loaded.
void MainWindow::restoreProject() {
  const std::optional<Project> project = std::exchange(pending_, std::nullopt);
  const QString path = std::exchange(opening_project_, {});
  project_path_ = path;
  restoring_ = true;
  panels_->notes().setPlainText(project ? project->notes : QString());
  if (project) {
    timeline_->scene().bookmarks = project->bookmarks;
    timeline_->viewport()->update();
    session_.restore(project->plans, project->titles, project->current);
    remember({path});
    setTitle(QFileInfo(path).completeBaseName());
    if (!project->compared.empty()) {
      compareWith(strings_of(project->compared));
    }
  }
  restoring_ = false;
  setChanged(false);
}

void MainWindow::chooseProject() {
  auto* dialog = new QFileDialog(this, tr("Open a project"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::ExistingFile);
  dialog->setNameFilters({tr("Projects (*.shardlens)")});
  connect(dialog, &QFileDialog::filesSelected, this, &MainWindow::open);
  dialog->open();
}

void MainWindow::chooseProjectToSave(const std::function<void()>& then) {
  auto* dialog = new QFileDialog(this, tr("Save the project"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setAcceptMode(QFileDialog::AcceptSave);
  dialog->setNameFilters({tr("Projects (*.shardlens)")});
  dialog->setDefaultSuffix(QStringLiteral("shardlens"));
  connect(dialog, &QFileDialog::fileSelected, this, [this, then](const QString& path) {
    if (saveProject(path) && then) {
      then();
    }
  });
  dialog->open();
}

// Runs `then` after the changes were saved or discarded; not at all if the user cancels.
void MainWindow::whenSaved(const std::function<void()>& then) {
  if (!changed_ || unattended_ || project_path_.isEmpty()) {
    then();  // without a project there is nothing to save; bookmarks are stored anyway
    return;
  }
  auto* box =
      new QMessageBox(QMessageBox::Question, tr("Shardlens"),
                      tr("%1 has unsaved changes.").arg(QFileInfo(project_path_).fileName()),
                      QMessageBox::Save | QMessageBox::Discard | QMessageBox::Cancel, this);
  box->setAttribute(Qt::WA_DeleteOnClose);
  connect(box, &QMessageBox::buttonClicked, this, [this, box, then](QAbstractButton* button) {
    const auto chosen = box->standardButton(button);
    if (chosen == QMessageBox::Discard) {
      setChanged(false);
      then();
    } else if (chosen == QMessageBox::Save && saveProject(project_path_)) {
      then();
    }
  });
  box->open();
}

void MainWindow::showCapture() {
  const QString program = QCoreApplication::applicationDirPath() + QStringLiteral("/shardlens");
  auto* dialog = new CaptureDialog(program, settings_, this);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  connect(dialog, &CaptureDialog::captured, this,
          [this](const QString& directory) { open({directory}); });
  dialog->open();
}

}  // namespace shardlens::gui
