#include "gui/view/widgets/time_wheel.h"

#include <QWheelEvent>

namespace shardlens::gui {

TimeAxis::Wheel turn_of(const QWheelEvent& event) {
  constexpr double kNotch = 120;  // of QWheelEvent::angleDelta()
  return {event.angleDelta().y() / kNotch, event.angleDelta().x() / kNotch,
          (event.modifiers() & Qt::ShiftModifier) != 0,
          (event.modifiers() & Qt::ControlModifier) != 0};
}

}  // namespace shardlens::gui
