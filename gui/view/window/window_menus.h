#pragma once

#include <vector>

#include <QMainWindow>

#include "gui/model/base/action_registry.h"
#include "gui/view/widgets/recent_files.h"

class QAction;
class QMenu;

namespace shardlens::gui {

// The menu bar: all commands by menu, and the list of what was opened before. Shortcuts belong to
// the menus' actions, so these are enabled and disabled immediately when a command's state changes.
class WindowMenus : public QObject {
  Q_OBJECT
 public:
  // All commands must exist already.
  WindowMenus(QMainWindow& window, ActionRegistry& actions, RecentFiles& recent);

 signals:
  void openRequested(const QStringList& paths);

 private:
  void add(QMenu& menu, const Command& command);
  void addRecent(QMenu& menu);
  void fillRecent();
  void update();
  ActionRegistry& actions_;
  RecentFiles& recent_;
  std::vector<QAction*> entries_;  // in the order of the commands
  QMenu* recent_menu_ = nullptr;
};

// The end of the path; a tooltip should have all of it.
[[nodiscard]] QString shortened(const QString& path);

}  // namespace shardlens::gui
