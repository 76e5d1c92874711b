#pragma once

#include "gui/model/base/time_axis.h"

class QWheelEvent;

namespace shardlens::gui {

// The event's turn; Ctrl makes it fine.
[[nodiscard]] TimeAxis::Wheel turn_of(const QWheelEvent& event);

}  // namespace shardlens::gui
