#include "gui/view/window/command_adder.h"
#include "gui/view/window/commands.h"

namespace shardlens::gui {
namespace {

void add_open_commands(CommandAdder& file, RunOpener& opener) {
  const auto always = [] { return true; };
  file.add(QStringLiteral("file.open"), QObject::tr("Open traces …"), {QStringLiteral("Ctrl+O")},
           [&opener] { opener.chooseTraces(); }, always, {});
  file.add(QStringLiteral("file.openDirectory"), QObject::tr("Open a capture directory …"),
           {QStringLiteral("Ctrl+Shift+O")}, [&opener] { opener.chooseDirectory(); }, always, {});
  file.add(
      QStringLiteral("file.sample"), QObject::tr("Open the sample run"), {},
      [&opener] { opener.open({RunOpener::sampleRun()}); },
      [] { return !RunOpener::sampleRun().isEmpty(); },
      QObject::tr("The sample run was not installed with the program"));
  file.add(QStringLiteral("file.newPlan"), QObject::tr("New plan for a model's config.json …"),
           {QStringLiteral("Ctrl+N")}, [&opener] { opener.chooseModel(); }, always, {});
}

void add_run_commands(CommandAdder& file,
                      RunOpener& opener,
                      WindowPages& pages,
                      WindowExport& exporter) {
  file.separate();
  file.add(QStringLiteral("file.reload"), QObject::tr("Read the run again"), {QStringLiteral("F5")},
           [&opener] { opener.reload(); });
  file.add(QStringLiteral("file.start"), QObject::tr("Start page"), {QStringLiteral("Ctrl+Home")},
           [&pages] { pages.toggle(); });
  file.add(QStringLiteral("file.export"), QObject::tr("Export picture or table …"),
           {QStringLiteral("Ctrl+E")}, [&exporter] { exporter.choose(); });
}

void add_project_commands(CommandAdder& file, RunOpener& opener, ProjectController& project) {
  const auto always = [] { return true; };
  file.separate();
  file.add(QStringLiteral("file.capture"), QObject::tr("Capture on this machine …"), {},
           [&opener] { opener.capture(); }, always, {});
  file.separate();
  file.add(QStringLiteral("file.openProject"), QObject::tr("Open a project …"),
           {QStringLiteral("Ctrl+Alt+O")}, [&opener] { opener.chooseProject(); }, always, {});
  file.add(QStringLiteral("file.saveProject"), QObject::tr("Save the project"),
           {QStringLiteral("Ctrl+S")}, [&project] { project.save(); });
  file.add(QStringLiteral("file.saveProjectAs"), QObject::tr("Save the project as …"),
           {QStringLiteral("Ctrl+Shift+S")}, [&project] { project.saveAs(); });
}

}  // namespace

void add_file_commands(const WindowParts& parts,
                       RunOpener& opener,
                       ProjectController& project,
                       WindowExport& exporter) {
  CommandAdder file(
      parts.actions, QObject::tr("&File"), [parts] { return parts.hasRun(); },
      QObject::tr("Open a run first"));
  add_open_commands(file, opener);
  add_run_commands(file, opener, parts.pages, exporter);
  add_project_commands(file, opener, project);
  file.separate();
  file.add(
      QStringLiteral("file.quit"), QObject::tr("Quit"), {QStringLiteral("Ctrl+Q")},
      [parts] { parts.window.close(); }, [] { return true; }, {});
}

}  // namespace shardlens::gui
