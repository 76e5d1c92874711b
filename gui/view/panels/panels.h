#pragma once

#include <vector>

#include <QByteArray>
#include <QDockWidget>
#include <QObject>
#include <QTimer>

#include "core/base/error.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"

class QMainWindow;

namespace shardlens::gui {

// The docks around the timeline, one for each row of panel_table().
class Panels : public QObject {
  Q_OBJECT
 public:
  Panels(const PanelContext& context, QMainWindow& window);

  struct Docked {
    const PanelRow* row;
    QDockWidget* dock;
    Panel* panel;  // the dock's widget
  };
  [[nodiscard]] const std::vector<Docked>& all() const { return panels_; }
  [[nodiscard]] const Docked& find(const QString& id) const;  // RuntimeFault: there is none
  // The panel of this class.
  template <class Wanted>
  [[nodiscard]] Wanted& get() const {
    for (const Docked& docked : panels_) {
      if (auto* panel = dynamic_cast<Wanted*>(docked.panel)) {
        return *panel;
      }
    }
    throw RuntimeFault("no panel of this class");
  }
  // The table or tree of this class that a panel has.
  template <class Wanted>
  [[nodiscard]] Wanted& model() const {
    for (const Docked& docked : panels_) {
      for (const QAbstractItemView* view : docked.panel->findChildren<QAbstractItemView*>()) {
        if (auto* wanted = qobject_cast<Wanted*>(view->model())) {
          return *wanted;
        }
      }
    }
    throw RuntimeFault("no panel shows a table of this class");
  }

  void setTheme(const Theme& theme);
  void arrange();  // restores the layout of the first start
  void hide();     // all docks
  // Gives the docks below the timeline the whole window, or makes the layout what it was before.
  void setLarge(bool large);
  [[nodiscard]] bool isLarge() const { return !before_.isEmpty(); }
  void raise(const QString& id);  // brings the panel with this id to the front
  void focusSearch();             // brings the panel with a search box to the front
  void walkFound(int way);        // see Panel
  void showCursor(std::optional<Nanoseconds> time);
  [[nodiscard]] bool isBusy() const;  // see Panel
  void flush();                       // runs pending delayed updates now

 signals:
  void menuRequested(const shardlens::gui::MenuTarget& target, const QPoint& where);
  void goRequested();  // to show the selection in the timeline
  void focusLost();    // the panel with the keyboard was closed or covered, and none is in front

 private:
  // Whether the user sees the panel: Qt calls panels behind a tab visible.
  [[nodiscard]] static bool isSeen(const Docked& docked);
  void takeFocusFromCovered();
  void add(const PanelRow& row, PanelPointer panel);
  void showRun();
  void showSelection();
  QDockWidget* dockAtLeft();                              // returns the last one
  [[nodiscard]] std::vector<QDockWidget*> tabs() const;   // of PanelPlace::kBottom
  [[nodiscard]] std::vector<QDockWidget*> aside() const;  // of PanelPlace::kAside

  PanelContext context_;
  QMainWindow& window_;
  std::vector<Docked> panels_;
  QByteArray before_;  // the layout before the panels became large; otherwise empty
  QTimer later_;
};

}  // namespace shardlens::gui
