#pragma once

#include <functional>

#include <QObject>
#include <QPoint>

#include "gui/view/widgets/menu_target.h"
#include "gui/view/window/bookmarks.h"
#include "gui/view/window/window_parts.h"

class QMenu;

namespace shardlens::gui {

// The menu of the right button: what can be done with a row of a panel, or with what lies under the
// pointer in the timeline.
class ContextMenu : public QObject {
  Q_OBJECT
 public:
  ContextMenu(const WindowParts& parts, Bookmarks& bookmarks);
  void show(const MenuTarget& target, const QPoint& where);

 private:
  void add(QMenu& menu, const QString& title, std::function<void()> run);
  void addCommand(QMenu& menu, const char* id);
  void addRank(QMenu& menu, size_t rank);
  void addLane(QMenu& menu, const MenuTarget& target);
  void addPlaces(QMenu& menu, const MenuTarget& target);
  void addBookmark(QMenu& menu, Nanoseconds time);
  WindowParts parts_;
  Bookmarks& bookmarks_;
};

}  // namespace shardlens::gui
