#pragma once

#include <QByteArray>

#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// What the window shows as one HTML file without scripts or links to other files: the headline, the
// timeline as it is drawn, the details of the selection, the tables of the visible panels,
// bookmarks and notes. All names are escaped. Requires an open run.
[[nodiscard]] QByteArray share_page(const WindowParts& parts);

}  // namespace shardlens::gui
