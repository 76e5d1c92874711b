#pragma once

#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// Opens the box that finds commands, units, modules, ranks and steps, and values of the plan's
// keys, which are edits.
void show_palette(const WindowParts& parts);

}  // namespace shardlens::gui
