#pragma once

#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// Opens the box that finds commands, units and steps.
void show_palette(const WindowParts& parts);

}  // namespace shardlens::gui
