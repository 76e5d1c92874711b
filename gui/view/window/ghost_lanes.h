#pragma once

#include <QObject>

#include "gui/view/timeline/timeline_layout.h"
#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// The lanes of another run below the open one: the simulated step of the plan, or run B of a
// comparison.
class GhostLanes : public QObject {
  Q_OBJECT
 public:
  explicit GhostLanes(const WindowParts& parts);
  void update();
  void toggle();         // shows or hides them
  void toggleOwnPlan();  // whether the run's own plan is shown simulated before it is edited

 private:
  [[nodiscard]] Ghost comparedGhost() const;
  [[nodiscard]] Ghost simulatedGhost() const;
  WindowParts parts_;
  bool shown_ = true;
  bool own_plan_ = false;
};

}  // namespace shardlens::gui
