#include <string>

#include <QApplication>
#include <QIcon>
#include <QSettings>
#include <QStandardPaths>
#include <QTemporaryDir>
#include <QTimer>

#include "core/base/error.h"
#include "core/base/heap.h"
#include "core/base/standard_output.h"
#include "gui/app/program_options.h"
#include "gui/app/startup.h"
#include "gui/model/base/qt_messages.h"
#include "gui/view/window/main_window.h"

namespace shardlens::gui {
namespace {

int qt_warnings = 0;

void count_warnings(QtMsgType type, const QMessageLogContext& /*context*/, const QString& message) {
  if (is_platform_notice(message)) {
    return;
  }
  qt_warnings += type != QtDebugMsg && type != QtInfoMsg ? 1 : 0;
  write_stderr("shardlens-gui: {}\n", message.toStdString());
}

// Runs `work`; an error is printed, and its exit code returned.
template <typename Work>
int guarded(const Work& work) {
  try {
    return static_cast<int>(work());
  } catch (const Error& error) {
    write_stderr("shardlens-gui: {}\n", error.shown());
    return static_cast<int>(error.code());
  }
}

void prepare(const ProgramOptions& options, const QSettings& settings, MainWindow& window) {
  if (options.unattended()) {
    window.setUnattended();
  }
  if (!options.theme.isEmpty()) {
    window.setDark(options.theme == QStringLiteral("dark"));
  }
  if (options.unattended() || !settings.contains(QStringLiteral("geometry"))) {
    window.resize(options.size);
  }
  window.show();
}

int show(const ProgramOptions& options, QSettings& settings) {
  MainWindow window(settings);
  prepare(options, settings, window);
  QStringList paths = options.paths;
  if (paths.isEmpty() && options.model.isEmpty() && options.selftest) {
    paths.append(window.sampleRun());
  }
  if (options.unattended()) {
    QTimer::singleShot(kLongestRun, qApp, [] {
      write_stderr("shardlens-gui: stopped after the time limit of {} minutes\n",
                   static_cast<int>(kLongestRun.count()));
      QApplication::exit(static_cast<int>(ExitCode::kRuntime));
    });
  }
  const auto ready = [&] {
    if (options.unattended()) {
      QApplication::exit(
          guarded([&] { return run_unattended(options, window, [] { return qt_warnings; }); }));
    } else {
      guarded([&] {
        apply_options(options, window);
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
  } else if (options.unattended() || !options.dialog.isEmpty()) {
    QTimer::singleShot(0, &window, ready);
  }
  return QApplication::exec();
}

}  // namespace
}  // namespace shardlens::gui

int main(int argc, char** argv) {
  using namespace shardlens;
  give_back_freed_memory();
  // Without a display Qt would end the process, so print what to do instead.
  const bool headless = qEnvironmentVariableIsEmpty("DISPLAY") &&
                        qEnvironmentVariableIsEmpty("WAYLAND_DISPLAY") &&
                        qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM");
  bool unattended = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    unattended = unattended || argument.starts_with("--export-png") || argument == "--selftest" ||
                 argument == "--figures" || argument == "--help" || argument == "-h" ||
                 argument == "--version" || argument == "-v";
  }
  if (headless && !unattended) {
    write_stderr(
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
    const gui::ProgramOptions options = gui::parse_options(parser, QApplication::arguments());
    if (parser.isSet(QStringLiteral("help"))) {
      write_data(parser.helpText().toStdString());  // text of this program, with its lines
      return 0;
    }
    if (parser.isSet(QStringLiteral("version"))) {
      write_stdout("shardlens-gui " SHARDLENS_VERSION "\n");
      return 0;
    }
    // Unattended runs do not change the user's settings.
    const QTemporaryDir scratch;
    QString config = options.config_dir;
    if (config.isEmpty()) {
      config = options.unattended()
                   ? scratch.path()
                   : QStandardPaths::writableLocation(QStandardPaths::AppConfigLocation);
    }
    QSettings settings(config + QStringLiteral("/shardlens-gui.ini"), QSettings::IniFormat);
    return gui::show(options, settings);
  } catch (const Error& error) {
    write_stderr("shardlens-gui: {}\n", error.shown());
    return static_cast<int>(error.code());
  }
}
