#include "gui/view/window/project_controller.h"

#include <utility>

#include <QDir>
#include <QFileDialog>
#include <QFileInfo>
#include <QMessageBox>
#include <QScopedValueRollback>

#include "core/base/error.h"
#include "gui/model/base/time_axis.h"
#include "gui/view/panels/notes_panel.h"
#include "gui/view/timeline/timeline_view.h"

namespace shardlens::gui {
namespace {

std::vector<std::filesystem::path> absolute_paths(const QStringList& paths) {
  std::vector<std::filesystem::path> out;
  for (const QString& path : paths) {
    out.emplace_back(QDir::cleanPath(QFileInfo(path).absoluteFilePath()).toStdString());
  }
  return out;
}

}  // namespace

QStringList strings_of(const std::vector<std::filesystem::path>& paths) {
  QStringList out;
  for (const std::filesystem::path& path : paths) {
    out.append(QString::fromStdString(path.string()));
  }
  return out;
}

ProjectController::ProjectController(const WindowParts& parts, ComparisonController& comparison)
    : parts_(parts), comparison_(comparison) {
  connect(&parts_.panels.get<NotesPanel>().edit(), &QPlainTextEdit::textChanged, this,
          [this] { setChanged(true); });
  connect(&parts_.timeline(), &TimelineView::bookmarksChanged, this, [this] { setChanged(true); });
  // The settings keep them too, so that without a project nothing is lost.
  connect(&parts_.timeline(), &TimelineView::arranged, this, [this] {
    if (!path_.isEmpty()) {
      setChanged(true);
    }
  });
  connect(&parts_.session.undoStack(), &QUndoStack::indexChanged, this, [this](int index) {
    if (index > 0 && !parts_.session.isRestoring()) {
      setChanged(true);
    }
  });
}

void ProjectController::setChanged(bool changed) {
  changed_ = changed && parts_.hasRun() && !restoring_;
  parts_.window.setWindowModified(changed_);
}

Project ProjectController::contents() const {
  Project out;
  const std::vector<std::filesystem::path> opened = absolute_paths(parts_.opened.paths);
  if (parts_.opened.is_model) {
    out.model = opened.front();
  } else {
    out.traces = opened;
  }
  if (parts_.compare.isOpen()) {
    out.compared = absolute_paths(parts_.opened.compared);
  }
  SavedPlans plans = parts_.session.saved();
  out.plans = std::move(plans.states);
  out.titles = std::move(plans.titles);
  out.current = plans.current;
  out.bookmarks = parts_.timeline().scene().bookmarks;
  out.notes = parts_.panels.get<NotesPanel>().edit().toPlainText();
  out.lanes = parts_.timeline().scene().arrangement();
  return out;
}

bool ProjectController::save(const QString& path) {
  parts_.messages.clearError();
  try {
    save_project(contents(), path.toStdString());
  } catch (const Error& error) {
    parts_.messages.setError(QString::fromStdString(error.what()));
    parts_.messages.tell(tr("Save the project"), parts_.messages.lastError());
    return false;
  }
  path_ = path;
  setChanged(false);
  parts_.recent.add({path});
  parts_.pages.setTitle(QFileInfo(path).completeBaseName());
  return true;
}

void ProjectController::save() {
  if (path_.isEmpty()) {
    saveAs();
  } else {
    save(path_);
  }
}

void ProjectController::saveAs(const std::function<void()>& then) {
  auto* dialog = new QFileDialog(&parts_.window, tr("Save the project"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setAcceptMode(QFileDialog::AcceptSave);
  dialog->setNameFilters({tr("Projects (*.shardlens)")});
  dialog->setDefaultSuffix(QStringLiteral("shardlens"));
  connect(dialog, &QFileDialog::fileSelected, this, [this, then](const QString& path) {
    if (save(path) && then) {
      then();
    }
  });
  dialog->open();
}

bool ProjectController::mustAsk() const {
  return changed_ && parts_.hasRun() && !discarding_ && !parts_.messages.unattended();
}

QString ProjectController::unsaved() const {
  QStringList out;
  if (!parts_.panels.get<NotesPanel>().edit().toPlainText().isEmpty()) {
    out.append(tr("your notes"));
  }
  if (const int edits = parts_.session.undoStack().count(); edits > 0) {
    out.append(countText(edits, tr("edit of the plan"), tr("edits of the plan")));
  }
  if (const auto marks = static_cast<qlonglong>(parts_.timeline().scene().bookmarks.size());
      marks > 0) {
    out.append(countText(marks, tr("bookmark"), tr("bookmarks")));
  }
  return out.join(QStringLiteral(", "));
}

void ProjectController::whenSaved(const std::function<void()>& then) {
  if (!mustAsk()) {
    then();
    return;
  }
  const QString what =
      path_.isEmpty() ? tr("Save your work in a project?")
                      : tr("Save the changes of the project %1?").arg(QFileInfo(path_).fileName());
  auto* box = new QMessageBox(QMessageBox::Question, tr("Shardlens"), what,
                              QMessageBox::Save | QMessageBox::Discard | QMessageBox::Cancel,
                              &parts_.window);
  box->setTextFormat(Qt::PlainText);
  const QString lost = path_.isEmpty() ? unsaved() : tr("what was changed since it was saved");
  if (!lost.isEmpty()) {
    box->setInformativeText(tr("Discard loses %1.").arg(lost));
  }
  box->setAttribute(Qt::WA_DeleteOnClose);
  connect(box, &QMessageBox::buttonClicked, this, [this, box, then](QAbstractButton* button) {
    const auto chosen = box->standardButton(button);
    if (chosen == QMessageBox::Discard) {
      // The changes stay marked: what comes instead may be cancelled or fail.
      const QScopedValueRollback guard(discarding_, true);
      then();
    } else if (chosen == QMessageBox::Save && path_.isEmpty()) {
      saveAs(then);
    } else if (chosen == QMessageBox::Save && save(path_)) {
      then();
    }
  });
  box->open();
}

void ProjectController::leaveProject() {
  path_.clear();
  setChanged(changed_ && !parts_.panels.get<NotesPanel>().edit().toPlainText().isEmpty());
}

void ProjectController::expect(const QString& path, Project project) {
  expected_path_ = path;
  pending_ = std::move(project);
}

void ProjectController::forgetExpected() {
  expected_path_.clear();
  pending_.reset();
}

void ProjectController::restore() {
  const std::optional<Project> project = std::exchange(pending_, std::nullopt);
  path_ = std::exchange(expected_path_, {});
  const QString path = path_;
  restoring_ = true;
  parts_.panels.get<NotesPanel>().edit().setPlainText(project ? project->notes : QString());
  if (project) {
    parts_.timeline().scene().bookmarks = project->bookmarks;
    parts_.timeline().viewport()->update();
    if (project->lanes) {
      parts_.timeline().arrange(*project->lanes);
    }
    parts_.session.restore({project->plans, project->titles, project->current});
    parts_.recent.add({path});
    parts_.pages.setTitle(QFileInfo(path).completeBaseName());
    if (!project->compared.empty()) {
      comparison_.open(strings_of(project->compared));
    }
  }
  restoring_ = false;
  setChanged(false);
}

void ProjectController::close() {
  forgetExpected();
  path_.clear();
  setChanged(false);
}

}  // namespace shardlens::gui
