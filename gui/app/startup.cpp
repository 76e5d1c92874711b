#include "gui/app/startup.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <QApplication>
#include <QComboBox>
#include <QDir>
#include <QFileInfo>

#include "core/base/standard_output.h"
#include "gui/app/view_texts.h"
#include "gui/model/base/wait.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/model/what_if/run_script.h"
#include "gui/model/what_if/window_json.h"
#include "gui/view/panels/panel.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/selftest.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::gui {
namespace {

// Brings a panel to the front by its title or its id: "What if", what-if, whatif.
void raise(const QString& name, MainWindow& window) {
  if (name.isEmpty()) {
    return;
  }
  const PanelRow* row = find_panel(name);
  if (row == nullptr) {
    QStringList known;
    for (const PanelRow& each : panel_table()) {
      known.append(title_of(each));
    }
    throw UsageError("--panel: no panel '" + name.toStdString() +
                     "'; expected one of: " + known.join(QStringLiteral(", ")).toStdString());
  }
  window.actions().trigger(QStringLiteral("panel.") + QLatin1String(row->id));
}

// Chooses the entry of one of the panel's lists, as a click on it does.
void choose(const QString& entry, const QString& panel, MainWindow& window) {
  if (entry.isEmpty()) {
    return;
  }
  constexpr qsizetype kMostKnown = 20;
  QStringList known;
  const Panel& of = *window.panels().find(QLatin1String(find_panel(panel)->id)).panel;
  for (QComboBox* list : of.findChildren<QComboBox*>()) {
    if (const int at = list->findText(entry, Qt::MatchFixedString); at >= 0) {
      list->setCurrentIndex(at);
      emit list->activated(at);
      return;
    }
    for (int at = 0; at < list->count() && known.size() < kMostKnown; ++at) {
      known.append(u'\'' + list->itemText(at) + u'\'');
    }
  }
  throw UsageError("--choose: no list of the panel '" + panel.toStdString() + "' has '" +
                   entry.toStdString() + "'; " +
                   (known.isEmpty()
                        ? std::string("it has no list")
                        : "expected one of: " + known.join(QStringLiteral(", ")).toStdString()));
}

// Simulates --plan, --hardware and --simulate one after the other, so that each becomes a version.
void simulate(const ProgramOptions& options, MainWindow& window) {
  PlanSession& session = window.session();
  const auto simulated = [&session] {
    session.simulateNow();
    wait_until([&session] { return !session.isBusy(); }, kLongestRun);
  };
  simulated();
  if (!session.isOpen() &&
      (options.simulate || !options.plans.isEmpty() || !options.hardware.isEmpty())) {
    throw InputError("", session.why().toStdString());
  }
  const PlanState own = session.state();
  const auto on_each = [&](const QString& plan) {
    for (const QString& name : options.hardware) {
      PlanState next = session.state();
      next.machine = name;
      next.world_size =
          options.model.isEmpty() ? own.world_size : sim::load_hardware(name.toStdString()).ranks();
      session.edit(plan.isEmpty() ? QObject::tr("on %1").arg(machineText(name))
                                  : QObject::tr("%1 on %2").arg(plan, machineText(name)),
                   next);
      simulated();
    }
  };
  on_each({});
  for (const QString& plan : options.plans) {
    PlanState first = session.state();
    first.machine = own.machine;
    first.world_size = own.world_size;
    first.plan = plan::load_plan(plan.toStdString());
    session.edit(QFileInfo(plan).fileName(), first);
    simulated();
    on_each(QFileInfo(plan).fileName());
  }
  if (options.simulate && !window.actions().trigger(QStringLiteral("plan.simulate"))) {
    throw InputError("--simulate", session.why().toStdString());
  }
}

// Runs for --run the version that was simulated last, measures it, and opens it as B.
void run_plan(const ProgramOptions& options, MainWindow& window) {
  PlanRuns& runs = window.runs();
  if (!runs.why().isEmpty()) {
    throw InputError("--run", runs.why().toStdString());
  }
  CaptureOptions chosen = runs.options();
  chosen.more << QStringLiteral("--warmup") << QStringLiteral("2");
  chosen.out = free_directory(QDir(options.run).filePath(directory_name(runs.version())));
  runs.start(QDir(chosen.out).dirName(), chosen);
  wait_until([&] { return !runs.isBusy() && !window.compare().isBusy(); }, kLongestRun);
  if (const PlanRun& run = runs.list().back(); run.stage != PlanRun::Stage::kMeasured) {
    throw RuntimeFault("--run: " + run.message.toStdString());
  }
}

// Applies --step, --select and --range.
void select(const ProgramOptions& options, MainWindow& window) {
  SelectionContext& context = window.context();
  const RankData* rank = context.rank();
  if (options.step) {
    size_t found = 0;
    while (found < rank->figures.steps.size() && rank->figures.steps[found].step != *options.step) {
      ++found;
    }
    if (found == rank->figures.steps.size()) {
      throw InputError("--step", "no step " + std::to_string(*options.step) + " in the run");
    }
    context.selectStep(found);
  }
  if (options.range) {
    context.selectRange(options.range);
  }
  if (!options.select.isEmpty()) {
    const std::string name =
        options.select == QStringLiteral("(root)") ? "" : options.select.toStdString();
    const UnitTree& tree = window.panels().model<UnitTree>();
    const std::optional<std::string> unit =
        tree.indexOf(name).isValid() ? name : tree.unitOfModule(name);
    if (!unit) {
      throw InputError("--select", "no unit or module '" + name +
                                       "' in the run; the panel Modules lists its modules");
    }
    context.selectUnit(unit);
  }
  if (options.range || options.step) {
    window.timeline().fitSelection();
  }
}

// Runs the pending layouts, paints and timers of an unattended window.
void settle(MainWindow& window) {
  QApplication::processEvents();
  const auto rests = [&window] {
    return !window.proposals().isBusy() && !window.panels().isBusy();
  };
  wait_until(rests, kLongestRun);
  window.panels().flush();
  for (int i = 0; i < 5; ++i) {
    QApplication::processEvents(QEventLoop::AllEvents, 50);
  }
}

// Runs the self-test and prints what failed.
ExitCode run_selftest(MainWindow& window, const std::function<int()>& warnings) {
  const QStringList failures = selftest(window);
  for (const QString& failure : failures) {
    write_stderr("shardlens-gui: selftest: {}\n", failure.toStdString());
  }
  const int warned = warnings();
  if (warned > 0) {
    write_stderr("shardlens-gui: selftest: Qt warned {} times\n", warned);
  }
  write_stdout("selftest: {} commands, {}\n", window.actions().commands().size(),
               failures.isEmpty() && warned == 0 ? "all checks passed" : "failed");
  return failures.isEmpty() && warned == 0 ? ExitCode::kOk : ExitCode::kCheckFailed;
}

}  // namespace

