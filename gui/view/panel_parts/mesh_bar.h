#pragma once

#include <string>
#include <vector>

#include <QWidget>

#include "gui/model/what_if/edit_history.h"
#include "gui/view/widgets/theme.h"

class QMenu;
class QToolButton;

namespace shardlens::gui {

// The axes of the edited plan's mesh in their colours. The menu of each has its sizes, and the ways
// to split it or to merge it with another axis, as edits of the plan. What is refused, or cannot be
// simulated, is marked, with the reason as a tooltip.
class MeshBar : public QWidget {
  Q_OBJECT
 public:
  explicit MeshBar(PlanSession& session, QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  // The menu of an axis of plan::mesh_axes(), filled as if it were opened now.
  [[nodiscard]] QMenu& menu(const std::string& axis);

 signals:
  void axisLit(const std::string& axis);  // the pointer is on it; "": on none

 protected:
  bool eventFilter(QObject* object, QEvent* event) override;

 private:
  void update();
  void fill(size_t axis);
  PlanSession& session_;
  std::vector<QToolButton*> buttons_;  // by axis
};

}  // namespace shardlens::gui
