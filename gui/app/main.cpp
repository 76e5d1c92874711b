#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <QApplication>
#include <QCommandLineParser>
#include <QDir>
#include <QDockWidget>
#include <QFileInfo>
#include <QIcon>
#include <QRegularExpression>
#include <QSettings>
#include <QStandardPaths>
#include <QTemporaryDir>
#include <QTimer>

#include "core/base/error.h"
#include "gui/model/base/qt_messages.h"
#include "gui/model/base/wait.h"
#include "gui/model/plan/window_json.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/headline_strip.h"
#include "gui/view/window/main_window.h"
#include "gui/view/window/selftest.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::gui {
namespace {

constexpr std::chrono::minutes kLongest{30};  // time limit of an unattended run
int warnings = 0;

void count_warnings(QtMsgType type, const QMessageLogContext& /*context*/, const QString& message) {
  if (is_platform_notice(message)) {
    return;
  }
  warnings += type != QtDebugMsg && type != QtInfoMsg ? 1 : 0;
  std::fprintf(stderr, "shardlens-gui: %s\n", qPrintable(message));
}

struct Options {
  QStringList paths;
  QStringList plans;
  QStringList compare;
  QStringList hardware;
  QString png, select, theme, panel, dialog, model;
  std::optional<analysis::Interval> range;
  std::optional<int64_t> step;
  QSize size{1280, 800};
  bool selftest = false, simulate = false, figures = false;
  [[nodiscard]] bool alone() const { return selftest || figures || !png.isEmpty(); }
};

// "12ms", "3.5us", "1s"; without a unit, milliseconds.
std::optional<Nanoseconds> parse_time(const QString& text) {
  static const QRegularExpression kForm(QStringLiteral("^([0-9]+(?:\\.[0-9]+)?)(ns|us|ms|s|)$"));
  const auto match = kForm.match(text.trimmed());
  if (!match.hasMatch()) {
    return std::nullopt;
  }
  const QString unit = match.captured(2);
  const double scale = unit == QStringLiteral("ns")   ? 1
                       : unit == QStringLiteral("us") ? 1e3
                       : unit == QStringLiteral("s")  ? 1e9
                                                      : 1e6;
  return static_cast<Nanoseconds>(match.captured(1).toDouble() * scale);
}

analysis::Interval parse_range(const QString& text) {
  const QStringList ends = text.split(QStringLiteral(".."));
  const auto from = parse_time(ends.value(0)), to = parse_time(ends.value(1));
  if (ends.size() != 2 || !from || !to || *from >= *to) {
    throw UsageError("--range '" + text.toStdString() +
                     "': expected two times, such as 12ms..18.5ms");
  }
  return {*from, *to};
}

QSize parse_size(const QString& text) {
  static const QRegularExpression kForm(QStringLiteral("^([0-9]{3,5})x([0-9]{3,5})$"));
  const auto match = kForm.match(text);
  if (!match.hasMatch()) {
    throw UsageError("--size '" + text.toStdString() +
                     "': expected WIDTHxHEIGHT, such as 1920x1080");
  }
  return {match.captured(1).toInt(), match.captured(2).toInt()};
}

Options parse(QCommandLineParser& parser, const QStringList& arguments, QString& config) {
  const auto option = [&parser](const char* name, const char* help, const char* value = "") {
    parser.addOption({QString::fromUtf8(name), QString::fromUtf8(help), QString::fromUtf8(value)});
  };
  parser.addPositionalArgument(QStringLiteral("PATH"),
                               QStringLiteral("traces, or a capture directory"),
                               QStringLiteral("[PATH…]"));
  option("select", "select this unit", "UNIT");
  option("step", "select this step", "N");
  option("model", "a model's config.json; its plan is simulated and shown instead of a run",
         "FILE");
  option(
      "hardware",
      "simulate each plan on this spec (a name or a file); may be repeated; required with --model",
      "SPEC");
  option("plan", "simulate this plan file too; may be repeated", "FILE");
  option("simulate", "show the run's own plan, simulated, below the run");
  option(
      "compare",
      "a run to compare with, or a directory of several runs; may be repeated for the run's traces",
      "PATH");
  option("range", "select this range of time, such as 12ms..18ms", "FROM..TO");
  option("panel",
         "bring this panel to the front: modules, ownership, inspector, exposed, order, what-if, "
         "compare, events, diagnostics or notes",
         "NAME");
  option("dialog", "open this dialog: capture, palette or shortcuts", "NAME");
  option("theme", "light or dark", "THEME");
  option("size", "size of the window [1280x800]", "WxH");
  option("export-png", "write a picture of the window and exit", "FILE");
  option("figures",
         "print the window's figures of the run and of each simulated plan as JSON, and exit");
  option("selftest", "check the window with the run (or the sample run) and exit");
  option("config-dir", "directory of the settings file", "DIR");
  parser.addHelpOption();
  if (!parser.parse(arguments)) {
    throw UsageError(parser.errorText().toStdString());
  }
  Options out;
  out.paths = parser.positionalArguments();
  out.png = parser.value(QStringLiteral("export-png"));
  out.select = parser.value(QStringLiteral("select"));
  out.model = parser.value(QStringLiteral("model"));
  out.compare = parser.values(QStringLiteral("compare"));
  out.plans = parser.values(QStringLiteral("plan"));
  out.panel = parser.value(QStringLiteral("panel"));
  out.dialog = parser.value(QStringLiteral("dialog"));
  out.theme = parser.value(QStringLiteral("theme"));
  out.selftest = parser.isSet(QStringLiteral("selftest"));
  out.simulate = parser.isSet(QStringLiteral("simulate"));
  out.figures = parser.isSet(QStringLiteral("figures"));
  out.hardware = parser.values(QStringLiteral("hardware"));
  config = parser.value(QStringLiteral("config-dir"));
  if (!out.theme.isEmpty() && out.theme != QStringLiteral("light") &&
      out.theme != QStringLiteral("dark")) {
    throw UsageError("--theme: expected light or dark, found '" + out.theme.toStdString() + "'");
  }
  if (parser.isSet(QStringLiteral("range"))) {
    out.range = parse_range(parser.value(QStringLiteral("range")));
  }
  if (parser.isSet(QStringLiteral("size"))) {
    out.size = parse_size(parser.value(QStringLiteral("size")));
  }
  if (parser.isSet(QStringLiteral("step"))) {
    bool ok = false;
    out.step = parser.value(QStringLiteral("step")).toLongLong(&ok);
    if (!ok) {
      throw UsageError("--step: expected a number");
    }
  }
  if (!out.png.isEmpty() && !out.png.endsWith(QStringLiteral(".png"), Qt::CaseInsensitive)) {
    throw UsageError("--export-png: expected a name that ends in .png");
  }
  return out;
}

// Brings a panel to the front by its title or its id: "What if", what-if, whatif.
void raise(const QString& name, MainWindow& window) {
  const auto plain = [](QString text) {
    return text.remove(QRegularExpression(QStringLiteral("[^A-Za-z]"))).toLower();
  };
  QStringList known;
  for (const Panels::Panel& panel : window.panels().all()) {
    const QString title = panel.dock->windowTitle();
    if (name.isEmpty() || plain(title) == plain(name) ||
        plain(panel.dock->objectName()) == plain(name)) {
      if (!name.isEmpty()) {
        window.actions().trigger(QStringLiteral("panel.") + panel.dock->objectName());
      }
      return;
    }
    known.append(title);
  }
  throw UsageError("--panel: no panel '" + name.toStdString() +
                   "'; expected one of: " + known.join(QStringLiteral(", ")).toStdString());
}

// --plan, --hardware and --simulate: simulated one after the other, so that each becomes a version.
void simulate(const Options& options, MainWindow& window) {
  PlanSession& session = window.session();
  const auto simulated = [&session] {
    session.simulateNow();
    wait_until([&session] { return !session.isBusy(); }, kLongest);
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

// --step, --select, --range and --panel, once the run is loaded.
void apply(const Options& options, MainWindow& window) {
  SelectionContext& context = window.context();
  const RankData* rank = context.rank();
  if (rank == nullptr) {
    return;
  }
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
    const std::string unit =
        options.select == QStringLiteral("(root)") ? "" : options.select.toStdString();
    if (!window.panels().tree.indexOf(unit).isValid()) {
      throw InputError("--select",
                       "no unit '" + unit + "' in the run; the panel Modules lists its units");
    }
    context.selectUnit(unit);
  }
  if (options.range || options.step) {
    window.timeline().fitSelection();
  }
  simulate(options, window);
  if (!options.compare.isEmpty()) {
    window.compareWith(options.compare);
    wait_until([&window] { return !window.compare().isBusy(); }, kLongest);
    if (!window.lastError().isEmpty()) {
      throw InputError("", window.lastError().toStdString());
    }
  }
  raise(options.panel, window);
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

// Runs the pending layouts, paints and timers of an unattended window.
void settle(MainWindow& window) {
  QApplication::processEvents();
  window.panels().flush();
  for (int i = 0; i < 5; ++i) {
    QApplication::processEvents(QEventLoop::AllEvents, 50);
  }
}

ExitCode work_alone(const Options& options, MainWindow& window) {
  if (window.context().run() == nullptr && !window.lastError().isEmpty()) {
    throw InputError("", window.lastError().toStdString());
  }
  apply(options, window);
  open_dialog(options.dialog, window);
  settle(window);
  if (options.selftest) {
    const QStringList failures = selftest(window);
    for (const QString& failure : failures) {
      std::fprintf(stderr, "shardlens-gui: selftest: %s\n", qPrintable(failure));
    }
    if (warnings > 0) {
      std::fprintf(stderr, "shardlens-gui: selftest: Qt warned %d times\n", warnings);
    }
    std::printf("selftest: %zu commands, %s\n", window.actions().commands().size(),
                failures.isEmpty() && warnings == 0 ? "all checks passed" : "failed");
    return failures.isEmpty() && warnings == 0 ? ExitCode::kOk : ExitCode::kCheckFailed;
  }
  if (options.figures) {
    std::printf("%s", figures_json(window.context().rank(), window.session()).c_str());
  }
  if (!options.png.isEmpty() && !window.exportTo(options.png)) {
    throw RuntimeFault(window.lastError().toStdString());
  }
  return ExitCode::kOk;
}

int show(const Options& options, QSettings& settings) {
  MainWindow window(settings);
  if (options.alone()) {
    window.setUnattended();
  }
  if (!options.theme.isEmpty()) {
    window.setDark(options.theme == QStringLiteral("dark"));
  }
  if (options.alone() || !settings.contains(QStringLiteral("geometry"))) {
    window.resize(options.size);
  }
  window.show();
  QStringList paths = options.paths;
  if (paths.isEmpty() && options.model.isEmpty() && options.selftest) {
    paths.append(window.sampleRun());
  }
  const auto guarded = [&](auto&& run) {
    try {
      return static_cast<int>(run());
    } catch (const Error& error) {
      std::fprintf(stderr, "shardlens-gui: %s\n", error.what());
      return static_cast<int>(error.code());
    }
  };
  if (options.alone()) {
    QTimer::singleShot(kLongest, qApp, [] {
      std::fprintf(stderr, "shardlens-gui: stopped after the time limit of %d minutes\n",
                   static_cast<int>(kLongest.count()));
      QApplication::exit(static_cast<int>(ExitCode::kRuntime));
    });
  }
  const auto ready = [&] {
    if (options.alone()) {
      QApplication::exit(guarded([&] { return work_alone(options, window); }));
    } else {
      guarded([&] {
        apply(options, window);
        open_dialog(options.dialog, window);
        return ExitCode::kOk;
      });
    }
  };
  QObject::connect(
      &window, &MainWindow::settled, &window, [&] { QTimer::singleShot(0, &window, ready); },
      Qt::SingleShotConnection);
  if (!options.model.isEmpty()) {
    window.openModel(options.model, options.hardware.value(0));
  } else if (!paths.isEmpty()) {
    window.open(paths);
  } else if (options.alone() || !options.dialog.isEmpty()) {
    QTimer::singleShot(0, &window, ready);
  }
  return QApplication::exec();
}

}  // namespace
}  // namespace shardlens::gui

int main(int argc, char** argv) {
  using namespace shardlens;
  // Without a display Qt would end the process, so print what to do instead.
  const bool headless = qEnvironmentVariableIsEmpty("DISPLAY") &&
                        qEnvironmentVariableIsEmpty("WAYLAND_DISPLAY") &&
                        qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM");
  bool alone = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    alone = alone || argument.starts_with("--export-png") || argument == "--selftest" ||
            argument == "--figures" || argument == "--help" || argument == "-h";
  }
  if (headless && !alone) {
    std::fprintf(
        stderr,
        "shardlens-gui: no display (DISPLAY and WAYLAND_DISPLAY are not set); "
        "--export-png FILE, --figures and --selftest need no display, and `shardlens report` "
        "writes a page for a browser\n");
    return static_cast<int>(ExitCode::kRuntime);
  }
  if (headless) {
    qputenv("QT_QPA_PLATFORM", "offscreen");
  }
  qInstallMessageHandler(gui::count_warnings);
  QApplication app(argc, argv);
  QApplication::setApplicationName(QStringLiteral("shardlens-gui"));
  QApplication::setOrganizationName(QStringLiteral("shardlens"));
  QApplication::setApplicationVersion(QStringLiteral(SHARDLENS_VERSION));
  QApplication::setWindowIcon(QIcon(QStringLiteral(":/shardlens.svg")));
  try {
    QCommandLineParser parser;
    QString config;
    const gui::Options options = gui::parse(parser, QApplication::arguments(), config);
    if (parser.isSet(QStringLiteral("help"))) {
      std::printf("%s", qPrintable(parser.helpText()));
      return 0;
    }
    // Unattended runs do not change the user's settings.
    const QTemporaryDir scratch;
    if (config.isEmpty()) {
      config = options.alone()
                   ? scratch.path()
                   : QStandardPaths::writableLocation(QStandardPaths::AppConfigLocation);
    }
    QSettings settings(config + QStringLiteral("/shardlens-gui.ini"), QSettings::IniFormat);
    return gui::show(options, settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "shardlens-gui: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
