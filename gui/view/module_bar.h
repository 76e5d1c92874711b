#pragma once

#include <string>
#include <vector>

#include <QWidget>

#include "gui/model/plan_session.h"

class QMenu;
class QToolButton;

namespace shardlens::gui {

// What the plan can do differently with the modules that are chosen in the tree: a button for each
// knob, its choices in a menu. What the engine cannot run is marked, with its reason as a tooltip.
class ModuleBar : public QWidget {
  Q_OBJECT
 public:
  explicit ModuleBar(PlanSession& session, QWidget* parent = nullptr);
  void setModules(const std::vector<std::string>& modules);  // FQNs; none: nothing is chosen
  [[nodiscard]] size_t count() const { return buttons_.size(); }
  [[nodiscard]] QMenu& menu(size_t knob);  // filled as it would open now

 private:
  void fill(size_t knob);
  [[nodiscard]] QString refusal() const;
  void update();
  PlanSession& session_;
  std::vector<std::string> modules_;
  std::vector<QToolButton*> buttons_;
};

}  // namespace shardlens::gui
