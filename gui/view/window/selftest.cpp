#include "gui/view/window/selftest.h"

#include <QApplication>
#include <QDir>
#include <QFileInfo>
#include <QTemporaryDir>

#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {
namespace {

// Commands that wait for the user or end the program.
bool asks(const QString& id) {
  return id.startsWith(QStringLiteral("file.")) || id.startsWith(QStringLiteral("help.")) ||
         id == QStringLiteral("go.palette") || id == QStringLiteral("plan.save") ||
         id == QStringLiteral("plan.apply") || id == QStringLiteral("go.note");
}

Nanoseconds exposed_of_top_rows(const UnitTree& tree) {
  Nanoseconds sum = 0;
  for (int row = 0; row < tree.rowCount(); ++row) {
    sum += tree.exposedAt(tree.index(row, 0));
  }
  return sum;
}

}  // namespace

QStringList selftest(MainWindow& window) {
  QStringList failures;
  const auto expect = [&failures](bool holds, const QString& what) {
    if (!holds) {
      failures.append(what);
    }
  };
  SelectionContext& context = window.context();
  const RankData* rank = context.rank();
  if (rank == nullptr) {
    return {QStringLiteral("no run is open")};
  }
  const auto check_sums = [&](const QString& where) {
    window.panels().flush();
    const analysis::WindowFigures figures = rank->partition.figures(context.window());
    expect(figures.compute + figures.exposed_comm + figures.exposed_copy + figures.idle ==
               figures.duration(),
           where + QStringLiteral(": the headline's parts do not sum to its total"));
    expect(window.panels().model<ExposedTable>().total() == figures.exposed_comm,
           where + QStringLiteral(": the exposed list does not sum to the headline"));
    expect(exposed_of_top_rows(window.panels().model<UnitTree>()) == figures.exposed_comm,
           where + QStringLiteral(": the tree's top rows do not sum to the headline"));
  };
  check_sums(QStringLiteral("all steps"));
  for (size_t step = 0; step < rank->figures.steps.size() && step < 3; ++step) {
    context.selectStep(step);
    check_sums(QStringLiteral("step %1").arg(rank->figures.steps[step].step));
  }
  context.selectStep(std::nullopt);
  for (const Command& command : window.actions().commands()) {
    if (!asks(command.id)) {
      window.actions().trigger(command.id);
      QApplication::processEvents();
    }
  }
  window.actions().trigger(QStringLiteral("view.reset"));
  const QTemporaryDir folder;
  for (const char* name : {"/window.png", "/timeline.svg", "/table.csv"}) {
    const QString path = folder.path() + QString::fromUtf8(name);
    expect(window.exportTo(path) && QFileInfo(path).size() > 0,
           QStringLiteral("%1 was not written").arg(path));
  }
  return failures;
}

}  // namespace shardlens::gui
