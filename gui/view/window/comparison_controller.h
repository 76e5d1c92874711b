#pragma once

#include <QObject>

#include "gui/model/compare/plan_runs.h"
#include "gui/view/window/bookmarks.h"
#include "gui/view/window/status_line.h"
#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// Opens, swaps and ends the comparison of the open run A with a run B.
class ComparisonController : public QObject {
  Q_OBJECT
 public:
  ComparisonController(const WindowParts& parts, Bookmarks& bookmarks, StatusLine& status);
  void addCommands();
  void open(const QStringList& paths);  // of B
  // Opens the run of a version that was just measured as B. Without a recorded run, the version's
  // prediction is A.
  void open(const PlanRun& run);
  void swap();  // A's plan versions and bookmarks are lost

 signals:
  void swapRequested();  // by the user; nothing is lost yet
  void settled();        // B is loaded, or it could not be

 private:
  void choose();
  void close();
  void showChange();
  void fail(const QString& message);
  WindowParts parts_;
  Bookmarks& bookmarks_;
  StatusLine& status_;
  bool behind_ = false;  // the panel Compare stays where it is
};

}  // namespace shardlens::gui
