#pragma once

#include <functional>

#include "gui/view/window/bookmarks.h"
#include "gui/view/window/ghost_lanes.h"
#include "gui/view/window/project_controller.h"
#include "gui/view/window/run_opener.h"
#include "gui/view/window/window_export.h"
#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// The commands of the menus. Menus list them in the order in which they are added. All arguments
// must outlive the registry's commands.
void add_file_commands(const WindowParts& parts,
                       RunOpener& opener,
                       ProjectController& project,
                       WindowExport& exporter);
void add_go_commands(const WindowParts& parts, Bookmarks& bookmarks);
void add_plan_commands(const WindowParts& parts, GhostLanes& ghosts);
// `switch_theme` switches between light and dark.
void add_view_commands(const WindowParts& parts, std::function<void()> switch_theme);
// The lanes of the timeline, which are arranged as the settings have it; changes are kept there.
void add_lane_commands(const WindowParts& parts);
void add_help_commands(const WindowParts& parts);

// Applies a plan file as an edit of the session's plan. Returns false and sets the last error on
// failure.
bool apply_plan(const WindowParts& parts, const QString& path);

}  // namespace shardlens::gui
