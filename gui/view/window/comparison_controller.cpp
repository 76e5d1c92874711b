#include "gui/view/window/comparison_controller.h"

#include <filesystem>
#include <utility>
#include <vector>

#include <QDir>
#include <QFileDialog>
#include <QFileInfo>

namespace shardlens::gui {

ComparisonController::ComparisonController(const WindowParts& parts,
                                           Bookmarks& bookmarks,
                                           StatusLine& status)
    : parts_(parts), bookmarks_(bookmarks), status_(status) {
  connect(&parts_.compare, &CompareSession::changed, this, &ComparisonController::showChange);
  connect(&parts_.compare, &CompareSession::progress, &status_, &StatusLine::showProgress);
  connect(&parts_.compare, &CompareSession::failed, this, &ComparisonController::fail);
}

void ComparisonController::addCommands() {
  const QString menu = tr("&Compare");
  const QString no_comparison = tr("Compare with another run first");
  parts_.actions.add({QStringLiteral("compare.open"),
                      menu,
                      tr("Compare with another run …"),
                      {QStringLiteral("Ctrl+D")},
                      [this] { choose(); },
                      [this] { return parts_.hasRun(); },
                      tr("Open a run first")});
  parts_.actions.add({QStringLiteral("compare.swap"),
                      menu,
                      tr("Swap A and B"),
                      {},
                      [this] { emit swapRequested(); },
                      [this] { return parts_.compare.isOpen(); },
                      no_comparison});
  parts_.actions.add({QStringLiteral("compare.close"),
                      menu,
                      tr("End the comparison"),
                      {},
                      [this] { close(); },
                      [this] { return parts_.compare.isOpen() || parts_.compare.isBusy(); },
                      no_comparison});
}

void ComparisonController::open(const QStringList& paths) {
  if (!parts_.hasRun() || paths.isEmpty()) {
    return;
  }
  parts_.messages.clearError();
  parts_.opened.compared = paths;
  parts_.compare.start(parts_.context.run(), paths_of(paths),
                       parts_.opened.is_model ? std::vector<std::filesystem::path>()
                                              : paths_of(parts_.opened.paths));
}

void ComparisonController::open(const PlanRun& run) {
  if (!parts_.hasRun()) {
    return;
  }
  parts_.messages.clearError();
  parts_.opened.compared = {run.directory};
  behind_ = true;  // a user who waits for the run sees what was predicted and measured
  if (parts_.opened.is_model && run.prediction != nullptr &&
      run.prediction != parts_.context.run()) {
    parts_.pages.showRun(run.prediction, tr("%1, predicted").arg(run.version));
  }
  parts_.compare.start(parts_.context.run(), run.run);
}

void ComparisonController::showChange() {
  status_.endProgress();
  const bool behind = std::exchange(behind_, false);
  if (parts_.compare.isOpen()) {
    if (!behind) {
      parts_.panels.raise(QStringLiteral("compare"));
    }
    emit settled();
  }
}

void ComparisonController::fail(const QString& message) {
  parts_.messages.setError(message);
  status_.endProgress();
  parts_.messages.tell(tr("Compare"), message);
  emit settled();
}

void ComparisonController::swap() {
  if (!parts_.compare.isOpen()) {
    return;
  }
  const RunPointer b = parts_.compare.b();
  parts_.opened.paths.swap(parts_.opened.compared);
  parts_.pages.showRun(b, OpenedRun::label(parts_.opened.paths));
  bookmarks_.restore();
  parts_.session.start(b, paths_of(parts_.opened.paths));
  parts_.compare.swap();
}

void ComparisonController::close() {
  parts_.opened.compared.clear();
  parts_.compare.close();
}

void ComparisonController::choose() {
  auto* dialog = new QFileDialog(&parts_.window, tr("Compare with another run"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::Directory);
  // Runs that are compared are often next to each other.
  const QFileInfo open(parts_.opened.paths.value(0));
  const QDir beside = open.isDir() ? QDir(open.filePath() + QStringLiteral("/..")) : open.dir();
  dialog->setDirectory(QDir::cleanPath(beside.absolutePath()));
  connect(dialog, &QFileDialog::filesSelected, this,
          qOverload<const QStringList&>(&ComparisonController::open));
  dialog->open();
}

}  // namespace shardlens::gui
