#include <cstdlib>

#include <nlohmann/json.hpp>

#include <QCoreApplication>
#include <QFile>
#include <QFileInfo>
#include <QImage>
#include <QProcess>
#include <QSettings>
#include <QStandardPaths>
#include <QTemporaryDir>
#include <QXmlStreamReader>

#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

// Runs the shardlens-gui executable.
class ProgramTest : public QtTest<QCoreApplication> {
 protected:
  struct Ended {
    int code = -1;
    QString out, error;
  };
  static Ended run(const QStringList& arguments,
                   const QString& platform = "offscreen",
                   const QString& program = "/shardlens-gui") {
    QProcess process;
    QProcessEnvironment environment = QProcessEnvironment::systemEnvironment();
    environment.remove("DISPLAY");
    environment.remove("WAYLAND_DISPLAY");
    environment.remove("QT_QPA_PLATFORM");
    if (!platform.isEmpty()) {
      environment.insert("QT_QPA_PLATFORM", platform);
    }
    process.setProcessEnvironment(environment);
    process.start(QFileInfo(program).exists() ? program : SHARDLENS_BIN_DIR + program, arguments);
    if (!process.waitForFinished(60'000)) {
      process.kill();
      process.waitForFinished();
      return {-2, {}, "did not end"};
    }
    return {process.exitStatus() == QProcess::NormalExit ? process.exitCode() : -3,
            process.readAllStandardOutput(), process.readAllStandardError()};
  }
  QString sample() { return QString::fromStdString(sample_run()); }
  QTemporaryDir folder_;
};

TEST_F(ProgramTest, WritesAPictureWithoutADisplay) {
  const QString png = folder_.path() + "/out.png";
  const Ended ended = run({sample(), "--export-png", png, "--size", "1000x700", "--step", "3",
                           "--select", "model.layers.2", "--theme", "dark"},
                          {});
  EXPECT_EQ(ended.code, 0) << ended.error.toStdString();
  EXPECT_EQ(ended.error.toStdString(), "");
  EXPECT_EQ(QImage(png).size(), QSize(1000, 700));
}

TEST_F(ProgramTest, SelftestPasses) {
  const Ended ended = run({"--selftest", sample()});
  EXPECT_EQ(ended.code, 0) << ended.error.toStdString();
  EXPECT_TRUE(ended.out.contains("all checks passed")) << ended.out.toStdString();
}

// Help and version need no display.
TEST_F(ProgramTest, PrintsItsHelpAndTheVersionOfThePrograms) {
  const Ended help = run({"--help"}, {});
  EXPECT_EQ(help.code, 0) << help.error.toStdString();
  EXPECT_TRUE(help.out.contains("--export-png")) << help.out.toStdString();
  const Ended version = run({"--version"}, {});
  EXPECT_EQ(version.code, 0) << version.error.toStdString();
  const QString number = run({"--version"}, {}, "/shardlens").out.split(' ').value(1).trimmed();
  EXPECT_EQ(version.out.toStdString(), "shardlens-gui " + number.toStdString() + "\n");
}

TEST_F(ProgramTest, WrongInputIsAMessageAndTheRightCode) {
  const QString png = folder_.path() + "/out.png";
  const struct {
    QStringList arguments;
    int code;
    const char* said;
  } cases[] = {
      {{"--nonsense"}, 2, "nonsense"},
      {{sample(), "--range", "5ms"}, 2, "--range"},
      {{sample(), "--range", "9ms..5ms"}, 2, "--range"},
      {{sample(), "--size", "big"}, 2, "--size"},
      {{sample(), "--theme", "pink"}, 2, "--theme"},
      {{sample(), "--export-png", folder_.path() + "/out.txt"}, 2, ".png"},
      {{sample(), "--export-png", png, "--select", "model.layers.99"}, 3, "model.layers.99"},
      {{sample(), "--export-png", png, "--step", "99"}, 3, "99"},
      {{sample(), "--export-png", png, "--panel", "kitchen"}, 2, "kitchen"},
      {{sample(), "--export-png", png, "--choose", "By unit"}, 2, "--panel"},
      {{sample(), "--export-png", png, "--panel", "memory", "--choose", "by hand"},
       2,
       "by category"},
      {{sample(), "--export-png", "/nowhere/at/all/out.png"}, 4, "/nowhere"},
      {{"/no/such/file.json", "--export-png", png}, 3, "/no/such/file.json"},
      {{QString(SHARDLENS_TEST_DATA) + "/corrupt/cut.json.gz", "--export-png", png},
       3,
       "cut.json.gz"},
  };
  for (const auto& each : cases) {
    const Ended ended = run(each.arguments);
    EXPECT_EQ(ended.code, each.code)
        << each.arguments.join(' ').toStdString() << ": " << ended.error.toStdString();
    EXPECT_TRUE(ended.error.contains(each.said)) << ended.error.toStdString();
  }
  EXPECT_FALSE(QFileInfo::exists(png));
}

// `shardlens gui` passes all arguments on.
TEST_F(ProgramTest, TheSubcommandIsTheProgram) {
  const QString png = folder_.path() + "/out.png";
  const Ended ended =
      run({"gui", sample(), "--step", "3", "--export-png", png, "--size", "1000x700"}, {},
          "/shardlens");
  EXPECT_EQ(ended.code, 0) << ended.error.toStdString();
  EXPECT_EQ(QImage(png).size(), QSize(1000, 700));
  EXPECT_EQ(run({"gui", sample(), "--range", "5ms", "--export-png", png}, {}, "/shardlens").code,
            2);
  EXPECT_EQ(run({"gui", "--nonsense"}, {}, "/shardlens").code, 2);
  EXPECT_EQ(run({"gui", sample(), "--dialog", "none", "--export-png", png}, {}, "/shardlens").code,
            2);
  // Showing the run's own plan, simulated, changes the picture.
  const QImage alone(png);
  EXPECT_EQ(
      run({"gui", sample(), "--step", "3", "--simulate", "--export-png", png, "--size", "1000x700"},
          {}, "/shardlens")
          .code,
      0);
  EXPECT_NE(QImage(png), alone);
  // Plan and machine are also recovered from PyTorch's traces.
  const QString trace = QString(SHARDLENS_TEST_DATA) + "/pytorch_traces/fsdp2-prefetch";
  const Ended told = run({"gui", trace, "--simulate", "--export-png", png}, {}, "/shardlens");
  EXPECT_EQ(told.code, 0) << told.error.toStdString();
}

// The window's figures as JSON: the headline as in `analyze`, the versions as in `simulate`.
TEST_F(ProgramTest, PrintsItsFigures) {
  const QString plan = folder_.path() + "/plan.json";
  QFile file(plan);
  ASSERT_TRUE(file.open(QIODevice::WriteOnly));
  file.write(R"({"version": 1, "forward_prefetch": 2})");
  file.close();
  const Ended ended =
      run({"gui", sample(), "--simulate", "--plan", plan, "--hardware", "8xH100", "--figures"}, {},
          "/shardlens");
  ASSERT_EQ(ended.code, 0) << ended.error.toStdString();
  const auto shown = nlohmann::json::parse(ended.out.toStdString());
  const Ended analyzed = run({"analyze", sample(), "--json"}, {}, "/shardlens");
  const auto rank = nlohmann::json::parse(analyzed.out.toStdString()).at("ranks").at(0);
  for (const auto& [key, value] : shown.at("headline").items()) {
    EXPECT_EQ(value, rank.at(key)) << key;
  }
  std::vector<std::string> machines;
  for (const auto& version : shown.at("versions")) {
    machines.push_back(version.at("machine"));
    EXPECT_GT(version.at("step_ns"), 0);
  }
  EXPECT_EQ(machines, (std::vector<std::string>{"run", "8xH100", "run", "8xH100"}));
  EXPECT_EQ(shown["versions"][0]["baseline"]["simulated_step_ns"], shown["versions"][0]["step_ns"]);
  EXPECT_TRUE(shown["versions"][1]["baseline"].is_null());
  EXPECT_EQ(run({"gui", sample(), "--plan", "none.json", "--figures"}, {}, "/shardlens").code, 3);
}

// A model and plans without a run: the simulation is shown instead of a run.
TEST_F(ProgramTest, AModelIsPlannedForWithoutARun) {
  const QString png = folder_.path() + "/out.png", plan = folder_.path() + "/plan.json";
  QFile file(plan);
  ASSERT_TRUE(file.open(QIODevice::WriteOnly));
  file.write(R"({"version": 1, "forward_prefetch": 2})");
  file.close();
  const QString model = sample() + "/config.json";
  const Ended ended = run({"--model", model, "--hardware", "8xH100", "--hardware", "8xA100-80",
                           "--plan", plan, "--panel", "What if", "--export-png", png});
  EXPECT_EQ(ended.code, 0) << ended.error.toStdString();
  EXPECT_FALSE(QImage(png).isNull());
  const QStringList on{"--hardware", "8xH100", "--export-png", png};
  EXPECT_EQ(run(QStringList{"--model", plan} + on).code, 3);
  EXPECT_EQ(run(QStringList{"--model", model, "--plan", model} + on).code, 3);
  // There is no default machine.
  const Ended none = run({"--model", model, "--export-png", png});
  EXPECT_NE(none.code, 0);
  EXPECT_TRUE(none.error.contains("--hardware")) << none.error.toStdString();
  // Panels are found by title or id; the error for an unknown panel lists the panels.
  for (const char* name : {"what-if", "whatif", "What if"}) {
    EXPECT_EQ(run(QStringList{"--model", model, "--panel", name} + on).code, 0) << name;
  }
  const Ended kitchen = run(QStringList{"--model", model, "--panel", "kitchen"} + on);
  EXPECT_EQ(kitchen.code, 2);
  EXPECT_TRUE(kitchen.error.contains("What if")) << kitchen.error.toStdString();
}

TEST_F(ProgramTest, WithoutADisplayItSaysWhatToDo) {
  const Ended ended = run({sample()}, {});
  EXPECT_EQ(ended.code, 4);
  EXPECT_TRUE(ended.error.contains("--export-png")) << ended.error.toStdString();
}

// `cmake --install` installs the menu entry, the file types, the icon, and a program that runs.
TEST_F(ProgramTest, InstalledItStartsAndItsFilesAreValid) {
  const QString prefix = folder_.path() + "/prefix", share = prefix + "/share/";
  const auto ends_well = [](const QString& program, const QStringList& arguments) {
    QProcess process;
    process.setProcessChannelMode(QProcess::MergedChannels);
    process.start(program, arguments);
    EXPECT_TRUE(process.waitForFinished(60'000) && process.exitCode() == 0)
        << program.toStdString() << ": " << process.readAll().toStdString();
  };
  ends_well("cmake", {"--install", SHARDLENS_BUILD_DIR, "--prefix", prefix});
  const QString desktop = share + "applications/shardlens.desktop";
  const QString types = share + "mime/packages/shardlens.xml";
  const QString metainfo = share + "metainfo/io.github.shardlens.Shardlens.metainfo.xml";
  const QString icon = share + "icons/hicolor/scalable/apps/shardlens.svg";
  const auto text_of = [](const QString& path) {
    QFile file(path);
    EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << path.toStdString();
    return QString::fromUtf8(file.readAll());
  };
  for (const QString& xml : {types, metainfo, icon}) {
    QXmlStreamReader reader(text_of(xml));
    while (!reader.atEnd()) {
      reader.readNext();
    }
    EXPECT_FALSE(reader.hasError()) << xml.toStdString() << reader.errorString().toStdString();
  }
  const QString entry = text_of(desktop), known = text_of(types);
  EXPECT_TRUE(entry.contains("\nIcon=shardlens\n"));
  const QString opened = entry.section("\nMimeType=", 1).section('\n', 0, 0);
  EXPECT_GE(opened.count(';'), 3);
  for (const QString& type : opened.split(';', Qt::SkipEmptyParts)) {
    EXPECT_TRUE(known.contains(QString("<mime-type type=\"%1\">").arg(type))) << type.toStdString();
  }
  // If they are installed, the standard validators of these files are run too.
  const std::pair<QString, QStringList> readers[] = {
      {"desktop-file-validate", {desktop}},
      {"appstreamcli", {"validate", "--no-net", metainfo}},
      {"update-mime-database", {share + "mime"}}};
  for (const auto& [program, arguments] : readers) {
    if (!QStandardPaths::findExecutable(program).isEmpty()) {
      ends_well(program, arguments);
    }
  }
  const QString png = folder_.path() + "/out.png";
  const Ended ended = run({"--selftest"}, "offscreen", prefix + "/bin/shardlens-gui");
  EXPECT_EQ(ended.code, 0) << ended.error.toStdString();
  EXPECT_EQ(run({"gui", share + "shardlens/traces/llama-emulated8", "--export-png", png}, {},
                prefix + "/bin/shardlens")
                .code,
            0);
  EXPECT_FALSE(QImage(png).isNull());
}

// A separate X server, with a window manager if `managed`.
class Screen {
 public:
  explicit Screen(bool managed) {
    server_.start("Xvfb", {"-displayfd", "1", "-screen", "0", "1600x1000x24", "-nolisten", "tcp"});
    if (!server_.waitForReadyRead(20'000)) {
      return;
    }
    environment_ = QProcessEnvironment::systemEnvironment();
    environment_.insert("DISPLAY", ":" + QString(server_.readAllStandardOutput()).trimmed());
    environment_.insert("QT_QPA_PLATFORM", "xcb");
    environment_.insert("SHARDLENS_TEST_PLATFORM", "xcb");
    if (managed) {
      manager_.setProcessEnvironment(environment_);
      manager_.start("openbox", {"--sm-disable"});
      manager_.waitForStarted();
      wait_until([this] { return manages(); }, std::chrono::seconds(20));
    }
  }
  ~Screen() {
    for (QProcess* process : {&manager_, &server_}) {
      if (process->state() != QProcess::NotRunning) {
        process->terminate();
        process->waitForFinished();
      }
    }
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  [[nodiscard]] const QProcessEnvironment& environment() const { return environment_; }
  // xdotool's command for focusing; a window can be activated only with a window manager.
  [[nodiscard]] QString focus() const {
    return manager_.state() == QProcess::NotRunning ? "windowfocus" : "windowactivate";
  }

 private:
  // Whether the window manager is running; it does not manage windows opened earlier.
  bool manages() {
    QProcess tool;
    tool.setProcessEnvironment(environment_);
    tool.start("xdotool", {"get_num_desktops"});
    return tool.waitForFinished() && tool.exitCode() == 0;
  }
  QProcess server_, manager_;
  QProcessEnvironment environment_;
};

std::string missing(std::initializer_list<const char*> programs) {
  for (const char* program : programs) {
    if (QStandardPaths::findExecutable(program).isEmpty()) {
      return program;
    }
  }
  return {};
}

// Starts the program, lets xdotool perform `actions` on its window, and waits until it ends.
void drive(const Screen& screen, const QStringList& arguments, const QStringList& actions) {
  QProcess program;
  program.setProcessEnvironment(screen.environment());
  program.start(QString(SHARDLENS_BIN_DIR) + "/shardlens-gui", arguments);
  QProcess tool;
  tool.setProcessEnvironment(screen.environment());
  tool.start("timeout", QStringList{"40", "xdotool", "search", "--sync", "--onlyvisible", "--name",
                                    "llama-emulated8", screen.focus(), "--sync"} +
                            actions);
  EXPECT_TRUE(tool.waitForFinished(45'000));
  // The last key closes the window, which xdotool may notice before it has ended.
  const std::string said = tool.readAllStandardError().toStdString();
  EXPECT_TRUE(tool.exitCode() == 0 || said.find("BadWindow") != std::string::npos) << said;
  EXPECT_TRUE(program.waitForFinished(20'000)) << "it did not quit";
  EXPECT_EQ(program.exitStatus(), QProcess::NormalExit);
  EXPECT_EQ(program.exitCode(), 0);
  EXPECT_EQ(program.readAllStandardError().toStdString(), "");
  program.kill();
  program.waitForFinished();
}

// Keys sent through an X server (the last one is not released, because its window is gone then):
// switches to the dark theme and quits; the setting must be saved.
TEST_F(ProgramTest, KeysReachItThroughX) {
  if (const std::string none = missing({"Xvfb", "xdotool"}); !none.empty()) {
    GTEST_SKIP() << "needs " << none;
  }
  const Screen screen(false);
  drive(screen, {"--config-dir", folder_.path(), sample()},
        {"key", "w", "key", "w", "key", "ctrl+shift+d", "keydown", "ctrl+q"});
  EXPECT_TRUE(QSettings(folder_.path() + "/shardlens-gui.ini", QSettings::IniFormat)
                  .value("dark")
                  .toBool());
}

// Clicks sent through an X server: on the tree, the rank's name, the timeline and the tables.
TEST_F(ProgramTest, TheMouseReachesItThroughX) {
  if (const std::string none = missing({"Xvfb", "xdotool", "openbox"}); !none.empty()) {
    GTEST_SKIP() << "needs " << none;
  }
  const Screen screen(true);
  QStringList actions;
  for (int y = 130; y < 780; y += 18) {  // the rank's name is in this column
    actions += {"mousemove", "--window", "%1", "430", QString::number(y), "click", "1"};
  }
  for (const int x : {100, 700, 1100}) {
    for (int y = 130; y < 740; y += 60) {
      actions += {"mousemove", "--window", "%1", QString::number(x), QString::number(y), "click"};
      actions += y % 120 == 10 ? QStringList{"--repeat", "2", "1"} : QStringList{"1"};
    }
  }
  drive(screen, {"--config-dir", folder_.path(), sample()},
        actions +
            QStringList{"key", "--window", "0", "Escape", "keydown", "--window", "0", "ctrl+q"});
}

// In milliseconds: less than CTest waits, so that what they printed is seen.
constexpr int kLongestTests = 130'000;

// The mouse tests and the random tests, with a window manager.
TEST_F(ProgramTest, TestsOfTheMousePassUnderAWindowManager) {
  if (const std::string none = missing({"Xvfb", "xdotool", "openbox"}); !none.empty()) {
    GTEST_SKIP() << "needs " << none;
  }
  const Screen screen(true);
  QProcessEnvironment environment = screen.environment();
  environment.insert("SHARDLENS_MONKEY_ACTIONS", "100");
  for (const char* test : {"gui_view_test --gtest_filter=MouseTest.*",
                           "gui_monkey_test --gtest_filter=*ACapture:*APlanOnly"}) {
    QProcess process;
    process.setProcessEnvironment(environment);
    process.setProcessChannelMode(QProcess::MergedChannels);
    QStringList words = QString(test).split(' ');
    process.start(QString(SHARDLENS_BUILD_DIR) + "/tests/" + words.takeFirst(), words);
    EXPECT_TRUE(process.waitForFinished(kLongestTests)) << test << " did not end";
    EXPECT_EQ(process.exitCode(), 0) << test << ":\n" << process.readAll().toStdString();
    process.kill();
    process.waitForFinished();
  }
}

}  // namespace
}  // namespace shardlens::gui
