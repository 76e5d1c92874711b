#pragma once

#include <QObject>

#include "gui/view/window/bookmarks.h"
#include "gui/view/window/preview_page.h"
#include "gui/view/window/project_controller.h"
#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// Opens runs, projects, and models without a run.
class RunOpener : public QObject {
  Q_OBJECT
 public:
  RunOpener(const WindowParts& parts, Bookmarks& bookmarks, ProjectController& project);
  // Traces, capture directories, or one project. Asks the user first if the open project has
  // unsaved changes.
  void open(const QStringList& paths);
  // A model's config.json. `hardware`: a spec's name or file; "": the user is asked (if unattended,
  // this is an error).
  void openModel(const QString& config, const QString& hardware);
  // Reads again what is open: a project with its plans and notes, a model, or traces.
  void reload();
  void cancel();  // stops loading
  // Path of the small capture that comes with the program; "" if it is not installed.
  [[nodiscard]] static QString sampleRun();

  // These ask for what to open.
  void chooseTraces();
  void chooseDirectory();
  void chooseModel();
  void chooseProject();
  void capture();

 signals:
  void settled();  // a load has ended, with or without success

 private:
  void openTraces(const QStringList& paths);
  void openProject(const QString& path);
  void chooseHardware(const QString& config);
  void showModel();
  void loaded(const RunPointer& run);
  void keepView(const PreviewPage::View& seen);
  void cancelled();
  void fail(const QString& message);
  WindowParts parts_;
  Bookmarks& bookmarks_;
  ProjectController& project_;
  QStringList wanted_;  // paths of the run that is being read
};

}  // namespace shardlens::gui
