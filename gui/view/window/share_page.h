#pragma once

#include <QByteArray>

#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// One HTML file with what the window shows, without scripts or links to other files: the headline,
// the timeline as it is drawn, the details of the selection, the tables of the visible panels,
// bookmarks and notes. All names are escaped. Requires an open run.
[[nodiscard]] QByteArray share_page(const WindowParts& parts);

}  // namespace shardlens::gui
