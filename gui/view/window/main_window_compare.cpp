#include <QDir>
#include <QFileDialog>
#include <QFileInfo>
#include <QStackedWidget>
#include <QStatusBar>

#include "gui/model/base/time_axis.h"
#include "gui/view/panels/compare_panel.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/start_page.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {
namespace {

QString label_of(const QStringList& paths) {
  const QString name = paths.isEmpty() ? QString() : QFileInfo(paths.front()).fileName();
  return name.isEmpty() ? paths.value(0) : name;
}

std::optional<size_t> index_of_rank(const RunData& run, int64_t rank) {
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    if (run.ranks[i]->figures.rank == rank) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

void MainWindow::addCompareCommands() {
  const QString menu = tr("&Compare");
  const auto has_run = [this] { return context_.run() != nullptr; };
  const auto compares = [this] { return compare_.isOpen(); };
  actions_.add({QStringLiteral("compare.open"),
                menu,
                tr("Compare with another run …"),
                {QStringLiteral("Ctrl+D")},
                [this] { chooseOther(); },
                has_run,
                tr("Open a run first")});
  actions_.add({QStringLiteral("compare.swap"),
                menu,
                tr("Swap A and B"),
                {},
                [this] { swapRuns(); },
                compares,
                tr("Compare with another run first")});
  actions_.add({QStringLiteral("compare.close"),
                menu,
                tr("End the comparison"),
                {},
                [this] {
                  comparing_.clear();
                  compare_.close();
                },
                [this] { return compare_.isOpen() || compare_.isBusy(); },
                tr("Compare with another run first")});
  connect(&compare_, &CompareSession::changed, this, &MainWindow::compareChanged);
  connect(&compare_, &CompareSession::progress, this, [this](int percent, const QString& what) {
    statusBar()->showMessage(percent < 0 ? what : tr("%1, %2 %").arg(what).arg(percent));
  });
  connect(&compare_, &CompareSession::failed, this, [this](const QString& message) {
    error_ = message;
    statusBar()->clearMessage();
    tell(tr("Compare"), message);
    emit settled();
  });
  connect(&panels_->compare(), &ComparePanel::openRequested, this,
          [this] { actions_.trigger(QStringLiteral("compare.open")); });
}

void MainWindow::compareWith(const QStringList& paths) {
  if (context_.run() == nullptr || paths.isEmpty()) {
    return;
  }
  error_.clear();
  comparing_ = paths;
  compare_.start(context_.run(), paths_of(paths),
                 planned_model_ ? std::vector<std::filesystem::path>() : paths_of(opening_));
}

void MainWindow::compareChanged() {
  statusBar()->clearMessage();
  updateGhost();
  if (compare_.isOpen()) {
    panels_->raise(QStringLiteral("compare"));
    emit settled();
  }
}

void MainWindow::swapRuns() {
  const RunPointer a = compare_.a(), b = compare_.b();
  const QStringList paths_a = opening_;
  opening_ = comparing_;
  comparing_ = paths_a;
  showRun(b, label_of(opening_));
  restoreBookmarks();
  session_.start(b, paths_of(opening_));
  compare_.swap();
}

void MainWindow::chooseOther() {
  auto* dialog = new QFileDialog(this, tr("Compare with another run"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::Directory);
  connect(dialog, &QFileDialog::filesSelected, this, &MainWindow::compareWith);
  dialog->open();
}

// B's rank below the selected one, shifted so that its step with the same number starts where A's
// step starts.
Ghost MainWindow::comparedGhost() const {
  const RankData& a = *context_.rank();
  const RunData& b = *compare_.b();
  const auto own = index_of_rank(b, a.figures.rank);
  if (!own) {
    return {};
  }
  Ghost ghost{compare_.b(), *own, context_.current().rank, 0, tr("B"), {}};
  const std::vector<analysis::StepAnalysis>& steps = a.figures.steps;
  const std::vector<analysis::StepAnalysis>& others = ghost.data().figures.steps;
  const size_t step = context_.current().step.value_or(0);
  if (step < steps.size() && !others.empty()) {
    size_t other = std::min(step, others.size() - 1);
    for (size_t i = 0; i < others.size(); ++i) {
      other = others[i].step == steps[step].step ? i : other;
    }
    ghost.start = context_.run()->shown(a, steps[step].window).start -
                  b.shown(ghost.data(), others[other].window).start;
    ghost.note = tr("%1: its step %2 (%3) and A's step %4 (%5)")
                     .arg(label_of(comparing_))
                     .arg(others[other].step)
                     .arg(durationText(others[other].window.length()))
                     .arg(steps[step].step)
                     .arg(durationText(steps[step].window.length()));
  } else {
    ghost.note = label_of(comparing_);
  }
  return ghost;
}

// The simulated step below the measured run, starting where the selected (else the first) step
// starts.
Ghost MainWindow::simulatedGhost() const {
  const RankData& rank = *context_.rank();
  const PlanVersion* version = session_.current();
  const std::vector<analysis::StepAnalysis>& steps = rank.figures.steps;
  const size_t step = context_.current().step.value_or(0);
  const Nanoseconds start =
      step < steps.size() ? context_.run()->shown(rank, steps[step].window).start : 0;
  return {version->run,
          0,
          context_.current().rank,
          start,
          tr("simulated"),
          tr("one step of the %1 plan, %2, starting with the measured step; simulator error: %3")
              .arg(version == &session_.versions().front() ? tr("run's own") : tr("edited"),
                   durationText(version->step()), baselineText(version->prediction.baseline))};
}

void MainWindow::updateGhost() {
  const PlanVersion* version = session_.current();
  if (context_.run() == nullptr && version != nullptr) {
    // The plan was made for a model: its simulation is shown as the run.
    start_->endProgress();
    if (version->run == nullptr) {
      fail(version->error);
      return;
    }
    showRun(version->run,
            tr("%1, simulated").arg(QFileInfo(opening_.front()).absoluteDir().dirName()));
    restoreProject();
    emit settled();
    return;
  }
  const bool simulates = session_.isOpen() && (own_ghost_ || session_.undoStack().count() > 0);
  const bool compares = compare_.isOpen() && context_.run() == compare_.a();
  if (context_.rank() == nullptr || !ghosts_ || (!compares && !simulates)) {
    if (timeline_->scene().ghost().run != nullptr) {
      timeline_->setGhost({});
    }
  } else if (compares) {
    timeline_->setGhost(comparedGhost());
  } else if (version != nullptr) {  // nullptr: the last version stays until the next is simulated
    timeline_->setGhost(version->run == nullptr ? Ghost{} : simulatedGhost());
  }
}

}  // namespace shardlens::gui