void apply_options(const ProgramOptions& options, MainWindow& window) {
  if (window.context().rank() == nullptr) {
    return;
  }
  select(options, window);
  simulate(options, window);
  if (!options.run.isEmpty()) {
    run_plan(options, window);
  }
  if (!options.compare.isEmpty()) {
    window.compareWith(options.compare);
    wait_until([&window] { return !window.compare().isBusy(); }, kLongestRun);
    if (!window.lastError().isEmpty()) {
      throw InputError("", window.lastError().toStdString());
    }
  }
  raise(options.panel, window);
  if (options.find_best) {
    wait_until([&window] { return !window.proposals().isBusy(); }, kLongestRun);
    if (!window.actions().trigger(QStringLiteral("plan.search"))) {
      throw InputError("--find-best", window.session().why().toStdString());
    }
    raise(options.panel, window);  // instead of Advice
    wait_until([&window] { return !window.proposals().isBusy(); }, kLongestRun);
  }
  choose(options.choose, options.panel, window);
  window.setUnchanged();  // versions of the command line are made again by it
}

void open_dialog(const QString& name, MainWindow& window) {
  for (const auto& [known, command] :
       {std::pair("capture", "file.capture"), std::pair("palette", "go.palette"),
        std::pair("shortcuts", "help.shortcuts")}) {
    if (name == QLatin1String(known)) {
      window.actions().trigger(QLatin1String(command));
      return;
    }
  }
  if (!name.isEmpty()) {
    throw UsageError("--dialog: expected capture, palette or shortcuts, found '" +
                     name.toStdString() + "'");
  }
}

ExitCode run_unattended(const ProgramOptions& options,
                        MainWindow& window,
                        const std::function<int()>& warnings) {
  if (window.context().run() == nullptr && !window.lastError().isEmpty()) {
    throw InputError("", window.lastError().toStdString());
  }
  apply_options(options, window);
  open_dialog(options.dialog, window);
  settle(window);
  if (options.selftest) {
    return run_selftest(window, warnings);
  }
  if (options.figures) {
    write_data(figures_json(window.context().rank(), window.session(), view_texts(window)));
  }
  if (!options.png.isEmpty() && !window.exportTo(options.png)) {
    throw RuntimeFault(window.lastError().toStdString());
  }
  return ExitCode::kOk;
}

}  // namespace shardlens::gui
