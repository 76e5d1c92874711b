#pragma once

#include <string>
#include <vector>

#include <QWidget>

#include "gui/model/what_if/edit_history.h"

class QMenu;
class QToolButton;

namespace shardlens::gui {

// Edits how the plan treats the modules selected in the tree: one button for each of the
// most used knobs, with its choices in a menu, and one for the other knobs. Choices that the engine
// cannot run are marked, with the reason as a tooltip.
class ModuleBar : public QWidget {
  Q_OBJECT
 public:
  explicit ModuleBar(PlanSession& session, QWidget* parent = nullptr);
  void setModules(const std::vector<std::string>& modules);  // FQNs; empty: no module is selected
  [[nodiscard]] size_t count() const { return menus_.size(); }
  [[nodiscard]] QMenu& menu(size_t knob);  // filled as if it were opened now

 private:
  QToolButton* addButton(const QString& title, const QString& help);
  void fill(size_t knob);
  [[nodiscard]] QString refusal() const;
  void update();
  PlanSession& session_;
  std::vector<std::string> modules_;
  std::vector<QToolButton*> buttons_;
  std::vector<QMenu*> menus_;  // by knob
};

}  // namespace shardlens::gui
